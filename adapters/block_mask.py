"""FlexAttention's `BlockMask`, built from document boundaries block by block; no pair of tokens is ever looked at."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from neatpack.adapters.arguments import COMPARED_DTYPES, INT32_MAX, int_remedy, is_count, require_flag
from neatpack.adapters.document_ids import canonical_document_ids
from neatpack.adapters.host_arrays import Integers, to_tensor
from neatpack.adapters.segments import Segments, as_segments, require_ids_form
from neatpack.adapters.visibility import require_window, seen_range, sees
from neatpack.contracts.errors import EncodingError, Problem

Ranges: TypeAlias = tuple[tuple[Integers, Integers], ...]

MaskFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of batch, head, query and key index, whether the query sees the key."""


@dataclass(frozen=True, eq=False)
class VisibleBlocks:
    """Which key blocks the queries of each query block see, in closed form. All arrays are `[batch, blocks]`.

    A key block is seen where it lies from `first` to `last` and holds a token, or from `own_first` to `own_last`,
    where each place sees itself. It is seen by every query in full where it lies from `full_first` to before
    `full_stop` and holds nothing but tokens.

    Attributes:
        first, last: the range of key blocks that hold the first and the last key seen.
        own_first, own_last: the range of key blocks that hold the queries' own places.
        full_first, full_stop: the range of key blocks all of whose places lie in what each query sees.
        some_token, all_tokens: for each key block, whether it holds a token, and nothing else.
        single: whether a block is one query and one key, so that it is seen in full if at all.
    """

    first: Tensor
    last: Tensor
    own_first: Tensor
    own_last: Tensor
    full_first: Tensor
    full_stop: Tensor
    some_token: Tensor
    all_tokens: Tensor
    single: bool

    def partial_and_full(self) -> tuple[Tensor, Tensor]:
        """Give the blocks that need the mask function, and those that do not: bool `[batch, blocks, blocks]`."""
        column = torch.arange(self.some_token.shape[1], device=self.first.device, dtype=self.first.dtype)
        own = _between(column, self.own_first, self.own_last)
        seen = _between(column, self.first, self.last) & self.some_token[:, None] | own
        if self.single:
            return torch.zeros_like(seen), seen
        full = _between(column, self.full_first, self.full_stop - 1) & self.all_tokens[:, None]
        return seen & ~full, full

    def to(self, device: torch.device) -> VisibleBlocks:
        """Bring what is known to a device, to list the blocks there."""
        moved: dict[str, Any] = {name: each.to(device) for name, each in vars(self).items() if isinstance(each, Tensor)}
        return replace(self, **moved)


def build_block_mask(
    document_ids: Tensor | Segments,
    *,
    causal: bool = True,
    window: int | None = None,
    block_size: int | tuple[int, int] = 128,
) -> BlockMask:
    """Give the mask of attention inside documents for FlexAttention. Padding and holes attend to themselves alone.

    All tensors of the result are those that torch's `create_block_mask` makes of the same mask function.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        causal: whether a query sees no key that comes after it.
        window: how many places a query sees, its own included, and without a causal mask as many after its own;
            None for no limit.
        block_size: places of a block, or those of a query block and of a key block.

    Returns:
        A mask of shape `[batch, 1, sequence, sequence]` on the device of the ids. It can be copied and pickled, but
        torch's `mask.to(device)` leaves the ids of its mask function behind: build it on the device.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: the window or the block size is no such thing.

    Example:
        >>> mask = build_block_mask(torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]]), block_size=2)
        >>> mask.kv_num_blocks.tolist(), mask.full_kv_num_blocks.tolist()
        ([[[1, 1, 1, 1]]], [[[0, 1, 0, 1]]])
    """
    window = require_window(window)
    require_flag(causal, "causal")
    query_size, key_size = checked_block_size(block_size)
    segments = as_segments(document_ids)
    blocks = _visible_blocks(segments, query_size, key_size, window, causal)
    lists = (_list_blocks if segments.holes.size else _list_bands)(blocks, segments.device)
    ids = canonical_document_ids(segments).to(torch.int32)
    return assemble(
        *lists,
        sequence=segments.sequence,
        block_size=(query_size, key_size),
        mask_function=mask_function(ids, window=window, causal=causal),
    )


