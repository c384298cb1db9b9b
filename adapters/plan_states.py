"""Reading the saved state of a plan: plain data that may come from another version, another machine, or a typo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        raise PlanError(Problem("version", message, "unsupported", value=found))


def read_numbers(state: Mapping[str, object], name: str, *, width: int | None = None) -> Integers:
    """Give a list of ints of a state as an array `[numbers]`, or lists of `width` ints as `[lists, width]`.

    Raises:
        PlanError: the state has no such entry, or it is something else.
    """
    shape = "a list of ints" if width is None else f"a list of lists of {width} ints"
    if name not in state:
        raise PlanError(Problem(name, f"missing, and must be {shape}", "missing"))
    value = state[name]
    if isinstance(value, list) and not value:
        return np.zeros((0,) if width is None else (0, width), np.int64)
    array = _array(value)
    if array is None or array.dtype.kind != "i" or array.shape[1:] != (() if width is None else (width,)):
        raise PlanError(Problem(name, f"must be {shape}", "type", value=type(value).__name__))
    numbers: Integers = array.astype(np.int64)
    return numbers


def _array(value: object) -> npt.NDArray[Any] | None:
    """Make an array of lists; None where they are of unequal lengths, or no lists."""
    try:
        return np.array(value) if isinstance(value, list) else None
    except (ValueError, OverflowError):
        return None
