"""What a loss over packed rows needs: targets further ahead, weights, what is left of a document, sums per document."""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import require_choice, require_count, tensor_problems
from neatpack.adapters.labels import require_label_shift, require_labels
from neatpack.adapters.segments import Integers, Segments, as_segments
from neatpack.contracts.batch import LabelShift
from neatpack.contracts.errors import BatchError, Problem
from neatpack.contracts.fields import IGNORED_LABEL

WeightUnit = Literal["token", "document", "sequence"]
"""What counts the same in a loss: every target, every document that has one, or every row that has one."""

WEIGHT_UNITS: Final[tuple[WeightUnit, ...]] = get_args(WeightUnit)

Reduction = Literal["sum", "mean"]
"""How the values of a document become one."""

REDUCTIONS: Final[tuple[Reduction, ...]] = get_args(Reduction)


def mtp_targets(
    labels: Tensor,
    attention_document_ids: Tensor | Segments,
    depth: int,
    label_shift: LabelShift,
    *,
    inside: Tensor | Segments | None = None,
) -> Tensor:
    """Give each token the target of multi-token prediction: the token `depth + 1` places after it, in its document.

    Depth 0 is next-token prediction. The result is shifted already, whoever shifted the labels.

    Args:
        labels: integer, `[batch, sequence]`, -100 where there is no target.
        attention_document_ids: any integer dtype, `[batch, sequence]`: the boundaries.
        depth: how many tokens lie between a token and its target, at least 0.
        label_shift: who shifted `labels`, as `mask_labels` takes it. With "document" the last label of a document is
            a target of its own, and stays one at every depth.
        inside: ids of documents that targets stay inside as well: the structural ids, where attention joins them.

    Returns:
        `[batch, sequence]` in the dtype of `labels`, -100 where the target is in no document, in another one, or in
        a hole.

    Raises:
        DocumentIdsError: ids are malformed.
        EncodingError: labels are no integers of the same shape on the same device, no such `label_shift`, or a
            negative depth.

    Example:
        >>> ids, tokens = torch.tensor([[1, 1, 1, 2, 2, 0]]), torch.tensor([[10, 11, 12, 20, 21, 0]])
        >>> mtp_targets(tokens, ids, 0, "model")
        tensor([[  11,   12, -100,   21, -100, -100]])
        >>> mtp_targets(tokens, ids, 1, "model")
        tensor([[  12, -100, -100, -100, -100, -100]])
    """
    segments = as_segments(attention_document_ids, field="attention_document_ids")
    bounds = [segments] if inside is None else [segments, as_segments(inside)]
    require_labels(labels, bounds)
    require_label_shift(label_shift)
    depth = require_count(depth, "depth", "Give how many tokens lie between a token and its target.")
    kept = np.ones(labels.numel(), np.bool_)
    for each in bounds:
        kept &= _pairs(each, depth, own_last=label_shift == "document")
    ahead = depth + 1 if label_shift == "model" else depth
    targets = torch.full_like(labels, IGNORED_LABEL)
    targets[:, : max(labels.shape[1] - ahead, 0)] = labels[:, ahead:]
    return targets.masked_fill_(segments.tensor(~kept).view(labels.shape), IGNORED_LABEL)


def loss_weights(labels: Tensor, document_ids: Tensor | Segments, per: WeightUnit) -> Tensor:
    """Weight targets so that every token, every document or every row counts the same.

    Divide the weighted sum of the loss by the sum of the weights, both taken over all microbatches and ranks: it is
    the number of tokens, documents or rows that have a target.

    Args:
        labels: final labels, integer, `[batch, sequence]`, -100 where there is no target.
        document_ids: any integer dtype, `[batch, sequence]`.
        per: "token", "document" or "sequence" (the row).

    Returns:
        float32 `[batch, sequence]`, where each label stands; 0 where there is no target.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: labels are no integers of the same shape on the same device, or no such unit.

    Example:
        >>> labels, ids = torch.tensor([[-100, 11, 12, -100, 21, -100]]), torch.tensor([[1, 1, 1, 2, 2, 0]])
        >>> loss_weights(labels, ids, "document")
        tensor([[0.0000, 0.5000, 0.5000, 0.0000, 1.0000, 0.0000]])
    """
    segments = as_segments(document_ids)
    require_labels(labels, [segments])
    require_choice(per, WEIGHT_UNITS, "per")
    counted = (labels != IGNORED_LABEL) & segments.tensor(_documents_of_places(segments) >= 0).view(labels.shape)
    weights = counted.to(torch.float32)
    if per == "token":
        return weights
    if per == "sequence":
        return weights / weights.sum(dim=1, keepdim=True).clamp_(min=1)
    counts = reduce_by_document(counted, segments, "sum").clamp_(min=1)
    slots = _slots(segments)
    shares = torch.cat([counts.to(torch.float32).reciprocal(), counts.new_zeros(1, dtype=torch.float32)])
    return weights * shares[slots].view(labels.shape)


