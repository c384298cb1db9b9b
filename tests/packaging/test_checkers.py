"""The linters and type checkers, as pyproject.toml and mypy.ini set them up, find nothing."""

from __future__ import annotations

import json

import pytest

from tests.environments import ACTIVE, TOOLS, run

CHECKERS = [
    ["ruff", "check"],
    ["ruff", "format", "--check"],
    ["mypy"],
    ["pyright"],
    ["lint-imports"],
]


@pytest.mark.slow
@pytest.mark.parametrize("command", CHECKERS, ids=" ".join)
def test_checker_finds_nothing(command: list[str]) -> None:
    run(TOOLS / command[0], *command[1:], env=ACTIVE)


@pytest.mark.slow
def test_types_of_all_public_names_are_known() -> None:
    done = run(
        TOOLS / "pyright", "--verifytypes", "neatpack", "--ignoreexternal", "--outputjson", env=ACTIVE, check=False
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    incomplete = [symbol["name"] for symbol in report["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert not incomplete
    assert report["completenessScore"] == 1.0
