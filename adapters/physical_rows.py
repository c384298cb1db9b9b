"""Physical coordinates row by row: every place of a padded row counts, as Zephon and Megatron ship their offsets."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from neatpack.adapters.arguments import require_count, require_instance, require_readable
from neatpack.adapters.host_arrays import Integers, read_together, to_tensor
from neatpack.adapters.offsets import wrong_offset
from neatpack.adapters.physical import PaddingSegments, physical_bounds
from neatpack.adapters.segments import Segments, as_segments, greatest
from neatpack.adapters.token_tensors import device_problems, padding_mask_problems
from neatpack.contracts.encodings import PhysicalRows, parse_physical_rows
from neatpack.contracts.errors import EncodingError, Problem

_LONG_WINDOW: Final = 1024
"""From so many entries on, to copy one by one takes longer than a call of numpy for each row."""


def row_offsets(
    document_ids: Tensor | Segments, padding: PaddingSegments = "split", *, width: int | None = None
) -> PhysicalRows[Tensor]:
    """Give the physical offsets of documents and padding within each row, and the longest segment of each row.

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
        >>> import torch
        >>> rows = row_offsets(torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1]]))
        >>> rows.cu_seqlens, rows.max_seqlen
        (tensor([[0, 2, 3, 4],
                [0, 4, 4, 4]], dtype=torch.int32), tensor([2, 4], dtype=torch.int32))
    """
    segments = as_segments(document_ids)
    bounds, _ = physical_bounds(segments, padding)
    begins = np.arange(0, segments.batch * segments.sequence + 1, segments.sequence, dtype=np.int32)
    heads = bounds.searchsorted(begins)
    needed = greatest(heads[1:] - heads[:-1]) + 1
    offsets = _windows(bounds, heads[:-1], needed)
    offsets -= begins[:-1, None]
    # Bounds of the rows that follow lie beyond the row.
    np.minimum(offsets, segments.sequence, out=offsets)
    if width is not None:
        offsets = _widened(offsets, _checked_width(width, needed), segments.sequence)
    longest = np.maximum.reduceat(bounds[1:] - bounds[:-1], heads[:-1])
    return PhysicalRows(segments.tensor(offsets), segments.tensor(longest))


def document_ids_from_row_offsets(rows: PhysicalRows[Tensor], padding_mask: Tensor) -> Tensor:
    """Find the ids again from physical offsets within each row.

    The offsets do not tell padding from documents: the mask does. Padding may be segments of its own, or stand at
    the end of the document before it, as Megatron folds it.

    Args:
        rows: offsets that rise from 0 to the row length and then repeat it.
        padding_mask: bool, `[batch, sequence]`, True at padding.

    Returns:
        Canonical ids, int64 `[batch, sequence]`.

    Raises:
        EncodingError: the offsets do not cover the rows, a token follows padding inside one segment, or `max_seqlen` is
            less than the tokens of a document.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 2, 0]])
        >>> document_ids_from_row_offsets(row_offsets(ids), ids == 0)
        tensor([[1, 1, 2, 0]])
    """
    require_instance(rows, PhysicalRows, "rows", "Give PhysicalRows(cu_seqlens, max_seqlen).")
    parse_physical_rows(rows)
    require_readable(cu_seqlens=rows.cu_seqlens, max_seqlen=rows.max_seqlen)
    _require_mask(padding_mask, rows.cu_seqlens)
    problems = device_problems(rows.max_seqlen, rows.cu_seqlens.device, "max_seqlen", "cu_seqlens lies")
    if problems:
        raise EncodingError(*problems)
    offsets, longest, mask = read_together(rows.cu_seqlens, rows.max_seqlen, padding_mask, field="cu_seqlens")
    batch, sequence = padding_mask.shape
    _require_covering(offsets, sequence)
    row, place = np.nonzero(np.diff(offsets, axis=1))
    starts: Integers = row * sequence + offsets[row, place].astype(np.int64)
    lengths = np.diff(np.append(starts, batch * sequence))
    kept = np.logical_not(mask.ravel())
    segment = np.repeat(np.arange(starts.size), lengths)
    _require_padding_last(kept, segment, sequence)
    tokens = np.add.reduceat(kept, starts, dtype=np.int64)
    _require_longest(longest, np.maximum.reduceat(tokens, np.searchsorted(starts, sequence * np.arange(batch))))
    numbers = np.cumsum(tokens > 0)
    before = np.append(0, numbers)[np.searchsorted(starts, starts // sequence * sequence)]
    ids = np.where(kept, (numbers - before)[segment], 0)
    return to_tensor(ids, padding_mask.device).view(batch, sequence)


def _windows(bounds: npt.NDArray[np.int32], heads: Integers, width: int) -> npt.NDArray[np.int32]:
    """Give as many bounds as `width` from each head on; beyond the end, the last one again."""
    if width < _LONG_WINDOW:
        return bounds.take(heads[:, None] + np.arange(width), mode="clip")
    windows = np.full((heads.size, width), bounds[-1])
    for window, head in zip(windows, heads.tolist(), strict=True):
        part = bounds[head : head + width]
        window[: part.size] = part
    return windows


def _widened(offsets: npt.NDArray[np.int32], width: int, sequence: int) -> npt.NDArray[np.int32]:
    wide = np.full((len(offsets), width), sequence, np.int32)
    wide[:, : offsets.shape[1]] = offsets
    return wide


def _checked_width(width: int, needed: int) -> int:
    width = require_count(width, "width", "Give at least sequence + 1, or None for as many as are needed.")
    if width < needed:
        message = f"a row has {needed - 1} segments, which takes {needed} entries"
        raise EncodingError(Problem("width", message, "value", value=width, remedy="Give at least sequence + 1."))
    return width


def _require_mask(padding_mask: Tensor, offsets: Tensor) -> None:
    problems = padding_mask_problems(padding_mask)
    problems = problems or device_problems(padding_mask, offsets.device, "padding_mask", "cu_seqlens lies")
    if problems:
        raise EncodingError(*problems)
    if padding_mask.shape[0] != offsets.shape[0] or padding_mask.numel() == 0:
        message = f"must have the {offsets.shape[0]} rows of cu_seqlens, not empty"
        remedy = "Cut the mask and the offsets along the same rows."
        raise EncodingError(Problem("padding_mask", message, "shape", value=tuple(padding_mask.shape), remedy=remedy))


def _require_covering(offsets: npt.NDArray[np.int32], sequence: int) -> None:
    """Check offsets row by row, and name the first one that is wrong."""
    wrong = np.ones(offsets.shape[0], np.bool_)
    if offsets.shape[1] > 1:
        wrong = (offsets[:, 0] != 0) | (offsets[:, -1] != sequence) | (np.diff(offsets, axis=1) < 0).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        position = wrong_offset(offsets[row], sequence) or 0
        message = f"must start at zero, never fall, and end at the row length, {sequence}"
        remedy = "Give the offsets of the whole row, padding included, and repeat the last one where none is left."
        value = next(iter(offsets[row, position:].tolist()), None)
        raise EncodingError(Problem("cu_seqlens", message, "value", row, position, value, remedy))


def _require_longest(given: Integers, tokens: Integers) -> None:
    """Raise where a maximum is below the longest document of its row, which a kernel would silently cut."""
    if (given < tokens).any():
        row = int(np.argmax(given < tokens))
        message = f"must be at least {tokens[row]}, the tokens of the longest document of the row"
        remedy = "Give the longest segment of these offsets, or more."
        raise EncodingError(Problem("max_seqlen", message, "disagreement", row, value=int(given[row]), remedy=remedy))


def _require_padding_last(kept: npt.NDArray[np.bool_], segment: Integers, sequence: int) -> None:
    late = np.flatnonzero(kept[1:] & np.logical_not(kept[:-1]) & (segment[1:] == segment[:-1]))
    if late.size:
        row, position = divmod(int(late[0]) + 1, sequence)
        message = "a token follows padding inside one segment, so the two cannot be told apart"
        remedy = "Give offsets that cut where a document begins, and the mask of the same tokens."
        raise EncodingError(Problem("cu_seqlens", message, "disagreement", row, position, remedy=remedy))
