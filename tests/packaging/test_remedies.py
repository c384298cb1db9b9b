"""Every problem that a module makes names the way out."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Final

import pytest

from neatpack.contracts import Problem
from tests.environments import REPOSITORY

MODULES: Final = [
    path.relative_to(REPOSITORY)
    for package in ("contracts", "adapters", "kernels_bridge")
    for path in sorted((REPOSITORY / package).rglob("*.py"))
]
PLACE: Final = list(inspect.signature(Problem).parameters).index("remedy")


def makes_a_problem(call: ast.Call) -> bool:
    """Tell whether a call makes a problem, or what `partial` makes of it."""
    called = [call.func, *call.args[:1]] if getattr(call.func, "id", "") == "partial" else [call.func]
    return any("Problem" in {getattr(name, "id", ""), getattr(name, "attr", "")} for name in called)


def untold(code: str) -> list[int]:
    """The lines at which a program makes a problem without a remedy, or with an empty one."""
    made = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and makes_a_problem(node)]
    given = [[*call.args[PLACE:], *(each.value for each in call.keywords if each.arg == "remedy")] for call in made]
    return [
        call.lineno
        for call, remedies in zip(made, given, strict=True)
        if not remedies or (isinstance(remedies[0], ast.Constant) and not remedies[0].value)
    ]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_problem_says_what_to_do(module: Path) -> None:
    assert untold((REPOSITORY / module).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("call", "tells"),
    [
        ("Problem('ids', 'is wrong', 'value')", False),
        ("errors.Problem('ids', 'is wrong', 'value', row=1)", False),
        ("Problem('ids', 'is wrong', 'value', remedy='')", False),
        ("Problem('ids', 'is wrong', 'value', 0, 1, 2, '')", False),
        ("partial(Problem, 'ids')", False),
        ("partial(Problem, 'ids', remedy='')", False),
        ("partial(Problem, 'ids', remedy=RENUMBER)", True),
        ("Problem('ids', 'is wrong', 'value', remedy='Renumber it.')", True),
        ("Problem('ids', 'is wrong', 'value', 0, 1, 2, RENUMBER)", True),
    ],
)
def test_a_problem_that_does_not_would_be_seen(call: str, tells: bool) -> None:
    assert untold(call) == ([] if tells else [1])
