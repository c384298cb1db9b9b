"""Rows of a plan dealt to ranks so that no rank waits long for another."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neatpack.adapters.arguments import require_count, require_instance
from neatpack.adapters.attention_cost import AttentionCost
from neatpack.adapters.best_fit import radix_order
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.rank_plans import (
    MOST_STEP_ROWS,
    RankPlan,
    Remainder,
    require_remainder,
    require_seed,
    row_costs,
)
from neatpack.adapters.row_plans import PADDING_ROW, RowPlan
from neatpack.contracts.errors import PlanError, Problem

_Costs = npt.NDArray[np.float64]


def balance_rows(
    plan: RowPlan,
    ranks: int,
    *,
    cost: AttentionCost,
    rows_per_rank: int = 1,
    remainder: Remainder = "spread",
    seed: int = 0,
) -> RankPlan:
    """Deal the rows of a plan to ranks: equally many to each in every step, and as much work as can be.

    Rows that cost alike go into the same step: all rows are sorted by cost and cut into groups of one row for each
    rank. A step takes `rows_per_rank` groups, drawn from the whole range so that steps differ little, and deals their
    rows, costliest first, each to the rank that has the least to do so far. The same arguments give the same plan.

    Args:
        plan: the rows.
        ranks: how many ranks share each step.
        cost: by what their work is balanced.
        rows_per_rank: rows that each rank takes in a step, as one microbatch or several.
        remainder: what becomes of rows that do not fill a last step. "spread" moves whole pieces of the rows with
            the most of them into as many new rows as it takes. "carry" leaves the emptiest rows to the next plan,
            and names them. "pad" adds rows of nothing but padding; a rank has those alone in a step only where there
            are fewer rows than ranks in all steps.
        seed: draws the order of the steps; give another in each epoch.

    Returns:
        The rows of each rank, with what the balance came to. Its `rows` is `plan`, or where rows were spread another.

    Raises:
        PlanError: an argument is of another kind, or there are fewer pieces of documents than rows to be filled.

    Example:
        >>> from neatpack.adapters.planning import plan_rows
        >>> plan = plan_rows([8, 5, 3, 4, 4, 7, 2, 2], capacity=8)
        >>> balanced = balance_rows(plan, 2, cost=AttentionCost(linear=1.0, quadratic=0.1))
        >>> balanced
        RankPlan(3 steps of 1 rows on 2 ranks, slowdown 1.132, 0 rows carried)
        >>> balanced.rank_rows(0)
        [[4], [2], [0]]
    """
    require_instance(plan, RowPlan, "plan", "Call plan_rows(lengths, capacity).", error=PlanError)
    require_instance(cost, AttentionCost, "cost", "Call AttentionCost.of_model(...).", error=PlanError)
    ranks = require_count(ranks, "ranks", "Give the size of the group.", least=1, error=PlanError)
    remedy = "Give the rows of a rank in one step."
    rows_per_rank = require_count(rows_per_rank, "rows_per_rank", remedy, least=1, error=PlanError)
    remainder, seed = require_remainder(remainder), require_seed(seed)
    return _deal(plan, np.arange(len(plan)), (ranks, rows_per_rank), cost, remainder, seed)


def resume_rows(
    state: Mapping[str, object],
    *,
    ranks: int | None = None,
    rows_per_rank: int | None = None,
    remainder: Remainder | None = None,
) -> RankPlan:
    """Go on with what was left of a plan over ranks, on as many ranks or on others.

    On as many, with as many rows and the same remainder, the steps go on as they would have. On others, the rows that
    are left and those that were carried are dealt anew. No row of the steps that were done comes back, and none of the
    others is lost.

    Args:
        state: what `RankPlan.state(done)` gave.
        ranks: how many ranks share each step from now on; None for as many as before.
        rows_per_rank: rows that each takes in a step from now on; None for as many as before.
        remainder: what becomes of rows that do not fill a last step, as `balance_rows` takes it; None for the same as
            before. Near the end of a plan too few pieces may be left to spread: "carry" and "pad" always do.

    Raises:
        PlanError: the state is none, or an argument is as `balance_rows` refuses it.

    Example:
        >>> from neatpack.adapters.planning import plan_rows
        >>> plan = plan_rows([8, 5, 3, 4, 4, 7, 2, 2], capacity=8)
        >>> balanced = balance_rows(plan, 2, cost=AttentionCost(linear=1.0, quadratic=0.1))
        >>> resume_rows(balanced.state(done=1)).rank_rows(0)
        [[2], [0]]
        >>> resume_rows(balanced.state(done=1), ranks=4)
        RankPlan(1 steps of 1 rows on 4 ranks, slowdown 1.280, 0 rows carried)
    """
    before = RankPlan.from_state(state)
    remedy = "Give a positive int, or None for as many as before."
    if ranks is not None:
        ranks = require_count(ranks, "ranks", remedy, least=1, error=PlanError)
    if rows_per_rank is not None:
        rows_per_rank = require_count(rows_per_rank, "rows_per_rank", remedy, least=1, error=PlanError)
    shape = (ranks or before.ranks, rows_per_rank or before.rows_per_rank)
    remainder = before.remainder if remainder is None else require_remainder(remainder)
    if (shape, remainder) == ((before.ranks, before.rows_per_rank), before.remainder):
        return before
    left = np.append(before.steps[before.steps != PADDING_ROW], np.array(before.carried, np.int64))
    return _deal(before.rows, np.sort(left), shape, before.cost, remainder, before.seed)


def _deal(
    plan: RowPlan, rows: Integers, shape: tuple[int, int], cost: AttentionCost, remainder: Remainder, seed: int
) -> RankPlan:
    """Deal some rows of a plan; before that, carry, pad or spread those that do not fill a last step."""
    step = shape[0] * shape[1]
    if step > MOST_STEP_ROWS:
        message = f"takes {step} rows in a step, {shape[1]} a rank: more than {MOST_STEP_ROWS}"
        remedy = "Give the size of the group, and the rows of a rank in one step."
        raise PlanError(Problem("ranks", message, "value", value=shape[0], remedy=remedy))
    carried: Integers = rows[:0]
    missing = -rows.size % step
    if remainder == "carry":
        emptiest = np.argsort(plan.row_tokens[rows], kind="stable")[: rows.size % step]
        carried, rows = np.sort(rows[emptiest]), np.delete(rows, emptiest)
    elif remainder == "pad":
        rows = np.append(rows, np.full(missing, PADDING_ROW))
    elif missing:
        rows = np.append(rows, len(plan) + np.arange(missing))
        plan = _spread(plan, rows[:-missing], missing, shape, cost)
    # What is appended is found at PADDING_ROW, the last index.
    costs = np.append(row_costs(plan, cost), 0.0)
    groups = np.reshape(rows[np.argsort(-costs[rows], kind="stable")], (-1, shape[0]))
    whole = int(np.count_nonzero((groups != PADDING_ROW).all(axis=1)))
    drawn = _spread_padded(np.reshape(_drawn_order(len(groups), seed), (-1, shape[1])), whole)
    taken = np.reshape(groups[drawn], (-1, step))
    steps = np.array([_deal_step(each, costs[each], shape) for each in taken], np.int64)
    steps = np.reshape(steps, (-1, *shape))
    return RankPlan(plan, cost, steps, tuple(carried.tolist()), remainder, seed)


def _drawn_order(count: int, seed: int) -> Integers:
    """Draw an order; of Python's generators, `random()` alone is promised to stay the same in all versions."""
    generator = random.Random(seed)  # noqa: S311 - nothing here is secret
    return np.argsort(np.array([generator.random() for _ in range(count)]), kind="stable")


