"""Spans of tokens inside documents, such as the answers in a chat, moved to where the documents stand in their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor

from neatpack.adapters.arguments import is_count, require_instance
from neatpack.adapters.layout import require_no_holes
from neatpack.adapters.segments import Segments, as_segments
from neatpack.contracts.errors import EncodingError, Problem

Spans = Sequence[tuple[int, int]]
"""Of one document: the first place of each span, and the place after its last, counted from the document's start."""


class RowSpan(NamedTuple):
    """A span of a row: the places from `start` to before `stop`."""

    row: int
    start: int
    stop: int


def place_spans(document_ids: Tensor | Segments, spans: Sequence[Spans]) -> list[RowSpan]:
    """Give the places of spans in the rows, documents in row order.

    Args:
        document_ids: structural ids, any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        spans: for each document, in row order, its spans.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole.
        EncodingError: there are not as many lists as documents, or a span is empty or leaves its document.

    Example:
        >>> import torch
        >>> place_spans(torch.tensor([[1, 1, 1, 2, 2, 0]]), [[(1, 3)], [(0, 2)]])
        [RowSpan(row=0, start=1, stop=3), RowSpan(row=0, start=3, stop=5)]
    """
    segments = as_segments(document_ids)
    require_no_holes(segments, remedy="Give the ids as packed, in which tokens that policy took out have theirs.")
    documents = segments.documents
    _require_spans(spans, documents.lengths.tolist())
    starts = documents.starts - documents.rows * segments.sequence
    return [
        RowSpan(row, start + int(first), start + int(after))
        for row, start, own in zip(documents.rows.tolist(), starts.tolist(), spans, strict=True)
        for first, after in own
    ]


def mark_spans(document_ids: Tensor | Segments, spans: Sequence[Spans]) -> Tensor:
    """Mark the places of spans, to keep the labels of answers alone.

    Args:
        document_ids: as `place_spans`.
        spans: as `place_spans`.

    Returns:
        bool `[batch, sequence]`.

    Raises:
        DocumentIdsError: as `place_spans`.
        EncodingError: as `place_spans`.

    Example:
        >>> import torch
        >>> mark_spans(torch.tensor([[1, 1, 1, 2, 2, 0]]), [[(1, 3)], [(0, 1)]]).int()
        tensor([[0, 1, 1, 1, 0, 0]], dtype=torch.int32)
    """
    segments = as_segments(document_ids)
    marks = np.zeros((segments.batch, segments.sequence), np.bool_)
    for row, start, stop in place_spans(segments, spans):
        marks[row, start:stop] = True
    return segments.tensor(marks)


def _require_spans(spans: object, lengths: list[int]) -> None:
    remedy = "Give for each document, in row order, a list of (start, stop)."
    require_instance(spans, Sequence, "spans", remedy)
    listed = cast("Sequence[object]", spans)
    if len(listed) != len(lengths):
        message = f"must be one list for each of {len(lengths)} documents"
        raise EncodingError(Problem("spans", message, "shape", value=len(listed), remedy=remedy))
    for document, (own, length) in enumerate(zip(listed, lengths, strict=True)):
        require_instance(own, Sequence, "spans", remedy)
        for span in cast("Sequence[object]", own):
            if not _lies_inside(span, length):
                message = f"document {document} has {length} tokens, and this is no span of them"
                raise EncodingError(Problem("spans", message, "value", value=span, remedy=remedy))


def _lies_inside(span: object, length: int) -> bool:
    pair = cast("Sequence[object]", span) if isinstance(span, (tuple, list)) else ()
    if len(pair) != 2 or not all(is_count(place) for place in pair):
        return False
    start, stop = cast("Sequence[int]", pair)
    return start < stop <= length
