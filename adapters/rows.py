"""Boundaries row by row in physical coordinates: offsets as Zephon and Megatron ship them, and plain lengths."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import INT32_MAX, require_count, require_readable
from neatpack.adapters.layout import require_no_holes, require_trailing_padding
from neatpack.adapters.physical import PaddingSegments, physical_bounds
from neatpack.adapters.segments import Integers, Segments, as_segments, read_on_host, to_tensor
from neatpack.contracts.encodings import LengthMatrix, PhysicalRows, parse_length_matrix, parse_physical_rows
from neatpack.contracts.errors import EncodingError, Problem


def row_offsets(
    document_ids: Tensor | Segments, padding: PaddingSegments = "split", *, width: int | None = None
) -> PhysicalRows[Tensor]:
    """Give the offsets of documents and padding within each row, and the longest segment of each row.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        padding: "split" cuts padding into segments no longer than the longest document of the batch; "run" keeps
            each run of padding as one segment.
        width: entries of a row of offsets, `sequence + 1` for Megatron; by default as many as the fullest row needs.

    Returns:
        `cu_seqlens`, int32 `[batch, width]`, where unused entries repeat the row length; and `max_seqlen`, int32
        `[batch]`. Both have `batch` first, so a pipeline schedule may cut them along the rows.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole.
        EncodingError: no such `padding`, or a row has more segments than `width` can tell.

    Example:
        >>> rows = row_offsets(torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1]]))
        >>> rows.cu_seqlens, rows.max_seqlen
        (tensor([[0, 2, 3, 4],
                [0, 4, 4, 4]], dtype=torch.int32), tensor([2, 4], dtype=torch.int32))
    """
    segments = as_segments(document_ids)
    bounds, _ = physical_bounds(segments, padding)
    begins = segments.sequence * np.arange(segments.batch + 1, dtype=np.int32)
    heads = np.searchsorted(bounds, begins)
    counts = heads[1:] - heads[:-1]
    shape = (segments.batch, _checked_width(width, int(counts.max()) + 1))
    offsets = np.full(shape, segments.sequence, np.int32)
    offsets[np.arange(shape[1]) < counts[:, None]] = bounds[:-1] - np.repeat(begins[:-1], counts)
    longest = np.maximum.reduceat(bounds[1:] - bounds[:-1], heads[:-1])
    return PhysicalRows(segments.tensor(offsets), segments.tensor(longest))


def document_ids_from_row_offsets(rows: PhysicalRows[Tensor], padding_mask: Tensor) -> Tensor:
    """Find the ids again from offsets within each row.

    The offsets do not tell padding from documents: the mask does. Padding may be segments of its own, or stand at
    the end of the document before it, as Megatron folds it.

    Args:
        rows: offsets that rise from 0 to the row length and then repeat it.
        padding_mask: bool, `[batch, sequence]`, True at padding.

    Returns:
        Canonical ids, int64 `[batch, sequence]`.

    Raises:
        EncodingError: the offsets do not cover the rows, or a token follows padding inside one segment.

    Example:
        >>> ids = torch.tensor([[1, 1, 2, 0]])
        >>> document_ids_from_row_offsets(row_offsets(ids), ids == 0)
        tensor([[1, 1, 2, 0]])
    """
    parse_physical_rows(rows)
    require_readable(cu_seqlens=rows.cu_seqlens, padding_mask=padding_mask)
    _require_mask(padding_mask, rows.cu_seqlens)
    offsets, mask = read_on_host(rows.cu_seqlens, padding_mask)
    batch, sequence = mask.shape
    _require_covering(offsets, sequence)
    row, place = np.nonzero(np.diff(offsets, axis=1))
    starts: Integers = row * sequence + offsets[row, place].astype(np.int64)
    lengths = np.diff(np.append(starts, batch * sequence))
    kept = np.logical_not(mask.ravel())
    segment = np.repeat(np.arange(starts.size), lengths)
    _require_padding_last(kept, segment, sequence)
    numbers = np.cumsum(np.logical_or.reduceat(kept, starts))
    before = np.append(0, numbers)[np.searchsorted(starts, starts // sequence * sequence)]
    ids = np.where(kept, (numbers - before)[segment], 0)
    return to_tensor(ids, padding_mask.device).view(batch, sequence)


def length_matrix(document_ids: Tensor | Segments) -> LengthMatrix[Tensor]:
    """Give the tokens of each document of each row; what the row has beyond them is padding.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, which ends each row, without holes.

    Returns:
        `lengths`, int32 `[batch, most documents of a row]`, 0 where unused.

    Raises:
        DocumentIdsError: the ids are malformed, have a hole, or padding that tokens follow.

    Example:
        >>> length_matrix(torch.tensor([[1, 1, 2, 0], [1, 2, 2, 3]])).lengths
        tensor([[2, 1, 0],
                [1, 2, 1]], dtype=torch.int32)
    """
    segments = as_segments(document_ids)
    require_no_holes(segments)
    require_trailing_padding(segments)
    documents = segments.documents
    lengths = np.zeros((segments.batch, max(int(documents.counts.max()), 1)), np.int32)
    lengths[documents.rows, documents.ranks] = documents.lengths
    return LengthMatrix(segments.tensor(lengths))


def document_ids_from_length_matrix(matrix: LengthMatrix[Tensor], sequence_length: int) -> Tensor:
    """Lay documents of the given lengths end to end in each row; what is left is padding.

    Args:
        matrix: lengths, 0 where there is no document.
        sequence_length: places of a row.

    Returns:
        Canonical ids, int64 `[batch, sequence_length]`.

    Raises:
        EncodingError: a length is negative, or a row is longer than `sequence_length`.

    Example:
        >>> lengths = torch.tensor([[2, 1, 0], [4, 0, 0]], dtype=torch.int32)
        >>> document_ids_from_length_matrix(LengthMatrix(lengths), 4)
        tensor([[1, 1, 2, 0],
                [1, 1, 1, 1]])
    """
    parse_length_matrix(matrix)
    require_readable(lengths=matrix.lengths)
    batch = matrix.lengths.shape[0]
    require_places(batch, sequence_length)
    (lengths,) = read_on_host(matrix.lengths)
    lengths = lengths.astype(np.int64)
    negative = np.argwhere(lengths < 0)
    if negative.size:
        row, document = (int(index) for index in negative[0])
        value = int(lengths[row, document])
        raise EncodingError(Problem("lengths", f"document {document} has a negative length", "value", row, value=value))
    rest = sequence_length - lengths.sum(axis=1)
    too_long = np.flatnonzero(rest < 0)
    if too_long.size:
        row = int(too_long[0])
        message = f"documents of the row need more than {sequence_length} places"
        remedy = "Nothing is truncated: give a longer row or fewer documents."
        total = int(lengths[row].sum())
        raise EncodingError(Problem("lengths", message, "value", row, value=total, remedy=remedy))
    numbers = np.cumsum(lengths > 0, axis=1)
    lengths = np.hstack([lengths, rest[:, None]])
    numbers = np.hstack([numbers, np.zeros((batch, 1), np.int64)])
    ids = np.repeat(numbers.ravel(), lengths.ravel())
    return to_tensor(ids, matrix.lengths.device).view(batch, sequence_length)


def require_places(batch: int, sequence_length: int) -> None:
    """Raise unless a batch of this size has places, and no more than int32 offsets can count.

    Raises:
        EncodingError: it has none or too many.
    """
    require_count(sequence_length, "sequence_length", "Give the places of a row.", least=1)
    if batch < 1 or batch * sequence_length > INT32_MAX:
        message = f"must make a batch of 1 to {INT32_MAX} places"
        raise EncodingError(Problem("sequence_length", message, "value", value=(batch, sequence_length)))


def _checked_width(width: int | None, needed: int) -> int:
    if width is None:
        return needed
    width = require_count(width, "width", "Give at least sequence + 1, or None for as many as are needed.")
    if width < needed:
        message = f"a row has {needed - 1} segments, which takes {needed} entries"
        raise EncodingError(Problem("width", message, "value", value=width, remedy="Give at least sequence + 1."))
    return width


def _require_mask(padding_mask: object, offsets: Tensor) -> None:
    if not isinstance(padding_mask, Tensor) or padding_mask.dtype != torch.bool or padding_mask.ndim != 2:
        found = padding_mask.dtype if isinstance(padding_mask, Tensor) else type(padding_mask).__name__
        raise EncodingError(Problem("padding_mask", "must be a bool tensor [batch, sequence]", "dtype", value=found))
    if padding_mask.shape[0] != offsets.shape[0] or padding_mask.numel() == 0:
        message = f"must have the {offsets.shape[0]} rows of cu_seqlens, not empty"
        raise EncodingError(Problem("padding_mask", message, "shape", value=tuple(padding_mask.shape)))
    if padding_mask.device != offsets.device:
        message = f"must lie where cu_seqlens lies, on {offsets.device}"
        raise EncodingError(Problem("padding_mask", message, "device", value=padding_mask.device))


def _require_covering(offsets: npt.NDArray[np.int32], sequence: int) -> None:
    """Check offsets row by row, and name the first row that is wrong."""
    wrong = np.ones(offsets.shape[0], np.bool_)
    if offsets.shape[1] > 1:
        wrong = (offsets[:, 0] != 0) | (offsets[:, -1] != sequence) | (np.diff(offsets, axis=1) < 0).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        message = f"must start at zero, never fall, and end at the row length, {sequence}"
        raise EncodingError(Problem("cu_seqlens", message, "value", row, value=offsets[row].tolist()))


def _require_padding_last(kept: npt.NDArray[np.bool_], segment: Integers, sequence: int) -> None:
    late = np.flatnonzero(kept[1:] & np.logical_not(kept[:-1]) & (segment[1:] == segment[:-1]))
    if late.size:
        row, position = divmod(int(late[0]) + 1, sequence)
        message = "a token follows padding inside one segment, so the two cannot be told apart"
        raise EncodingError(Problem("cu_seqlens", message, "disagreement", row, position))
