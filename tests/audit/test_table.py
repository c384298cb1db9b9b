"""The table: a row per model and path, within the width of the terminal, and a verdict on every model at the end."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest

from neatpack.kernels_bridge.audit.paths import PATH_NAMES
from neatpack.kernels_bridge.audit.report import Environment, ModelReport, Report
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.table import OTHERWISE, table_lines
from neatpack.kernels_bridge.audit.targets import Builder
from neatpack.kernels_bridge.terminal import plain, show
from tests.audit import models


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def environment(texts: list[bytes]) -> Environment:
    return audit_models([], texts).environment


@pytest.fixture(scope="module")
def report(texts: list[bytes], environment: Environment, family: Callable[[str], ModelReport]) -> Report:
    custom = audit_models([Builder("package.models:build", models.Raises)], texts).models
    return Report(environment, (family("llama"), family("gemma2"), family("bamba"), *custom))


@pytest.mark.parametrize("width", [80, 100, 111, 112, 120, 200])
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    lines = plain(table_lines(report, width)).split("\n")
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_every_path_has_its_row(report: Report, width: int) -> None:
    lines = plain(table_lines(report, width)).split("\n")
    for name in PATH_NAMES:
        rows = [line.split() for line in lines if line.split(" ")[0] == name]
        assert len(rows) == 3, name
        assert rows[0][1].lower() == report.models[0].paths[name].verdict
        assert rows[0][2] == (report.models[0].paths[name].kind or "-")


@pytest.mark.parametrize("width", [80, 120])
def test_what_a_training_job_takes_comes_first_and_what_it_would_meet_otherwise_below(
    report: Report, width: int
) -> None:
    lines = plain(table_lines(report, width)).split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith("path ")]
    assert len(starts) == 3
    for start in starts:
        after = [line for line in lines[start + 1 :] if not line.startswith(" ")]
        assert after[0].startswith("configured ")
        assert after[1] == OTHERWISE
        assert after[2].startswith("varlen ")


def test_a_path_alone_has_nothing_below(report: Report) -> None:
    model = report.models[0]
    alone = replace(model, paths={"configured": model.paths["configured"]})
    assert OTHERWISE not in plain(table_lines(replace(report, models=(alone,)), 80))


def test_a_wide_row_holds_what_to_do(report: Report) -> None:
    (row, *_) = [line for line in plain(table_lines(report, 120)).split("\n") if line.startswith("positions+cache")]
    assert row.endswith("pass use_cache=False")


def test_a_narrow_row_has_it_below(report: Report) -> None:
    lines = plain(table_lines(report, 80)).split("\n")
    row = next(index for index, line in enumerate(lines) if line.startswith("positions+cache"))
    assert lines[row + 1] == "    pass use_cache=False"


def test_the_last_lines_say_which_configured_paths_are_clean(report: Report) -> None:
    lines = plain(table_lines(report, 100)).split("\n")
    assert lines[-4:] == [
        "llama                 the configured path is clean, by consumer block_causal",
        "gemma2                the configured path is clean, by consumer block_causal",
        "bamba                 the configured path is clean, by consumer per_document",
        "package.models:build  the configured path is not clean: error",
    ]


def test_a_model_that_could_not_be_audited_says_why(report: Report) -> None:
    assert "not audited: RuntimeError: cannot answer" in plain(table_lines(report, 80))


def test_colours_change_no_text(report: Report) -> None:
    lines = table_lines(report, 80)
    without, coloured = io.StringIO(), _Terminal()
    show(lines, without)
    show(lines, coloured)
    assert "\x1b[" not in without.getvalue()
    assert without.getvalue() == plain(lines) + "\n"


def test_leaks_are_red_on_a_terminal(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = _Terminal()
    show(table_lines(report, 80), coloured)
    assert "\x1b[1;31mLEAK" in coloured.getvalue()