def tokens_remaining(document_ids: Tensor | Segments) -> Tensor:
    """Count the tokens that come after each one in its document; a hole counts as the token it was, padding has 0.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.

    Returns:
        int64 `[batch, sequence]`.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> tokens_remaining(torch.tensor([[1, 1, 1, 2, 0]]))
        tensor([[2, 1, 0, 0, 0]])
    """
    segments = as_segments(document_ids)
    documents = segments.documents
    opened = np.searchsorted(documents.starts, segments.bounds[:-1], side="right")
    last = np.append(-1, documents.ends - 1)[opened]
    remaining = np.repeat(last, segments.lengths)
    remaining -= np.arange(remaining.size)
    # Padding comes after the last token of the document before it, which made it negative.
    np.maximum(remaining, 0, out=remaining)
    return segments.tensor(remaining).view(segments.batch, segments.sequence)


def reduce_by_document(values: Tensor, document_ids: Tensor | Segments, reduction: Reduction) -> Tensor:
    """Make one value of the tokens of each document; what stands at padding and holes has no part in it.

    Gradients flow to the tokens. On a device nothing is read beyond the ids.

    Args:
        values: `[batch, sequence, ...]`, one entry per place of the rows.
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        reduction: "sum" or "mean" over the tokens.

    Returns:
        `[documents, ...]`, rows in order and documents in row order, as `document_keys[document_keys >= 0]` names
        them. Floating point stays as wide and is at least float32; integers and bools sum in int64, where a sum past it
        wraps as torch's do, and their mean is float64.

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
    _require_values(values, segments)
    require_choice(reduction, REDUCTIONS, "reduction")
    if values.dtype == torch.uint64:
        remedy = "Convert them: values.long()."
        raise BatchError(Problem("values", "cannot be summed in int64", "dtype", value=values.dtype, remedy=remedy))
    wide = _wide(values.dtype)
    count = segments.documents.lengths.size
    # One by one, float32 loses a thousandth of the mean of 100,000 tokens, and a sum of int64 may wrap.
    exact = wide if wide == torch.int64 and reduction == "sum" else torch.promote_types(wide, torch.float64)
    flat = values.flatten(0, 1).to(exact)
    sums = flat.new_zeros(count + 1, *flat.shape[1:]).index_add(0, _slots(segments), flat)[:count]
    if reduction == "sum":
        return sums.to(wide)
    means = sums / segments.tensor(segments.documents.lengths).to(torch.float64).view(-1, *[1] * (sums.ndim - 1))
    return means if wide == torch.int64 else means.to(wide)


def _documents_of_places(segments: Segments) -> Integers:
    """Give the document of each place of the flattened batch, an index into `documents`, -1 where there is none."""
    owners = np.full(segments.ids.size, -1, np.int64)
    owners[segments.kept] = segments.owners
    return np.repeat(owners, segments.lengths)


def _slots(segments: Segments) -> Tensor:
    """Give the document of each place, and one slot more for places of none."""
    owners = _documents_of_places(segments)
    owners[owners < 0] = segments.documents.lengths.size
    return segments.tensor(owners)


def _pairs(segments: Segments, depth: int, *, own_last: bool) -> npt.NDArray[np.bool_]:
    """Mark the places whose target stands in their own document, or with `own_last` just after its last token."""
    owners = _documents_of_places(segments)
    kept = np.zeros(owners.size, np.bool_)
    kept[: -depth - 1] = (owners[: -depth - 1] == owners[depth + 1 :]) & (owners[: -depth - 1] >= 0)
    if own_last:
        lasts = segments.documents.ends - 1
        before = lasts - depth
        lasts, before = lasts[before >= 0], before[before >= 0]
        kept[before[owners[before] == owners[lasts]]] = True
    return kept


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.promote_types(dtype, torch.complex64)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return torch.float32
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else torch.int64


def _require_values(values: Tensor, segments: Segments) -> None:
    problems = tensor_problems(values, "values", data=False)
    if problems:
        raise BatchError(*problems)
    shape = (segments.batch, segments.sequence)
    if tuple(values.shape[:2]) != shape:
        message = f"must begin with the shape of the document ids, {shape}"
        remedy = "Give one value per token, for the same tokens."
        raise BatchError(Problem("values", message, "shape", value=tuple(values.shape), remedy=remedy))
    if values.device != segments.device:
        message = f"must lie where the document ids lie, on {segments.device}"
        remedy = "Move it: values.to(...)."
        raise BatchError(Problem("values", message, "device", value=values.device, remedy=remedy))