def mask_function(document_ids: Tensor, *, window: int | None = None, causal: bool = True) -> MaskFunction:
    """Give the function that tells for one query and key whether the query sees the key, in each batch row and head.

    Args:
        document_ids: `[batch, sequence]`, 0 at padding and holes. The function keeps it.
        window: as `build_block_mask`.
        causal: as `build_block_mask`.

    Raises:
        DocumentIdsError: the ids are no integers `[batch, sequence]`; their values are not read.
        EncodingError: the window is not a positive int.

    Example:
        >>> function = mask_function(torch.tensor([[1, 1, 2]]))
        >>> zero, one, two = torch.arange(3)
        >>> function(zero, zero, one, zero), function(zero, zero, two, one)
        (tensor(True), tensor(False))
    """
    require_ids_form(document_ids, "document_ids")
    window = require_window(window)
    require_flag(causal, "causal")
    ids = document_ids if document_ids.dtype in COMPARED_DTYPES else document_ids.to(torch.int64)
    return functools.partial(_sees_place, ids, window, causal)  # A closure could not be pickled.


def _sees_place(
    ids: Tensor,
    window: int | None,
    causal: bool,
    batch: Tensor,
    head: Tensor,  # noqa: ARG001 - torch passes it
    query: Tensor,
    key: Tensor,
) -> Tensor:
    return sees(ids[batch, query], ids[batch, key], query, key, window=window, causal=causal)


def checked_block_size(block_size: object) -> tuple[int, int]:
    """Give the places of a query block and of a key block.

    Raises:
        EncodingError: it is no positive int, nor a tuple of two.
    """
    given = block_size
    sizes = cast("tuple[object, ...]", block_size) if isinstance(block_size, tuple) else (block_size, block_size)
    checked = [int(cast("int", size)) for size in sizes if is_count(size) and 0 < cast("int", size) <= INT32_MAX]
    if len(checked) != 2 or len(sizes) != 2:
        message = "must be a positive int, or a tuple of two"
        remedy = int_remedy(given, "Give 128, which kernels take, or (places of queries, places of keys).")
        raise EncodingError(Problem("block_size", message, "value", value=repr(given), remedy=remedy))
    return checked[0], checked[1]


def assemble(
    partial: tuple[Tensor, Tensor],
    full: tuple[Tensor, Tensor],
    transposed_partial: tuple[Tensor, Tensor],
    transposed_full: tuple[Tensor, Tensor],
    *,
    sequence: int,
    block_size: tuple[int, int],
    mask_function: MaskFunction,
) -> BlockMask:
    """Put counts and indices, `[batch, blocks]` and `[batch, blocks, blocks]`, together as one mask for all heads."""
    count, index, full_count, full_index, query_count, query_index, full_query_count, full_query_index = (
        tensor[:, None] for pair in (partial, full, transposed_partial, transposed_full) for tensor in pair
    )
    return BlockMask(
        seq_lengths=(sequence, sequence),
        kv_num_blocks=count,
        kv_indices=index,
        full_kv_num_blocks=full_count,
        full_kv_indices=full_index,
        q_num_blocks=query_count,
        q_indices=query_index,
        full_q_num_blocks=full_query_count,
        full_q_indices=full_query_index,
        BLOCK_SIZE=block_size,
        mask_mod=mask_function,
    )


class _Tokens:
    """Answers questions about the tokens of a batch, by flat place, from its runs."""

    def __init__(self, segments: Segments) -> None:
        self._starts = segments.bounds[segments.kept]
        self._stops = segments.bounds[segments.kept + 1]
        self._before = np.append(0, np.cumsum(self._stops - self._starts))
        self._owners = segments.owners
        self._documents = segments.documents

    def after(self, places: Integers) -> Integers:
        """Give the first token at or after each place; a place beyond all where there is none."""
        run = np.searchsorted(self._stops, places, side="right")
        tokens: Integers = np.maximum(np.append(self._starts, np.iinfo(np.int64).max)[run], places)
        return tokens

    def until(self, places: Integers) -> Integers:
        """Give the last token at or before each place, -1 where there is none."""
        run = np.searchsorted(self._starts, places, side="right")
        tokens: Integers = np.minimum(np.append(-1, self._stops - 1)[run], places)
        return tokens

    def count_between(self, begins: Integers, ends: Integers) -> Integers:
        """Count the tokens from each of some places to before another."""
        return self._count_before(ends) - self._count_before(begins)

    def _count_before(self, places: Integers) -> Integers:
        run = np.searchsorted(self._starts, places, side="left")
        last = np.append(0, self._stops)[run]
        return self._before[run] - np.maximum(last - places, 0)

    def seen_range(self, tokens: Integers, window: int | None, causal: bool) -> tuple[Integers, Integers]:
        """Give the first and the last place that each token sees, holes among them."""
        owner = self._owners[np.searchsorted(self._starts, tokens, side="right") - 1]
        starts, stops = self._documents.starts[owner], self._documents.ends[owner]
        places, begins, ends = (to_tensor(array) for array in (tokens, starts, stops))
        first, last = seen_range(places, begins, ends, window=window, causal=causal)
        return first.numpy(), last.numpy()


