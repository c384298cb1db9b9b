"""From the lengths of documents to a plan of rows: for those without a packing loader."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from neatpack.adapters.arguments import INT32_MAX, require_choice, require_count
from neatpack.adapters.best_fit import best_fit, radix_order
from neatpack.adapters.first_fit import first_fit
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.planned_lengths import planned_lengths
from neatpack.adapters.row_plans import Piece, RowPlan
from neatpack.contracts.errors import PlanError, Problem

PackingMethod = Literal["best_fit", "first_fit", "wrap"]
"""How documents are placed: longest first, each into the fullest row that has room; in order, each into the first row
that has room; or end to end, cut where a row ends."""

PACKING_METHODS: Final[tuple[PackingMethod, ...]] = get_args(PackingMethod)

Overlong = Literal["refuse", "split", "truncate"]
"""What becomes of a document that is longer than a row: an error, several pieces, or its first tokens alone."""

OVERLONG_CHOICES: Final[tuple[Overlong, ...]] = get_args(Overlong)


def plan_rows(
    lengths: Sequence[int],
    capacity: int,
    *,
    method: PackingMethod = "best_fit",
    overlong: Overlong = "refuse",
    documents_per_row: int | None = None,
) -> RowPlan:
    """Place documents into rows. The same lengths give the same plan.

    Rows stand in the order of the documents that opened them, and documents within a row in their own order.

    Args:
        lengths: the tokens of each document, all positive; of no documents, a plan of no rows.
        capacity: places of a row.
        method: "best_fit" leaves the least padding: longest first, each document into the fullest row that has room
            for it (best-fit decreasing). "first_fit" takes documents in order, each into the first row that has
            room. "wrap" lays them end to end and cuts where a row ends; what is cut goes on as a document of its own
            in the next row.
        overlong: what becomes of documents longer than a row. "refuse" raises; "split" makes pieces of `capacity`
            tokens and a last one of the rest; "truncate" keeps the first `capacity` tokens, and names the others in
            `dropped`.
        documents_per_row: the most documents of a row, and pieces of documents; None for no bound.

    Raises:
        PlanError: with every document that is empty, or longer than a row and to be refused; no such choice; or more
            pieces than int32 counts.

    Example:
        >>> plan_rows([3, 4, 2, 1], capacity=5).rows
        ((0, 2), (1, 3))
        >>> plan_rows([7], capacity=5, overlong="split").pieces
        ((Piece(document=0, start=0, stop=5),), (Piece(document=0, start=5, stop=7),))
        >>> plan_rows([3, 7], capacity=5, overlong="truncate").dropped
        (Piece(document=1, start=5, stop=7),)
    """
    capacity, most = require_row_limits(capacity, overlong, documents_per_row)
    require_choice(method, PACKING_METHODS, "method", error=PlanError)
    counts = planned_lengths(lengths)
    if not counts.size:
        return RowPlan.from_rows([], [], capacity)
    kept = counts if overlong == "split" else np.minimum(counts, capacity)
    require_countable(kept, capacity)
    long = np.flatnonzero(kept < counts)
    if long.size and overlong == "refuse":
        raise PlanError(*(long_problem(int(document), int(counts[document]), capacity) for document in long))
    if method == "wrap":
        pieces, rows = _wrap(kept, capacity, most)
    else:
        pieces = _split(kept, capacity)
        rows = _place(pieces.stops - pieces.starts, capacity, most, method)
    order = radix_order(rows, rows.size)
    bounds = np.append(0, np.cumsum(np.bincount(rows)))
    dropped = tuple(map(Piece, long.tolist(), kept[long].tolist(), counts[long].tolist()))
    documents, starts, stops = (array[order] for array in pieces)
    return RowPlan(capacity, counts, documents, starts, stops, bounds, dropped)


def require_row_limits(capacity: object, overlong: object, documents_per_row: object) -> tuple[int, int]:
    """Give the places of a row and the most pieces that it may hold.

    Raises:
        PlanError: these are none, or `overlong` is no such choice.
    """
    require_choice(overlong, OVERLONG_CHOICES, "overlong", error=PlanError)
    places = require_count(capacity, "capacity", "Give the places of a row.", least=1, error=PlanError)
    if documents_per_row is None:
        return places, INT32_MAX  # No row has more places.
    remedy = "Give the most documents of a row, or None."
    return places, require_count(documents_per_row, "documents_per_row", remedy, least=1, error=PlanError)


def require_countable(lengths: Integers, capacity: int) -> None:
    """Raise where long documents would be cut into more pieces than can be counted.

    Raises:
        PlanError: there would be more than int32 counts.
    """
    if int(lengths.max()) > capacity and float((lengths / capacity).sum()) > INT32_MAX:
        message = f"would be cut into more than {INT32_MAX} pieces of {capacity} places"
        raise PlanError(Problem("lengths", message, "value", value=int(lengths.max()), remedy="Give longer rows."))


class _Pieces(NamedTuple):
    """The document of each piece, where in it the piece starts, and where it stops."""

    documents: Integers
    starts: Integers
    stops: Integers


def _split(lengths: Integers, capacity: int) -> _Pieces:
    """Cut what is longer than a row into pieces of a row, and a last one of the rest."""
    if int(lengths.max()) <= capacity:
        return _Pieces(np.arange(lengths.size), np.zeros_like(lengths), lengths)
    counts = -(-lengths // capacity)
    documents = np.repeat(np.arange(lengths.size), counts)
    starts = (np.arange(documents.size) - np.repeat(np.cumsum(counts) - counts, counts)) * capacity
    return _Pieces(documents, starts, np.minimum(starts + capacity, lengths[documents]))


def _place(lengths: Integers, capacity: int, most: int, method: PackingMethod) -> Integers:
    """Give the row of each piece, none of which is longer than a row."""
    if lengths.size <= most and int(lengths.sum()) <= capacity:
        return np.zeros_like(lengths)  # One row holds all, whatever the method.
    place = best_fit if method == "best_fit" else first_fit
    return place(lengths, capacity, most)


def _wrap(lengths: Integers, capacity: int, most: int) -> tuple[_Pieces, Integers]:
    """Cut the stream of all tokens where a document ends and where a row does; give the row of each piece as well."""
    ends = np.cumsum(lengths)
    row_ends = _row_ends(ends, capacity, most)
    cuts = np.sort(np.concatenate([ends, row_ends]), kind="stable")
    cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]
    opens = np.append(0, cuts[:-1])
    documents = np.searchsorted(ends, opens, side="right")
    before = (ends - lengths)[documents]
    return _Pieces(documents, opens - before, cuts - before), np.searchsorted(row_ends, opens, side="right")


def _row_ends(ends: Integers, capacity: int, most: int) -> Integers:
    """Find how many tokens of the stream the rows up to each hold: a row is full, or holds `most` pieces."""
    if most >= ends.size:
        return np.append(np.arange(capacity, int(ends[-1]), capacity), ends[-1])
    listed: list[int] = ends.tolist()
    found: list[int] = []
    end = 0
    while end < listed[-1]:
        last = min(bisect_right(listed, end) + most, len(listed)) - 1
        end = min(end + capacity, listed[last])
        found.append(end)
    return np.array(found, np.int64)


def long_problem(document: int, length: int, capacity: int) -> Problem:
    """Say that a document is longer than a row, and what may become of it."""
    message = f"is longer than a row of {capacity} places"
    remedy = 'Give longer rows, or say overlong="split" or overlong="truncate".'
    return Problem("lengths", message, "value", value=length, remedy=remedy, document=document)
