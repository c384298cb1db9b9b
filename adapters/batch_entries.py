"""What is asked of a batch before its entries are used: that it is a mapping, what it has, and what it may not have."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final, cast

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from neatpack.adapters.arguments import require_instance, tensor_problems
from neatpack.adapters.boundary_fields import KERNEL_FIELDS
from neatpack.contracts.axes import field_axes
from neatpack.contracts.batch import TrainingBatch, validate_training_batch
from neatpack.contracts.errors import BatchError, EncodingError, Problem

FIELD_RULES: Final = field_axes(TrainingBatch)
"""What a batch declares of its entries: their dimensions, by name."""


def require_batch(batch: object) -> None:
    """Raise unless a batch is a mapping whose entries can be replaced, and taken out for good.

    Raises:
        BatchError: it is something else.
    """
    found = type(batch).__name__
    # What is taken out of the first map of a ChainMap comes to light in the others.
    if not isinstance(batch, MutableMapping) or isinstance(batch, ChainMap):
        message = "must be a mapping whose entries can be replaced and taken out"
        remedy = "Pass a dict; of another mapping, dict(batch)."
        raise BatchError(Problem("batch", message, "type", value=found, remedy=remedy))


def entries(batch: TrainingBatch[Tensor]) -> Mapping[str, object]:
    """Give the entries of a batch, those that it does not declare included.

    Raises:
        BatchError: the batch is no mapping.
    """
    require_instance(batch, Mapping, "batch", "Pass a dict.", error=BatchError)
    return cast("Mapping[str, object]", batch)


def require_structure(batch: TrainingBatch[Tensor]) -> None:
    """Check ranks, dtypes and equal sizes of the entries that are there.

    Raises:
        BatchError: with every problem.
    """
    problems = [problem for problem in validate_training_batch(batch) if problem.kind != "missing"]
    if problems:
        raise BatchError(*problems)


def batch_shape(batch: TrainingBatch[Tensor]) -> tuple[int, int]:
    """Give rows and places of a row, by `input_ids`.

    Raises:
        BatchError: the batch has no `input_ids` of two dimensions.
    """
    tokens = entries(batch).get("input_ids")
    if tokens is None:
        raise BatchError(Problem("input_ids", "missing", "missing", remedy="Give the tokens, [batch, sequence]."))
    problems = tensor_problems(tokens, "input_ids", data=False)
    if problems or not isinstance(tokens, Tensor):
        raise BatchError(*problems)
    if tokens.ndim != 2:
        message, remedy = "must be [batch, sequence]", "One row alone is [1, sequence]."
        raise BatchError(Problem("input_ids", message, "rank", value=tuple(tokens.shape), remedy=remedy))
    return tokens.shape[0], tokens.shape[1]


def require_tensor(batch: TrainingBatch[Tensor], name: str, remedy: str) -> Tensor:
    """Give a tensor of the batch.

    Raises:
        BatchError: there is no such tensor in it.
    """
    value = entries(batch).get(name)
    if value is None:
        raise BatchError(Problem(name, "missing", "missing", remedy=remedy))
    problems = tensor_problems(value, name)
    if problems:
        raise BatchError(*problems)
    return cast("Tensor", value)


def given_ids(batch: TrainingBatch[Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """Give the ids of these names that the batch has, in the order of the names.

    Raises:
        BatchError: it has none.
    """
    given = entries(batch)
    ids = {name: value for name in names if isinstance(value := given.get(name), Tensor)}
    if not ids:
        raise BatchError(Problem("document_ids", "the batch has no ids", "missing", remedy="Supply document_ids."))
    return ids


def holds_tensors(value: object) -> bool:
    """Tell whether an entry is a tensor, FlexAttention's mask, or holds some."""
    if isinstance(value, Mapping):
        return any(map(holds_tensors, cast("Mapping[object, object]", value).values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_tensors, cast("Sequence[object]", value)))
    return isinstance(value, (Tensor, BlockMask))


def refuse_kernel_fields(given: Mapping[str, object]) -> None:
    """Raise where a batch holds arguments of kernels, which cannot be compared with its ids.

    Raises:
        EncodingError: with every such argument.
    """
    message = "is an argument of kernels, whose name does not tell which places it counts"
    remedy = "Leave it out, and derive it from the ids where the kernel is called."
    problems = [
        Problem(name, message, "unsupported", remedy=remedy)
        for name, value in given.items()
        if name in KERNEL_FIELDS and value is not None
    ]
    if problems:
        raise EncodingError(*problems)
