"""Encodings of fixed shape, without a host read: bounds are given, and what the ids did wrong is told in a tensor.

Every function traces in one graph. Beside its result it gives a status, int32 `[4]`: the rule that was broken first
along the flattened batch, or 0, and the row, the position and the id there. `raise_if_invalid` is the one read, made
when the caller chooses. Where a status is not valid, the result has no meaning.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from neatpack.adapters.arguments import is_choice, require_count, require_flag, require_instance, require_readable
from neatpack.adapters.block_mask import VisibleBlocks, assemble, checked_block_size, mask_function
from neatpack.adapters.masks import require_mask_dtype
from neatpack.adapters.positions import START_REMEDY
from neatpack.adapters.segments import read_on_host, require_ids_form
from neatpack.adapters.visibility import require_window, seen_range, sees
from neatpack.contracts.encodings import GatheredFlat, GatheredRows, PhysicalFlat, SegmentIndex, THDLengths
from neatpack.contracts.errors import DocumentIdsError, EncodingError, PackingError, Problem
from neatpack.contracts.fields import UNUSED_LENGTH

Tail = Literal["empty", "padding"]
"""What a stream of kept tokens has after its last document: documents of no token, or the places that were left out,
as segments no longer than the longest document may be."""

TAILS: Final[tuple[Tail, ...]] = get_args(Tail)


class StaticRule(IntEnum):
    """What a status tells."""

    VALID = 0
    NEGATIVE_ID = 1
    RETURNING_ID = 2
    HOLE = 3
    LEADING_PADDING = 4
    TOO_MANY_DOCUMENTS = 5
    TOO_LONG = 6
    TOO_MANY_SEGMENTS = 7


@dataclass(frozen=True)
class StaticBounds:
    """What fixes the shapes. Nothing is truncated: ids that exceed a bound have a status that says so.

    Attributes:
        documents: documents of a row, at most.
        segments: entries of an encoding that makes all rows one stream, at most: documents, and pieces of padding.
        longest: tokens of a document, at most; also where padding is cut, and the `max_seqlen` that kernels get.

    Raises:
        EncodingError: a bound is no positive int.

    Example:
        >>> StaticBounds(documents=3, segments=6, longest=4)
        StaticBounds(documents=3, segments=6, longest=4)
    """

    documents: int
    segments: int
    longest: int

    def __post_init__(self) -> None:
        for name, value in (("documents", self.documents), ("segments", self.segments), ("longest", self.longest)):
            # torch.compile takes no int of numpy.
            object.__setattr__(self, name, require_count(value, name, "Give a bound of at least 1.", least=1))


class StaticScan(NamedTuple):
    """What is known of each place of the rows, and of one more place before each row, which holds no token.

    Attributes:
        bounds: what it was made for.
        ids: int64 `[batch, 1 + sequence]`, as they came.
        numbers: int64, -1, 0, 1, ..., as many as an encoding may count: to slice them starts no kernel.
        first: int64 `[batch, 1 + sequence]`, the first place with the same id, which is 0 for id 0.
        begins: bool `[batch, 1 + sequence]`, whether an id stands here for the first time.
        begun: int64 `[batch, 1 + sequence]`, how many ids have stood here or before: the documents, and id 0.
        too_many: bool `[batch, 1 + sequence]`, whether more documents have begun than the bound.
        too_long: bool `[batch, 1 + sequence]`, whether a document begins that has more tokens than the bound.
    """

    bounds: StaticBounds
    ids: Tensor
    numbers: Tensor
    first: Tensor
    begins: Tensor
    begun: Tensor
    too_many: Tensor
    too_long: Tensor

    @property
    def places(self) -> Tensor:
        """0, 1, ..., as many as a row has places."""
        return self.numbers[1 : self.ids.shape[1]]

    @property
    def kept(self) -> Tensor:
        """Whether a token of a document stands at a place of the row."""
        return self.ids[:, 1:] > 0

    def spans(self) -> tuple[Tensor, Tensor]:
        """Give where the document around each place of the row begins and ends; the place, where there is none."""
        width = self.ids.shape[1]
        own, next_places = (self.numbers[start : start + width].expand_as(self.ids) for start in (0, 1))
        # The greatest end so far is that of the document around, or the place itself. The last of equal ones counts.
        stops, starts = own.scatter_reduce(1, self.first, next_places, "amax")[:, 1:].cummax(1)
        return starts, stops

    def runs(self) -> Tensor:
        """Give where the run of equal ids begins in which each place of the row stands."""
        return ((self.ids[:, 1:] != self.ids[:, :-1]) * self.places).cummax(1).values


def raise_if_invalid(status: Tensor, field: str = "document_ids") -> None:
    """Read a status, and raise if a rule was broken.

    Args:
        status: int32 `[4]`, the second result of a static function. It is read from its device here.
        field: what errors call the ids.

    Raises:
        DocumentIdsError: the ids are malformed, or what the encoding cannot express.
        EncodingError: they exceed a bound, or the status is none.

    Example:
        >>> _, status = static_position_ids(torch.tensor([[1, 2, 1]]), StaticBounds(3, 3, 3))
        >>> raise_if_invalid(status)
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.DocumentIdsError: document_ids[row 0, position 2] = 1: id comes back after another \
id. Give each document of a row an id of its own, and keep its tokens together.
    """
    remedy = "Give the second result of a static function."
    require_readable(status=status)
    form = (status.dtype, tuple(status.shape))
    if form != (torch.int32, (4,)):
        raise EncodingError(Problem("status", "must be int32 [4]", "shape", value=form, remedy=remedy))
    told = read_on_host(status)
    code, row, position, value = (int(number) for number in told)
    if code not in _FAULTS and code != StaticRule.VALID:
        raise EncodingError(Problem("status", "tells no rule", "value", value=code, remedy=remedy))
    if code != StaticRule.VALID:
        error, message, remedy = _FAULTS[StaticRule(code)]
        raise error(Problem(field, message, "value", row, position, value, remedy))


def scan_static(document_ids: Tensor, bounds: StaticBounds) -> StaticScan:
    """Look at ids once, for several encodings of them.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: documents of a row and tokens of a document.

    Raises:
        DocumentIdsError: no integer tensor of two dimensions, or an empty one; values are left to the status.
        EncodingError: the bounds are none.

    Example:
        >>> scan_static(torch.tensor([[7, 7, 0, 4]]), StaticBounds(2, 4, 4)).first
        tensor([[0, 1, 1, 0, 4]])
    """
    _require_bounds(bounds)
    require_ids_form(document_ids, "document_ids")
    ids = pad(document_ids.to(torch.int64), (1, 0))
    numbers = torch.arange(-1, max(ids.shape[1], bounds.segments) + 2, device=ids.device)
    ordered, order = ids.sort(dim=1, stable=True)
    first = order.gather(1, torch.searchsorted(ordered, ids))
    none, one = (numbers[number : number + 1].expand_as(ids) for number in (1, 2))
    lengths = none.scatter_add(1, first, one)
    longest = min(bounds.longest, ids.shape[1])
    begins, too_long = (lengths[..., None] > numbers[1 : longest + 2 : longest]).unbind(-1)
    begun = begins.cumsum(1)
    return StaticScan(bounds, ids, numbers, first, begins, begun, begun > bounds.documents + 1, too_long)


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

    Example:
        >>> static_gathered_rows(torch.tensor([[1, 0, 2, 2]]), StaticBounds(3, 4, 4))[0].cu_seqlens
        tensor([[ 0,  1,  3, -1]], dtype=torch.int32)
    """
    scan = _as_scan(document_ids, bounds)
    kept = scan.ids > 0
    indices = scan.places.where(kept[:, 1:], scan.numbers[:1])
    # As wide as any row needs, so that a bound that is exceeded is no index out of range.
    width = max(scan.ids.shape[1], bounds.documents) + 2
    unused = scan.numbers[:1].view(torch.int32)[:1].expand(len(kept), width)
    offsets = unused.scatter_reduce(1, scan.begun, kept.cumsum(1, dtype=torch.int32), "amax")[
        :, 1 : bounds.documents + 2
    ]
    # Of a token whose id comes back, the last place with the greatest start so far is an earlier one.
    returning = scan.first.cummax(1).indices[:, 1:] <= indices
    return GatheredRows(indices, offsets, bounds.longest), _status(scan, {StaticRule.RETURNING_ID: returning})


