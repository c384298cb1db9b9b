"""Physical coordinates: every place of the padded rows counts, laid end to end; padding is segments of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from neatpack.adapters.arguments import (
    INT32_MAX,
    require_choice,
    require_count,
    require_instance,
    tensor_problems,
    too_many_places,
)
from neatpack.adapters.host_arrays import Integers, read_on_host, read_together, to_tensor
from neatpack.adapters.layout import require_no_holes
from neatpack.adapters.offsets import wrong_offset
from neatpack.adapters.segments import Segments, as_segments, bounds_of, flags_for, greatest
from neatpack.adapters.token_tensors import (
    device_problems,
    integer_rows_problems,
    padding_mask_problems,
)
from neatpack.contracts.encodings import FlashVarlenKwargs, PhysicalFlat, parse_flash_varlen_kwargs
from neatpack.contracts.errors import EncodingError, Problem

PaddingSegments = Literal["split", "run"]
"""How padding is cut into segments: no longer than the longest document, or one segment a run."""

PADDING_SEGMENTS: Final[tuple[PaddingSegments, ...]] = get_args(PaddingSegments)

_FEW_BOUNDS: Final = 16
"""Up to so many bounds, a loop over Python's ints takes less time than calls of numpy do."""

_LONG_STRETCH: Final = 512
"""From so many bounds on between two runs of padding, to sort them takes longer than a loop over the runs."""


def flash_varlen_kwargs(
    document_ids: Tensor | Segments, padding: PaddingSegments = "split", *, longest_padding: int | None = None
) -> FlashVarlenKwargs[Tensor]:
    """Give physical offsets under the four names by which Hugging Face flash attention learns of documents.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        padding: "split" cuts padding into segments no longer than the longest document (at least 1), so that it
            never sets `max_length`; "run" keeps each run of padding as one segment.
        longest_padding: places of a segment of padding, at most, in place of the longest document's.

    Returns:
        `cu_seq_lens_q` and `cu_seq_lens_k`, one int32 tensor `[segments + 1]` from 0 to `batch * sequence`, and
        `max_length_q` and `max_length_k`, the places of the longest segment.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole, which contiguous segments cannot express.
        EncodingError: no such `padding`, or a `longest_padding` that is no positive int or comes with "run".

    Example:
        >>> import torch
        >>> kwargs = flash_varlen_kwargs(torch.tensor([[1, 1, 2, 0, 0, 0]]))
        >>> kwargs["cu_seq_lens_q"].tolist(), kwargs["max_length_q"]
        ([0, 2, 3, 5, 6], 2)
        >>> flash_varlen_kwargs(torch.tensor([[1, 1, 2, 0, 0, 0]]), "run")["cu_seq_lens_q"].tolist()
        [0, 2, 3, 6]
    """
    flat = physical_offsets(document_ids, padding, longest_padding=longest_padding)
    return {
        "cu_seq_lens_q": flat.cu_seqlens,
        "cu_seq_lens_k": flat.cu_seqlens,
        "max_length_q": flat.max_seqlen,
        "max_length_k": flat.max_seqlen,
    }


def physical_offsets(
    document_ids: Tensor | Segments, padding: PaddingSegments = "split", *, longest_padding: int | None = None
) -> PhysicalFlat[Tensor]:
    """Give the physical offsets of documents and padding over the flattened batch; no segment enters the next row.

    Args:
        document_ids: as `flash_varlen_kwargs`.
        padding: as `flash_varlen_kwargs`.
        longest_padding: as `flash_varlen_kwargs`.

    Returns:
        `cu_seqlens`, int32 `[segments + 1]`, from 0 to `batch * sequence`; and `max_seqlen`, the places of the longest
        segment.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole.
        EncodingError: as `flash_varlen_kwargs`.

    Example:
        >>> import torch
        >>> physical_offsets(torch.tensor([[2, 2], [2, 0]])).cu_seqlens
        tensor([0, 2, 3, 4], dtype=torch.int32)
        >>> physical_offsets(torch.tensor([[2, 2, 2, 0, 0]]), longest_padding=1).cu_seqlens
        tensor([0, 3, 4, 5], dtype=torch.int32)
    """
    segments = as_segments(document_ids)
    bounds, longest = physical_bounds(segments, padding, longest_padding=longest_padding)
    return PhysicalFlat(segments.tensor(bounds), longest)


