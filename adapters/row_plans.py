"""A plan of rows: which piece of which document lies in which row, and what was left out because it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypedDict, cast

import numpy as np
from typing_extensions import TypeIs

from neatpack.adapters.arguments import (
    INT64_MAX,
    int_remedy,
    is_count,
    require_count,
    require_instance,
    require_list,
    require_unmasked,
    shown,
)
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.plan_states import STATE_REMEDY, read_numbers, read_state
from neatpack.adapters.planned_lengths import planned_lengths
from neatpack.contracts.errors import PlanError, Problem

PADDING_ROW: Final = -1
"""In place of the number of a row: a row of nothing but padding."""

_VERSION: Final = 1

_LIST_REMEDY: Final = "Give a list."
_MADE_REMEDY: Final = "Call plan_rows or RowPlan.from_rows."
_CAPACITY_REMEDY: Final = "Give the places of a row."


class Piece(NamedTuple):
    """Tokens `start` to `stop` of a document, by its index. A document that was not cut is one piece."""

    document: int
    start: int
    stop: int


class RowPlanState(TypedDict):
    """A plan as plain data, for JSON: `cut` holds piece, start and stop of each piece that is no whole document."""

    kind: Literal["RowPlan"]
    version: Literal[1]
    capacity: int
    lengths: list[int]
    documents: list[int]
    bounds: list[int]
    cut: list[list[int]]
    dropped: list[list[int]]


@dataclass(frozen=True, eq=False, repr=False)
class RowPlan:
    """Which pieces of documents share a row. Every token of every document stands in one row, or is named as dropped.

    Pieces are counted through all rows, in the order in which they are laid out. The arrays cannot be written to.

    Attributes:
        capacity: places of a row.
        lengths: the tokens of each document, by its index; `[documents]`.
        documents: the document of each piece; `[pieces]`.
        starts: the token of that document with which the piece begins; `[pieces]`.
        stops: the token before which it ends; `[pieces]`.
        bounds: the first piece of each row, and the number of pieces; `[rows + 1]`.
        dropped: what is in no row, because it was to be left out.

    Raises:
        PlanError: a token is in no row or in two, a row is empty, or it holds more than it has places.

    Example:
        >>> RowPlan.from_rows([[0, 2], [1]], lengths=[3, 4, 2], capacity=5)
        RowPlan(3 documents in 2 rows of 5 places, 90.0% filled)
    """

    capacity: int
    lengths: Integers
    documents: Integers
    starts: Integers
    stops: Integers
    bounds: Integers
    dropped: tuple[Piece, ...] = ()

    def __post_init__(self) -> None:
        capacity = require_count(self.capacity, "capacity", _CAPACITY_REMEDY, least=1, error=PlanError)
        object.__setattr__(self, "capacity", capacity)
        for field in ("lengths", "documents", "starts", "stops", "bounds"):
            object.__setattr__(self, field, frozen(getattr(self, field), field))
        object.__setattr__(self, "dropped", _dropped(self.dropped))
        problems = _shape_problems(self) or _row_problems(self) or _piece_problems(self)
        if problems:
            raise PlanError(*problems)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[int | Piece]],
        lengths: Sequence[int],
        capacity: int,
        dropped: Sequence[Piece] = (),
    ) -> RowPlan:
        """Make a plan of rows that were found elsewhere.

        Args:
            rows: for each row what it holds: documents by their index, or pieces of them.
            lengths: the tokens of each document.
            capacity: places of a row.
            dropped: what is left out on purpose.

        Raises:
            PlanError: as the class; or a row holds something else.

        Example:
            >>> RowPlan.from_rows([[Piece(0, 0, 4)], [Piece(0, 4, 6), 1]], lengths=[6, 1], capacity=4).split
            (0,)
        """
        counts = planned_lengths(lengths)
        require_list(rows, "rows", _LIST_REMEDY)
        require_list(dropped, "dropped", _LIST_REMEDY)
        pieces: list[Piece] = []
        for row, items in enumerate(rows):
            require_list(items, "rows", "Give for each row a list of its documents.")
            pieces += [_piece(item, counts, row) for item in items]
        table = np.reshape(np.array(pieces, np.int64), (-1, 3))
        bounds = np.cumsum([0, *map(len, rows)])
        return cls(capacity, counts, table[:, 0], table[:, 1], table[:, 2], bounds, tuple(dropped))

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> RowPlan:
        """Make the plan again whose `state()` was saved.

        Raises:
            PlanError: the state is of another version or kind, or no plan.
        """
        entries = read_state(state, RowPlanState, "RowPlan", _VERSION)
        lengths, documents = read_numbers(entries, "lengths"), read_numbers(entries, "documents")
        _require_indices("documents", documents, lengths.size)
        starts, stops = np.zeros_like(documents), lengths[documents]
        cut = read_numbers(entries, "cut", shape=(3,))
        _require_indices("cut", cut[:, 0], documents.size)
        starts[cut[:, 0]], stops[cut[:, 0]] = cut[:, 1], cut[:, 2]
        capacity = require_count(entries["capacity"], "capacity", _CAPACITY_REMEDY, least=1, error=PlanError)
        dropped = tuple(Piece(*piece) for piece in read_numbers(entries, "dropped", shape=(3,)).tolist())
        return cls(capacity, lengths, documents, starts, stops, read_numbers(entries, "bounds"), dropped)

    def state(self) -> RowPlanState:
        """Give the plan as plain data that JSON can hold; `from_state` makes it again.

        Example:
            >>> plan = RowPlan.from_rows([[1], [0]], lengths=[3, 4], capacity=5)
            >>> RowPlan.from_state(plan.state()) == plan
            True
        """
        cut = np.flatnonzero((self.starts != 0) | (self.stops != self.lengths[self.documents]))
        return {
            "kind": "RowPlan",
            "version": _VERSION,
            "capacity": self.capacity,
            "lengths": self.lengths.tolist(),
            "documents": self.documents.tolist(),
            "bounds": self.bounds.tolist(),
            "cut": np.stack([cut, self.starts[cut], self.stops[cut]], axis=1).tolist(),
            "dropped": [list(piece) for piece in self.dropped],
        }

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The documents of each row, by their index, in the order in which they are laid out."""
        documents: list[int] = self.documents.tolist()
        return tuple(tuple(documents[first:stop]) for first, stop in pairwise(self.bounds.tolist()))

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of each row, in the order in which they are laid out."""
        found = list(map(Piece, self.documents.tolist(), self.starts.tolist(), self.stops.tolist()))
        return tuple(tuple(found[first:stop]) for first, stop in pairwise(self.bounds.tolist()))

    @cached_property
    def piece_lengths(self) -> Integers:
        """The tokens of each piece, `[pieces]`."""
        return frozen(self.stops - self.starts, "piece_lengths")

    @cached_property
    def row_tokens(self) -> Integers:
        """The tokens that each row holds, `[rows]`."""
        before = np.append(0, np.cumsum(self.piece_lengths))
        return frozen(before[self.bounds[1:]] - before[self.bounds[:-1]], "row_tokens")

    @property
    def placed_tokens(self) -> Integers:
        """The tokens of each document that stand in rows, `[documents]`."""
        placed = np.zeros_like(self.lengths)
        np.add.at(placed, self.documents, self.piece_lengths)
        return placed

    @property
    def split(self) -> tuple[int, ...]:
        """The documents that lie in more than one piece, ascending."""
        counts = np.bincount(self.documents, minlength=self.lengths.size)
        return tuple(np.flatnonzero(counts > 1).tolist())

    @property
    def tokens(self) -> int:
        """The tokens in all rows; those of the documents, less what was dropped."""
        return int(self.piece_lengths.sum())

    @property
    def fill(self) -> float:
        """The share of places that hold tokens, from 0 to 1; 0 without rows."""
        return self.tokens / (self.capacity * len(self)) if len(self) else 0.0

    def __len__(self) -> int:
        return self.bounds.size - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowPlan):
            return NotImplemented
        pairs = zip(_parts(self), _parts(other), strict=True)
        return all(np.array_equal(one, two) for one, two in pairs)

    def __reduce__(self) -> tuple[type[RowPlan], tuple[object, ...]]:
        return RowPlan, tuple(_parts(self))

    def __repr__(self) -> str:
        size = f"{self.lengths.size} documents in {len(self)} rows of {self.capacity} places"
        return f"RowPlan({size}, {self.fill:.1%} filled)"


def _parts(plan: RowPlan) -> list[Any]:
    return [getattr(plan, field.name) for field in fields(plan)]


def frozen(array: Integers, field: str, *, axes: int = 1) -> Integers:
    """Give an array that cannot be written to; the one that was given stays as it is.

    Raises:
        PlanError: it is no array of integers with so many axes, or holds one past int64.
    """
    remedy = "Call RowPlan.from_rows for lists." if axes == 1 else "Give numpy.array([[[0]]]), rows by step and rank."
    require_instance(array, np.ndarray, field, remedy, error=PlanError)
    require_unmasked(array, field)
    if array.ndim != axes or array.dtype.kind not in "iu":
        message = f"must be integers on {axes} axes"
        raise PlanError(Problem(field, message, "shape", value=(str(array.dtype), array.shape), remedy=remedy))
    if array.dtype.kind == "u" and (most := int(array.max(initial=0))) > INT64_MAX:
        raise PlanError(Problem(field, "must be within int64", "value", value=most, remedy="Give an array of int64."))
    view: Integers = array.astype(np.int64, copy=False)[:]
    view.flags.writeable = False
    return view


def _require_indices(field: str, numbers: Integers, count: int) -> None:
    """Raise where a number of a saved plan is no index of so many entries."""
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if wrong.size:
        message = f"must be from 0 to {count - 1}"
        raise PlanError(Problem(field, message, "value", value=int(wrong[0]), remedy=STATE_REMEDY))


def _is_piece(item: object) -> TypeIs[Piece]:
    return isinstance(item, Piece) and all(is_count(number) and number <= INT64_MAX for number in item)


def _dropped(pieces: object) -> tuple[Piece, ...]:
    remedy = "Give a tuple of pieces: (Piece(document, start, stop),)."
    require_instance(pieces, tuple, "dropped", remedy, error=PlanError)
    given = cast("tuple[object, ...]", pieces)
    wrong = [piece for piece in given if not _is_piece(piece)]
    if wrong:
        found = shown(wrong[0])
        raise PlanError(Problem("dropped", "must hold pieces of documents", "value", value=found, remedy=remedy))
    return tuple(Piece(*map(int, piece)) for piece in cast("tuple[Piece, ...]", given))


def _piece(item: object, lengths: Integers, row: int) -> Piece:
    if _is_piece(item):
        return Piece(*map(int, item))
    if is_count(item) and cast("int", item) < lengths.size:
        document = int(cast("int", item))
        return Piece(document, 0, int(lengths[document]))
    message = f"must hold documents below {lengths.size}, or pieces of them"
    remedy = int_remedy(item, "Give indices of the documents, or pieces of them.")
    raise PlanError(Problem("rows", message, "value", row, value=shown(item), remedy=remedy))


def _shape_problems(plan: RowPlan) -> list[Problem]:
    pieces = plan.documents.size
    if not plan.starts.size == plan.stops.size == pieces:
        message, found = "starts and stops must be as many as pieces", (pieces, plan.starts.size, plan.stops.size)
        return [Problem("documents", message, "shape", value=found, remedy=_MADE_REMEDY)]
    ends = (int(plan.bounds[0]), int(plan.bounds[-1])) if plan.bounds.size else ()
    if ends != (0, pieces):
        message = f"must go from 0 to {pieces}, the number of pieces"
        return [Problem("bounds", message, "value", value=ends, remedy=_MADE_REMEDY)]
    return []


def _row_problems(plan: RowPlan) -> list[Problem]:
    """List the rows that are empty or too full."""
    (empty,) = np.nonzero(plan.bounds[1:] <= plan.bounds[:-1])
    if empty.size:
        return [Problem("rows", "is empty", "value", int(row), remedy="Leave it out.") for row in empty]
    message = f"holds more than {plan.capacity} tokens"
    # With a piece that is longer than a row, the sum of the row may wrap.
    of_long = np.searchsorted(plan.bounds, np.flatnonzero(plan.piece_lengths > plan.capacity), side="right") - 1
    full = np.union1d(of_long, np.flatnonzero(plan.row_tokens > plan.capacity)).tolist()
    held = [sum(plan.piece_lengths[plan.bounds[row] : plan.bounds[row + 1]].tolist()) for row in full]
    remedy = "Place fewer tokens into it, or give a greater capacity."
    return [
        Problem("rows", message, "value", row, value=tokens, remedy=remedy)
        for row, tokens in zip(full, held, strict=True)
    ]


def _piece_problems(plan: RowPlan) -> list[Problem]:
    """List the pieces that are no part of a document, and the documents whose tokens are not each in one place."""
    known = (plan.documents >= 0) & (plan.documents < plan.lengths.size)
    if known.all() and not plan.dropped and not plan.starts.any():
        whole = plan.lengths[plan.documents]
        if np.array_equal(plan.stops, whole) and (whole > 0).all():
            counts = np.bincount(plan.documents, minlength=plan.lengths.size)
            return _lost(np.flatnonzero(counts != 1))
    wrong = ~known | (plan.starts < 0) | (plan.starts >= plan.stops)
    wrong[known] |= plan.stops[known] > plan.lengths[plan.documents[known]]
    if wrong.any():
        piece = int(np.argmax(wrong))
        row = int(np.searchsorted(plan.bounds, piece, side="right")) - 1
        value = Piece(int(plan.documents[piece]), int(plan.starts[piece]), int(plan.stops[piece]))
        remedy = "Give pieces of at least one token that lie inside their document."
        return [Problem("rows", "holds what is no piece of a document", "value", row, value=value, remedy=remedy)]
    return _cover_problems(plan)


def _cover_problems(plan: RowPlan) -> list[Problem]:
    """List the documents whose pieces, and what is dropped of them, do not follow one another to the end."""
    table = np.stack([plan.documents, plan.starts, plan.stops], axis=1)
    table = np.concatenate([table, np.reshape(np.array(plan.dropped, np.int64), (-1, 3))])
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    documents, starts, stops = table[:, 0], table[:, 1], table[:, 2]
    opens = np.append(True, documents[1:] != documents[:-1])[: documents.size]
    closes = np.append(opens[1:], True)[: documents.size]
    known = (documents >= 0) & (documents < plan.lengths.size)
    right = known & (starts == np.where(opens, 0, np.append(0, stops[:-1])[: stops.size])) & (stops > starts)
    right[known & closes] &= stops[known & closes] == plan.lengths[documents[known & closes]]
    (missing,) = (np.bincount(documents[known], minlength=plan.lengths.size) == 0).nonzero()
    return _lost(np.unique(np.append(documents[~right], missing)))


def _lost(documents: Integers) -> list[Problem]:
    remedy = "Every token stands in one row, or in one piece of what is dropped."
    return [
        Problem("rows", f"must place each token of document {document} once", "value", remedy=remedy)
        for document in documents.tolist()
    ]