def _spread_padded(drawn: Integers, whole: int) -> Integers:
    """Let a step take no padded groups alone, those from `whole` on: ranks would have nothing but padding in it."""
    spread = np.array(drawn)
    for step in np.flatnonzero((drawn >= whole).all(axis=1)).tolist():  # One at most: they do not fill a second.
        spread[[step, step - 1], 0] = spread[[step - 1, step], 0]
    return spread


def _deal_step(rows: Integers, costs: _Costs, shape: tuple[int, int]) -> list[list[int]]:
    """Deal rows, costliest first, each to the rank that has the least to do and not all its rows."""
    ranks, rows_per_rank = shape
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    waiting = [(0.0, rank) for rank in range(ranks)]
    order = np.argsort(-costs, kind="stable")
    for row, row_cost in zip(rows[order].tolist(), costs[order].tolist(), strict=True):
        load, rank = heapq.heappop(waiting)
        dealt[rank].append(row)
        if len(dealt[rank]) < rows_per_rank:
            heapq.heappush(waiting, (load + row_cost, rank))
    return dealt


def _spread(plan: RowPlan, rows: Integers, missing: int, shape: tuple[int, int], cost: AttentionCost) -> RowPlan:
    """Move pieces of some of the rows into new ones behind all others, so that the rows of one step cost alike.

    No row comes to hold more pieces than the plan's fullest did: a bound that the plan keeps stays kept.
    """
    counts = np.diff(plan.bounds)
    givers = _givers(counts[rows], missing, shape[0] * shape[1])
    if givers is None:
        total = rows.size + missing
        message = f"{int(counts[rows].sum())} pieces of documents cannot fill {total} rows, {shape[1]} a rank and step"
        remedy = 'Give fewer ranks or rows per rank, or say remainder="carry" or remainder="pad".'
        raise PlanError(Problem("ranks", message, "value", value=shape[0], remedy=remedy))
    row_of = np.repeat(np.arange(len(plan)), counts)
    touched = np.append(rows[givers], len(plan) + np.arange(missing))
    moved = np.flatnonzero(np.isin(row_of, touched))
    local = np.searchsorted(np.sort(touched), row_of[moved])
    lengths = plan.piece_lengths[moved]
    most = _Room(plan.capacity, int(counts.max()))
    row_of[moved] = np.sort(touched)[_even_out(local, lengths, cost.of(lengths), touched.size, most)]
    order = radix_order(row_of, row_of.size)
    bounds = np.append(0, np.cumsum(np.bincount(row_of)))
    documents, starts, stops = (array[order] for array in (plan.documents, plan.starts, plan.stops))
    return RowPlan(plan.capacity, plan.lengths, documents, starts, stops, bounds, plan.dropped)


