"""Values of tokens made one value per document, with gradients to the tokens."""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor

from neatpack.adapters.arguments import require_choice
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.token_tensors import device_problems, require_values
from neatpack.contracts.errors import BatchError, Problem

Reduction = Literal["sum", "mean"]
"""How the values of a document become one."""

REDUCTIONS: Final[tuple[Reduction, ...]] = get_args(Reduction)


def reduce_by_document(values: Tensor, document_ids: Tensor | Segments, reduction: Reduction) -> Tensor:
    """Make one value of the tokens of each document; what stands at padding and holes has no part in it.

    Gradients flow to the tokens. On a device nothing is read beyond the ids.

    Args:
        values: `[batch, sequence, ...]`, one entry per place of the rows.
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        reduction: "sum" or "mean" over the tokens.

    Returns:
        `[documents, ...]`, rows in order and documents in row order, as `document_keys[document_keys >= 0]` names
        them; attention ids have no entry for a document that policy took out as a whole. Floating point stays as wide
        and is at least float32; integers and bools sum in int64, where a sum past it wraps as torch's do, and their
        mean is float64.

    Raises:
        DocumentIdsError: the ids are malformed.
        BatchError: values do not begin with the shape of the ids, lie elsewhere, or are uint64, which int64 cannot sum.
        EncodingError: no such reduction.

    Example:
        >>> values, ids = torch.tensor([[1.0, 2.0, 4.0, 9.0]]), torch.tensor([[1, 1, 2, 0]])
        >>> reduce_by_document(values, ids, "sum"), reduce_by_document(values, ids, "mean")
        (tensor([3., 4.]), tensor([1.5000, 4.0000]))
    """
    segments = as_segments(document_ids)
    require_values(values, (segments.batch, segments.sequence), "Give one value per token, for the same tokens.")
    problems = device_problems(values, segments.device, "values", "the document ids lie")
    if problems:
        raise BatchError(*problems)
    require_choice(reduction, REDUCTIONS, "reduction")
    if values.dtype == torch.uint64:
        remedy = "Convert them: values.long()."
        raise BatchError(Problem("values", "cannot be summed in int64", "dtype", value=values.dtype, remedy=remedy))
    wide = _wide(values.dtype)
    count = segments.documents.lengths.size
    # One by one, float32 loses a thousandth of the mean of 100,000 tokens, and a sum of int64 may wrap.
    exact = wide if wide == torch.int64 and reduction == "sum" else torch.promote_types(wide, torch.float64)
    flat = values.flatten(0, 1).to(exact)
    slots = segments.owners_of_places()
    slots[slots < 0] = count  # One more for places of no document.
    sums = flat.new_zeros(count + 1, *flat.shape[1:]).index_add(0, segments.tensor(slots), flat)[:count]
    if reduction == "sum":
        return sums.to(wide)
    means = sums / segments.tensor(segments.documents.lengths).to(torch.float64).view(-1, *[1] * (sums.ndim - 1))
    return means if wide == torch.int64 else means.to(wide)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.promote_types(dtype, torch.complex64)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return torch.float32
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else torch.int64
