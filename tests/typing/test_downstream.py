"""A project that installs the wheel gets the types: right models are accepted, misdeclared ones rejected.

The files checked here are those that the repository checks itself. There, marks keep the expected errors silent, and
a mark without its error is an error; here the marks are removed, and each must turn into the error that it names.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.environments import run

HERE = Path(__file__).parent
Errors = set[tuple[int, str]]

MARKS = {
    "mypy": re.compile(r"  # type: ignore\[(?P<rules>[^]]*)\]"),
    "pyright": re.compile(r"  # pyright: ignore\[(?P<rules>[^]]*)\]"),
}


def mypy_errors(python: Path, file: Path) -> Errors:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--output=json",
        "--python-executable",
        python,
        file.name,
    ]
    lines = run(*command, cwd=file.parent, check=False).stdout.splitlines()
    reports = [json.loads(line) for line in lines if line.startswith("{")]
    return {(report["line"], report["code"]) for report in reports if report["severity"] == "error"}


def pyright_errors(python: Path, file: Path) -> Errors:
    (file.parent / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command: list[str | Path] = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, file.name]
    report = json.loads(run(*command, cwd=file.parent, check=False).stdout)
    return {(found["range"]["start"]["line"] + 1, found["rule"]) for found in report["generalDiagnostics"]}


CHECKERS: dict[str, Callable[[Path, Path], Errors]] = {"mypy": mypy_errors, "pyright": pyright_errors}


def unmarked_copy(name: str, folder: Path) -> Path:
    source = (HERE / name).read_text()
    for mark in MARKS.values():
        source = mark.sub("", source)
    copy = folder / name
    copy.write_text(source)
    return copy


def marked_errors(name: str, checker: str) -> Errors:
    return {
        (number, rule)
        for number, line in enumerate((HERE / name).read_text().splitlines(), start=1)
        for match in MARKS[checker].finditer(line)
        for rule in match["rules"].split(", ")
    }


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_accepted_models_are_accepted(checker: str, stranger: Path, tmp_path: Path) -> None:
    assert CHECKERS[checker](stranger, unmarked_copy("accepted_models.py", tmp_path)) == set()


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_rejected_models_are_rejected_where_marked(checker: str, stranger: Path, tmp_path: Path) -> None:
    expected = marked_errors("rejected_models.py", checker)
    assert len(expected) > 15
    assert CHECKERS[checker](stranger, unmarked_copy("rejected_models.py", tmp_path)) == expected
