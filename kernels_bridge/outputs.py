"""Outputs of a model that was called with one document per row, brought back to the places of the packed rows.

A field goes by its name: only those that are known to be per token, and the mean loss, can be brought back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, cast

import torch
from torch import Tensor

from neatpack.adapters.document_rows import DocumentRows
from neatpack.contracts.errors import ModelError, Problem

PER_TOKEN: Final[Mapping[str, int]] = {
    "logits": 1,
    "last_hidden_state": 1,
    "hidden_states": 1,
    "logits_ngram": 2,
}
"""Output fields of Transformers with `batch` first, or tuples of such tensors, and where their `sequence` stands."""

LOSS: Final = "loss"

_REMEDIES: Final[Mapping[str, str]] = {
    "past_key_values": "Pass use_cache=False.",
    "cache_params": "Pass use_cache=False.",
    "state": "Pass use_cache=False.",
    "attentions": "Pass output_attentions=False.",
    "router_logits": "Pass output_router_logits=False.",
    "aux_loss": "Pass output_router_logits=False.",
}
_OTHER_REMEDY: Final = "Ask the model for its logits and hidden states alone."


def put_back(outputs: Sequence[object], rows: DocumentRows, join_losses: Callable[[list[Tensor]], Tensor]) -> object:
    """Make one output, as of the packed rows, of what a model returned for each batch of documents.

    Args:
        outputs: of each batch: a tensor `[documents, longest, ...]`, or a mapping, dataclass or tuple of such.
        rows: where the documents came from.
        join_losses: makes one loss of those of all batches.

    Raises:
        ModelError: a field of the output is not per token, and is named.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return _tensor("output", outputs, rows, join_losses)
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        changed = {
            name: _named(name, [getattr(each, name) for each in outputs], rows, join_losses)
            for name in names
            if getattr(first, name) is not None
        }
        return replace(cast("Any", first), **changed)
    if isinstance(first, Mapping):
        mappings = cast("Sequence[Mapping[str, object]]", outputs)
        return {name: _named(name, [each[name] for each in mappings], rows, join_losses) for name in mappings[0]}
    if isinstance(first, tuple):
        listed = cast("Sequence[tuple[object, ...]]", outputs)
        return tuple(
            _tensor(f"output[{index}]", parts, rows, join_losses)
            for index, parts in enumerate(zip(*listed, strict=True))
        )
    raise _immovable("output", first)


def _named(
    name: str, values: Sequence[object], rows: DocumentRows, join_losses: Callable[[list[Tensor]], Tensor]
) -> object:
    if name not in PER_TOKEN and name != LOSS and values[0] is not None:
        raise _immovable(name, values[0])
    if isinstance(values[0], tuple):
        layers = cast("Sequence[tuple[object, ...]]", values)
        return tuple(_tensor(name, layer, rows, join_losses) for layer in zip(*layers, strict=True))
    return _tensor(name, values, rows, join_losses)


def _tensor(
    name: str, values: Sequence[object], rows: DocumentRows, join_losses: Callable[[list[Tensor]], Tensor]
) -> Tensor | None:
    if values[0] is None:
        return None
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) == len(values) and tensors[0].ndim == 0:
        return join_losses(tensors)
    axis = PER_TOKEN.get(name, 1)
    tensors = [tensor.movedim(axis, 1) if tensor.ndim > axis else tensor for tensor in tensors]
    shapes = [tuple(places.shape) for places in rows.places]
    if [tuple(tensor.shape[:2]) for tensor in tensors] != shapes:
        raise _immovable(name, values[0])
    return rows.put_back(tensors).movedim(1, axis)


def mean_of_losses(losses: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Join means over the targets of each batch into the mean over all targets.

    Args:
        losses: of each batch, no dimension; not a number where the batch has no target.
        targets: how many targets each batch has, integers without dimension.
    """
    counts = torch.stack(list(targets)).to(losses[0].dtype)
    means = torch.stack(list(losses))
    return torch.where(counts > 0, means * counts, 0).sum() / counts.sum()


def sum_of_losses(losses: Sequence[Tensor]) -> Tensor:
    """Join losses that were divided by the number of all targets."""
    return torch.stack(list(losses)).sum()


def _immovable(name: str, value: object) -> ModelError:
    found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    message = "is not known to be per token, so it cannot be brought back to the packed rows"
    return ModelError(Problem(name, message, "unsupported", value=found, remedy=_REMEDIES.get(name, _OTHER_REMEDY)))
