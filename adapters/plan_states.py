"""Reading the saved state of a plan: plain data that may come from another version, another machine, or a typo."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final, Literal, cast, get_args

import numpy as np

from neatpack.adapters.arguments import INT64_MAX, require_instance, shown
from neatpack.adapters.host_arrays import Integers
from neatpack.contracts.errors import PlanError, Problem

StateKind = Literal["RowPlan", "RankPlan", "RowStream"]
"""Of which class a state is; it has a `from_state`."""

STATE_REMEDY: Final = "Keep the state as it was saved."


def read_state(state: object, form: type, kind: StateKind, version: int) -> Mapping[str, object]:
    """Give the entries of a state that is of this kind and version, and has neither more nor fewer than its form.

    Raises:
        PlanError: it is something else.
    """
    require_instance(state, Mapping, "state", f"Give what state() of a {kind} gave.", error=PlanError)
    entries = cast("Mapping[str, object]", state)
    for name, wanted in (("kind", kind), ("version", version)):
        found = entries.get(name)
        if type(found) is not type(wanted) or found != wanted:
            message = f"is not the state of a {kind}, version {version}"
            other = found in get_args(StateKind) if isinstance(found, str) else False
            remedy = f"Call {found}.from_state(state)." if other else f"Give what state() of a {kind} gave."
            raise PlanError(Problem(name, message, "unsupported", value=shown(found), remedy=remedy))
    return read_entries(entries, form)


def read_entries(entries: Mapping[str, object], form: type) -> Mapping[str, object]:
    """Give a mapping that has the keys of a TypedDict, and no others.

    Raises:
        PlanError: with every key that is missing or unknown.
    """
    missing = [
        Problem(name, "missing", "missing", remedy=STATE_REMEDY) for name in form.__annotations__ if name not in entries
    ]
    message = f"is no entry of a {form.__name__}"
    unknown = [
        Problem(str(name), message, "unsupported", value=shown(value), remedy=STATE_REMEDY)
        for name, value in entries.items()
        if name not in form.__annotations__
    ]
    if missing or unknown:
        raise PlanError(*missing, *unknown)
    return entries


def read_numbers(entries: Mapping[str, object], name: str, *, shape: tuple[int, ...] = ()) -> Integers:
    """Give a list of ints as an array `[entries]`, or a list of lists of a shape as `[entries, *shape]`.

    Raises:
        PlanError: the entry is something else.
    """
    listed = [entries[name]]
    for size in (None, *shape):
        for each in listed:
            if not _is_list(each, size):
                raise PlanError(_wrong(name, each, shape))
        listed = list(chain.from_iterable(cast("list[list[object]]", listed)))
    for number in listed:
        if type(number) is not int or abs(number) > INT64_MAX:
            raise PlanError(_wrong(name, number, shape))
    return np.reshape(np.array(listed, np.int64), (-1, *shape))


def _is_list(value: object, size: int | None) -> bool:
    return isinstance(value, list) and size in (None, len(cast("list[object]", value)))


def _wrong(name: str, found: object, shape: tuple[int, ...]) -> Problem:
    wanted = f"a list of lists of shape {shape}" if shape else "a list of ints"
    return Problem(name, f"must be {wanted}", "type", value=shown(found), remedy=STATE_REMEDY)