def _visible_blocks(
    segments: Segments, query_size: int, key_size: int, window: int | None, causal: bool
) -> VisibleBlocks:
    tokens = _Tokens(segments)
    begins, ends, origins = _block_bounds(segments, query_size)
    head, tail = tokens.after(begins), tokens.until(ends - 1)
    own_first: Integers = (begins - origins) // key_size
    own_last: Integers = (ends - 1 - origins) // key_size
    some = head < ends
    of_head, of_tail = (tokens.seen_range(each[some], window, causal) for each in (head, tail))

    # What is seen outside of its own places, a block sees by its first and its last token.
    first, last = np.array(own_first), np.array(own_last)
    first[some] = (tokens.after(of_head[0]) - origins[some]) // key_size
    last[some] = (tokens.until(of_tail[1]) - origins[some]) // key_size

    # What all queries see, the last one sees from its first key on, and the first one up to its last key.
    full_first, full_stop = np.zeros(own_first.shape, np.int64), np.zeros(own_first.shape, np.int64)
    held = tokens.count_between(begins, ends)
    full_first[some] = -((origins[some] - of_tail[0]) // key_size)
    full_stop[some] = (of_head[1] + 1 - origins[some]) // key_size
    full_stop[held < query_size] = 0

    if key_size != query_size:
        held = tokens.count_between(*_block_bounds(segments, key_size)[:2])
    return VisibleBlocks(
        first=_narrow(first),
        last=_narrow(last),
        own_first=_narrow(own_first),
        own_last=_narrow(own_last),
        full_first=_narrow(full_first),
        full_stop=_narrow(full_stop),
        some_token=to_tensor(held > 0),
        all_tokens=to_tensor(held == key_size),
        single=query_size == key_size == 1,
    )


def _narrow(numbers: Integers) -> Tensor:
    return to_tensor(numbers.astype(np.int32))


def _block_bounds(segments: Segments, size: int) -> tuple[Integers, Integers, Integers]:
    """Give the flat places where each block begins and ends, and where its row begins, `[batch, blocks]`."""
    places = np.arange(0, segments.sequence, size)
    origins: Integers = np.tile(segments.sequence * np.arange(segments.batch)[:, None], (1, places.size))
    return origins + places, origins + np.minimum(places + size, segments.sequence), origins


def _between(column: Tensor, first: Tensor, last: Tensor) -> Tensor:
    return (column >= first[..., None]) & (column <= last[..., None])


def list_in_order(partial: Tensor, full: Tensor) -> list[tuple[Tensor, Tensor]]:
    """List partial and full blocks by rows, then by columns: count the True ones, then give these before the others.

    Args:
        partial, full: bool `[batch, query blocks, key blocks]`.

    Returns:
        Four times int32 `[batch, blocks]` and `[batch, blocks, blocks]`, on the device of the blocks.
    """
    rows, columns = (partial, full), (partial.mT, full.mT)
    # Lists of one shape are sorted together: fewer kernels to start.
    same = partial.shape == partial.mT.shape
    return _in_order(*rows, *columns) if same else [*_in_order(*rows), *_in_order(*columns)]


def _in_order(*blocks: Tensor) -> list[tuple[Tensor, Tensor]]:
    stacked = torch.stack(blocks)
    listed = stacked.view(torch.uint8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return list(zip(stacked.sum(-1, dtype=torch.int32), listed, strict=True))


def _list_blocks(blocks: VisibleBlocks, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """List partial and full blocks by rows, then by columns, where holes leave gaps among them."""
    if not _is_host(device):
        return list_in_order(*blocks.to(device).partial_and_full())
    partial, full = blocks.partial_and_full()
    return [_in_order_on_host(each.numpy()) for each in (partial, full, partial.mT, full.mT)]


def _in_order_on_host(blocks: npt.NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Do the same as `_in_order`: numpy sorts words of one byte in a third of the time."""
    listed = np.argsort(np.logical_not(blocks), axis=-1, kind="stable").astype(np.int32)
    counts: Integers = np.count_nonzero(blocks, axis=-1)
    return _narrow(counts), to_tensor(listed)


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


def _list_bands(blocks: VisibleBlocks, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """List partial and full blocks by rows, then by columns, without holes: each row sees one range of columns.

    No end of a range falls from one row to the next, so each column is seen by one range of rows.
    """
    first = np.minimum(blocks.first.numpy(), blocks.own_first.numpy())
    stop = np.maximum(blocks.last.numpy(), blocks.own_last.numpy()) + 1
    full_first, full_stop = (first, stop) if blocks.single else (blocks.full_first.numpy(), blocks.full_stop.numpy())
    columns = blocks.some_token.shape[1]
    seen = _transpose(first, stop, columns)
    # Rows that see nothing in full take the ends of their neighbours, so that none falls.
    some = full_first < full_stop
    ends = np.maximum.accumulate(np.where(some, full_stop, 0), axis=1)
    begins = np.minimum.accumulate(np.where(some, full_first, columns)[:, ::-1], axis=1)[:, ::-1]
    seen_in_full = _transpose(begins, ends, columns)
    return [
        *_list_ranges((first, stop), (full_first, full_stop), columns, device),
        *_list_ranges(seen, seen_in_full, first.shape[1], device),
    ]


def _transpose(first: Integers, stop: Integers, columns: int) -> tuple[Integers, Integers]:
    """Turn the range of columns of each row into the range of rows of each column; neither end ever falls."""
    column = np.arange(columns)
    begins = np.stack([np.searchsorted(row, column, side="right") for row in stop])
    ends = np.stack([np.searchsorted(row, column, side="right") for row in first])
    return begins, ends


def _list_ranges(
    seen: tuple[Integers, Integers], full: tuple[Integers, Integers], columns: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """List the columns of each row that are seen but not in full, then those that are, and the others after them."""
    zero, end = np.zeros_like(seen[0]), np.full_like(seen[0], columns)
    some = full[0] < full[1]
    full = np.where(some, full[0], seen[0]), np.where(some, full[1], seen[0])
    partial = ((seen[0], full[0]), (full[1], seen[1]))
    return [
        _list_pieces(partial, ((zero, seen[0]), full, (seen[1], end)), columns, device),
        _list_pieces((full,), ((zero, full[0]), (full[1], end)), columns, device),
    ]


def _list_pieces(listed: Ranges, others: Ranges, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Count the columns of the first ranges of each row, and write all ranges one after the other."""
    # How far each range stands from the place where it is written, and how many columns it has.
    shifts: list[Integers] = []
    lengths: list[Integers] = []
    written = np.zeros_like(listed[0][0])
    for begin, stop in (*listed, *others):
        shifts.append(begin - written)
        lengths.append(stop - begin)
        written = written + lengths[-1]
    counts = sum(lengths[: len(listed)], np.zeros_like(written))
    moved = _repeated(np.stack(shifts, axis=-1), np.stack(lengths, axis=-1), written.size * columns, device)
    # On rows this short, torch adds twice as fast as numpy.
    indices = moved.view(*written.shape, columns).add_(torch.arange(columns, dtype=torch.int32, device=device))
    return _narrow(counts).to(device), indices


def _repeated(shifts: Integers, lengths: Integers, places: int, device: torch.device) -> Tensor:
    """Repeat each shift over its range: on the device, to which the square of blocks is not sent but made there."""
    shift = shifts.astype(np.int32).ravel()
    if _is_host(device):
        return to_tensor(shift.repeat(lengths.ravel()))
    ranges = to_tensor(np.stack([shift, lengths.astype(np.int32).ravel()]), device)
    return ranges[0].repeat_interleave(ranges[1], output_size=places)