def physical_bounds(
    segments: Segments, padding: PaddingSegments = "split", *, longest_padding: int | None = None
) -> tuple[npt.NDArray[np.int32], int]:
    """Give on the host what `physical_offsets` gives: the offsets, and the places of the longest segment.

    Raises:
        DocumentIdsError: as `physical_offsets`.
        EncodingError: as `physical_offsets`.
    """
    require_choice(padding, PADDING_SEGMENTS, "padding")
    longest_padding = _checked_longest_padding(longest_padding, padding)
    require_no_holes(segments)
    if padding == "run":
        return segments.bounds.astype(np.int32), greatest(segments.lengths)
    if longest_padding is None:
        longest = max(segments.longest, 1)
        return _cut(segments, longest), longest
    padded = int(segments.lengths.take(segments.zeros).max(initial=0))
    return _cut(segments, longest_padding), max(segments.longest, min(padded, longest_padding))


def physical_offsets_from_positions(position_ids: Tensor) -> PhysicalFlat[Tensor]:
    """Give the physical offsets of documents over a flattened batch without padding, from text positions alone.

    A document begins where the position is 0, and at the head of each row whatever its position.

    Args:
        position_ids: any integer dtype, `[batch, sequence]`, rising by one inside each document. Padding that counts
            on belongs to the document before it; where its positions are 0, each place of it is a document.

    Returns:
        `cu_seqlens`, int32 `[documents + 1]`, from 0 to `batch * sequence`; and `max_seqlen`, the longest document.

    Raises:
        EncodingError: wrong type, rank or dtype, more places than int32 offsets can count, or a document whose last
            position does not tell its length.

    Example:
        >>> import torch
        >>> flat = physical_offsets_from_positions(torch.tensor([[0, 1, 2, 0], [5, 6, 0, 1]]))
        >>> flat.cu_seqlens, flat.max_seqlen
        (tensor([0, 3, 4, 6, 8], dtype=torch.int32), 3)
    """
    problems = integer_rows_problems(position_ids, "position_ids")
    if not problems and position_ids.numel() > INT32_MAX:
        problems = [too_many_places("position_ids", tuple(position_ids.shape))]
    if problems:
        raise EncodingError(*problems)
    positions = read_on_host(position_ids, "position_ids")
    flat, sequence = positions.ravel(), positions.shape[1]
    opens = flags_for(flat.size)
    np.equal(flat, 0, out=opens[: flat.size])
    bounds = bounds_of(opens, flat.size, sequence)
    longest = _longest_of_few(flat, bounds.tolist()) if bounds.size <= _FEW_BOUNDS else 0
    longest = longest or _longest_counted(flat, bounds, sequence)
    return PhysicalFlat(to_tensor(bounds.astype(np.int32), position_ids.device), longest)


def _longest_of_few(flat: npt.NDArray[np.integer[Any]], bounds: Sequence[int]) -> int:
    """Give the tokens of the longest document, or 0 where a last position does not tell how long its document is."""
    greatest_steps, position = 0, flat.item
    for start, stop in pairwise(bounds):
        last = stop - 1
        steps = position(last)
        if start + steps != last:
            return 0
        if steps > greatest_steps:  # Half the time of `max`.
            greatest_steps = steps
    return greatest_steps + 1


