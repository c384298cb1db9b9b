"""First fit over documents that arrive without end: few rows are open at a time, and each comes out as it closes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypedDict, cast

import numpy as np

from neatpack.adapters.arguments import INT64_MAX, int_remedy, is_count, require_count, require_instance, shown
from neatpack.adapters.first_fit import Rooms
from neatpack.adapters.plan_states import STATE_REMEDY, read_entries, read_numbers, read_state
from neatpack.adapters.planning import Overlong, long_problem, require_countable, require_row_limits
from neatpack.adapters.row_plans import Piece
from neatpack.contracts.errors import PlanError, Problem

_VERSION: Final = 1

MOST_OPEN_ROWS: Final = 2**24
"""So many rows may be open at a time."""

_LENGTH_REMEDY: Final = "Give positive lengths, or tuples of a key, which is no negative int, and a length."


class StreamedRow(NamedTuple):
    """A row of a stream, which nothing more will be placed into.

    Attributes:
        number: how many rows were opened before it.
        pieces: what it holds, in the order in which it is laid out.
        dropped: what was left out of these documents, because it was to be.
    """

    number: int
    pieces: tuple[Piece, ...]
    dropped: tuple[Piece, ...] = ()


class StreamedRowState(TypedDict):
    """A row of a stream as plain data: pieces as document, start and stop."""

    number: int
    pieces: list[list[int]]
    dropped: list[list[int]]


class RowStreamState(TypedDict):
    """A stream of rows as plain data, for JSON: `closed` are the rows that were not handed out yet."""

    kind: Literal["RowStream"]
    version: Literal[1]
    capacity: int
    open_rows: int
    overlong: Overlong
    documents_per_row: int | None
    documents: int
    opened: int
    open: list[StreamedRowState]
    closed: list[StreamedRowState]


@dataclass(eq=False)
class _OpenRow:
    """A row that more may be placed into, and its leaf in the tree of rooms."""

    number: int
    leaf: int
    tokens: int = 0
    pieces: list[Piece] = field(default_factory=list[Piece])
    dropped: list[Piece] = field(default_factory=list[Piece])

    def add(self, piece: Piece) -> None:
        """Lay a piece behind what the row holds."""
        self.pieces.append(piece)
        self.tokens += piece.stop - piece.start

    def closed(self) -> StreamedRow:
        """Give the row as it is handed out."""
        return StreamedRow(self.number, tuple(self.pieces), tuple(self.dropped))


class RowStream:
    """Rows for documents that arrive one by one, each placed into the first open row that has room for it.

    A row closes when it is full, when more than `open_rows` would stay open (then the one that was opened first
    closes), or when the documents end. So no more than `open_rows` rows are held. Rows that fill up push no other out:
    one that nothing fills waits until `open_rows` others stay open behind it, or for the end. Where as many are open as
    `plan_rows(..., method="first_fit")` makes, the rows are the same. The same documents give the same rows.

    Args:
        capacity: places of a row.
        open_rows: how many rows may be open at a time. The more, the less padding, and the later rows come.
        overlong: what becomes of documents longer than a row, as in `plan_rows`. What "truncate" leaves out is named in
            the row that holds the rest.
        documents_per_row: the most documents of a row, and pieces of documents; None for no bound.

    Attributes:
        documents: how many documents were taken so far: as many are to be skipped when what was saved goes on, and
            with them those that were refused, which are not counted.

    Raises:
        PlanError: an argument is of another kind.

    Example:
        >>> stream = RowStream(capacity=5, open_rows=2)
        >>> for row in stream.rows([3, 4, 2, 2, 4]):
        ...     print(row.number, row.pieces)
        0 (Piece(document=0, start=0, stop=3), Piece(document=2, start=0, stop=2))
        1 (Piece(document=1, start=0, stop=4),)
        2 (Piece(document=3, start=0, stop=2),)
        3 (Piece(document=4, start=0, stop=4),)
    """

    def __init__(
        self,
        capacity: int,
        open_rows: int,
        *,
        overlong: Overlong = "refuse",
        documents_per_row: int | None = None,
    ) -> None:
        limits = require_row_limits(capacity, overlong, documents_per_row)
        self.capacity: int = limits[0]
        self._most: int = limits[1]
        remedy = "Give how many rows may be open at a time, 64 for example."
        self.open_rows: int = require_count(
            open_rows, "open_rows", remedy, least=1, most=MOST_OPEN_ROWS, error=PlanError
        )
        self.overlong: Overlong = overlong
        self.documents_per_row: int | None = None if documents_per_row is None else self._most
        self.documents: int = 0
        self._opened: int = 0
        self._open: dict[int, _OpenRow] = {}
        self._closed: deque[StreamedRow] = deque()
        self._seat()

    def __repr__(self) -> str:
        size = f"{self.documents} documents, {len(self._open)} of {self.open_rows} rows open"
        return f"RowStream({size}, {self.capacity} places each)"

    def rows(self, lengths: Iterable[int | tuple[int, int]]) -> Iterator[StreamedRow]:
        """Place documents as they are drawn, and give each row as soon as it closes. At their end all rows close.

        The iterator is read no further than it takes to close the next row. It may be left at any row, and the state
        saved there: rows that were closed and not given are part of it.

        Args:
            lengths: the tokens of each document, all positive, by which documents are numbered as they come; or pairs
                of the caller's own number for the document and its tokens.

        Raises:
            PlanError: `lengths` is no iterable, a mapping or a set; or where it is drawn, a length is no positive int,
                a key none that is 0 or above, or a document is longer than a row and to be refused. That document is
                left out, and all else stays as it was: give the documents behind it, and the stream goes on.
        """
        remedy = "Give the lengths, one after another; of a mapping its items()."
        problem = Problem("lengths", "are no lengths one by one", "type", value=type(lengths).__name__, remedy=remedy)
        if isinstance(lengths, (Mapping, set, frozenset)):  # One would give its keys alone, the others have no order.
            raise PlanError(problem)
        try:
            return self._rows(iter(lengths))
        except TypeError as error:
            raise PlanError(problem) from error

    def state(self) -> RowStreamState:
        """Give what the stream holds as plain data that JSON can hold; `from_state` goes on with it.

        Example:
            >>> import json
            >>> documents = [3, 4, 2, 2, 4]
            >>> stream = RowStream(capacity=5, open_rows=2)
            >>> next(stream.rows(documents)).number
            0
            >>> again = RowStream.from_state(json.loads(json.dumps(stream.state())))
            >>> [row.number for row in again.rows(documents[again.documents :])]
            [1, 2, 3]
        """
        return {
            "kind": "RowStream",
            "version": _VERSION,
            "capacity": self.capacity,
            "open_rows": self.open_rows,
            "overlong": self.overlong,
            "documents_per_row": self.documents_per_row,
            "documents": self.documents,
            "opened": self._opened,
            "open": [_row_state(row.closed()) for row in self._open.values()],
            "closed": [_row_state(row) for row in self._closed],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> RowStream:
        """Make the stream again whose `state()` was saved.

        Raises:
            PlanError: the state is of another version or kind, or holds what no stream does.
        """
        entries = read_state(state, RowStreamState, "RowStream", _VERSION)
        options: Any = {name: entries[name] for name in ("capacity", "open_rows", "overlong", "documents_per_row")}
        stream = cls(**options)
        stream._restore(entries)
        return stream

    def _restore(self, state: Mapping[str, object]) -> None:
        self.documents, self._opened = (
            require_count(state[name], name, STATE_REMEDY, most=INT64_MAX, error=PlanError)
            for name in ("documents", "opened")
        )
        rows, closed = list(_read_rows(state, "open")), list(_read_rows(state, "closed"))
        numbers = [row.number for row in rows]
        if len(rows) > self.open_rows or any(one >= other for one, other in pairwise([*numbers, self._opened])):
            message = f"must be at most {self.open_rows} rows, numbered upwards below {self._opened}"
            raise PlanError(Problem("open", message, "value", value=numbers, remedy=STATE_REMEDY))
        numbers += [row.number for row in closed]
        if len({*numbers}) < len(numbers) or any(number >= self._opened for number in numbers):
            message = f"must be rows below {self._opened} that are not open, each once"
            raise PlanError(Problem("closed", message, "value", value=numbers, remedy=STATE_REMEDY))
        for row in closed:
            if _tokens(row) > self.capacity or len(row.pieces) > self._most:
                message = "holds more than a row does"
                raise PlanError(Problem("closed", message, "value", value=row.number, remedy=STATE_REMEDY))
        for row in rows:
            self._open[row.number] = _OpenRow(row.number, 0, _tokens(row), list(row.pieces), list(row.dropped))
        self._closed.extend(closed)
        full = [row.number for row in self._open.values() if self._is_full(row)]
        if full:
            raise PlanError(Problem("open", "holds a full row", "value", value=full[0], remedy=STATE_REMEDY))
        self._seat()

    def _rows(self, items: Iterator[object]) -> Iterator[StreamedRow]:
        yield from self._hand_out()
        for item in items:
            self._take(item)
            yield from self._hand_out()
        for number in list(self._open):
            self._close(number)
        yield from self._hand_out()

    def _hand_out(self) -> Iterator[StreamedRow]:
        while self._closed:
            yield self._closed.popleft()

    def _take(self, item: object) -> None:
        """Place a document, in pieces where it is to be split."""
        document, length = self._read(item)
        kept = length if self.overlong == "split" else min(length, self.capacity)
        if kept < length and self.overlong == "refuse":
            raise PlanError(long_problem(self.documents, length, self.capacity))
        require_countable(np.array([kept]), self.capacity)
        self.documents += 1
        for start in range(0, kept, self.capacity):
            row = self._place(Piece(document, start, min(start + self.capacity, kept)))
            if kept < length:
                row.dropped.append(Piece(document, kept, length))
            if self._is_full(row):
                self._close(row.number)
            elif len(self._open) > self.open_rows:
                self._close(next(iter(self._open)))

    def _read(self, given: object) -> tuple[int, int]:
        """Give the key and the length of a document."""
        item = given
        pair = cast("tuple[object, ...]", item) if isinstance(item, tuple) else (self.documents, item)
        key, length = pair if len(pair) == 2 else (None, None)
        counts = is_count(key) and is_count(length)
        if not counts or cast("int", key) > INT64_MAX or not 0 < cast("int", length) <= INT64_MAX:
            message = "must be a positive int, or a key and one, that int64 holds"
            found, remedy = shown(given), int_remedy(given, _LENGTH_REMEDY)
            raise PlanError(Problem("lengths", message, "value", value=found, remedy=remedy, document=self.documents))
        return int(cast("int", key)), int(cast("int", length))

    def _place(self, piece: Piece) -> _OpenRow:
        """Lay a piece into the first open row that has room for it, or into a new one."""
        if len(self._leaves) == 2 * self.open_rows:
            self._seat()
        leaf = self._rooms.take(piece.stop - piece.start)
        if leaf == len(self._leaves):
            self._leaves.append(_OpenRow(self._opened, leaf))
            self._open[self._opened] = self._leaves[leaf]
            self._opened += 1
        self._leaves[leaf].add(piece)
        return self._leaves[leaf]

    def _is_full(self, row: _OpenRow) -> bool:
        return row.tokens >= self.capacity or len(row.pieces) >= self._most

    def _close(self, number: int) -> None:
        row = self._open.pop(number)
        self._rooms.put(row.leaf, 0, 0)
        self._closed.append(row.closed())

    def _seat(self) -> None:
        """Give open rows the first leaves of a new tree, and leave as many and more for those to come."""
        self._rooms = Rooms(2 * self.open_rows, self.capacity, self._most)
        self._leaves = list(self._open.values())
        for leaf, row in enumerate(self._leaves):
            row.leaf = leaf
            self._rooms.put(leaf, self.capacity - row.tokens, self._most - len(row.pieces))


def _tokens(row: StreamedRow) -> int:
    return sum(piece.stop - piece.start for piece in row.pieces)


def _row_state(row: StreamedRow) -> StreamedRowState:
    return {
        "number": row.number,
        "pieces": [list(piece) for piece in row.pieces],
        "dropped": [list(piece) for piece in row.dropped],
    }


def _read_rows(state: Mapping[str, object], name: str) -> Iterator[StreamedRow]:
    """Give the rows that stand in a state under a name.

    Raises:
        PlanError: these are none.
    """
    rows = state[name]
    require_instance(rows, list, name, STATE_REMEDY, error=PlanError)
    for row in cast("list[object]", rows):
        require_instance(row, Mapping, name, STATE_REMEDY, error=PlanError)
        entries = read_entries(cast("Mapping[str, object]", row), StreamedRowState)
        number = require_count(entries["number"], "number", STATE_REMEDY, most=INT64_MAX, error=PlanError)
        pieces, dropped = (read_numbers(entries, each, shape=(3,)) for each in ("pieces", "dropped"))
        both = np.concatenate([pieces, dropped])
        if not len(pieces) or (both < 0).any() or (both[:, 1] >= both[:, 2]).any():
            raise PlanError(Problem(name, "holds what are no pieces", "value", value=number, remedy=STATE_REMEDY))
        yield StreamedRow(number, *(tuple(Piece(*piece) for piece in each.tolist()) for each in (pieces, dropped)))
