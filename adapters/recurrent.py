"""Where convolutions and recurrent state restart: a segment number per place, and offsets with their host copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import INT32_MAX, require_choice, require_count, require_instance, require_readable
from neatpack.adapters.document_ids import canonical_document_ids
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.host_arrays import read_on_host, read_together, to_tensor
from neatpack.adapters.layout import require_no_holes
from neatpack.adapters.offsets import read_offsets
from neatpack.adapters.physical import PaddingSegments, physical_bounds
from neatpack.adapters.segments import Segments, as_segments, require_ids_form, scan_array
from neatpack.adapters.token_tensors import padding_mask_problems, same_place_problems
from neatpack.contracts.encodings import GatheredStates, PhysicalStates, SegmentIndex, parse_segment_index
from neatpack.contracts.errors import DocumentIdsError, EncodingError, Problem

PaddingIndex = Literal["unused", "numbered"]
"""What padding holds in a segment index: -1, or for each run of it a number of its own."""

PADDING_INDEXES: Final[tuple[PaddingIndex, ...]] = get_args(PaddingIndex)

_CPU: Final = torch.device("cpu")

_HOLES_REMEDY: Final = "Gather the kept tokens into one row, as gathered_states(document_ids) counts them."


def segment_index(document_ids: Tensor | Segments, padding: PaddingIndex = "unused") -> SegmentIndex[Tensor]:
    """Number the segments of each row 0, 1, ..., as causal convolutions and state-space kernels take them.

    It is the `seq_idx` of `causal_conv1d_fn`, `mamba_chunk_scan_combined` and `Mamba2.forward`.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        padding: "unused" marks padding with -1; "numbered" counts each run of padding as a segment, for kernels
            that want numbers which never fall along the row.

    Returns:
        `seq_idx`, int32 `[batch, sequence]`, contiguous.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole, over which a convolution would reach.
        EncodingError: no such `padding`.

    Example:
        >>> ids = torch.tensor([[4, 4, 7, 0], [0, 1, 1, 1]])
        >>> segment_index(ids).seq_idx
        tensor([[ 0,  0,  1, -1],
                [-1,  0,  0,  0]], dtype=torch.int32)
        >>> segment_index(ids, "numbered").seq_idx
        tensor([[0, 0, 1, 2],
                [0, 1, 1, 1]], dtype=torch.int32)
    """
    require_choice(padding, PADDING_INDEXES, "padding")
    segments = as_segments(document_ids)
    require_no_holes(segments, remedy=_HOLES_REMEDY)
    counted = np.ones(segments.ids.size, np.int32) if padding == "numbered" else (segments.ids != 0).astype(np.int32)
    numbers = np.cumsum(counted, dtype=np.int32)
    heads = np.searchsorted(segments.rows, np.arange(segments.batch))
    numbers -= (numbers - counted)[heads][segments.rows] + 1
    numbers[counted == 0] = -1
    index = segments.tensor(np.repeat(numbers, segments.lengths))
    return SegmentIndex(index.view(segments.batch, segments.sequence))


def joined_segment_index(document_ids: Tensor | Segments) -> SegmentIndex[Tensor]:
    """Number the segments of all rows laid end to end, each run of padding as one of them.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.

    Returns:
        `seq_idx`, int32 `[1, batch * sequence]`, contiguous; it never falls.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole, over which a convolution would reach.

    Example:
        >>> joined_segment_index(torch.tensor([[4, 4, 0], [4, 7, 7]])).seq_idx
        tensor([[0, 0, 1, 2, 3, 3]], dtype=torch.int32)
    """
    segments = as_segments(document_ids)
    require_no_holes(segments, remedy=_HOLES_REMEDY)
    numbers = np.repeat(np.arange(segments.lengths.size, dtype=np.int32), segments.lengths)
    return SegmentIndex(segments.tensor(numbers)[None])


def document_ids_from_segment_index(index: SegmentIndex[Tensor], padding_mask: Tensor | None = None) -> Tensor:
    """Find the ids again from segment numbers.

    Args:
        index: numbers that stay the same inside a segment, negative at padding.
        padding_mask: bool, `[batch, sequence]`, True at padding, where the numbers count padding as segments; so it
            cuts none of them. Where numbers are negative, it is True at those alone.

    Returns:
        Canonical ids, int64 `[batch, sequence]`.

    Raises:
        DocumentIdsError: a number comes back after another one.
        EncodingError: wrong type, rank, dtype, shape or device, or a mask that contradicts the numbers.

    Example:
        >>> document_ids_from_segment_index(segment_index(torch.tensor([[4, 4, 7, 0]])))
        tensor([[1, 1, 2, 0]])
    """
    require_instance(index, SegmentIndex, "index", "Give SegmentIndex(seq_idx), int32 [batch, sequence].")
    parse_segment_index(index)
    require_readable(seq_idx=index.seq_idx)
    require_ids_form(index.seq_idx, "seq_idx")
    numbers, padding = _read_index(index.seq_idx, padding_mask)
    ids = np.where(padding, 0, numbers.astype(np.int64) + 1)
    try:
        return canonical_document_ids(scan_array(ids, index.seq_idx.device, "seq_idx"))
    except DocumentIdsError as error:
        problems = (
            replace(problem, value=problem.value - 1) if isinstance(problem.value, int) else problem
            for problem in error.problems
        )
        raise DocumentIdsError(*problems) from None


def segment_ids_from_offsets(cu_seqlens: Tensor, total_tokens: int | None = None) -> Tensor:
    """Repeat the number of each segment over its places, gathered or physical; those beyond the last get another.

    Args:
        cu_seqlens: int32 or int64 `[segments + 1]`, from 0, never falling, of one stream of any coordinates. A segment
            of no token uses up its number.
        total_tokens: places of the stream; by default the last offset.

    Returns:
        int32 `[total_tokens]`.

    Raises:
        EncodingError: the offsets are malformed, or go beyond `total_tokens`.

    Example:
        >>> segment_ids_from_offsets(torch.tensor([0, 2, 3]), total_tokens=5)
        tensor([0, 0, 1, 2, 2], dtype=torch.int32)
    """
    offsets = read_offsets(cu_seqlens)
    last = int(offsets[-1])
    remedy = "Give the places of the stream, or None for as many as the offsets name."
    total = last if total_tokens is None else require_count(total_tokens, "total_tokens", remedy)
    if last > INT32_MAX:
        remedy = "Give the offsets of fewer tokens at a time."
        raise EncodingError(Problem("cu_seqlens", "go past int32", "value", value=last, remedy=remedy))
    if not last <= total <= INT32_MAX:
        message = f"must be from {last}, the last offset, to {INT32_MAX}"
        raise EncodingError(Problem("total_tokens", message, "disagreement", value=total, remedy=remedy))
    lengths = np.diff(offsets, append=total)
    return to_tensor(np.repeat(np.arange(lengths.size, dtype=np.int32), lengths), cu_seqlens.device)


def gathered_states(document_ids: Tensor | Segments, dtype: torch.dtype = torch.int64) -> GatheredStates[Tensor]:
    """Give where state restarts among the kept tokens of all rows, which a layer takes as one row of them.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        dtype: of the offsets, int64 as flash-linear-attention takes them, or int32.

    Returns:
        `token_indices`, int64 `[tokens]`: places of kept tokens in the flattened `batch * sequence`. `cu_seqlens`,
        `[documents + 1]`: gathered offsets on the device of the ids, and `cu_seqlens_cpu` the same on the host.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: another dtype.

    Example:
        >>> states = gathered_states(torch.tensor([[1, 1, 0], [1, 2, 2]]))
        >>> states.token_indices, states.cu_seqlens
        (tensor([0, 1, 3, 4, 5]), tensor([0, 2, 3, 5]))
    """
    _require_offset_dtype(dtype)
    segments = as_segments(document_ids)
    flat = gathered_flat(replace(segments, device=_CPU))
    on_host = flat.cu_seqlens.to(dtype)
    # A layer may write to neither copy through the other.
    return GatheredStates(flat.token_indices.to(segments.device), on_host.to(segments.device, copy=True), on_host)


def physical_states(
    document_ids: Tensor | Segments, padding: PaddingSegments = "split", dtype: torch.dtype = torch.int64
) -> PhysicalStates[Tensor]:
    """Give where state restarts in the flattened padded rows; padding is segments of its own.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        padding: as `flash_varlen_kwargs`.
        dtype: of the offsets, int64 as flash-linear-attention takes them, or int32.

    Returns:
        `cu_seqlens`, `[segments + 1]`, from 0 to `batch * sequence`, on the device of the ids, and `cu_seqlens_cpu` the
        same on the host.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole.
        EncodingError: no such `padding`, or another dtype.

    Example:
        >>> physical_states(torch.tensor([[1, 1, 0], [1, 2, 2]])).cu_seqlens
        tensor([0, 2, 3, 4, 6])
    """
    _require_offset_dtype(dtype)
    segments = as_segments(document_ids)
    require_no_holes(segments, remedy=_HOLES_REMEDY)
    on_host = to_tensor(physical_bounds(segments, padding)[0]).to(dtype)
    return PhysicalStates(on_host.to(segments.device, copy=True), on_host)


def _read_index(seq_idx: Tensor, padding_mask: Tensor | None) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Read segment numbers and where padding is, or say where a mask contradicts them."""
    if padding_mask is None:
        numbers = read_on_host(seq_idx, "seq_idx")
        return numbers, numbers < 0
    problems = padding_mask_problems(padding_mask)
    problems = problems or same_place_problems(padding_mask, seq_idx, "padding_mask", "seq_idx")
    if problems:
        raise EncodingError(*problems)
    numbers, padding = read_together(seq_idx, padding_mask, field="seq_idx")
    unused = numbers < 0
    wrong = padding != unused
    if not unused.any():
        wrong[:] = False
        wrong[:, 1:] = (padding[:, 1:] != padding[:, :-1]) & (numbers[:, 1:] == numbers[:, :-1])
    if wrong.any():
        row, position = (int(axis[0]) for axis in np.nonzero(wrong))
        message = "marks other places as padding than the segment numbers allow"
        remedy = "Derive both from the same ids, or leave the mask out where padding is negative."
        value = bool(padding[row, position])
        raise EncodingError(Problem("padding_mask", message, "disagreement", row, position, value, remedy))
    return numbers, padding


def _require_offset_dtype(dtype: torch.dtype) -> None:
    if not isinstance(cast("object", dtype), torch.dtype) or dtype not in (torch.int32, torch.int64):
        remedy = "Give the dtype that the kernel takes."
        raise EncodingError(Problem("dtype", "must be torch.int32 or torch.int64", "dtype", value=dtype, remedy=remedy))