def _givers(counts: Integers, missing: int, step: int) -> Integers | None:
    """Choose the rows with the most pieces: as many as make a step with the new ones, or more if they hold too few."""
    order = np.argsort(-counts, kind="stable")
    # Of so many givers, each keeps a piece, and each new row gets one.
    spare = np.cumsum(counts[order] - 1) >= missing
    if not spare.any():
        return None
    return order[: max(step - missing, int(np.argmax(spare)) + 1)]


class _Room(NamedTuple):
    """What a row holds at most."""

    tokens: int
    pieces: int


def _even_out(row_of: Integers, lengths: Integers, costs: _Costs, rows: int, most: _Room) -> Integers:
    """Move pieces one by one from the costliest row that has two to the cheapest, as long as that evens them out."""
    row_of = np.array(row_of)
    loads = np.bincount(row_of, weights=costs, minlength=rows)
    tokens = np.bincount(row_of, weights=lengths, minlength=rows)
    held = np.bincount(row_of, minlength=rows)
    while True:
        giver = int(np.argmax(np.where(held > 1, loads, -np.inf)))
        # Empty rows first, also where a load beside a huge one was rounded away: none may stay empty.
        taker = int(np.argmin(np.where(held < most.pieces, np.where(held > 0, loads, -np.inf), np.inf)))
        pieces = np.flatnonzero(row_of == giver)
        after = np.maximum(loads[giver] - costs[pieces], loads[taker] + costs[pieces])
        after[tokens[taker] + lengths[pieces] > most.tokens] = np.inf
        best = int(np.argmin(after))
        evens_out = after[best] < loads[giver] or not held[taker]
        if held[giver] < 2 or held[taker] >= most.pieces or not evens_out:
            return row_of
        piece = pieces[best]
        row_of[piece] = taker
        for table, change in ((loads, costs[piece]), (tokens, lengths[piece]), (held, 1)):
            table[giver] -= change
            table[taker] += change