def static_gathered_flat(
    document_ids: Tensor | StaticScan, bounds: StaticBounds, tail: Tail = "empty"
) -> tuple[GatheredFlat[Tensor], Tensor]:
    """Give the kept tokens of all rows as one stream, `gathered_flat` with a fixed length.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: all of them.
        tail: what follows the last document. The indices of places that were left out follow those of the tokens, so
            that a gather by them, and a scatter back, is a permutation; "empty" puts them in no document.

    Returns:
        `token_indices` is `[batch * sequence]`, `cu_seqlens` `[bounds.segments + 1]`, and `max_seqlen` the bound.
        And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: no such tail.

    Example:
        >>> ids, bounds = torch.tensor([[1, 0, 2, 2]]), StaticBounds(3, 4, 4)
        >>> static_gathered_flat(ids, bounds)[0].cu_seqlens
        tensor([0, 1, 3, 3, 3], dtype=torch.int32)
        >>> static_gathered_flat(ids, bounds, "padding")[0].cu_seqlens
        tensor([0, 1, 3, 4, 4], dtype=torch.int32)
    """
    if not is_choice(tail, TAILS):
        remedy = f"Give one of {', '.join(map(repr, TAILS))}."
        raise EncodingError(Problem("tail", "is no tail", "value", value=repr(tail), remedy=remedy))
    scan = _as_scan(document_ids, bounds)
    kept = scan.kept
    indices = kept.view(torch.uint8).flatten().argsort(descending=True, stable=True)
    number = scan.begins[:, 1:].flatten().cumsum(0)
    tokens = pad(kept.flatten().cumsum(0, dtype=torch.int32), (1, 0))
    offsets = tokens[torch.searchsorted(number, scan.numbers[2 : bounds.segments + 3])]
    beyond_bound = number > bounds.segments
    if tail == "padding":
        # How many entries each one is beyond the offset where the last document ends.
        beyond = scan.numbers[1 : bounds.segments + 2] - number[-1:]
        offsets = (offsets + beyond.clamp(min=0) * bounds.longest).clamp(max=kept.numel()).to(torch.int32)
        beyond_bound = beyond_bound | (~kept.flatten() & (offsets[-1] < kept.numel()))
    faults = {StaticRule.RETURNING_ID: _returning(scan), StaticRule.TOO_MANY_SEGMENTS: beyond_bound.view_as(kept)}
    return GatheredFlat(indices, offsets, bounds.longest), _status(scan, faults)


