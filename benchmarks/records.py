"""What one row of the table is: which two things are compared, by what measure, and which figure is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor


class Unavailable(Exception):  # noqa: N818 - no error: the row says so in place of a figure
    """A peer or a tool is not installed, or a function does not exist yet."""


class DisagreementError(AssertionError):
    """Two functions that are compared answer differently, so their times mean nothing."""


@dataclass(frozen=True)
class Size:
    """The size of the input of a row.

    Attributes:
        batch: rows of the batch.
        sequence: places of a row.
        documents: documents per row.
        text: how the table shows it, where these three are not what it is about.
    """

    batch: int
    sequence: int
    documents: int
    text: str = ""

    def __str__(self) -> str:
        return self.text or ", ".join(map(_short, (self.batch, self.sequence, self.documents)))

    def tiny(self) -> Size:
        """Give a size at which every row runs at once, and no figure means anything."""
        sequence = min(self.sequence, 512)
        return Size(min(self.batch, 4), sequence, min(self.documents, sequence // 8), self.text)


@dataclass(frozen=True)
class Sides:
    """Two calls without arguments that are measured by turns.

    Attributes:
        ours: the function of this package.
        other: what it is measured against: a peer, a read of the ids, or itself on another input.
        answers: what both say in one form, which must be equal; None where they do not answer the same question.
    """

    ours: Callable[[], object]
    other: Callable[[], object]
    answers: Callable[[], tuple[object, object]] | None = None


@dataclass(frozen=True)
class Reading:
    """What a meter read: a figure for each side, and the median of `ours / other` over the turns."""

    ours: float
    other: float
    ratio: float
    unit: str


def compare(ours: float, other: float, unit: str) -> Reading:
    """Make the reading of two figures that were read once."""
    return Reading(ours, other, ours / other if other else math.nan, unit)


@dataclass(frozen=True)
class Goal:
    """The figure that is wanted.

    Attributes:
        kind: "faster" wants the other side to take at least `bound` times as much; "within" wants ours to take at
            most `bound` times as much as the other; "number" wants ours to be at most `bound`.
        bound: the figure to reach; None for a row that is shown without a goal.
    """

    kind: Literal["faster", "within", "number"]
    bound: float | None = None

    def figure(self, reading: Reading) -> float:
        """Give the figure of a reading that is held against the bound."""
        if self.kind == "number":
            return reading.ours
        return 1 / reading.ratio if self.kind == "faster" else reading.ratio

    def met(self, figure: float) -> bool | None:
        """Tell whether a figure reaches the bound; None without a bound."""
        if self.bound is None:
            return None
        return figure >= self.bound if self.kind == "faster" else figure <= self.bound

    def __str__(self) -> str:
        if self.bound is None:
            return ""
        text = number(self.bound)
        return {"faster": f">= {text}x", "within": f"<= {text}x", "number": f"<= {text}"}[self.kind]


Meter: TypeAlias = Callable[[Sides, "Effort"], Reading]


@dataclass(frozen=True)
class Effort:
    """How long to measure: turns are taken until both are spent.

    Attributes:
        seconds: time for one row.
        turns: the fewest turns of a row, however long they take.
    """

    seconds: float = 3.0
    turns: int = 3


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: the derivation.
        size: its input.
        against: what it is compared with.
        measure: what is read of both: "warm", "cold", "instructions", "peak memory", ...
        meter: how it is read.
        goal: the figure wanted.
        sides: makes the two calls for a size. It raises `Unavailable` where one of them is missing.
    """

    name: str
    size: Size
    against: str
    measure: str
    meter: Meter
    goal: Goal
    sides: Callable[[Size], Sides]


@dataclass(frozen=True)
class Outcome:
    """What became of a row: a reading, its figure and whether that is enough, or a note that says why not."""

    row: Row
    reading: Reading | None = None
    figure: float | None = None
    met: bool | None = None
    note: str = ""


def run(row: Row, effort: Effort, *, tiny: bool = False) -> Outcome:
    """Measure one row, after both sides were found to agree; at tiny sizes no goal counts."""
    try:
        sides = row.sides(row.size.tiny() if tiny else row.size)
        if sides.answers is not None:
            require_equal(*sides.answers())
        reading = row.meter(sides, effort)
    except Unavailable as missing:
        return Outcome(row, note=str(missing))
    except DisagreementError as difference:
        return Outcome(row, met=False, note=f"not measured, the sides differ: {difference}")
    figure = row.goal.figure(reading)
    return Outcome(row, reading, figure, None if tiny else row.goal.met(figure))


def require_equal(ours: object, other: object) -> None:
    """Compare two answers, dtypes and shapes included.

    Raises:
        DisagreementError: they differ; it says where.
    """
    difference = _difference(ours, other, "answer")
    if difference:
        raise DisagreementError(difference)


def number(value: float) -> str:
    """Write a figure with the digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def _difference(ours: Any, other: Any, place: str) -> str:
    if isinstance(ours, Tensor) and isinstance(other, Tensor):
        if (ours.dtype, ours.shape) != (other.dtype, other.shape):
            return f"{place}: {ours.dtype} {tuple(ours.shape)} is not {other.dtype} {tuple(other.shape)}"
        return "" if torch.equal(ours, other) else f"{place}: the tensors differ"
    parts, other_parts = _parts(ours), _parts(other)
    if parts is not None and other_parts is not None:
        return _first_difference(parts, other_parts, place)
    return "" if ours == other else f"{place}: {ours!r} is not {other!r}"


def _parts(answer: object) -> Sequence[Any] | None:
    if isinstance(answer, Mapping):
        return sorted(cast("Mapping[str, Any]", answer).items())
    return cast("Sequence[Any]", answer) if isinstance(answer, (list, tuple)) else None


def _first_difference(ours: Sequence[Any], other: Sequence[Any], place: str) -> str:
    if len(ours) != len(other):
        return f"{place}: {len(ours)} parts, not {len(other)}"
    parts = (_difference(*pair, f"{place}[{index}]") for index, pair in enumerate(zip(ours, other, strict=True)))
    return next(filter(None, parts), "")


def _short(count: int) -> str:
    for unit, size in (("M", 2**20), ("k", 2**10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
