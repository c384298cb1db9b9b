"""Every error is of one family, is also what callers have always caught, and carries its problems as data."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
from pathlib import Path
from typing import Final, get_args

import pytest

import neatpack.contracts.errors as errors
from neatpack import adapters, contracts, kernels_bridge
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


MODULES: Final = [
    (path, f"{package.__name__}.{path.stem}")
    for package in (adapters, contracts, kernels_bridge)
    for path in sorted(Path(str(package.__file__)).parent.rglob("*.py"))
]
PLACE: Final = list(inspect.signature(Problem).parameters).index("remedy")


def untold(code: str) -> list[int]:
    """The lines at which a program makes a problem without a remedy, or with an empty one."""
    made = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and "Problem" in {getattr(node.func, "id", ""), getattr(node.func, "attr", "")}
    ]
    given = [[*call.args[PLACE:], *(each.value for each in call.keywords if each.arg == "remedy")] for call in made]
    return [
        call.lineno
        for call, remedies in zip(made, given, strict=True)
        if not remedies or (isinstance(remedies[0], ast.Constant) and not remedies[0].value)
    ]


@pytest.mark.parametrize("path", [path for path, _ in MODULES], ids=[name for _, name in MODULES])
def test_every_problem_says_what_to_do(path: Path) -> None:
    assert untold(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("call", "tells"),
    [
        ("Problem('ids', 'is wrong', 'value')", False),
        ("errors.Problem('ids', 'is wrong', 'value', row=1)", False),
        ("Problem('ids', 'is wrong', 'value', remedy='')", False),
        ("Problem('ids', 'is wrong', 'value', 0, 1, 2, '')", False),
        ("Problem('ids', 'is wrong', 'value', remedy='Renumber it.')", True),
        ("Problem('ids', 'is wrong', 'value', 0, 1, 2, RENUMBER)", True),
    ],
)
def test_a_problem_that_does_not_would_be_seen(call: str, tells: bool) -> None:
    assert untold(call) == ([] if tells else [1])