def static_physical_offsets(
    document_ids: Tensor | StaticScan, bounds: StaticBounds
) -> tuple[PhysicalFlat[Tensor], Tensor]:
    """Give the offsets of documents and padding over the flattened batch, `physical_offsets` with a fixed length.

    Padding is cut into segments of `bounds.longest` places; unused entries are segments of no place at the end.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        bounds: all of them.

    Returns:
        `cu_seqlens` is `[bounds.segments + 1]`, and `max_seqlen` the bound. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.

    Example:
        >>> static_physical_offsets(torch.tensor([[1, 1, 2, 0, 0, 0]]), StaticBounds(2, 6, 2))[0].cu_seqlens
        tensor([0, 2, 3, 5, 6, 6, 6], dtype=torch.int32)
    """
    scan = _as_scan(document_ids, bounds)
    runs = scan.runs()
    begins = (scan.places - runs) % bounds.longest == 0
    count = begins.flatten().cumsum(0)
    offsets = torch.searchsorted(count, scan.numbers[2 : bounds.segments + 3], out_int32=True)
    faults = {
        StaticRule.RETURNING_ID: _returning(scan),
        StaticRule.HOLE: _after_holes(scan, runs),
        StaticRule.TOO_MANY_SEGMENTS: (count > bounds.segments).view_as(runs),
    }
    return PhysicalFlat(offsets, bounds.longest), _status(scan, faults)


