"""Saved states of plans: what is changed in one is refused by its name, and plain numbers are all that is in them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import strategies as st

from neatpack.adapters import (
    AttentionCost,
    Piece,
    RankPlan,
    RowPlan,
    RowStream,
    balance_rows,
    plan_rows,
    resume_rows,
)
from neatpack.contracts.errors import PlanError
from tests.adapters.properties import holds_for

_COST: Final = AttentionCost(linear=2.0, quadratic=0.25)


def _row_plan() -> Mapping[str, object]:
    return {**plan_rows([3, 12, 4], 5, overlong="truncate").state()}


def _rank_plan() -> Mapping[str, object]:
    plan = plan_rows([3, 12, 4, 5, 1, 5], 5, overlong="split")
    return {**balance_rows(plan, 2, cost=_COST, remainder="carry").state(done=1)}


def _stream() -> Mapping[str, object]:
    stream = RowStream(5, 2, overlong="split", documents_per_row=3)
    assert next(stream.rows([3, 13])).number == 1
    state = stream.state()
    assert ([row["number"] for row in state["open"]], [row["number"] for row in state["closed"]]) == ([0, 3], [2])
    return {**state}


_KINDS: Final[dict[str, tuple[Callable[[], Mapping[str, object]], Callable[[Mapping[str, object]], object]]]] = {
    "RowPlan": (_row_plan, RowPlan.from_state),
    "RankPlan": (_rank_plan, resume_rows),
    "RowStream": (_stream, RowStream.from_state),
}
_KIND: Final = st.sampled_from(sorted(_KINDS))


class Node(NamedTuple):
    """A place in a state: the keys and indices that lead to it, and what stands there."""

    path: tuple[str | int, ...]
    value: object

    @property
    def name(self) -> str:
        return next(step for step in reversed(self.path) if isinstance(step, str))

    def replaced(self, state: Mapping[str, object], value: object) -> dict[str, Any]:
        """Give a copy of a state in which something else stands there."""
        changed: Any = copy.deepcopy(state)
        holder = changed
        for step in self.path[:-1]:
            holder = holder[step]
        holder[self.path[-1]] = value
        return cast("dict[str, Any]", changed)


def _nodes(value: object, path: tuple[str | int, ...] = ()) -> Iterator[Node]:
    """Walk through a state, itself left out."""
    if path:
        yield Node(path, value)
    if isinstance(value, dict):
        for name, entry in cast("dict[str, object]", value).items():
            yield from _nodes(entry, (*path, name))
    if isinstance(value, list):
        for index, entry in enumerate(cast("list[object]", value)):
            yield from _nodes(entry, (*path, index))


@holds_for(kind=_KIND, wrong=st.sampled_from([True, False, 0.5, 1.0, "1", None, (1,)]), data=st.data())
def test_a_value_of_another_type_is_named(kind: str, wrong: object, data: st.DataObject) -> None:
    make, read = _KINDS[kind]
    state = json.loads(json.dumps(make()))
    read(state)
    places = [node for node in _nodes(state) if type(node.value) is not type(wrong)]
    node = data.draw(st.sampled_from(places).filter(lambda node: (node.name, wrong) != ("documents_per_row", None)))
    with pytest.raises(PlanError) as caught:
        read(node.replaced(state, wrong))
    (problem,) = caught.value.problems
    assert problem.field == node.name
    assert problem.value in (wrong, repr(wrong), type(wrong).__name__)
    assert problem.remedy


@holds_for(kind=_KIND, data=st.data())
def test_keys_that_are_missing_or_unknown_are_named(kind: str, data: st.DataObject) -> None:
    make, read = _KINDS[kind]
    state: dict[str, Any] = json.loads(json.dumps(make()))
    holders = [Node((), state), *(node for node in _nodes(state) if isinstance(node.value, dict))]
    changed: Any = copy.deepcopy(state)
    entries = changed
    for step in data.draw(st.sampled_from(holders)).path:
        entries = entries[step]
    entries["extra"] = 7
    with pytest.raises(PlanError, match=r"^extra = 7: is no entry of a \w+State\. Keep the state as it was saved\.$"):
        read(changed)
    del entries["extra"]
    name = data.draw(st.sampled_from(sorted(entries)))
    del entries[name]
    with pytest.raises(PlanError, match=rf"^{name}: "):
        read(changed)


@holds_for(kind=_KIND, other=_KIND)
def test_a_state_of_another_kind_is_named_with_what_reads_it(kind: str, other: str) -> None:
    state = _KINDS[other][0]()
    if kind == other:
        _KINDS[kind][1](state)
        return
    with pytest.raises(PlanError) as caught:
        _KINDS[kind][1](state)
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == ("kind", repr(other))
    assert problem.remedy == f"Call {other}.from_state(state)."


@pytest.mark.parametrize("kind", sorted(_KINDS))
@pytest.mark.parametrize("version", [0, 2, True, "1", None])
def test_another_version_is_refused(kind: str, version: object) -> None:
    make, read = _KINDS[kind]
    with pytest.raises(PlanError, match=rf"is not the state of a {kind}, version 1\. Give what state\(\) of a {kind}"):
        read({**make(), "version": version})


def test_numbers_past_int64_are_refused() -> None:
    with pytest.raises(PlanError, match=r"^lengths = 9223372036854775808: must be a list of ints"):
        RowPlan.from_state({**_row_plan(), "lengths": [3, 2**63, 4]})


@pytest.mark.parametrize("wrong", [-1, 3])
def test_numbers_of_documents_and_pieces_that_are_not_there_are_refused(wrong: int) -> None:
    state: dict[str, Any] = {**_row_plan()}
    pieces = len(state["documents"])
    documents = [wrong, *state["documents"][1:]]
    with pytest.raises(PlanError, match=rf"^documents = {wrong}: must be from 0 to 2\."):
        RowPlan.from_state({**state, "documents": documents})
    piece = wrong if wrong < 0 else pieces
    with pytest.raises(PlanError, match=rf"^cut = {piece}: must be from 0 to {pieces - 1}\."):
        RowPlan.from_state({**state, "cut": [[piece, 0, 1]]})


def test_what_was_made_of_numbers_of_numpy_is_saved_as_json() -> None:
    one, two, four = (cast("Any", np.int64(number)) for number in (1, 2, 4))
    plan = RowPlan.from_rows([[Piece(0, 0, two)], [1]], [four, two], two, [Piece(0, two, four)])
    ranked = RankPlan(plan, _COST, np.array([[[0]]]), (one,), seed=two)
    stream = RowStream(two, two, documents_per_row=two)
    assert RowPlan.from_state(json.loads(json.dumps(plan.state()))) == plan
    assert resume_rows(json.loads(json.dumps(ranked.state(0)))).carried == (1,)
    assert RowStream.from_state(json.loads(json.dumps(stream.state()))).documents_per_row == 2
