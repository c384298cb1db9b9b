"""Rule 14 over ranks: equal microbatches, none empty, their cost balanced; saved, and resumed on other ranks."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from neatpack.adapters import (
    REMAINDERS,
    AttentionCost,
    RankPlan,
    Remainder,
    RowPlan,
    balance_rows,
    collate_documents,
    plan_rows,
    resume_rows,
)
from neatpack.adapters.arguments import INT32_MAX
from neatpack.contracts.errors import PlanError
from tests.adapters import oracle_plans
from tests.adapters.properties import holds_for

_LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=40)
_COST = AttentionCost(linear=1.0, quadratic=0.25)


class Group(NamedTuple):
    """The ranks that rows are dealt to, and how."""

    ranks: int
    rows_per_rank: int
    remainder: Remainder
    seed: int

    @property
    def step(self) -> int:
        return self.ranks * self.rows_per_rank

    def balance(self, plan: RowPlan) -> RankPlan:
        return balance_rows(
            plan,
            self.ranks,
            cost=_COST,
            rows_per_rank=self.rows_per_rank,
            remainder=self.remainder,
            seed=self.seed,
        )


_COPIES: dict[str, Callable[[RankPlan], RankPlan]] = {
    "pickled": lambda plan: cast("RankPlan", pickle.loads(pickle.dumps(plan))),  # noqa: S301 - what was just written
    "copied": copy.deepcopy,
}

_GROUPS = st.builds(Group, st.integers(1, 4), st.integers(1, 3), st.sampled_from(REMAINDERS), st.integers(0, 3))


def _can_fill(pieces: int, rows: int, group: Group) -> bool:
    return group.remainder != "spread" or pieces >= math.ceil(rows / group.step) * group.step


def _dealt(plan: RankPlan) -> list[int]:
    return [row for rank in range(plan.ranks) for rows in plan.rank_rows(rank) for row in rows]


def _tokens(plan: RowPlan, rows: list[int]) -> Counter[tuple[int, int]]:
    return oracle_plans.tokens_of(
        [(each.document, each.start, each.stop) for row in rows if row >= 0 for each in plan.pieces[row]]
    )


def _cost_of(plan: RowPlan, rows: list[int]) -> float:
    lengths = [each.stop - each.start for row in rows if row >= 0 for each in plan.pieces[row]]
    return sum(length + 0.25 * length**2 for length in lengths)


@holds_for(lengths=_LENGTHS, capacity=st.integers(4, 16), group=_GROUPS)
def test_ranks_share_every_token_and_take_as_many_rows(lengths: list[int], capacity: int, group: Group) -> None:
    given = plan_rows(lengths, capacity, overlong="split")
    assume(_can_fill(given.documents.size, len(given), group))
    plan = group.balance(given)
    assert plan.steps.shape[1:] == (group.ranks, group.rows_per_rank)
    dealt = _dealt(plan)
    steps: list[list[list[int]]] = plan.steps.tolist()
    assert all(plan.rank_rows(rank) == [step[rank] for step in steps] for rank in range(group.ranks))
    assert _tokens(plan.rows, [*dealt, *plan.carried]) == oracle_plans.all_tokens(lengths)
    assert sorted(row for row in [*dealt, *plan.carried] if row >= 0) == list(range(len(plan.rows)))
    assert len(plan.carried) == (len(given) % group.step if group.remainder == "carry" else 0)
    assert dealt.count(-1) == (-len(given) % group.step if group.remainder == "pad" else 0)
    emptiest = sorted(range(len(given)), key=lambda row: sum(_tokens(given, [row]).values()))[: len(plan.carried)]
    assert plan.carried == tuple(sorted(emptiest))
    if group.remainder != "spread":
        assert plan.rows is given
    assert np.array_equal(group.balance(given).steps, plan.steps)


@holds_for(rows=st.integers(1, 40), ranks=st.integers(1, 4), rows_per_rank=st.integers(1, 3), seed=st.integers(0, 9))
def test_a_rank_has_padding_alone_in_a_step_only_where_rows_are_fewer_than_ranks_in_all_steps(
    rows: int, ranks: int, rows_per_rank: int, seed: int
) -> None:
    plan = Group(ranks, rows_per_rank, "pad", seed).balance(plan_rows([4] * rows, 4))
    steps: list[list[list[int]]] = plan.steps.tolist()
    alone = sum(max(dealt) == -1 for step in steps for dealt in step)
    assert alone == max(0, len(steps) * ranks - rows)


@pytest.mark.parametrize("rows", [5, 9, 13])
def test_no_draw_puts_all_groups_with_padding_into_one_step(rows: int) -> None:
    """Of so many rows on two ranks, two each a step, one group is a row and padding, and one padding alone."""
    for seed in range(10):
        steps: list[list[list[int]]] = Group(2, 2, "pad", seed).balance(plan_rows([4] * rows, 4)).steps.tolist()
        assert all(max(dealt) >= 0 for step in steps for dealt in step)


@holds_for(lengths=_LENGTHS, capacity=st.integers(4, 16), group=_GROUPS)
def test_the_balance_that_is_reported_is_that_of_the_rows(lengths: list[int], capacity: int, group: Group) -> None:
    given = plan_rows(lengths, capacity, overlong="split")
    assume(_can_fill(given.documents.size, len(given), group))
    plan = group.balance(given)
    steps: list[list[list[int]]] = plan.steps.tolist()
    loads = [[_cost_of(plan.rows, rows) for rows in ranks] for ranks in steps]
    assert np.allclose(plan.loads, np.reshape(loads, plan.loads.shape))
    worst = [max(ranks) / (sum(ranks) / len(ranks)) for ranks in loads]
    assert np.allclose(plan.imbalance, worst)
    if steps:
        assert math.isclose(plan.slowdown, sum(map(max, loads)) / (sum(map(sum, loads)) / group.ranks))
    else:
        assert plan.slowdown == 1.0


@holds_for(lengths=_LENGTHS, capacity=st.integers(4, 16), group=_GROUPS)
def test_rows_of_a_step_cost_alike_and_go_to_the_rank_with_the_least_to_do(
    lengths: list[int], capacity: int, group: Group
) -> None:
    given = plan_rows(lengths, capacity, overlong="split")
    assume(_can_fill(given.documents.size, len(given), group))
    plan = group.balance(given)
    steps: list[list[list[int]]] = plan.steps.tolist()
    ordered = sorted((_cost_of(plan.rows, [row]) for row in _dealt(plan)), reverse=True)
    groups = [ordered[start : start + group.ranks] for start in range(0, len(ordered), group.ranks)]
    for ranks in steps:
        costs = [[_cost_of(plan.rows, [row]) for row in rows] for rows in ranks]
        assert all(rows == sorted(rows, reverse=True) for rows in costs)
        flat = sorted((cost for rows in costs for cost in rows), reverse=True)
        for start in range(0, len(flat), group.ranks):
            groups.remove(flat[start : start + group.ranks])
        loads = oracle_plans.greedy_loads(flat, group.ranks, group.rows_per_rank)
        assert np.allclose(loads, [sum(rows) for rows in costs])
    assert groups == []


@holds_for(lengths=_LENGTHS, capacity=st.integers(4, 16), group=_GROUPS, other=_GROUPS, data=st.data())
def test_resuming_loses_and_repeats_nothing(
    lengths: list[int], capacity: int, group: Group, other: Group, data: st.DataObject
) -> None:
    given = plan_rows(lengths, capacity, overlong="split")
    assume(_can_fill(given.documents.size, len(given), group))
    plan = group.balance(given)
    done = data.draw(st.integers(0, len(plan)))
    state = json.loads(json.dumps(plan.state(done)))
    same = resume_rows(state)
    assert np.array_equal(same.steps, plan.steps[done:])
    assert (same.rows, same.carried, same.cost) == (plan.rows, plan.carried, plan.cost)
    rows_done: list[int] = plan.steps[:done].flatten().tolist()
    left = [row for row in range(len(plan.rows)) if row not in rows_done]
    pieces = sum(len(plan.rows.pieces[row]) for row in left)
    if not _can_fill(pieces, len(left), other._replace(remainder=group.remainder)):
        return
    resumed = resume_rows(state, ranks=other.ranks, rows_per_rank=other.rows_per_rank)
    assert resumed.steps.shape[1:] == (other.ranks, other.rows_per_rank)
    tokens = _tokens(plan.rows, rows_done) + _tokens(resumed.rows, [*_dealt(resumed), *resumed.carried])
    assert tokens == oracle_plans.all_tokens(lengths)
    assert -1 not in _dealt(resumed) or group.remainder == "pad"


@holds_for(lengths=_LENGTHS, capacity=st.integers(4, 16), group=_GROUPS, other=_GROUPS, data=st.data())
def test_what_is_left_is_dealt_to_others_as_a_plan_of_its_own(
    lengths: list[int], capacity: int, group: Group, other: Group, data: st.DataObject
) -> None:
    """By the seed of before, and by another remainder where one is given."""
    assume((group.ranks, group.rows_per_rank) != (other.ranks, other.rows_per_rank))
    given = plan_rows(lengths, capacity, overlong="split")
    assume(_can_fill(given.documents.size, len(given), group))
    plan = group.balance(given)
    state = json.loads(json.dumps(plan.state(data.draw(st.integers(0, len(plan))))))
    left = sorted(row for row in [*np.ravel(state["steps"]).astype(int).tolist(), *plan.carried] if row >= 0)
    pieces = [piece for row in left for piece in plan.rows.pieces[row]]
    assume(left and _can_fill(len(pieces), len(left), other))
    numbers = iter(range(len(pieces)))
    rest = RowPlan.from_rows(
        [[next(numbers) for _ in plan.rows.pieces[row]] for row in left],
        [piece.stop - piece.start for piece in pieces],
        capacity,
    )
    expected = other._replace(seed=group.seed).balance(rest)
    resumed = resume_rows(state, ranks=other.ranks, rows_per_rank=other.rows_per_rank, remainder=other.remainder)
    assert resumed.loads.tolist() == expected.loads.tolist()
    assert resumed.carried == tuple(left[row] for row in expected.carried)
    assert (resumed.seed, resumed.remainder) == (group.seed, other.remainder)


@holds_for(
    lengths=_LENGTHS, capacity=st.integers(4, 16), bound=st.integers(1, 4), group=_GROUPS, other=_GROUPS, data=st.data()
)
def test_no_row_takes_more_pieces_than_the_fullest_row_of_the_plan(
    lengths: list[int], capacity: int, bound: int, group: Group, other: Group, data: st.DataObject
) -> None:
    given = plan_rows(lengths, capacity, overlong="split", documents_per_row=bound)
    assume(_can_fill(given.documents.size, len(given), group))
    plan = group.balance(given)
    assert max(map(len, plan.rows.pieces)) <= bound
    state = plan.state(data.draw(st.integers(0, len(plan))))
    left = np.append(np.array(state["steps"], np.int64), np.array(state["carried"], np.int64))
    pieces = sum(len(plan.rows.pieces[row]) for row in left if row >= 0)
    assume(_can_fill(pieces, int((left >= 0).sum()), other))
    resumed = resume_rows(state, ranks=other.ranks, rows_per_rank=other.rows_per_rank, remainder=other.remainder)
    assert max(map(len, resumed.rows.pieces)) <= bound


@pytest.mark.parametrize(("remainder", "steps", "carried"), [("carry", 0, 2), ("pad", 1, 0)])
def test_what_is_too_little_to_spread_is_resumed_with_another_remainder(
    remainder: Remainder, steps: int, carried: int
) -> None:
    state = balance_rows(plan_rows([4, 4, 4, 4], 4), 2, cost=_COST).state(done=1)
    with pytest.raises(PlanError, match=r"^ranks = 3: 2 pieces of documents cannot fill 6 rows, 2 a rank and step"):
        resume_rows(state, ranks=3, rows_per_rank=2)
    resumed = resume_rows(state, ranks=3, rows_per_rank=2, remainder=remainder)
    assert (len(resumed), len(resumed.carried), resumed.remainder) == (steps, carried, remainder)


def test_rows_that_were_carried_are_dealt_where_the_remainder_is_another() -> None:
    plan = balance_rows(plan_rows([4, 3, 3], 4), 2, cost=_COST, remainder="carry")
    assert len(plan.carried) == 1
    assert resume_rows(plan.state(done=1), remainder="carry").carried == plan.carried
    assert sorted(_dealt(resume_rows(plan.state(done=1), remainder="pad"))) == [-1, *plan.carried]


def test_what_was_saved_twice_is_resumed_twice() -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 200).tolist()
    plan = balance_rows(plan_rows(lengths, 32), 4, cost=_COST)
    done = _tokens(plan.rows, plan.steps[:3].flatten().tolist())
    second = resume_rows(plan.state(3), ranks=7)
    done += _tokens(second.rows, second.steps[:2].flatten().tolist())
    third = resume_rows(second.state(2), ranks=2, rows_per_rank=3)
    done += _tokens(third.rows, _dealt(third))
    assert done == oracle_plans.all_tokens(lengths)


@pytest.mark.parametrize(("rows_per_rank", "most"), [(4, 1.05), (1, 1.01)])
def test_ranks_hardly_wait_for_one_another(rows_per_rank: int, most: float) -> None:
    """50,000 documents of log-normal lengths in rows of 32k, on 64 ranks, by the cost of a model of 7 billion."""
    random = np.random.default_rng(1)
    lengths = np.minimum(random.lognormal(7.0, 1.2, 50_000).astype(int) + 1, 32_768).tolist()
    cost = AttentionCost.of_model(parameters=7_000_000_000, layers=32, width=4096)
    plan = balance_rows(plan_rows(lengths, 32_768), 64, cost=cost, rows_per_rank=rows_per_rank)
    assert plan.slowdown <= most
    drawn = np.reshape(random.permutation(len(plan.rows)), plan.steps.shape)
    assert RankPlan(plan.rows, cost, drawn).slowdown > 1.15


def test_another_seed_draws_the_same_groups_in_another_order() -> None:
    plan = plan_rows(list(range(1, 60)), 60)
    one, two = (balance_rows(plan, 2, cost=_COST, seed=seed) for seed in (0, 1))
    assert one.steps.tolist() != two.steps.tolist()
    assert sorted(one.steps.tolist()) == sorted(two.steps.tolist())


def test_rows_of_a_rank_are_collated() -> None:
    documents = [torch.arange(length) for length in (6, 5, 4, 3, 2)]
    plan = balance_rows(plan_rows([6, 5, 4, 3, 2], 8), 2, cost=_COST, rows_per_rank=2, remainder="pad")
    batches = [collate_documents(documents, plan.rows, rows=plan.rank_rows(rank)[0]) for rank in range(2)]
    padding = torch.cat([batch["padding_mask"] for batch in batches]).sum(dim=1)
    assert torch.equal(padding.sort().values, torch.tensor([0, 0, 4, 8]))


@pytest.mark.parametrize("rank", [-1, 2, 3, True, 1.0, None])
def test_a_rank_is_one_of_those_that_share(rank: Any) -> None:
    plan = balance_rows(plan_rows([6, 5, 4, 3], 8), 2, cost=_COST)
    assert len(plan.rank_rows(1)) == len(plan)
    with pytest.raises(PlanError) as caught:
        plan.rank_rows(rank)
    assert (caught.value.problems[0].field, caught.value.problems[0].remedy) == ("rank", "Give a rank from 0 to 1.")


def test_too_few_pieces_are_refused_where_no_row_may_be_empty() -> None:
    plan = plan_rows([3, 3, 3], 6)
    with pytest.raises(PlanError, match="3 pieces of documents cannot fill 4 rows"):
        balance_rows(plan, 4, cost=_COST)
    assert len(balance_rows(plan, 4, cost=_COST, remainder="pad")) == 1
    assert balance_rows(plan, 4, cost=_COST, remainder="carry").carried == (0, 1)
    assert len(balance_rows(plan, 3, cost=_COST).rows) == 3


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_steps_of_more_rows_than_memory_holds_are_refused(remainder: Remainder) -> None:
    plan = plan_rows([3, 3, 3], 6)
    with pytest.raises(PlanError, match=r"^ranks = 2147483647: takes 6442450941 rows in a step, 3 a rank"):
        balance_rows(plan, INT32_MAX, cost=_COST, rows_per_rank=3, remainder=remainder)
    with pytest.raises(PlanError, match=r"^ranks = 3: takes 6442450941 rows in a step"):
        resume_rows(balance_rows(plan, 3, cost=_COST).state(0), rows_per_rank=INT32_MAX, remainder=remainder)


def test_spread_rows_are_evened_out_by_their_cost_and_not_by_their_tokens() -> None:
    plan = balance_rows(plan_rows([1, 3, 2, 3, 2], 8), 3, cost=_COST)
    assert plan.loads.tolist() == [[6.5, 6.0, 5.25]]


@pytest.mark.parametrize(("lengths", "ranks", "loads"), [([1] * 24, 4, [6] * 4), ([4, 4, 4, 2, 2], 4, [4] * 4)])
def test_spread_rows_are_evened_out(lengths: list[int], ranks: int, loads: list[int]) -> None:
    plan = balance_rows(plan_rows(lengths, 8), ranks, cost=_COST)
    assert plan.rows.row_tokens.tolist() == loads


def test_what_is_not_left_is_not_touched_when_rows_are_spread() -> None:
    plan = balance_rows(plan_rows([2] * 30, 6), 5, cost=_COST)
    resumed = resume_rows(plan.state(1), ranks=3)
    done: list[int] = plan.steps[0].flatten().tolist()
    assert [resumed.rows.pieces[row] for row in done] == [plan.rows.pieces[row] for row in done]
    assert len(resumed) == 2


@pytest.mark.parametrize(
    ("linear", "quadratic"),
    [(-1.0, 1.0), (1.0, math.nan), (math.inf, 0.0), (0.0, 0.0), (1e308, 1.0), (1.0, 5e-324), (10**400, 0.0)],
)
def test_a_cost_is_positive_and_finite(linear: float, quadratic: float) -> None:
    with pytest.raises(PlanError, match=r"linear|quadratic"):
        AttentionCost(linear, quadratic)


@pytest.mark.parametrize("size", [2.0**-256, 2.0**256])
def test_no_cost_is_lost_to_0_or_past_what_a_float_holds(size: float) -> None:
    plan = balance_rows(plan_rows([INT32_MAX] * 4, INT32_MAX), 2, cost=AttentionCost(size, size))
    assert plan.imbalance.tolist() == [1.0, 1.0]
    assert plan.slowdown == 1.0


def test_a_short_row_has_its_cost_behind_a_long_one() -> None:
    plan = balance_rows(
        plan_rows([INT32_MAX, 1, 1, 2], INT32_MAX, documents_per_row=1), 1, cost=AttentionCost(0.0, 1.0)
    )
    assert sorted(plan.loads.ravel().tolist()) == [1.0, 1.0, 4.0, float(INT32_MAX) ** 2]


@given(
    st.lists(st.sampled_from([1, 2, 5, 2**20, 2**30]), min_size=6, max_size=12),
    st.sampled_from([2**30, INT32_MAX]),
    st.integers(1, 3),
)
def test_short_documents_fill_rows_beside_huge_ones(lengths: list[int], capacity: int, ranks: int) -> None:
    """Their costs are lost where they are added to a huge one."""
    plan = plan_rows(lengths, capacity)
    assume(-(-len(plan) // ranks) * ranks <= len(lengths))
    found = balance_rows(plan, ranks, cost=AttentionCost(0.0, 1.0))
    assert sorted(document for row in found.rows.rows for document in row) == list(range(len(lengths)))
    assert sorted(found.steps.ravel().tolist()) == list(range(len(found.rows)))


@pytest.mark.parametrize("lengths", [[2], np.array([-2]), np.array([2.0]), np.array([None]), 2])
def test_only_lengths_have_a_cost(lengths: Any) -> None:
    with pytest.raises(PlanError, match="lengths"):
        _COST.of(lengths)


@pytest.mark.parametrize(
    ("steps", "carried"),
    [
        ([[[0], [0]]], ()),
        ([[[0], [2]]], ()),
        ([[[0], [1]]], (1,)),
        ([[[-2], [1]]], ()),
        ([[[0], [1]], [[-1], [-1]]], ()),
    ],
)
def test_rows_are_dealt_once(steps: list[list[list[int]]], carried: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="steps"):
        RankPlan(plan_rows([3, 4], 5), _COST, np.array(steps), carried)


@pytest.mark.parametrize("shape", [(0, 0, 1), (0, 2, 0), (0, 2**13, 2**12)])
def test_a_step_has_a_rank_and_rows_for_it_and_no_more_than_can_be_dealt(shape: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="must take from 1 to 16777216 rows") as caught:
        RankPlan(plan_rows([3], 5), _COST, np.zeros(shape, np.int64))
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("steps", shape)


def test_a_row_that_the_plan_does_not_know_is_named_where_it_stands() -> None:
    for steps, carried, told in (
        ([[[0], [2]]], (), "^steps = 2: must hold rows of the plan, below 2"),
        ([[[0], [-2]]], (), "^steps = -2: must hold"),
        ([[[0]]], (2,), "^carried = 2: must be an int from 0 to 1. Give rows of the plan"),
    ):
        with pytest.raises(PlanError, match=told):
            RankPlan(plan_rows([3, 4], 5), _COST, np.array(steps), carried)


def test_steps_that_are_no_array_can_be_made_one() -> None:
    steps: Any = [[[0], [1]]]
    with pytest.raises(PlanError, match=r"^steps = list: .*Give numpy.array\(\[\[\[0\]\]\]\), rows by step and rank"):
        RankPlan(plan_rows([3, 4], 5), _COST, steps)
    assert len(RankPlan(plan_rows([3, 4], 5), _COST, np.array(steps))) == 1


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_a_row_past_int64_is_none_of_padding(kind: Any) -> None:
    steps: Any = np.array([[[0], [1]]], kind)
    assert RankPlan(plan_rows([3, 4], 5), _COST, steps).rank_rows(1) == [[1]]
    steps = np.array([[[0], [2**64 - 1]]], np.uint64)
    with pytest.raises(PlanError, match=r"^steps = 18446744073709551615: must be within int64"):
        RankPlan(plan_rows([3, 4], 5), _COST, steps, remainder="pad")


@pytest.mark.parametrize("name", ["ranks", "rows_per_rank"])
def test_ranks_of_a_finished_plan_are_as_many_as_can_be(name: str) -> None:
    state: dict[str, Any] = {**balance_rows(plan_rows([3, 4], 5), 2, cost=_COST).state(done=1)}
    assert len(resume_rows(state)) == 0
    for other in ("ranks", "rows_per_rank"):
        state[other] = 2**24
    with pytest.raises(PlanError, match="steps"):
        resume_rows(state)
    with pytest.raises(PlanError, match=f"^{name} = 2147483647: must be an int from 1 to 16777216. Keep the state"):
        resume_rows({**state, name: 2**31 - 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 0),
        ("rows", None),
        ("rows", {}),
        ("linear", "1"),
        ("quadratic", None),
        ("ranks", 3),
        ("rows_per_rank", 0),
        ("steps", [[0, 1]]),
        ("steps", [[[0], [9]]]),
        ("steps", [[[0]], [[0], [1]]]),
        ("carried", [5]),
        ("carried", 1),
        ("carried", np.zeros((2, 3), np.int64)),
        ("remainder", "drop"),
        ("seed", -1),
    ],
)
def test_a_state_that_is_no_plan_over_ranks_is_refused(name: str, value: object) -> None:
    state: dict[str, Any] = {**balance_rows(plan_rows([3, 4, 2], 5), 2, cost=_COST).state(0), name: value}
    with pytest.raises(PlanError):
        resume_rows(state)
    del state[name]
    with pytest.raises(PlanError, match=name):
        resume_rows(state)


@pytest.mark.parametrize("name", _COPIES)
def test_the_steps_of_a_copy_cannot_be_written_to_either(name: str) -> None:
    plan = balance_rows(plan_rows([3, 4, 2, 5], 5), 2, cost=_COST)
    again = _COPIES[name](plan)
    assert again.state(0) == plan.state(0)
    for each in (plan, again):
        with pytest.raises(ValueError, match="read-only"):
            each.steps[:] = 0
