"""Rule 14 over documents that come one by one: first fit with few rows open, saved and resumed anywhere."""

from __future__ import annotations

import copy
import json
import pickle
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from neatpack.adapters import Overlong, Piece, RowStream, StreamedRow, plan_rows
from neatpack.contracts.errors import PlanError
from tests.adapters import oracle_plans
from tests.adapters.properties import holds_for

_LENGTHS = st.lists(st.integers(1, 12), max_size=40)


class Options(NamedTuple):
    """How a stream is placed."""

    capacity: int
    open_rows: int
    overlong: Overlong
    documents_per_row: int | None

    @property
    def most(self) -> int:
        return self.documents_per_row or 1000

    def stream(self) -> RowStream:
        return RowStream(
            self.capacity, self.open_rows, overlong=self.overlong, documents_per_row=self.documents_per_row
        )


_OPTIONS = st.builds(
    Options,
    st.integers(1, 16),
    st.integers(1, 5),
    st.sampled_from(["split", "truncate"]),
    st.none() | st.integers(1, 4),
)


def _cuts(pieces: tuple[Piece, ...]) -> list[oracle_plans.Cut]:
    return [(piece.document, piece.start, piece.stop) for piece in pieces]


@holds_for(lengths=_LENGTHS, options=_OPTIONS)
def test_a_stream_places_each_document_into_the_first_open_row_and_reads_no_further(
    lengths: list[int], options: Options
) -> None:
    stream, drawn = options.stream(), iter(lengths)
    found = [(stream.documents, row.number, _cuts(row.pieces), _cuts(row.dropped)) for row in stream.rows(drawn)]
    assert found == oracle_plans.first_fit_stream(
        lengths, options.capacity, options.most, options.open_rows, truncate=options.overlong == "truncate"
    )
    placed = [piece for _, _, pieces, dropped in found for piece in (*pieces, *dropped)]
    assert oracle_plans.tokens_of(placed) == oracle_plans.all_tokens(lengths)
    assert [len(pieces) <= options.most for _, _, pieces, _ in found] == [True] * len(found)


def test_rows_that_fill_up_push_no_other_out() -> None:
    stream = RowStream(10, 2)
    rows = stream.rows(chain([9], [10, 5, 5] * 50, [6, 7]))
    assert [row.number for row in islice(rows, 100)] == list(range(1, 101))
    assert [row.number for row in rows] == [0, 101, 102]


@holds_for(lengths=_LENGTHS.filter(len), options=_OPTIONS)
def test_with_rows_enough_a_stream_gives_the_rows_of_a_list(lengths: list[int], options: Options) -> None:
    plan = plan_rows(
        lengths,
        options.capacity,
        method="first_fit",
        overlong=options.overlong,
        documents_per_row=options.documents_per_row,
    )
    found = sorted(options._replace(open_rows=len(plan)).stream().rows(lengths))
    assert [row.pieces for row in found] == list(plan.pieces)
    assert [row.number for row in found] == list(range(len(plan)))
    assert sorted(piece for row in found for piece in row.dropped) == list(plan.dropped)


@holds_for(lengths=_LENGTHS, options=_OPTIONS, data=st.data())
def test_a_stream_goes_on_from_any_row(lengths: list[int], options: Options, data: st.DataObject) -> None:
    rows = list(options.stream().rows(lengths))
    stop = data.draw(st.integers(0, len(rows)))
    stream = options.stream()
    found = list(islice(stream.rows(lengths), stop))
    state = stream.state()
    ways = (
        RowStream.from_state(json.loads(json.dumps(state))),
        pickle.loads(pickle.dumps(stream)),  # noqa: S301 - what was just written
        copy.deepcopy(stream),
    )
    for again in ways:
        assert again.state() == state
        assert found + list(again.rows(lengths[again.documents :])) == rows


@holds_for(lengths=_LENGTHS, options=_OPTIONS, data=st.data())
def test_a_document_that_is_refused_leaves_the_others_as_they_were(
    lengths: list[int], options: Options, data: st.DataObject
) -> None:
    stream = options._replace(overlong="refuse").stream()
    kept = [length for length in lengths if length <= options.capacity]
    wrong: Any = data.draw(
        st.sampled_from([0, -1, 2.0, True, None, "3", (1, 2, 3), (-1, 2), (1, 0), ("a", 2), 2**63, (2**63, 1)])
    )
    at = data.draw(st.integers(0, len(kept)))
    found: list[StreamedRow] = []
    for refused in (wrong, options.capacity + 1):
        before = stream.documents
        with pytest.raises(PlanError) as caught:
            found += stream.rows([*kept[before:at], refused])
        problem = caught.value.problems[0]
        told = repr(refused) if isinstance(refused, str) else refused
        assert (problem.field, problem.document, problem.value) == ("lengths", at, told)
    found += stream.rows(kept[at:])
    assert found == list(options.stream().rows(kept))