def static_thd_lengths(document_ids: Tensor | StaticScan, bounds: StaticBounds) -> tuple[THDLengths[Tensor], Tensor]:
    """Give real and padded lengths, `thd_lengths` with a fixed width.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, which follows a document; without holes.
        bounds: documents of a row and tokens of a document.

    Returns:
        Both lengths are `[batch, bounds.documents]`. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.

    Example:
        >>> static_thd_lengths(torch.tensor([[1, 1, 0, 2, 0]]), StaticBounds(3, 5, 5))[0].seq_lens_padded
        tensor([[    3,     2, -1000]])
    """
    scan = _as_scan(document_ids, bounds)
    begun, kept = scan.begun[:, 1:], scan.kept
    unused = torch.full((len(kept), max(kept.shape[1], bounds.documents) + 2), UNUSED_LENGTH, device=kept.device)
    real, padded = (
        unused.scatter_reduce(1, begun, each, "sum", include_self=False)[:, 2 : bounds.documents + 2]
        for each in (kept.to(torch.int64), scan.numbers[2:3].expand_as(begun))
    )
    faults = {
        StaticRule.RETURNING_ID: _returning(scan),
        StaticRule.HOLE: _after_holes(scan, scan.runs()),
        StaticRule.LEADING_PADDING: (begun == 1) & (begun[:, -1:] > 1),
    }
    return THDLengths(real, padded), _status(scan, faults)


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

    Example:
        >>> static_segment_index(torch.tensor([[5, 5, 3, 0]]), StaticBounds(2, 4, 4))[0].seq_idx
        tensor([[ 0,  0,  1, -1]], dtype=torch.int32)
    """
    scan = _as_scan(document_ids, bounds)
    index = (scan.begun[:, 1:] - 2).where(scan.kept, scan.numbers[:1]).to(torch.int32)
    faults = {StaticRule.RETURNING_ID: _returning(scan), StaticRule.HOLE: _after_holes(scan, scan.runs())}
    return SegmentIndex(index), _status(scan, faults)


def static_position_ids(
    document_ids: Tensor | StaticScan, bounds: StaticBounds, start: int = 0
) -> tuple[Tensor, Tensor]:
    """Number the tokens of each document from `start`, as `build_position_ids` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.
        bounds: documents of a row and tokens of a document.
        start: the position of the first token of each document.

    Returns:
        int64 `[batch, sequence]`, 0 at padding. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: `start` is no int, or negative.

    Example:
        >>> static_position_ids(torch.tensor([[1, 1, 2, 0, 2, 0]]), StaticBounds(2, 6, 6))[0]
        tensor([[0, 1, 0, 1, 2, 0]])
    """
    start = require_count(start, "start", START_REMEDY)
    scan = _as_scan(document_ids, bounds)
    starts, stops = scan.spans()
    positions = scan.places - starts
    if start:
        positions = positions.add(stops > scan.places, alpha=start)
    return positions, _status(scan, {StaticRule.RETURNING_ID: _returning(scan)})


def static_block_causal_mask(
    document_ids: Tensor | StaticScan,
    bounds: StaticBounds,
    dtype: torch.dtype = torch.bool,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Give the mask of causal attention inside documents, as `build_block_causal_mask` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: documents of a row and tokens of a document.
        dtype: bool, or a floating dtype for a mask that is added to scores.
        window: how many places a query sees, its own included; None for no limit.

    Returns:
        `[batch, 1, sequence, sequence]` in the dtype. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the dtype or the window is no such thing.

    Example:
        >>> static_block_causal_mask(torch.tensor([[1, 1, 0]]), StaticBounds(1, 3, 3))[0].int()
        tensor([[[[1, 0, 0],
                  [1, 1, 0],
                  [0, 0, 1]]]], dtype=torch.int32)
    """
    require_mask_dtype(dtype)
    scan = _as_scan(document_ids, bounds)
    places, ids = scan.places, scan.ids[:, None, 1:]
    visible = sees(ids[..., None], ids[..., None, :], places[:, None], places, window=window)
    status = _status(scan, {StaticRule.RETURNING_ID: _returning(scan)})
    if dtype == torch.bool:
        return visible, status
    mask = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype, device=visible.device)
    return mask.masked_fill(visible, 0.0), status