def _longest_counted(flat: npt.NDArray[np.integer[Any]], bounds: Integers, sequence: int) -> int:
    """Give the tokens of the longest document, or name the first whose last position does not tell how long it is."""
    starts, lasts = bounds[:-1], bounds[1:] - 1
    steps = lasts - starts
    (wrong,) = (flat.take(lasts) != steps).nonzero()
    if wrong.size:
        # At the head of a row, a document goes on from whatever position stands there.
        # Of uint64 and int64, numpy would make float64.
        first, last = (flat.take(places[wrong]).astype(np.int64) for places in (starts, lasts))
        wrong = wrong[first + steps[wrong] != last]
    if wrong.size:
        row, position = divmod(int(lasts[wrong[0]]), sequence)
        message = f"positions do not rise by one over the {steps[wrong[0]] + 1} tokens that end here"
        remedy = "Give text positions that restart at 0 in each document, or derive offsets from document ids."
        value = int(flat[lasts[wrong[0]]])
        raise EncodingError(Problem("position_ids", message, "value", row, position, value, remedy))
    return greatest(steps) + 1


def document_ids_from_flash_varlen(kwargs: FlashVarlenKwargs[Tensor], padding_mask: Tensor) -> Tensor:
    """Find the ids again from flash varlen kwargs: physical offsets of one stream.

    The offsets do not tell padding from documents, nor where a row ends: the mask gives both.

    Args:
        kwargs: physical offsets over the flattened batch, in which each segment is one document or all padding.
        padding_mask: bool, `[batch, sequence]`, True at padding.

    Returns:
        Canonical ids, int64 `[batch, sequence]`.

    Raises:
        EncodingError: the kwargs are malformed, their two sides differ, the offsets do not cover the batch, or a
            segment mixes documents with padding or rows or is longer than `max_length_q` or `max_length_k`.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 2, 0, 0, 0]])
        >>> document_ids_from_flash_varlen(flash_varlen_kwargs(ids), ids == 0)
        tensor([[1, 1, 2, 0, 0, 0]])
    """
    require_instance(kwargs, Mapping, "kwargs", "Give what flash_varlen_kwargs(document_ids) gives.")
    parse_flash_varlen_kwargs(kwargs)
    offsets_q, offsets_k = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    problems = _kwargs_problems(offsets_q, offsets_k, padding_mask)
    if problems:
        raise EncodingError(*problems)
    bounds, other, mask = read_together(offsets_q, offsets_k, padding_mask, field="cu_seq_lens_q")
    (differ,) = (bounds != other).nonzero()
    if differ.size:
        position, value = int(differ[0]), int(other[differ[0]])
        message, remedy = "differs from cu_seq_lens_q", "Packed self-attention has equal offsets on both sides."
        raise EncodingError(Problem("cu_seq_lens_k", message, "disagreement", None, position, value, remedy))
    batch, sequence = padding_mask.shape
    starts, ends = _checked_segments(bounds.astype(np.int64), batch, sequence)
    _require_longest(kwargs, int((ends - starts).max()))
    padded = np.add.reduceat(mask.ravel().astype(np.int64), starts)
    mixed = np.flatnonzero((padded != 0) & (padded != ends - starts))
    if mixed.size:
        row, position = divmod(int(starts[mixed[0]]), sequence)
        message = "the segment that begins here holds padding and tokens"
        remedy = "Give offsets that cut where padding begins and ends, and the mask of the same tokens."
        raise EncodingError(Problem("cu_seq_lens_q", message, "disagreement", row, position, remedy=remedy))
    kept = padded == 0
    rows = starts // sequence
    numbers = np.cumsum(kept)
    before = np.searchsorted(rows, rows)
    ids = np.where(kept, numbers - (numbers - kept)[before], 0)
    return to_tensor(np.repeat(ids, ends - starts), padding_mask.device).view(batch, sequence)


def _checked_longest_padding(longest_padding: object, padding: PaddingSegments) -> int | None:
    if longest_padding is None:
        return None
    remedy = "Give the places of a segment of padding, or None for those of the longest document."
    places = require_count(longest_padding, "longest_padding", remedy, least=1)
    if padding == "run":
        message = 'cuts padding, which padding="run" keeps whole'
        raise EncodingError(Problem("longest_padding", message, "disagreement", value=places, remedy=remedy))
    return places


