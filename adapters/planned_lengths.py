"""The lengths of documents that are to be planned, as a caller gives them: a list of ints, or an array."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from neatpack.adapters.arguments import INT64_MAX, int_remedy, is_count, is_integer, require_list, shown
from neatpack.adapters.host_arrays import Integers
from neatpack.contracts.errors import PlanError, Problem

_EMPTY_REMEDY: Final = "Leave empty documents out."
_TYPE_REMEDY: Final = "Give ints: [len(tokens) for tokens in documents]."


def planned_lengths(lengths: Sequence[int]) -> Integers:
    """Give the tokens of each document as an array of their own, `[documents]`.

    Raises:
        PlanError: with each that is no positive int.
    """
    remedy = "Give a list: [len(tokens) for tokens in documents]."
    require_list(lengths, "lengths", remedy)
    given = cast("object", lengths)
    counts: Integers | None = None
    if isinstance(given, np.ndarray):
        listed = cast("npt.NDArray[Any]", given)
        counts = listed.astype(np.int64) if listed.ndim == 1 and listed.dtype.kind == "i" else None
    elif set(map(type, lengths)) == {int}:
        counts = _array_of_ints(lengths)
    if counts is not None and counts.min(initial=1) > 0:
        return counts
    problems = [
        _length_problem(document, length)
        for document, length in enumerate(lengths)
        if not is_count(length) or not 0 < length <= INT64_MAX
    ]
    if problems:
        raise PlanError(*problems)
    return np.array([int(length) for length in lengths], np.int64)


def _array_of_ints(lengths: Sequence[int]) -> Integers | None:
    """Make an array of nothing but ints, fast; None where int64 does not hold them."""
    try:
        # From bytes, an array would take memory and not numbers.
        return np.frombuffer(array("q", lengths if isinstance(lengths, list) else list(lengths)), np.int64)
    except OverflowError:
        return None


def _length_problem(document: int, length: object) -> Problem:
    message, found, remedy = "must be a positive int", length, _EMPTY_REMEDY
    if not is_integer(length):
        found, remedy = shown(length), int_remedy(length, _TYPE_REMEDY)
    elif cast("int", length) > INT64_MAX:
        message, remedy = "must be within int64", _TYPE_REMEDY
    return Problem("lengths", message, "value", value=found, remedy=remedy, document=document)
