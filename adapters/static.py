"""Encodings of fixed shape, without a host read: bounds are given, and what the ids did wrong is told in a tensor.

Every function traces in one graph. Beside its result it gives a status, int32 `[4]`: the rule that was broken first
along the flattened batch, or 0, and the row, the position and the id there. `raise_if_invalid` is the one read, made
when the caller chooses. Where a status is not valid, the result has no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from neatpack.adapters.arguments import is_choice, require_count, require_flag, require_instance, require_readable
from neatpack.adapters.block_mask import VisibleBlocks, assemble, checked_block_size, mask_function
from neatpack.adapters.positions import START_REMEDY
from neatpack.adapters.segments import read_on_host, require_ids_form
from neatpack.adapters.visibility import require_window, seen_range, sees
from neatpack.contracts.encodings import GatheredFlat, GatheredRows, PhysicalFlat, SegmentIndex, THDLengths
from neatpack.contracts.errors import DocumentIdsError, EncodingError, PackingError, Problem
from neatpack.contracts.fields import UNUSED_LENGTH, UNUSED_OFFSET

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
    """

    documents: int
    segments: int
    longest: int

    def __post_init__(self) -> None:
        for name, value in (("documents", self.documents), ("segments", self.segments), ("longest", self.longest)):
            require_count(value, name, "Give a bound of at least 1.", least=1)


class StaticScan(NamedTuple):
    """What is known of each place of the rows; all tensors are `[batch, sequence]` but for the places and lengths.

    Attributes:
        ids: int64, as they came.
        places: int64 `[sequence]`, 0, 1, ...
        tokens: int64, where a token of a document stands the number of places up to here, its own included; else 0.
        begins: bool, whether the first token of a document stands here.
        rank: int64, how many documents of the row have begun up to here.
        slot: int64, the rank, or `documents + 1` for those beyond the bound.
        lengths: int64 `[batch, documents + 2]`, by slot, the tokens of each document.
        codes: int64, the rule that is broken here or by the document that has begun, or 0.
    """

    ids: Tensor
    places: Tensor
    tokens: Tensor
    begins: Tensor
    rank: Tensor
    slot: Tensor
    lengths: Tensor
    codes: Tensor

    @property
    def kept(self) -> Tensor:
        """Whether a token of a document stands here."""
        return self.tokens > 0

    @property
    def starts(self) -> Tensor:
        """Where each document begins, by slot; the row length where there is none."""
        sequence = self.ids.shape[1]
        table = torch.full_like(self.lengths, sequence)
        return table.scatter_reduce(1, self.slot, self.places.where(self.begins, sequence), "amin")

    @property
    def own_starts(self) -> Tensor:
        """Where the document that has begun begins; 0 before the first."""
        return (self.begins * self.places).cummax(1).values

    @property
    def own_stops(self) -> Tensor:
        """Where the document that has begun has ended; 0 before the first."""
        return torch.zeros_like(self.lengths).scatter_reduce(1, self.slot, self.tokens, "amax").gather(1, self.slot)


