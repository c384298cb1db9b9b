"""Encodings of fixed shape, without a host read: bounds are given, and what the ids did wrong is told in a tensor.

Every function traces in one graph. Beside its result it gives a status, int32 `[4]`: the rule that was broken first
along the flattened batch, or 0, and the row, the position and the id there. Where a status is not valid, the result
has no meaning.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from neatpack.adapters.arguments import require_choice, require_count
from neatpack.adapters.positions import START_REMEDY
from neatpack.adapters.static_scan import StaticBounds, StaticScan, as_scan
from neatpack.adapters.static_status import StaticRule, first_fault
from neatpack.contracts.encodings import GatheredFlat, GatheredRows, PhysicalFlat, SegmentIndex, THDLengths
from neatpack.contracts.fields import UNUSED_LENGTH

Tail = Literal["empty", "padding"]
"""What a stream of kept tokens has after its last document: documents of no token, or the places that were left out,
as segments no longer than the longest document may be."""

TAILS: Final[tuple[Tail, ...]] = get_args(Tail)


def static_gathered_rows(
    document_ids: Tensor | StaticScan, bounds: StaticBounds
) -> tuple[GatheredRows[Tensor], Tensor]:
    """Give NEAT metadata, `gathered_rows` with a fixed width.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: documents of a row and tokens of a document.

    Returns:
        `cu_seqlens` is `[batch, bounds.documents + 1]`, and `max_seqlen` the bound. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan.

    Example:
        >>> static_gathered_rows(torch.tensor([[1, 0, 2, 2]]), StaticBounds(3, 4, 4))[0].cu_seqlens
        tensor([[ 0,  1,  3, -1]], dtype=torch.int32)
    """
    scan = as_scan(document_ids, bounds)
    # The place before the row is looked at too: it begins a document of no token, so that each row has an offset 0.
    kept, begun = scan.ids[:, 1:] > 0, scan.begins(before=1).cumsum(1)
    indices = scan.places.where(kept[:, 1:], scan.counting(-1, 0))
    # As wide as any row needs, so that a bound that is exceeded is no index out of range.
    width = max(kept.shape[1], bounds.documents) + 2
    unused = scan.int32_minus_one.expand(len(kept), width)
    offsets = unused.scatter_reduce(1, begun, kept.cumsum(1, dtype=torch.int32), "amax")[:, 1 : bounds.documents + 2]
    faults = {
        # Of a token whose id comes back, the last place with the greatest start so far is an earlier one.
        StaticRule.RETURNING_ID: scan.first[:, 2:].cummax(1).indices < indices,
        StaticRule.TOO_MANY_DOCUMENTS: begun[:, 1:] > bounds.documents + 1,
    }
    return GatheredRows(indices, offsets, bounds.longest), first_fault(scan, faults)


def static_gathered_flat(
    document_ids: Tensor | StaticScan, bounds: StaticBounds, tail: Tail = "empty"
) -> tuple[GatheredFlat[Tensor], Tensor]:
    """Give the kept tokens of all rows as one stream, `gathered_flat` with a fixed length.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: segments of the batch and tokens of a document.
        tail: what follows the last document. The indices of places that were left out follow those of the tokens, so
            that a gather by them, and a scatter back, is a permutation; "empty" puts them in no document. A tail for
            which no segments are left is told at the last place.

    Returns:
        `token_indices` is `[batch * sequence]`, `cu_seqlens` `[bounds.segments + 1]`, and `max_seqlen` the bound.
        And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan; or no such tail.

    Example:
        >>> ids, bounds = torch.tensor([[1, 0, 2, 2]]), StaticBounds(3, 4, 4)
        >>> static_gathered_flat(ids, bounds)[0].cu_seqlens
        tensor([0, 1, 3, 3, 3], dtype=torch.int32)
        >>> static_gathered_flat(ids, bounds, "padding")[0].cu_seqlens
        tensor([0, 1, 3, 4, 4], dtype=torch.int32)
    """
    require_choice(tail, TAILS, "tail")
    scan = as_scan(document_ids, bounds)
    kept = scan.kept
    number = scan.begins().flatten().cumsum(0)
    # Places sorted by the number of their document, those that are left out behind all: as many stand before the
    # first of a document as its offset says.
    owners = torch.where(kept.flatten(), number, scan.numbers[-1])
    ordered, indices = owners.sort(stable=True)
    offsets = torch.searchsorted(ordered, scan.counting(1, bounds.segments + 2), out_int32=True)
    beyond_bound = number > bounds.segments
    if tail == "padding":
        # How many entries each one is beyond the offset where the last document ends.
        beyond = scan.counting(0, bounds.segments + 1) - number[-1:]
        offsets = (offsets + beyond.clamp(min=0) * bounds.longest).clamp(max=kept.numel()).to(torch.int32)
        # Told at the last place, so that ids that are malformed are told first.
        beyond_bound = beyond_bound | pad(offsets[-1:] < kept.numel(), (kept.numel() - 1, 0))
    faults = {StaticRule.RETURNING_ID: scan.returning(), StaticRule.TOO_MANY_SEGMENTS: beyond_bound.view_as(kept)}
    return GatheredFlat(indices, offsets, bounds.longest), first_fault(scan, faults)


def static_physical_offsets(
    document_ids: Tensor | StaticScan, bounds: StaticBounds
) -> tuple[PhysicalFlat[Tensor], Tensor]:
    """Give the offsets of documents and padding over the flattened batch, `physical_offsets` with a fixed length.

    Padding is cut into segments of `bounds.longest` places; unused entries are segments of no place at the end.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        bounds: segments of the batch and tokens of a document.

    Returns:
        `cu_seqlens` is `[bounds.segments + 1]`, and `max_seqlen` the bound. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan.

    Example:
        >>> static_physical_offsets(torch.tensor([[1, 1, 2, 0, 0, 0]]), StaticBounds(2, 6, 2))[0].cu_seqlens
        tensor([0, 2, 3, 5, 6, 6, 6], dtype=torch.int32)
    """
    scan = as_scan(document_ids, bounds)
    begins_run = scan.begins_run()
    count = _cut(scan, begins_run).flatten().cumsum(0)
    offsets = torch.searchsorted(count, scan.counting(1, bounds.segments + 2), out_int32=True)
    faults = {
        StaticRule.RETURNING_ID: scan.returning(),
        StaticRule.HOLE: scan.resumed(scan.begins(), begins_run),
        StaticRule.TOO_MANY_SEGMENTS: (count > bounds.segments).view_as(begins_run),
    }
    return PhysicalFlat(offsets, bounds.longest), first_fault(scan, faults)


def _cut(scan: StaticScan, begins_run: Tensor) -> Tensor:
    """Mark where runs begin, and where they are cut, every `longest` places."""
    longest = scan.bounds.longest
    if longest >= len(scan.places):
        return begins_run
    # Of equal ones the last counts, so that this is where each place's run began.
    begins = begins_run.cummax(1).indices
    return (scan.places - begins) % longest == 0


def static_thd_lengths(document_ids: Tensor | StaticScan, bounds: StaticBounds) -> tuple[THDLengths[Tensor], Tensor]:
    """Give real and padded lengths, `thd_lengths` with a fixed width.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, which follows a document; without holes.
        bounds: documents of a row and tokens of a document.

    Returns:
        Both lengths are `[batch, bounds.documents]`. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan.

    Example:
        >>> static_thd_lengths(torch.tensor([[1, 1, 0, 2, 0]]), StaticBounds(3, 5, 5))[0].seq_lens_padded
        tensor([[    3,     2, -1000]])
    """
    scan = as_scan(document_ids, bounds)
    begins, kept = scan.begins(), scan.kept
    begun = begins.cumsum(1)
    unused = torch.full((len(kept), max(kept.shape[1], bounds.documents) + 1), UNUSED_LENGTH, device=kept.device)
    real, padded = (
        unused.scatter_reduce(1, begun, each, "sum", include_self=False)[:, 1 : bounds.documents + 1]
        for each in (kept.to(torch.int64), scan.counting(1, 2).expand_as(begun))
    )
    faults = {
        StaticRule.RETURNING_ID: scan.returning(),
        StaticRule.HOLE: scan.resumed(begins, scan.begins_run()),
        StaticRule.LEADING_PADDING: (begun == 0) & scan.ids[:, 2:].any(1, keepdim=True),
        StaticRule.TOO_MANY_DOCUMENTS: begun > bounds.documents,
    }
    return THDLengths(real, padded), first_fault(scan, faults)


def static_segment_index(
    document_ids: Tensor | StaticScan, bounds: StaticBounds
) -> tuple[SegmentIndex[Tensor], Tensor]:
    """Number the documents of each row 0, 1, ..., -1 at padding, as `segment_index` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        bounds: documents of a row and tokens of a document.

    Returns:
        `seq_idx`, int32 `[batch, sequence]`. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan.

    Example:
        >>> static_segment_index(torch.tensor([[5, 5, 3, 0]]), StaticBounds(2, 4, 4))[0].seq_idx
        tensor([[ 0,  0,  1, -1]], dtype=torch.int32)
    """
    scan = as_scan(document_ids, bounds)
    begins = scan.begins()
    begun = begins.cumsum(1, dtype=torch.int32)
    index = (begun - 1).where(scan.kept, scan.int32_minus_one)
    faults = {
        StaticRule.RETURNING_ID: scan.returning(),
        StaticRule.HOLE: scan.resumed(begins, scan.begins_run()),
        StaticRule.TOO_MANY_DOCUMENTS: begun > bounds.documents,
    }
    return SegmentIndex(index), first_fault(scan, faults)


def static_position_ids(
    document_ids: Tensor | StaticScan, bounds: StaticBounds, start: int = 0
) -> tuple[Tensor, Tensor]:
    """Number the tokens of each document from `start`, as `build_position_ids` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.
        bounds: tokens of a document.
        start: the position of the first token of each document.

    Returns:
        int64 `[batch, sequence]`, 0 at padding. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan; or `start` is no int, or negative.

    Example:
        >>> static_position_ids(torch.tensor([[1, 1, 2, 0, 2, 0]]), StaticBounds(2, 6, 6))[0]
        tensor([[0, 1, 0, 1, 2, 0]])
    """
    start = require_count(start, "start", START_REMEDY)
    scan = as_scan(document_ids, bounds)
    starts, stops = scan.spans()
    positions = scan.places - starts
    if start:
        positions = positions.add(stops > scan.places, alpha=start)
    return positions, first_fault(scan, {StaticRule.RETURNING_ID: scan.returning()})
