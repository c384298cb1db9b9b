"""Best-fit decreasing: the longest document first, each into the fullest row that has room for it.

What a row holds does not matter to it, only how much. So equal documents are placed together, and rows with equal
room are filled together: the work grows with the number of different lengths, not with that of documents.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from neatpack.adapters.host_arrays import Integers

_WORD: Final = 10
"""Rooms are kept as bits of words of `2 ** 10` bits, and words that are not 0 as bits of one more."""

_BITS: Final = (1 << _WORD) - 1


_Deal: TypeAlias = tuple[int, int, int]
"""Equal documents dealt to rows one after another: the first row, how many to each, and how many in all."""

_Rows: TypeAlias = tuple[int, int, int]
"""Consecutive rows with equal room that hold equally many documents: the first, the one after the last, how many."""


def best_fit(lengths: Integers, capacity: int, documents_per_row: int) -> Integers:
    """Give the row of each document, `[documents]`; rows are numbered by the document that opened them."""
    order = radix_order(capacity - lengths, capacity)
    deals = _deal(lengths[order], capacity, documents_per_row)
    table = np.reshape(np.fromiter(chain.from_iterable(deals), np.int64), (-1, 3))
    row, each, documents = table[:, 0], table[:, 1], table[:, 2]
    ends = np.cumsum(documents)
    within = np.arange(lengths.size) - np.repeat(ends - documents, documents)
    dealt = np.repeat(row, documents) + within // np.repeat(each, documents)
    rows = np.empty(lengths.size, np.int64)
    rows[order] = dealt
    return _by_opener(rows, order, dealt)


def radix_order(keys: Integers, most: int) -> Integers:
    """Give the stable order of keys from 0 to `most`: numpy sorts 16 bits by their digits, in linear time."""
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    for shift in range(16, int(most).bit_length(), 16):
        digits = ((keys >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def _deal(descending: Integers, capacity: int, most: int) -> list[_Deal]:
    """Place the documents of each length, longest first, into the rows with the least room that is enough."""
    firsts = np.flatnonzero(np.append(True, descending[1:] != descending[:-1]))
    counts = np.diff(firsts, append=descending.size)
    rooms = _Rooms(capacity)
    deals: list[_Deal] = []
    opened = 0
    for length, count in zip(descending[firsts].tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            found = rooms.take(length)
            room, (start, end, held) = found or (capacity, (opened, opened + left, 0))
            each = min(room // length, most - held)
            # As many rows as are needed; the last one may get fewer than the others.
            stop = min(end, start - (-left // each))
            dealt = min(left, (stop - start) * each)
            full, rest = divmod(dealt, each)
            deals.append((start, each, dealt))
            if not found:
                opened = stop
            elif stop < end:
                rooms.give(room, (stop, end, held))
            if full and held + each < most:
                rooms.give(room - each * length, (start, start + full, held + each))
            if rest:
                rooms.give(room - rest * length, (stop - 1, stop, held + rest))
            left -= dealt
    return deals


def _by_opener(rows: Integers, order: Integers, dealt: Integers) -> Integers:
    """Number rows by the document that was placed into them first, so that long documents do not come first."""
    opener = np.empty(int(dealt.max()) + 1, np.int64)
    opener[dealt[::-1]] = order[::-1]
    number = np.empty_like(opener)
    number[radix_order(opener, rows.size)] = np.arange(opener.size)
    return number[rows]


class _Rooms:
    """Rows that have room left, by their room; of those with equal room, the ones given last are taken first."""

    def __init__(self, most: int) -> None:
        self._rows: defaultdict[int, list[_Rows]] = defaultdict(list)
        self._words = [0] * ((most >> _WORD) + 1)
        self._used_words = 0

    def take(self, length: int) -> tuple[int, _Rows] | None:
        """Take rows with the least room that is enough, and give their room; None where no row has enough."""
        room = self._least(length)
        if room is None:
            return None
        rows = self._rows[room].pop()
        if not self._rows[room]:
            self._forget(room)
        return room, rows

    def give(self, room: int, rows: _Rows) -> None:
        """Give rows, with the room that is left in each; full ones are forgotten."""
        if room:
            self._rows[room].append(rows)
            self._words[room >> _WORD] |= 1 << (room & _BITS)
            self._used_words |= 1 << (room >> _WORD)

    def _forget(self, room: int) -> None:
        self._words[room >> _WORD] &= ~(1 << (room & _BITS))
        if not self._words[room >> _WORD]:
            self._used_words &= ~(1 << (room >> _WORD))

    def _least(self, length: int) -> int | None:
        """Find the least room of any row that is at least `length`."""
        word = length >> _WORD
        bits = self._words[word] >> (length & _BITS)
        if bits:
            return length + _lowest(bits)
        later = self._used_words >> (word + 1)
        if not later:
            return None
        word += 1 + _lowest(later)
        return (word << _WORD) + _lowest(self._words[word])


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
