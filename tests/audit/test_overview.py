"""Many audits at a glance: every model and path has its letter, and what was not audited says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neatpack.kernels_bridge.audit.html_page import html_page
from neatpack.kernels_bridge.audit.markdown_summary import markdown_summary
from neatpack.kernels_bridge.audit.overview import LETTERS, figures_text, overview_lines
from neatpack.kernels_bridge.audit.paths import PATH_NAMES
from neatpack.kernels_bridge.audit.report import VERDICTS, Configured, ModelReport, Report, Run
from neatpack.kernels_bridge.audit.surroundings import audit_environment
from neatpack.kernels_bridge.terminal import plain


@pytest.fixture(scope="module")
def report(family: Callable[[str], ModelReport]) -> Report:
    failed = ModelReport("musicgen", None, Configured(), {}, "ModelError: audio\n" + "x" * 200)
    models = (replace(family("llama"), seconds=0.5), failed, replace(family("gemma2"), seconds=1.5))
    return Report(audit_environment(), models, Run(3.25, workers=2, resumed=1))


def test_every_path_of_every_model_has_its_letter(report: Report) -> None:
    lines = plain(overview_lines(report, 120)).split("\n")
    for model in (report.models[0], report.models[2]):
        (row,) = [line.split() for line in lines if line.split(" ")[0] == model.name]
        assert row[1 : 1 + len(PATH_NAMES)] == [LETTERS[model.paths[name].verdict] for name in PATH_NAMES]
        assert row[1 + len(PATH_NAMES)] == "block_causal"


def test_every_path_is_named_above_its_column(report: Report) -> None:
    lines = plain(overview_lines(report, 120)).split("\n")
    (row,) = [line for line in lines if line.startswith("llama ")]
    for index, name in enumerate(PATH_NAMES):
        (named,) = [line for line in lines if line.endswith(f" {name}")]
        assert row[named.index(name)] == LETTERS[report.models[0].paths[name].verdict], index


def test_letters_tell_all_verdicts_apart() -> None:
    assert set(LETTERS) == set(VERDICTS)
    assert len(set(LETTERS.values())) == len(VERDICTS)


def test_what_was_not_audited_says_why_in_one_line(report: Report) -> None:
    lines = plain(overview_lines(report, 80)).split("\n")
    assert any(line.startswith("musicgen  ModelError: audio x") for line in lines)
    assert max(map(len, lines)) <= 80


def test_the_figures_come_last(report: Report) -> None:
    *_, counted, timed = plain(overview_lines(report, 120)).split("\n")
    assert counted == "2 models audited, 1 of them in an earlier run, 1 not."
    assert timed == "3.2 s in all, 2 at a time; 2.0 s of audits, 1.00 s a model (median)."


@pytest.mark.parametrize("write", [html_page, markdown_summary])
def test_pages_hold_the_figures_too(report: Report, write: Callable[[Report], str]) -> None:
    assert " ".join(figures_text(report)) in write(report)
