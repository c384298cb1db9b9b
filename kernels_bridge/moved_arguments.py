"""Arguments of a call whose tokens get other rows than they were packed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from neatpack.adapters.document_rows import DocumentRows
from neatpack.adapters.token_fields import PER_DOCUMENT, token_axis
from neatpack.contracts.errors import EncodingError, Problem
from neatpack.contracts.fields import IGNORED_LABEL
from neatpack.kernels_bridge.entry import PackedCall

LABELS: Final = ("labels", "shift_labels")
"""Targets by the names that Transformers reads: those that the model shifts, and those that are shifted."""

COUPLING: Final[Mapping[str, str]] = {"output_attentions": "attentions", "output_router_logits": "router losses"}
"""What is asked of a model by these names holds no value per token, or one that depends on the other documents."""

_FILLS: Final[Mapping[str, int]] = {**dict.fromkeys(LABELS, IGNORED_LABEL), "padding_mask": 1}


def require_per_token(call: PackedCall) -> None:
    """Refuse a call that asks for what cannot be brought back to the packed rows.

    Raises:
        EncodingError: it continues a cache, or asks for attentions or router losses.
    """
    if call.arguments.get("past_key_values") is not None:
        remedy = "Leave past_key_values out: a packed row is whole."
        raise EncodingError(Problem("past_key_values", "packed rows take no cache", "unsupported", remedy=remedy))
    for name, what in COUPLING.items():
        if call.arguments.get(name):
            message = f"{what} cannot be brought back to the packed rows"
            raise EncodingError(Problem(name, message, "unsupported", value=True, remedy="Leave it out."))


def moved_arguments(call: PackedCall, rows: DocumentRows, batch: int) -> dict[str, object]:
    """Move every argument that is per token to the rows of one batch.

    Raises:
        EncodingError: a tensor is not per token.
    """
    moved: dict[str, object] = {}
    for name, value in call.arguments.items():
        if isinstance(value, Tensor) and value.ndim and name not in PER_DOCUMENT:
            axis = token_axis(name, value, rows.shape)
            if axis is None:
                message = "is not per token, so it cannot move with the tokens"
                shape = tuple(value.shape)
                raise EncodingError(Problem(name, message, "unsupported", value=shape, remedy="Leave it out."))
            moved[name] = rows.take(value, batch, axis=axis, fill=_FILLS.get(name, 0))
    return moved