def static_block_mask(
    document_ids: Tensor | StaticScan,
    bounds: StaticBounds,
    *,
    causal: bool = True,
    window: int | None = None,
    block_size: int | tuple[int, int] = 128,
) -> tuple[BlockMask, Tensor]:
    """Give FlexAttention's mask, as `build_block_mask` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: documents of a row and tokens of a document.
        causal: as `build_block_mask`.
        window: as `build_block_mask`.
        block_size: as `build_block_mask`.

    Returns:
        A mask of shape `[batch, 1, sequence, sequence]`. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the window, the block size or `causal` is no such thing.

    Example:
        >>> ids = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]])
        >>> static_block_mask(ids, StaticBounds(2, 4, 4), block_size=2)[0].full_kv_num_blocks.tolist()
        [[[0, 1, 0, 1]]]
    """
    require_window(window)
    require_flag(causal, "causal")
    sizes = checked_block_size(block_size)
    scan = _as_scan(document_ids, bounds)
    blocks = _visible_blocks(scan, *sizes, window, causal)
    partial, full = blocks.partial_and_full()
    mask = assemble(
        *(_ordered(each) for each in (partial, full, partial.mT, full.mT)),
        device=scan.ids.device,
        sequence=len(scan.places),
        block_size=sizes,
        mask_function=mask_function(scan.ids[:, 1:].to(torch.int32), window=window, causal=causal),
    )
    return mask, _status(scan, {StaticRule.RETURNING_ID: _returning(scan)})


_LITTLE: Final = sys.byteorder == "little"
_HIGH_BYTE: Final = 7 if _LITTLE else 0
_LOW_HALF: Final = 0 if _LITTLE else 1
"""Which byte of an int64 holds its sign, and which half the number: to view them starts no kernel."""

_ID: Final = "Use 0 for padding and a positive number for each document."
_BOUND: Final = "Give a greater bound, or fewer or shorter documents: nothing is truncated."
_FAULTS: Final[dict[StaticRule, tuple[type[PackingError], str, str]]] = {
    StaticRule.NEGATIVE_ID: (DocumentIdsError, "negative id", _ID),
    StaticRule.RETURNING_ID: (
        DocumentIdsError,
        "id comes back after another id",
        "Give each document of a row an id of its own, and keep its tokens together.",
    ),
    StaticRule.HOLE: (
        DocumentIdsError,
        "the document goes on after a hole, zeros inside it, which lengths and offsets over padded rows cannot express",
        "Use NEAT metadata or a mask, which leave holes out.",
    ),
    StaticRule.LEADING_PADDING: (
        DocumentIdsError,
        "padding before the first document, which lengths cannot express",
        "Pad rows on the right.",
    ),
    StaticRule.TOO_MANY_DOCUMENTS: (EncodingError, "the row has more documents than the bound", _BOUND),
    StaticRule.TOO_LONG: (EncodingError, "the document that begins here is longer than the bound", _BOUND),
    StaticRule.TOO_MANY_SEGMENTS: (EncodingError, "the batch has more segments than the bound", _BOUND),
}


def _as_scan(document_ids: Tensor | StaticScan, bounds: StaticBounds) -> StaticScan:
    _require_bounds(bounds)
    if not isinstance(document_ids, StaticScan):
        return scan_static(document_ids, bounds)
    if not document_ids.bounds == bounds:  # noqa: SIM201 - `!=` of dataclasses cannot be traced
        remedy = "Give the bounds of the scan."
        raise EncodingError(Problem("bounds", "are not those of the scan", "value", value=bounds, remedy=remedy))
    return document_ids


