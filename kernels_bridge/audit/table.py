"""The report as a table for people: one row per model and path, and a verdict on every model at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from neatpack.kernels_bridge.audit.report import ModelReport, PathReport, Report, Verdict
from neatpack.kernels_bridge.terminal import Line, Span, Style, line

WIDE: Final = 112
"""Columns from which on what to do stands in the row, and not below it."""

VERDICT_STYLES: Final[dict[Verdict, Style]] = {
    "clean": "green",
    "differs": "yellow",
    "leak": "bold red",
    "refused": "magenta",
    "error": "red",
    "inconclusive": "cyan",
}
_COLUMNS: Final = (25, 12, 17, 5, 5, 5, 5)
_HEADER: Final = ("path", "verdict", "kind", "diff", "moves", "grad", "calls")
_INDENT: Final = 4
_REASON: Final = 160
"""Characters of an error that are shown; the JSON holds all of them."""


OTHERWISE: Final = "if it is not configured, and given a batch in another way:"
"""What stands between the path that a training job takes and all others."""


def table_lines(report: Report, width: int) -> list[Line]:
    """Lay the report out.

    Args:
        report: what to show.
        width: columns to keep to; 80 is the least that fits.
    """
    lines: list[Line] = []
    for model in report.models:
        lines += [*_model_lines(model, width), line("")]
    return [*lines, *_legend(report, width), line(""), *_conclusion(report, width)]


def _model_lines(model: ModelReport, width: int) -> Iterator[Line]:
    class_name = f"  {model.class_name}" if model.class_name else ""
    yield (Span(model.name, "bold"), Span(class_name, "dim"), Span(f"  {model.seconds:.1f} s", "dim"))
    if model.error is not None:
        yield from _wrapped(f"not audited: {_shortened(model.error)}", width, "red")
        yield from _wrapped(model.remedy, width, "dim")
        return
    header = _cells(_HEADER) + ("  what to do" if width >= WIDE else "")
    yield line(header, "dim")
    for name, path in model.paths.items():
        yield from _path_lines(name, path, width)
        if name == "configured" and len(model.paths) > 1:
            yield line(OTHERWISE, "dim")


def _path_lines(name: str, path: PathReport, width: int) -> Iterator[Line]:
    numbers = [_number(value) for value in (path.difference, path.perturbation, path.gradient)]
    calls = "-" if path.calls is None else str(path.calls)
    verdict = path.verdict.upper() if path.verdict == "leak" else path.verdict
    row: Line = (
        Span(_cells((name,), _COLUMNS[:1]) + " "),
        Span(f"{verdict:<{_COLUMNS[1]}} ", VERDICT_STYLES[path.verdict]),
        Span(_cells((path.kind or "-", *numbers, calls), _COLUMNS[2:])),
    )
    advice = _advice(name, path)
    if width < WIDE:
        yield row
        yield from _wrapped(advice, width, "dim")
        return
    taken = sum(_COLUMNS) + len(_COLUMNS) + 1
    first, *rest = textwrap.wrap(advice, width - taken) or [""]
    yield (*row, Span(f"  {first}", "dim"))
    for further in rest:
        yield line(" " * taken + further, "dim")


def _advice(name: str, path: PathReport) -> str:
    """What went wrong where no number says it, or on the path that a training job takes, and what to do."""
    told = ("leak", "differs", "refused", "error", "inconclusive")
    says = path.verdict in (told if name == "configured" else told[2:])
    message = _shortened(path.message) if says else ""
    return "; ".join(part for part in (message, path.remedy, path.not_seen) if part)


def _legend(report: Report, width: int) -> Iterator[Line]:
    threshold = f"{report.environment.threshold:.0e}"
    yield from _wrapped(
        "diff: packed against alone. moves: by a change of another document. Both as shares of how far the logits "
        "vary. grad: of one document's logits by another's embeddings, as a share of its own. calls: of the bound "
        f"kernel in one forward. Clean is below {threshold}.",
        width,
        "dim",
        indent=0,
    )


def _conclusion(report: Report, width: int) -> Iterator[Line]:
    longest = max((len(model.name) for model in report.models), default=0)
    for model in report.models:
        path = model.paths.get("configured")
        verdict: Verdict = "error" if path is None else path.verdict
        clean = "clean" if model.is_clean else f"not clean: {verdict}"
        consumer = f", by consumer {model.configured.consumer}" if model.configured.consumer else ""
        words = f"the configured path is {clean}{consumer}"
        yield (
            Span(f"{model.name:<{longest}}  ", "bold"),
            Span(words[: max(0, width - longest - 2)], VERDICT_STYLES[verdict]),
        )


def _wrapped(text: str, width: int, style: Style, indent: int = _INDENT) -> Iterator[Line]:
    margin = " " * indent
    for part in textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin):
        yield line(part, style)


def _cells(values: tuple[str, ...], widths: tuple[int, ...] = _COLUMNS) -> str:
    """Align words to the left, and the numbers behind them to the right."""
    words = len(values) - 4
    return " ".join(
        f"{value:<{width}}" if index < max(words, 1) else f"{value:>{width}}"
        for index, (value, width) in enumerate(zip(values, widths, strict=True))
    )


def _number(value: float | None) -> str:
    if value is None or value != value:
        return "-"
    return "0" if value == 0 else f"{value:.0e}"


def _shortened(message: str) -> str:
    return textwrap.shorten(message, _REASON, placeholder=" ...")
