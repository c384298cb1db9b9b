"""Every error is of one family, is also what callers have always caught, and carries its problems as data."""

from __future__ import annotations

import copy
import pickle
from typing import get_args

import pytest

import neatpack.contracts.errors as errors
from neatpack.contracts import PROBLEM_KINDS, PackingError, Problem, ProblemKind

LEAVES = [
    leaf
    for leaf in vars(errors).values()
    if isinstance(leaf, type) and issubclass(leaf, PackingError) and leaf is not PackingError
]
ALSO = {
    "ModelError": RuntimeError,
    "BoundariesMissingError": RuntimeError,
    "IsolationError": RuntimeError,
    "ModelTypeError": TypeError,
    "DependencyError": ImportError,
}
PROBLEM = Problem("document_ids", "id 1 comes back", "value", row=0, position=7, value=1, remedy="Renumber it.")


@pytest.mark.parametrize("leaf", LEAVES)
def test_each_leaf_is_also_the_builtin_that_callers_expect(leaf: type[PackingError]) -> None:
    assert issubclass(leaf, ALSO.get(leaf.__name__, ValueError))


@pytest.mark.parametrize("leaf", LEAVES)
def test_errors_keep_their_problems_through_copies_and_processes(leaf: type[PackingError]) -> None:
    error = leaf(PROBLEM, PROBLEM)
    for twin in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(twin) is leaf
        assert twin.problems == (PROBLEM, PROBLEM)
        assert str(twin) == str(error)


def test_a_problem_names_field_row_position_value_and_the_way_out() -> None:
    assert str(PROBLEM) == "document_ids[row 0, position 7] = 1: id 1 comes back. Renumber it."
    assert str(PackingError(PROBLEM)) == str(PROBLEM)


def test_several_problems_are_all_shown() -> None:
    other = Problem("labels", "missing", "missing")
    assert str(PackingError(PROBLEM, other)) == f"2 problems:\n- {PROBLEM}\n- labels: missing."


def test_of_many_problems_the_first_are_shown_and_all_are_data() -> None:
    error = PackingError(
        *(Problem("lengths", "must be a positive int", "value", document=each) for each in range(9999))
    )
    lines = str(error).splitlines()
    assert lines[0] == "9999 problems:"
    assert lines[1:-1] == [f"- {problem}" for problem in error.problems[:20]]
    assert lines[-1] == "... and 9979 more."
    assert len(error.problems) == 9999
    assert repr(error) == f"PackingError({str(error)!r})"
    assert len(str(PackingError(*error.problems[:20])).splitlines()) == 21


def test_a_long_value_is_cut_in_the_text_and_kept_as_data() -> None:
    problem = Problem("cu_seqlens", "cuts elsewhere", "value", value=list(range(10**5)), remedy="Leave it out.")
    assert len(str(problem)) < 500
    assert str(problem).startswith("cu_seqlens = [0, 1, 2, ")
    assert str(problem).endswith("...: cuts elsewhere. Leave it out.")
    assert problem.value == list(range(10**5))


def test_kinds_and_their_literal_agree() -> None:
    assert set(PROBLEM_KINDS) == set(get_args(ProblemKind))