def _require_bounds(bounds: object) -> None:
    require_instance(bounds, StaticBounds, "bounds", "Give StaticBounds(documents, segments, longest).")


def _returning(scan: StaticScan) -> Tensor:
    """Mark tokens whose id stood before another id began."""
    return torch.logical_and(scan.first, scan.first.cummax(1).values > scan.first)[:, 1:]


def _after_holes(scan: StaticScan, runs: Tensor) -> Tensor:
    """Mark tokens whose id stood before the run of ids in which they stand."""
    first = scan.first[:, 1:]
    return torch.logical_and(first, first <= runs)


def _status(scan: StaticScan, faults: Mapping[StaticRule, Tensor]) -> Tensor:
    """Tell the first place where a rule is broken, a bound or one of the faults of the encoding."""
    values = scan.ids[:, 1:].clamp(-(2**31), 2**31 - 1)
    fine = scan.too_many[:, :1].expand_as(values)
    marks = {
        StaticRule.NEGATIVE_ID: values.view(torch.uint8)[:, _HIGH_BYTE::8],
        StaticRule.TOO_MANY_DOCUMENTS: scan.too_many[:, 1:],
        StaticRule.TOO_LONG: scan.too_long[:, 1:],
        **faults,
    }
    marked = torch.stack([marks.get(rule, fine).view(torch.uint8) for rule in StaticRule], -1)
    # The place and the rule of the first mark; where there is none, zeros, which are the first place, and no rule.
    found = marked.nonzero_static(size=1, fill_value=0)
    where = found.view(torch.int32)[0, _LOW_HALF::2]
    value = values[found[:, 0], found[:, 1]].view(torch.int32)[_LOW_HALF::2]
    return torch.cat([where[2:], where[:2], value])


def _visible_blocks(
    scan: StaticScan, query_size: int, key_size: int, window: int | None, causal: bool
) -> VisibleBlocks:
    sequence, places, kept = len(scan.places), scan.places, scan.kept
    until = places.where(kept, -1).cummax(1).values
    after = places.where(kept, sequence).flip(1).cummin(1).values.flip(1)
    starts, stops = scan.spans()
    lowest, highest = seen_range(places.expand_as(starts), starts, stops, window=window, causal=causal)

    begins = torch.arange(0, sequence, query_size, device=scan.ids.device)
    ends = (begins + query_size).clamp(max=sequence)
    own_first, own_last = begins // key_size, (ends - 1) // key_size
    head, tail = after[:, begins], until[:, ends - 1]
    some = head < ends
    # Where a block holds no token, any place will do: it is not looked at.
    head, tail = head.clamp(max=sequence - 1), tail.clamp(min=0)
    first_key = after.gather(1, lowest.gather(1, head).clamp(0, sequence - 1))
    last_key = until.gather(1, highest.gather(1, tail).clamp(0, sequence - 1))
    full = _held(kept, query_size) == query_size
    held = _held(kept, key_size)
    return VisibleBlocks(
        first=torch.where(some, first_key // key_size, own_first),
        last=torch.where(some, last_key // key_size, own_last),
        own_first=own_first.expand_as(head),
        own_last=own_last.expand_as(head),
        full_first=torch.where(full, -(-lowest.gather(1, tail) // key_size), 0),
        full_stop=torch.where(full, (highest.gather(1, head) + 1) // key_size, 0),
        some_token=held > 0,
        all_tokens=held == key_size,
        single=query_size == key_size == 1,
    )


def _held(kept: Tensor, size: int) -> Tensor:
    """Count the tokens of each block."""
    padded = pad(kept, (0, -kept.shape[1] % size))
    return padded.view(kept.shape[0], -1, size).sum(2)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Count the True columns of each row, and list them in order, and the others after them."""
    # `contiguous()` would keep the strides of a transposed dimension of one place, which torch's own masks do not have.
    laid_out = blocks.clone(memory_format=torch.contiguous_format)
    listed = torch.argsort(laid_out.view(torch.uint8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32), listed.to(torch.int32)
