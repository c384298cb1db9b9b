"""Labels: no target may cross a boundary of the documents that attention sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from neatpack.adapters.agreement_per_token import require_policy
from neatpack.adapters.arguments import is_choice, require_flag
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.segments import Segments, as_segments, scan_together
from neatpack.adapters.token_tensors import device_problems, integer_rows_problems
from neatpack.contracts.batch import LABEL_SHIFTS, LabelShift
from neatpack.contracts.errors import EncodingError, PackingError, Problem
from neatpack.contracts.fields import IGNORED_LABEL


def mask_labels(
    labels: Tensor,
    attention_document_ids: Tensor | Segments,
    label_shift: LabelShift,
    *,
    document_ids: Tensor | Segments | None = None,
    inside_documents: bool = False,
) -> Tensor:
    """Set to -100 every label whose target crosses a boundary, or stands at a hole or at padding.

    A target is a pair: a token, and the next one that it should predict. It stays where both are in one document.

    Args:
        labels: integer, `[batch, sequence]`, -100 where there is no target.
        attention_document_ids: any integer dtype, `[batch, sequence]`: the boundaries.
        label_shift: who shifted the labels. "model": nobody yet, labels are the tokens and the model shifts, so the
            first label of each document goes. "stream": the row as a whole, so the last label of each document
            goes. "document": each document on its own, so its last label is its own target and stays.
        document_ids: the structural ids, where policy made other attention ids of them. They tell where a document
            really ends, so that a last target before an excluded token is known from an own last target.
        inside_documents: keep targets inside the structural documents as well, where attention joins those. It takes
            `document_ids`.

    Returns:
        A new tensor in the dtype of `labels`.

    Raises:
        DocumentIdsError: ids are malformed.
        EncodingError: labels are no integers of the same shape on the same device, no such `label_shift`,
            `inside_documents` is no bool or stands without `document_ids`, or no policy makes attention ids of those
            as packed.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 1, 2, 2, 0]])
        >>> mask_labels(torch.tensor([[10, 11, 12, 20, 21, 0]]), ids, "model")
        tensor([[-100,   11,   12, -100,   21, -100]])
        >>> mask_labels(torch.tensor([[11, 12, 20, 21, 0, 0]]), ids, "stream")
        tensor([[  11,   12, -100,   21, -100, -100]])
    """
    require_inside(inside_documents, document_ids)
    require_label_shift(label_shift)
    attention, structural = scan_bounds(labels, attention_document_ids, document_ids)
    own_last = structural.documents.ends - 1
    labels = labels.masked_fill(_crossing(attention, label_shift, own_last), IGNORED_LABEL)
    if inside_documents:
        labels = labels.masked_fill(_crossing(structural, label_shift, own_last), IGNORED_LABEL)
    return labels


def count_valid_targets(labels: Tensor) -> Tensor:
    """Count the targets of final labels, the divisor of a summed loss: int64, no dimension, on the labels' device.

    It counts all that is not -100, and looks at no ids: what stands at padding, at holes or over a boundary counts as
    well, until `mask_labels` took it out. Sum it over microbatches and ranks before you divide.

    Args:
        labels: integer, `[batch, sequence]`, -100 where there is no target.

    Raises:
        EncodingError: labels are no integers `[batch, sequence]`.

    Example:
        >>> import torch
        >>> count_valid_targets(torch.tensor([[-100, 11, 12, -100]]))
        tensor(2)
    """
    problems = _labels_problems(labels)
    if problems:
        raise EncodingError(*problems)
    return (labels != IGNORED_LABEL).sum()


def _labels_problems(labels: object) -> list[Problem]:
    """List what keeps a value from being labels: signed integers `[batch, sequence]`, not empty."""
    problems = integer_rows_problems(labels, "labels")
    if not problems and isinstance(labels, Tensor) and not labels.dtype.is_signed:
        message = f"must be signed, to hold {IGNORED_LABEL} where there is no target"
        return [Problem("labels", message, "dtype", value=labels.dtype, remedy="Convert them: labels.long().")]
    return problems


def require_label_shift(label_shift: object, *, error: type[PackingError] = EncodingError) -> None:
    """Raise unless a value says who shifted labels.

    Raises:
        EncodingError: it does not; or `error`.
    """
    if not is_choice(label_shift, LABEL_SHIFTS):
        remedy = f"State who shifted the labels: one of {', '.join(map(repr, LABEL_SHIFTS))}."
        raise error(Problem("label_shift", "is no label shift", "value", value=repr(label_shift), remedy=remedy))


def require_inside(
    inside_documents: object, document_ids: object, *, error: type[PackingError] = EncodingError
) -> None:
    """Raise unless `inside_documents` is a bool, and where it is True, the ids as packed are there to go by.

    Raises:
        EncodingError: it is none; or `error`, they are not.
    """
    require_flag(inside_documents, "inside_documents")
    if inside_documents and document_ids is None:
        message = "missing, and inside_documents asks for the ids as packed"
        remedy = "Give them beside the attention ids; where no policy joined documents, leave inside_documents out."
        raise error(Problem("document_ids", message, "missing", remedy=remedy))


def scan_bounds(
    labels: object, attention_document_ids: Tensor | Segments, document_ids: Tensor | Segments | None
) -> tuple[Segments, Segments]:
    """Scan the ids that attention goes by and those as packed, which are the same where only one are given.

    Raises:
        DocumentIdsError: ids are malformed.
        EncodingError: labels are no integers in their shape on their device, or no policy makes one of the other.
    """
    if document_ids is None or document_ids is attention_document_ids:
        attention = structural = as_segments(attention_document_ids, field="attention_document_ids")
    else:
        attention, structural = scan_together(attention_document_ids=attention_document_ids, document_ids=document_ids)
    require_labels(labels, (attention, structural))
    if structural is not attention:
        require_policy(attention, structural)
    return attention, structural


def require_labels(labels: object, bounds: Sequence[Segments]) -> None:
    """Raise unless labels are integers in the shape of the ids, on their device.

    Raises:
        EncodingError: they are not.
    """
    problems = _labels_problems(labels)
    if not problems and isinstance(labels, Tensor):
        places = (((segments.batch, segments.sequence), segments.device) for segments in bounds)
        for shape, device in dict.fromkeys(places):
            if tuple(labels.shape) != shape:
                message = f"must have the shape of the document ids, {shape}"
                remedy = "Give one label per token, for the same tokens."
                problems.append(Problem("labels", message, "shape", value=tuple(labels.shape), remedy=remedy))
            else:
                problems += device_problems(labels, device, "labels", "the document ids lie")
    if problems:
        raise EncodingError(*problems)


def _crossing(segments: Segments, label_shift: LabelShift, own_last: Integers) -> Tensor:
    """Mark the places whose label goes, bool `[batch, sequence]`; `own_last` are the places where documents end."""
    dropped = np.repeat(segments.ids == 0, segments.lengths)
    if label_shift == "model":
        dropped[segments.bounds[segments.kept]] = True
    else:
        lasts = segments.bounds[segments.kept + 1] - 1
        if label_shift == "document":
            # Before a hole the target is the hole's token; at the end of a document it is the document's own.
            lasts = np.setdiff1d(lasts, own_last, assume_unique=True)
        dropped[lasts] = True
    return segments.tensor(dropped).view(segments.batch, segments.sequence)
