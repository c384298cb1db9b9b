"""Reading the saved state of a plan: plain data that may come from another version, another machine, or a typo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from neatpack.adapters.arguments import require_instance
from neatpack.adapters.segments import Integers
from neatpack.contracts.errors import PlanError, Problem


def read_version(state: Mapping[str, object], version: int, kind: str) -> None:
    """Raise unless a state is a mapping of this version.

    Raises:
        PlanError: it is something else.
    """
    require_instance(state, Mapping, "state", f"Give what state() of {kind} gave.", error=PlanError)
    found = state.get("version")
    if type(found) is not int or found != version:
        message = f"is not the state of {kind}, version {version}"
        remedy = f"Give what state() of {kind} of this version gave."
        raise PlanError(Problem("version", message, "unsupported", value=found, remedy=remedy))


def read_numbers(state: Mapping[str, object], name: str, *, shape: tuple[int, ...] = ()) -> Integers:
    """Give a list of ints of a state as an array `[entries]`, or a list of lists of a shape as `[entries, *shape]`.

    Raises:
        PlanError: the state has no such entry, or it is something else.
    """
    wanted = f"a list of lists of shape {shape}" if shape else "a list of ints"
    if name not in state:
        remedy = "Keep the state as it was saved."
        raise PlanError(Problem(name, f"missing, and must be {wanted}", "missing", remedy=remedy))
    value = state[name]
    array = array_of(value)
    if array is not None and array.shape == (0,):
        return np.zeros((0, *shape), np.int64)
    if array is None or array.dtype.kind != "i" or array.shape[1:] != shape:
        remedy = "Keep the state as it was saved."
        raise PlanError(Problem(name, f"must be {wanted}", "type", value=type(value).__name__, remedy=remedy))
    numbers: Integers = array.astype(np.int64)
    return numbers


def array_of(value: object) -> npt.NDArray[Any] | None:
    """Make an array of lists; None where they are of unequal lengths, or no lists."""
    try:
        return np.array(cast("list[object]", value)) if isinstance(value, list) else None
    except (ValueError, OverflowError):
        return None
