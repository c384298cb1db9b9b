"""Many audits at a glance: one line per model, one letter per path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from neatpack.kernels_bridge.audit.paths import PATH_NAMES
from neatpack.kernels_bridge.audit.report import ModelReport, Report, Verdict
from neatpack.kernels_bridge.audit.table import VERDICT_STYLES
from neatpack.kernels_bridge.terminal import Line, Span, line

LETTERS: Final[dict[Verdict, str]] = {
    "clean": ".",
    "differs": "d",
    "leak": "L",
    "refused": "r",
    "error": "e",
    "inconclusive": "?",
}
"""What stands for each verdict."""


def overview_lines(report: Report, width: int) -> list[Line]:
    """Lay many audits out: models by name, then those that were not audited and why, then the figures.

    Args:
        report: what to show.
        width: columns to keep to; 80 is the least that fits.
    """
    audited = [model for model in report.models if model.error is None]
    failed = [model for model in report.models if model.error is not None]
    names = max((len(model.name) for model in report.models), default=0)
    lines = [line(f"{letter}  {verdict}", VERDICT_STYLES[verdict]) for verdict, letter in LETTERS.items()]
    lines += _header(names)
    lines += [_row(model, names) for model in audited]
    if failed:
        lines += [line(""), line("not audited", "bold")]
        lines += [line(f"{model.name:<{names}}  {_one_line(model)}"[:width], "dim") for model in failed]
    return [*lines, line(""), *(line(text, "dim") for text in figures_text(report))]


def figures_text(report: Report) -> Iterator[str]:
    """Say how many models there are, and how long they took."""
    figures = report.figures()
    audited = figures.models - figures.not_audited
    resumed = f", {figures.resumed} of them in an earlier run" if figures.resumed else ""
    yield f"{audited} models audited{resumed}, {figures.not_audited} not."
    if figures.median_seconds is not None:
        yield (
            f"{figures.wall_seconds:.1f} s in all, {figures.workers} at a time; "
            f"{figures.total_seconds:.1f} s of audits, {figures.median_seconds:.2f} s a model (median)."
        )


def _header(names: int) -> Iterator[Line]:
    """Name the paths, each above its column."""
    yield line("")
    for index, name in enumerate(PATH_NAMES):
        bars = "| " * index
        yield line(f"{'':<{names}}  {bars}{name}", "dim")


def _row(model: ModelReport, names: int) -> Line:
    letters: list[Span] = []
    for name in PATH_NAMES:
        path = model.paths.get(name)
        letters.append(Span("  ") if path is None else Span(LETTERS[path.verdict] + " ", VERDICT_STYLES[path.verdict]))
    consumer = model.configured.consumer or "-"
    return (Span(f"{model.name:<{names}}  ", "bold"), *letters, Span(f" {consumer}  {model.seconds:.1f} s", "dim"))


def _one_line(model: ModelReport) -> str:
    return " ".join((model.error or "").split())