def raise_if_invalid(status: Tensor, field: str = "document_ids") -> None:
    """Read a status, and raise if a rule was broken.

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
    (told,) = read_on_host(status)
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
        >>> scan_static(torch.tensor([[7, 7, 0, 4]]), StaticBounds(2, 4, 4)).rank
        tensor([[1, 1, 1, 2]])
    """
    _require_bounds(bounds)
    require_ids_form(document_ids, "document_ids")
    ids = document_ids.to(torch.int64)
    # With a place of no document before each row, all that is asked of the place before has an answer.
    padded = pad(ids, (1, 0))
    kept, places = padded.clamp(0, 1), torch.arange(padded.shape[1], device=ids.device)
    tokens = kept * places
    # The id of the last token so far changes where a document begins, and nowhere else.
    latest = padded.gather(1, tokens.cummax(1).values)
    begins = latest[:, 1:] != latest[:, :-1]
    rank = begins.cumsum(1)
    slot = rank.clamp(max=bounds.documents + 1)
    lengths = ids.new_zeros(ids.shape[0], bounds.documents + 2).scatter_add(1, slot, kept[:, 1:])
    too_long = (lengths[:, :-1] > bounds.longest) * StaticRule.TOO_LONG.value
    codes = pad(too_long, (0, 1), value=StaticRule.TOO_MANY_DOCUMENTS.value).gather(1, slot)
    codes = codes.masked_fill(_returning(ids, begins), StaticRule.RETURNING_ID)
    codes = codes.masked_fill(ids < 0, StaticRule.NEGATIVE_ID)
    return StaticScan(ids, places[:-1], tokens[:, 1:], begins, rank, slot, lengths, codes)


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
    indices = scan.tokens - 1  # which is what marks the others: -1
    unused = torch.arange(bounds.documents + 1, device=scan.ids.device) > scan.rank[:, -1:]
    offsets = scan.lengths[:, :-1].cumsum(1, dtype=torch.int32).masked_fill(unused, UNUSED_OFFSET)
    return GatheredRows(indices, offsets, bounds.longest), _status(scan)


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
    indices = torch.argsort((~kept).flatten().to(torch.uint8), stable=True)
    counts = scan.rank[:, -1]
    number = scan.rank + (counts.cumsum(0) - counts)[:, None]
    slots = scan.ids.new_zeros(bounds.segments + 2)
    lengths = slots.scatter_add(0, number.clamp(max=bounds.segments + 1).flatten(), kept.flatten().to(torch.int64))
    offsets = lengths[:-1].cumsum(0)
    beyond_bound = scan.begins & (number > bounds.segments)
    if tail == "padding":
        # How many entries each one is beyond the offset where the last document ends.
        beyond = torch.arange(bounds.segments + 1, device=offsets.device) - counts.sum()
        total = scan.ids.numel()
        cut = (offsets[-1] + beyond * bounds.longest).clamp(max=total)
        offsets = torch.where(beyond > 0, cut, offsets)
        beyond_bound = beyond_bound | (~kept & (offsets[-1] < total))
    status = _status(scan, {StaticRule.TOO_MANY_SEGMENTS: beyond_bound})
    return GatheredFlat(indices, offsets.to(torch.int32), bounds.longest), status


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
    kept = scan.kept
    changes = pad(scan.ids[:, 1:] != scan.ids[:, :-1], (1, 0), value=True)
    within = scan.places - (changes * scan.places).cummax(1).values
    begins = changes.where(kept, within % bounds.longest == 0)
    count = begins.flatten().cumsum(0)
    numbers = torch.arange(1, bounds.segments + 2, device=count.device)
    offsets = torch.searchsorted(count, numbers, out_int32=True)
    faults = {
        StaticRule.HOLE: _holes(scan, kept),
        StaticRule.TOO_MANY_SEGMENTS: (count > bounds.segments).view_as(kept),
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
    used = torch.arange(bounds.documents, device=scan.ids.device) < scan.rank[:, -1:]
    real = torch.where(used, scan.lengths[:, 1:-1], UNUSED_LENGTH)
    starts = scan.starts
    padded = torch.where(used, starts[:, 2:] - starts[:, 1:-1], UNUSED_LENGTH)
    faults = {
        StaticRule.HOLE: _holes(scan, scan.kept),
        StaticRule.LEADING_PADDING: (scan.rank == 0) & (scan.rank[:, -1:] > 0),
    }
    return THDLengths(real, padded), _status(scan, faults)


def static_segment_index(
    document_ids: Tensor | StaticScan, bounds: StaticBounds
) -> tuple[SegmentIndex[Tensor], Tensor]:
    """Number the documents of each row 0, 1, ..., -1 at padding, as `segment_index` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        bounds: documents of a row and tokens of a document.

    Raises:
        DocumentIdsError: as `scan_static`.

    Example:
        >>> static_segment_index(torch.tensor([[5, 5, 3, 0]]), StaticBounds(2, 4, 4))[0].seq_idx
        tensor([[ 0,  0,  1, -1]], dtype=torch.int32)
    """
    scan = _as_scan(document_ids, bounds)
    kept = scan.kept
    index = (scan.rank * kept - 1).to(torch.int32)
    return SegmentIndex(index), _status(scan, {StaticRule.HOLE: _holes(scan, kept)})


def static_position_ids(
    document_ids: Tensor | StaticScan, bounds: StaticBounds, start: int = 0
) -> tuple[Tensor, Tensor]:
    """Number the tokens of each document from `start`, as `build_position_ids` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.
        bounds: documents of a row and tokens of a document.
        start: the position of the first token of each document.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: `start` is no int, or negative.

    Example:
        >>> static_position_ids(torch.tensor([[1, 1, 2, 0, 2, 0]]), StaticBounds(2, 6, 6))[0]
        tensor([[0, 1, 0, 1, 2, 0]])
    """
    start = require_count(start, "start", START_REMEDY)
    scan = _as_scan(document_ids, bounds)
    inside = scan.places < scan.own_stops
    return (scan.places + start - scan.own_starts) * inside, _status(scan)


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

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the dtype or the window is no such thing.

    Example:
        >>> static_block_causal_mask(torch.tensor([[1, 1, 0]]), StaticBounds(1, 3, 3))[0].int()
        tensor([[[[1, 0, 0],
                  [1, 1, 0],
                  [0, 0, 1]]]], dtype=torch.int32)
    """
    require_instance(dtype, torch.dtype, "dtype", "Give torch.bool, or the floating dtype of the scores.")
    if dtype != torch.bool and not dtype.is_floating_point:
        raise EncodingError(Problem("dtype", "is no mask dtype", "dtype", value=dtype))
    scan = _as_scan(document_ids, bounds)
    places, ids = scan.places, scan.ids[:, None]
    visible = sees(ids[..., None], ids[..., None, :], places[:, None], places, window=window)
    if dtype == torch.bool:
        return visible, _status(scan)
    mask = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype, device=visible.device)
    return mask.masked_fill(visible, 0.0), _status(scan)


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
        sequence=scan.ids.shape[1],
        block_size=sizes,
        mask_function=mask_function(scan.ids.to(torch.int32), window=window, causal=causal),
    )
    return mask, _status(scan)


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
        "a hole: zero inside a document, which lengths and offsets over the padded rows cannot express",
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
    return document_ids if isinstance(document_ids, StaticScan) else scan_static(document_ids, bounds)


def _require_bounds(bounds: object) -> None:
    require_instance(bounds, StaticBounds, "bounds", "Give StaticBounds(documents, segments, longest).")


def _returning(ids: Tensor, begins: Tensor) -> Tensor:
    """Mark where a document begins whose id stood earlier in the row."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(begins).scatter(1, order[:, 1:], ordered[:, 1:] != ordered[:, :-1])
    return begins > first


def _holes(scan: StaticScan, kept: Tensor) -> Tensor:
    return kept < (scan.places < scan.own_stops)


def _status(scan: StaticScan, faults: Mapping[StaticRule, Tensor] = MappingProxyType({})) -> Tensor:
    """Tell the first place where a rule is broken, one of the scan or one that the encoding adds."""
    codes, sequence = scan.codes, scan.ids.shape[1]
    for rule, wrong in faults.items():
        codes = codes.masked_fill(wrong, rule)
    first = (codes != 0).view(torch.uint8).flatten().argmax(0, keepdim=True)
    code, value = codes.flatten().gather(0, first), scan.ids.flatten().gather(0, first).clamp(-(2**31), 2**31 - 1)
    return torch.cat([code, first // sequence, first % sequence, value]).to(torch.int32)


def _visible_blocks(
    scan: StaticScan, query_size: int, key_size: int, window: int | None, causal: bool
) -> VisibleBlocks:
    sequence, places, kept = scan.ids.shape[1], scan.places, scan.kept
    until = scan.tokens.cummax(1).values - 1
    after = places.where(kept, sequence).flip(1).cummin(1).values.flip(1)
    starts, stops = scan.own_starts, scan.own_stops
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
