"""Which rows of a plan each rank takes in each step: as many for every rank, and as much work as can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypedDict, cast, get_args

import numpy as np
import numpy.typing as npt

from neatpack.adapters.arguments import require_choice, require_count, require_instance
from neatpack.adapters.attention_cost import AttentionCost
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.plan_states import STATE_REMEDY, read_numbers, read_state
from neatpack.adapters.row_plans import PADDING_ROW, RowPlan, RowPlanState, frozen
from neatpack.contracts.errors import PlanError, Problem

Remainder = Literal["spread", "carry", "pad"]
"""What becomes of rows that do not fill a last step: their documents are spread over as many rows as it takes, they
wait for the next plan, or rows of nothing but padding are added."""

REMAINDERS: Final[tuple[Remainder, ...]] = get_args(Remainder)

_VERSION: Final = 1

MOST_STEP_ROWS: Final = 2**24
"""So many rows all ranks may take together in one step."""


class RankPlanState(TypedDict):
    """What is left of a plan over ranks as plain data, for JSON; `steps` holds rows by step, rank and row."""

    kind: Literal["RankPlan"]
    version: Literal[1]
    rows: RowPlanState
    linear: float
    quadratic: float
    ranks: int
    rows_per_rank: int
    steps: list[list[list[int]]]
    carried: list[int]
    remainder: Remainder
    seed: int


@dataclass(frozen=True, eq=False, repr=False)
class RankPlan:
    """Rows dealt to ranks, step by step. All ranks take equally many in a step, and wait for the slowest at its end.

    The steps cannot be written to.

    Attributes:
        rows: the plan whose rows are dealt.
        cost: by what their work was balanced.
        steps: the rows of each step and rank, costliest first, -1 for one of padding alone; `[steps, ranks, rows]`.
        carried: rows that no step takes: they wait for the next plan.
        remainder: what was to become of rows that do not fill a step.
        seed: by what the order of the steps was drawn.

    Raises:
        PlanError: a row is dealt twice, or is none of the plan; a step holds none, or has no rank; or an attribute is
            of another kind.
    """

    rows: RowPlan
    cost: AttentionCost
    steps: Integers
    carried: tuple[int, ...] = ()
    remainder: Remainder = "spread"
    seed: int = 0

    def __post_init__(self) -> None:
        require_instance(self.rows, RowPlan, "rows", "Call balance_rows(...).", error=PlanError)
        require_instance(self.cost, AttentionCost, "cost", "Call AttentionCost.of_model(...).", error=PlanError)
        object.__setattr__(self, "steps", frozen(self.steps, "steps", axes=3))
        if not 0 < self.ranks * self.rows_per_rank <= MOST_STEP_ROWS:
            message = f"must take from 1 to {MOST_STEP_ROWS} rows in a step"
            remedy = "Call balance_rows, with a rank or more, and rows for each."
            raise PlanError(Problem("steps", message, "shape", value=self.steps.shape, remedy=remedy))
        require_instance(self.carried, tuple, "carried", "Give a tuple of rows of the plan.", error=PlanError)
        remedy, last = "Give rows of the plan.", len(self.rows) - 1
        carried = tuple(require_count(row, "carried", remedy, most=last, error=PlanError) for row in self.carried)
        object.__setattr__(self, "carried", carried)
        require_remainder(self.remainder)
        object.__setattr__(self, "seed", require_seed(self.seed))
        dealt = self.steps[self.steps != PADDING_ROW]
        remedy = "Call balance_rows or resume_rows, which deal each row once."
        unknown = dealt[(dealt < 0) | (dealt > last)]
        if unknown.size:
            message = f"must hold rows of the plan, below {len(self.rows)}"
            raise PlanError(Problem("steps", message, "value", value=int(unknown[0]), remedy=remedy))
        dealt = np.append(dealt, np.array(self.carried, np.int64))
        twice = np.flatnonzero(np.bincount(dealt, minlength=1) > 1)
        if twice.size:
            row = int(twice[0])
            field = "carried" if carried.count(row) > 1 else "steps"
            raise PlanError(Problem(field, "takes a row twice", "value", value=row, remedy=remedy))
        (padded,) = (self.steps == PADDING_ROW).all(axis=(1, 2)).nonzero()
        if padded.size:
            message = f"step {padded[0]} is nothing but padding"
            raise PlanError(Problem("steps", message, "value", remedy="Leave it out."))

    @property
    def ranks(self) -> int:
        """How many ranks share each step."""
        return int(self.steps.shape[1])

    @property
    def rows_per_rank(self) -> int:
        """How many rows each rank takes in a step."""
        return int(self.steps.shape[2])

    def rank_rows(self, rank: int) -> list[list[int]]:
        """Give the rows that a rank takes, step by step, as `collate_documents(..., rows=...)` takes them.

        Raises:
            PlanError: there is no such rank.
        """
        remedy = f"Give a rank from 0 to {self.ranks - 1}."
        rank = require_count(rank, "rank", remedy, most=self.ranks - 1, error=PlanError)
        rows: list[list[int]] = self.steps[:, rank].tolist()
        return rows

    @cached_property
    def loads(self) -> npt.NDArray[np.float64]:
        """What each rank has to do in each step, in the unit of the cost; `[steps, ranks]`."""
        # What is appended is found at PADDING_ROW, the last index.
        loads: npt.NDArray[np.float64] = np.append(row_costs(self.rows, self.cost), 0.0)[self.steps].sum(axis=2)
        return loads

    @property
    def imbalance(self) -> npt.NDArray[np.float64]:
        """How much longer the slowest rank takes than all do on average, in each step; 1 is perfect. `[steps]`."""
        imbalance: npt.NDArray[np.float64] = self.loads.max(axis=1) / self.loads.mean(axis=1)
        return imbalance

    @property
    def slowdown(self) -> float:
        """How much longer all steps take than if each were perfectly balanced; 1 without steps."""
        return float(self.loads.max(axis=1).sum() / self.loads.mean(axis=1).sum()) if len(self) else 1.0

    def __len__(self) -> int:
        return int(self.steps.shape[0])

    def __reduce__(self) -> tuple[type[RankPlan], tuple[object, ...]]:
        return RankPlan, (self.rows, self.cost, self.steps, self.carried, self.remainder, self.seed)

    def __repr__(self) -> str:
        size = f"{len(self)} steps of {self.rows_per_rank} rows on {self.ranks} ranks"
        return f"RankPlan({size}, slowdown {self.slowdown:.3f}, {len(self.carried)} rows carried)"

    def state(self, done: int) -> RankPlanState:
        """Give what is left after so many steps as plain data that JSON can hold, for `resume_rows`.

        It holds the plan itself, so that nothing depends on making the same plan again.

        Raises:
            PlanError: there are not so many steps.
        """
        remedy = f"Give the steps that every rank has done, from 0 to {len(self)}."
        done = require_count(done, "done", remedy, most=len(self), error=PlanError)
        return {
            "kind": "RankPlan",
            "version": _VERSION,
            "rows": self.rows.state(),
            "linear": self.cost.linear,
            "quadratic": self.cost.quadratic,
            "ranks": self.ranks,
            "rows_per_rank": self.rows_per_rank,
            "steps": self.steps[done:].tolist(),
            "carried": list(self.carried),
            "remainder": self.remainder,
            "seed": self.seed,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> RankPlan:
        """Make what was left of a plan again, for as many ranks as it was made for.

        Raises:
            PlanError: the state is of another version or kind, or no plan.
        """
        entries = read_state(state, RankPlanState, "RankPlan", _VERSION)
        shape = [
            require_count(entries[name], name, STATE_REMEDY, least=1, most=MOST_STEP_ROWS, error=PlanError)
            for name in ("ranks", "rows_per_rank")
        ]
        require_instance(entries["rows"], Mapping, "rows", STATE_REMEDY, error=PlanError)
        return cls(
            RowPlan.from_state(cast("Mapping[str, object]", entries["rows"])),
            AttentionCost(cast("float", entries["linear"]), cast("float", entries["quadratic"])),
            read_numbers(entries, "steps", shape=tuple(shape)),
            tuple(read_numbers(entries, "carried").tolist()),
            cast("Remainder", entries["remainder"]),
            cast("int", entries["seed"]),
        )


def row_costs(plan: RowPlan, cost: AttentionCost) -> npt.NDArray[np.float64]:
    """Give the cost of each row, `[rows]`."""
    # Row by row: a difference of sums over the whole plan loses short rows behind long ones.
    costs: npt.NDArray[np.float64] = np.add.reduceat(cost.of(plan.piece_lengths), plan.bounds[:-1])
    return costs


def require_remainder(value: object) -> Remainder:
    """Give what is to become of rows that do not fill a last step.

    Raises:
        PlanError: it is no such choice.
    """
    require_choice(value, REMAINDERS, "remainder", error=PlanError)
    return cast("Remainder", value)


def require_seed(value: object) -> int:
    """Give a seed.

    Raises:
        PlanError: it is no int that is 0 or above.
    """
    return require_count(value, "seed", "Give an int from 0, another in each epoch.", most=2**62, error=PlanError)