@holds_for(lengths=_LENGTHS, options=_OPTIONS, first=st.integers(0, 2**40))
def test_documents_keep_the_numbers_that_the_caller_gives_them(
    lengths: list[int], options: Options, first: int
) -> None:
    def renumbered(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(piece._replace(document=first + 3 * piece.document) for piece in pieces)

    found = list(options.stream().rows((first + 3 * index, length) for index, length in enumerate(lengths)))
    assert found == [
        StreamedRow(row.number, renumbered(row.pieces), renumbered(row.dropped))
        for row in options.stream().rows(lengths)
    ]


@pytest.mark.parametrize("overlong", ["split", "truncate"])
def test_a_stream_without_end_holds_no_more_as_it_goes_on(overlong: Overlong) -> None:
    stream = RowStream(10, 3, overlong=overlong)
    sizes: list[int] = []
    for row in islice(stream.rows(cycle([3, 9, 1, 24, 6, 7])), 3000):
        state = stream.state()
        assert len(state["open"]) <= 3
        assert all(open_row["number"] != row.number for open_row in state["open"])
        sizes.append(len(pickle.dumps(stream)))
    assert max(sizes[2000:]) <= max(sizes[:1000]) + 64  # counters take a few bytes more


def _open_rows(rows: list[tuple[int, list[list[int]], list[list[int]]]]) -> list[dict[str, object]]:
    return [{"number": number, "pieces": pieces, "dropped": dropped} for number, pieces, dropped in rows]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("capacity", 0),
        ("open_rows", 1),
        ("open_rows", True),
        ("overlong", "cut"),
        ("documents_per_row", 0),
        ("documents_per_row", 1),
        ("documents", -1),
        ("documents", 2.0),
        ("opened", 2),
        ("opened", None),
        ("open", None),
        ("open", [None]),
        ("open", _open_rows([(1, [], [])])),
        ("open", _open_rows([(1, [[0, 2, 2]], [])])),
        ("open", _open_rows([(1, [[0, -1, 2]], [])])),
        ("open", _open_rows([(1, [[0, 0, 5]], [])])),
        ("open", _open_rows([(1, [[0, 0, 6]], [])])),
        ("open", _open_rows([(-1, [[0, 0, 3]], [])])),
        ("open", _open_rows([(1, [[0, 0, 3]], [[0, 3]])])),
        ("open", _open_rows([(1, [[0, 0, 3]], [[0, 3, 3]])])),
        ("open", _open_rows([(2, [[0, 0, 3]], []), (1, [[0, 0, 3]], [])])),
        ("open", _open_rows([(1, [[0, 0, 3]], []), (1, [[0, 0, 3]], [])])),
        ("closed", 3),
        ("closed", _open_rows([(2, [[0, 0, 3]], [])])),
        ("closed", _open_rows([(4, [[0, 0, 3]], [])])),
        ("closed", _open_rows([(0, [[0, 0, 3]], []), (0, [[1, 0, 3]], [])])),
        ("closed", _open_rows([(1, [[0, 0, 3], [1, 0, 3]], [])])),
    ],
)
def test_a_state_that_is_no_stream_is_refused(name: str, value: object) -> None:
    stream = RowStream(5, 2)
    assert [row.number for row in islice(stream.rows([3, 4, 2, 2, 4]), 2)] == [0, 1]
    state: dict[str, object] = {**stream.state()}
    again = RowStream.from_state(state).state()
    assert ([row["number"] for row in again["open"]], again["opened"], again["closed"]) == ([2, 3], 4, [])
    state[name] = value
    with pytest.raises(PlanError):
        RowStream.from_state(state)
    del state[name]
    if name != "documents_per_row":
        with pytest.raises(PlanError):
            RowStream.from_state(state)


def test_a_closed_row_holds_no_more_pieces_than_the_bound() -> None:
    state: dict[str, object] = {**RowStream(5, 2, documents_per_row=1).state(), "opened": 1}
    for pieces, refused in (([[0, 0, 3]], False), ([[0, 0, 3], [1, 0, 2]], True)):
        state["closed"] = _open_rows([(0, pieces, [])])
        if refused:
            with pytest.raises(PlanError, match="closed = 0: holds more than a row does"):
                RowStream.from_state(state)
        else:
            assert len(list(RowStream.from_state(state).rows([]))) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("capacity", 0), ("open_rows", 0), ("open_rows", 2**25), ("overlong", "cut"), ("documents_per_row", 0)],
)
def test_options_of_a_stream_are_checked(name: str, value: object) -> None:
    options: dict[str, Any] = {"capacity": 4, "open_rows": 2, name: value}
    with pytest.raises(PlanError, match=name):
        RowStream(**options)
    for lengths in ({3: 1}, {3, 1}, frozenset([3])):
        with pytest.raises(PlanError, match="one by one"):
            RowStream(4, 2).rows(lengths)
    with pytest.raises(PlanError, match="lengths"):
        RowStream(4, 2).rows(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(PlanError, match="pieces"):
        next(RowStream(1, 2, overlong="split").rows([2**40]))
    pair: Any = [7, 3]
    with pytest.raises(PlanError, match=r"= \[7, 3\]: must be a positive int, or a key and one.* tuples of a key"):
        next(RowStream(4, 2).rows([pair]))
    assert next(RowStream(4, 2).rows([tuple(pair)])).pieces == (Piece(7, 0, 3),)
