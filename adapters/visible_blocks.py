"""Which blocks of keys each block of queries sees, in closed form, from document boundaries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neatpack.adapters.host_arrays import Integers, narrowed, to_tensor
from neatpack.adapters.segments import Segments
from neatpack.adapters.visibility import seen_range


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


def visible_blocks(
    segments: Segments, query_size: int, key_size: int, window: int | None, causal: bool
) -> VisibleBlocks:
    """Find them on the host, for blocks of so many queries and keys."""
    tokens = _Tokens(segments)
    begins, ends, origins = _block_bounds(segments, query_size)
    head, tail = tokens.after(begins), tokens.until(ends - 1)
    own_first: Integers = (begins - origins) // key_size
    own_last: Integers = (ends - 1 - origins) // key_size
    some = head < ends
    edges = np.stack([head[some], tail[some]])
    (head_first, tail_first), (head_last, tail_last) = tokens.seen_range(edges, window, causal)

    # What is seen outside of its own places, a block sees by its first and its last token.
    first, last = np.array(own_first), np.array(own_last)
    first[some] = (tokens.after(head_first) - origins[some]) // key_size
    last[some] = (tokens.until(tail_last) - origins[some]) // key_size

    # What all queries see, the last one sees from its first key on, and the first one up to its last key.
    full_first, full_stop = np.zeros(own_first.shape, np.int64), np.zeros(own_first.shape, np.int64)
    held = tokens.count_between(begins, ends)
    full_first[some] = -((origins[some] - tail_first) // key_size)
    full_stop[some] = (head_last + 1 - origins[some]) // key_size
    full_stop[held < query_size] = 0

    if key_size != query_size:
        held = tokens.count_between(*_block_bounds(segments, key_size)[:2])
    return VisibleBlocks(
        first=narrowed(first),
        last=narrowed(last),
        own_first=narrowed(own_first),
        own_last=narrowed(own_last),
        full_first=narrowed(full_first),
        full_stop=narrowed(full_stop),
        some_token=to_tensor(held > 0),
        all_tokens=to_tensor(held == key_size),
        single=query_size == key_size == 1,
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


def _block_bounds(segments: Segments, size: int) -> tuple[Integers, Integers, Integers]:
    """Give the flat places where each block begins and ends, and where its row begins, `[batch, blocks]`."""
    places = np.arange(0, segments.sequence, size)
    origins: Integers = np.tile(segments.sequence * np.arange(segments.batch)[:, None], (1, places.size))
    return origins + places, origins + np.minimum(places + size, segments.sequence), origins


def _between(column: Tensor, first: Tensor, last: Tensor) -> Tensor:
    return (column >= first[..., None]) & (column <= last[..., None])
