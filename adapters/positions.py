"""Text positions: they restart in each document and count its tokens, from its start or those that remain."""

from __future__ import annotations

from typing import Final

import numpy as np
from torch import Tensor

from neatpack.adapters.arguments import require_count
from neatpack.adapters.host_arrays import Integers, row_places
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.token_tensors import integer_rows_problems
from neatpack.contracts.errors import EncodingError

START_REMEDY: Final = "Give the position of a document's first token, 0 for most models."

_LONG_RUN: Final = 64
"""From so many places of a run on, to repeat one number over each run takes less time than a sum over all places."""

_LONG_ROW: Final = 2**16
"""Up to so many places of a row: those of longer ones do not stay in the caches."""


def build_position_ids(document_ids: Tensor | Segments, start: int = 0) -> Tensor:
    """Number the tokens of each document from `start`; a hole uses up its coordinate, and padding has position 0.

    Give structural ids: attention ids lack the tokens that policy excluded before or after all others of a document.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.
        start: the position of the first token of each document.

    Returns:
        int64 `[batch, sequence]`.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: `start` is no int, or negative.

    Example:
        >>> import torch
        >>> build_position_ids(torch.tensor([[1, 1, 2, 0, 2, 0]]))
        tensor([[0, 1, 0, 1, 2, 0]])
        >>> build_position_ids(torch.tensor([[1, 1, 2, 0]]), start=2)
        tensor([[2, 3, 2, 0]])
    """
    start = require_count(start, "start", START_REMEDY)
    segments = as_segments(document_ids)
    firsts = segments.bounds[:-1] - _origins(segments) + start
    places = segments.batch * segments.sequence
    long_runs = segments.ids.size * _LONG_RUN <= places and segments.sequence <= _LONG_ROW
    positions = _moved(segments, firsts) if long_runs else _summed(segments, firsts)
    return segments.tensor(positions).view(segments.batch, segments.sequence)


def _moved(segments: Segments, firsts: Integers) -> Integers:
    """Count on from the first position of each run: the places of a row, all of a run moved by one number."""
    shifts = firsts - segments.bounds[:-1] % segments.sequence
    positions: Integers = shifts.repeat(segments.lengths)
    rows = np.reshape(positions, (segments.batch, segments.sequence))
    rows += row_places(segments.sequence)
    for run in segments.padding.tolist():
        positions[segments.bounds[run] : segments.bounds[run + 1]] = 0
    return positions


def _summed(segments: Segments, firsts: Integers) -> Integers:
    """Count on from the first position of each run: the sum of how much each position exceeds the one before it."""
    lasts = firsts + segments.lengths - 1
    firsts[segments.padding] = 0
    lasts[segments.padding] = 0
    rises = np.ones(segments.batch * segments.sequence, np.int64)
    rises[segments.bounds[:-1]] = firsts
    rises[segments.bounds[1:-1]] -= lasts[:-1]
    for run in segments.padding.tolist():
        rises[segments.bounds[run] + 1 : segments.bounds[run + 1]] = 0
    return np.cumsum(rises, out=rises)


def tokens_remaining(document_ids: Tensor | Segments) -> Tensor:
    """Count the tokens that come after each one in its document; a hole counts as the token it was, padding has 0.

    Give structural ids: attention ids lack the tokens that policy excluded before or after all others of a document.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.

    Returns:
        int64 `[batch, sequence]`.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> import torch
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


def repeat_on_axes(position_ids: Tensor, axes: int) -> Tensor:
    """Give text positions the form of several rotary axes: a text token has the same coordinate on each.

    Args:
        position_ids: any integer dtype, `[batch, sequence]`.
        axes: how many: 3 for time, height and width; 4 where a row of text positions goes before them.

    Returns:
        `[axes, batch, sequence]` in the same dtype, a new tensor.

    Raises:
        EncodingError: positions are no integers `[batch, sequence]`, or `axes` is no positive int.

    Example:
        >>> import torch
        >>> repeat_on_axes(torch.tensor([[0, 1, 0]]), 3).shape
        torch.Size([3, 1, 3])
    """
    problems = integer_rows_problems(position_ids, "position_ids")
    if problems:
        raise EncodingError(*problems)
    axes = require_count(axes, "axes", "Give the number of rotary axes.", least=1)
    return position_ids.repeat(axes, 1, 1)


def _origins(segments: Segments) -> Integers:
    """Give the place from which the positions of each run count: where the document that opened last begins."""
    starts = segments.bounds[:-1]
    if segments.in_order or not segments.documents.starts.size:
        return starts
    document = np.searchsorted(segments.documents.starts, starts, side="right") - 1
    origins: Integers = segments.documents.starts[np.maximum(document, 0)]
    return origins
