"""`recurrent`: Hugging Face models with convolutions, state spaces or delta rules, by the kernels that take boundaries.

All rows go through the model end to end as one, since the delta rule's kernels take offsets of one row alone, and
outputs come back. Attention layers get flash varlen kwargs: the flash function that the model was built with, or the
reference where it was built with another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from neatpack.adapters.document_rows import joined_row
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.adapters.positions import build_position_ids
from neatpack.adapters.recurrent import joined_segment_index
from neatpack.contracts.fields import IGNORED_LABEL
from neatpack.kernels_bridge.consumers import hf_flash, reference
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.families import Knowledge, recurrent_arguments, recurrent_knowledge
from neatpack.kernels_bridge.hf_models import HFConsumer, common_arguments
from neatpack.kernels_bridge.models import is_flash, text_config
from neatpack.kernels_bridge.moved_arguments import COUPLING, moved_arguments, require_per_token
from neatpack.kernels_bridge.outputs import put_back
from neatpack.kernels_bridge.recurrent_kernels import kernels_reason

_OFFSETS: Final = "cu_seqlens"


@dataclass(frozen=True)
class RecurrentConsumer(HFConsumer):
    """Takes models of known families whose kernels are installed."""

    def known(self, model: nn.Module) -> Knowledge:
        """Tell what is known of the family's recurrent layers."""
        return recurrent_knowledge(model)

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        """Give all rows as one, with the boundaries under the names that the family's layers read.

        Raises:
            DocumentIdsError: a document has a hole.
            EncodingError: an argument is not per token, or asks for what cannot be brought back.
        """
        require_per_token(call)
        return {**common_arguments(model, call), **self.arguments(model, call)}

    def restore(self, model: nn.Module, call: PackedCall, output: object) -> object:
        """Cut the one row into the packed rows again.

        Raises:
            ModelError: a field of the output is not per token, and is named.
        """
        del model
        return put_back([output], joined_row(call.segments), lambda losses: losses[0])


def attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """Attend by the model's flash function, or by the reference where it was built with another attention.

    Raises:
        BoundariesMissingError: the offsets did not arrive.
        ModelError: the layer made a mask of its own.
    """
    others: dict[str, Any] = {name: option for name, option in options.items() if name not in (_OFFSETS, "seq_idx")}
    if is_flash(implementation):
        return hf_flash.attend(implementation, module, query, key, value, attention_mask, **others)
    others["packed_token_indices"] = torch.arange(query.shape[2], device=query.device)
    return reference.attend(implementation, module, query, key, value, attention_mask, **others)


def _arguments(model: nn.Module, call: PackedCall) -> Mapping[str, object]:
    rows = joined_row(call.segments)
    arguments = moved_arguments(call, rows, 0)
    if call.arguments.get("position_ids") is None:
        arguments["position_ids"] = rows.take(build_position_ids(call.structural), 0)
    labels = call.arguments.get("labels")
    if isinstance(labels, Tensor):
        labels = labels.clone()
        labels[:, 0] = IGNORED_LABEL  # the model shifts: what begins a row is the target of nothing
        arguments["labels"] = rows.take(labels, 0)
    kwargs = flash_varlen_kwargs(call.segments)
    arguments.update(kwargs, seq_idx=joined_segment_index(call.segments).seq_idx)
    if _OFFSETS in recurrent_arguments(model):
        arguments[_OFFSETS] = kwargs["cu_seq_lens_q"]
    return arguments


def _reason_against(model: nn.Module) -> str | None:
    for name, what in COUPLING.items():
        if getattr(text_config(model), name, False):
            return f"its config asks for {what}, which cannot be told apart by document: set {name}=False"
    return kernels_reason(model)


CONSUMER: Final = RecurrentConsumer("recurrent", "document_ids", attend, _arguments, _reason_against, takes_holes=False)