def _cut(segments: Segments, longest: int) -> npt.NDArray[np.int32]:
    """Give the bounds, and more of them where padding is longer than `longest`."""
    zeros, bounds = segments.zeros, segments.bounds
    counts = (segments.lengths.take(zeros) - 1) // longest
    if not np.count_nonzero(counts):
        return bounds.astype(np.int32)
    firsts = bounds.take(zeros) + longest
    if bounds.size > _LONG_STRETCH * zeros.size:
        return _joined(bounds, zeros, firsts, firsts + counts * longest, longest)
    ends = counts.cumsum()
    ranks = np.arange(int(ends[-1])) - (ends - counts).repeat(counts)
    cuts = firsts.repeat(counts) + ranks * longest
    merged = np.concatenate([bounds, cuts], dtype=np.int32)
    merged.sort(kind="stable")  # Both parts are in order, which this takes as two runs.
    return merged


def _joined(bounds: Integers, runs: Integers, firsts: Integers, stops: Integers, step: int) -> npt.NDArray[np.int32]:
    """Put the places from `firsts` to before `stops` after the start of each of some runs, stretch by stretch."""
    parts: list[Integers] = []
    read = 0
    for run, first, stop in zip(runs.tolist(), firsts.tolist(), stops.tolist(), strict=True):
        parts += [bounds[read : run + 1], np.arange(first, stop, step)]
        read = run + 1
    return np.concatenate([*parts, bounds[read:]], dtype=np.int32)


def _kwargs_problems(offsets_q: Tensor, offsets_k: Tensor, padding_mask: Tensor) -> list[Problem]:
    problems = [*tensor_problems(offsets_q, "cu_seq_lens_q"), *tensor_problems(offsets_k, "cu_seq_lens_k")]
    problems += padding_mask_problems(padding_mask)
    if problems:
        return problems
    if not padding_mask.numel():
        remedy = "Leave such batches out."
        return [Problem("padding_mask", "has no place", "shape", value=tuple(padding_mask.shape), remedy=remedy)]
    if padding_mask.numel() > INT32_MAX:
        return [too_many_places("padding_mask", tuple(padding_mask.shape))]
    problems = device_problems(padding_mask, offsets_q.device, "padding_mask", "cu_seq_lens_q lies")
    return problems or device_problems(offsets_k, offsets_q.device, "cu_seq_lens_k", "cu_seq_lens_q lies")


def _require_longest(kwargs: FlashVarlenKwargs[Tensor], longest: int) -> None:
    """Raise where a maximum is below the longest segment, which a kernel would silently cut."""
    for field, value in (("max_length_q", kwargs["max_length_q"]), ("max_length_k", kwargs["max_length_k"])):
        if value < longest:
            message = f"must be at least {longest}, the places of the longest segment"
            remedy = "Give the longest segment of these offsets, or more."
            raise EncodingError(Problem(field, message, "disagreement", value=value, remedy=remedy))


def _checked_segments(bounds: Integers, batch: int, sequence: int) -> tuple[Integers, Integers]:
    """Give starts and ends of the segments that hold something, or name the offset that is wrong."""
    total = batch * sequence
    wrong = wrong_offset(bounds, total)
    if wrong is not None:
        message = f"must start at zero, never fall, and end at batch * sequence = {total}"
        remedy = "Give the offsets of the whole batch, and the mask of the same rows."
        value = next(iter(bounds[wrong:].tolist()), None)
        raise EncodingError(Problem("cu_seq_lens_q", message, "value", None, wrong, value, remedy))
    starts, ends = bounds[:-1], bounds[1:]
    starts, ends = starts[starts < ends], ends[starts < ends]
    crossing = np.flatnonzero(starts // sequence != (ends - 1) // sequence)
    if crossing.size:
        row, position = divmod(int(starts[crossing[0]]), sequence)
        message = "the segment that begins here continues into the next row"
        remedy = "Add a boundary where each row ends."
        raise EncodingError(Problem("cu_seq_lens_q", message, "value", row, position, remedy=remedy))
    return starts, ends
