"""The report as one HTML page that needs nothing beside itself: verdicts, and leaks drawn document by document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from neatpack.kernels_bridge.audit.overview import figures_text
from neatpack.kernels_bridge.audit.report import ModelReport, PathReport, Report, Verdict
from neatpack.kernels_bridge.audit.table import OTHERWISE

_COLOURS: Final[dict[Verdict, str]] = {
    "clean": "#1a7f37",
    "differs": "#9a6700",
    "leak": "#cf222e",
    "refused": "#8250df",
    "error": "#57606a",
    "inconclusive": "#0969da",
}

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1f2328 }
h2 { border-top: 1px solid #d0d7de; padding-top: 1rem; margin-top: 2rem }
table.paths { border-collapse: collapse; width: 100% }
.paths td, .paths th { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #d8dee4 }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.verdict { color: #fff; border-radius: .8rem; padding: 0 .6rem; font-weight: 600; white-space: nowrap }
.leaks { display: flex; flex-wrap: wrap; gap: 1.2rem; margin: .6rem 0 1.2rem }
figure { margin: 0 } figcaption { font-size: .8rem; max-width: 14rem; overflow-wrap: anywhere }
table.matrix { border-collapse: collapse; font-size: .7rem }
.matrix td { width: 1.5rem; height: 1.5rem; border: 1px solid #d0d7de; text-align: center; padding: 0 }
.matrix th { font-weight: 400; padding: 0 .2rem; color: #57606a }
.matrix td.own { background: #eaeef2 }
.note { color: #57606a }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3 } .matrix td.own { background: #30363d }
}
""".strip()


def html_page(report: Report) -> str:
    """Write the whole report as a page. Everything that comes from models is escaped.

    Example:
        >>> from neatpack.kernels_bridge.audit.surroundings import audit_environment
        >>> html_page(Report(audit_environment(), ())).startswith("<!doctype html>")
        True
    """
    clean = sum(model.is_clean for model in report.models)
    here = report.environment
    versions = f"neatpack {here.neatpack}, torch {here.torch}, Transformers {here.transformers}, {here.dtype}"
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>neatpack audit</title>',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>neatpack audit</h1>",
        f"<p>The configured path of {clean} of {len(report.models)} models is clean. "
        f'<span class="note">{escape(f"{versions}, {here.device}, Python {here.python}")}</span></p>',
        f'<p class="note">{escape(" ".join(figures_text(report)))}</p>',
        *(line for model in report.models for line in _model(model, here.threshold)),
        "</body></html>",
    ]
    return "\n".join(lines) + "\n"


def _model(model: ModelReport, threshold: float) -> Iterator[str]:
    note = escape(f"{model.class_name or ''} {model.seconds:.1f} s".strip())
    yield f'<h2>{escape(model.name)} <span class="note">{note}</span></h2>'
    if model.error is not None:
        yield f"<p>{_badge('error')} not audited: {escape(f'{model.error} {model.remedy}'.rstrip())}</p>"
        return
    chosen = model.configured
    if chosen.consumer is not None:
        yield f"<p>Configured with consumer <b>{escape(chosen.consumer)}</b>, {escape(str(chosen.attention))}.</p>"
    for name, path in model.paths.items():
        if path.matrix and path.verdict == "leak":
            yield from _leak(name, path, threshold)
    yield '<table class="paths"><tr><th>path<th>verdict<th>kind<th>diff<th>moves<th>grad<th>message<th>what to do</tr>'
    for name, path in model.paths.items():
        yield _row(name, path)
        if name == "configured" and len(model.paths) > 1:
            yield f'<tr><td colspan="8" class="note">{OTHERWISE}</tr>'
    yield "</table>"


def _row(name: str, path: PathReport) -> str:
    numbers = (path.difference, path.perturbation, path.gradient)
    cells = "".join(f'<td class="number">{_number(value)}' for value in numbers)
    message = escape(f"{path.message} {path.not_seen}".strip())
    words = f"<td>{escape(path.kind or '')}{cells}<td>{message}<td>{escape(path.remedy)}"
    return f"<tr><td>{escape(name)}<td>{_badge(path.verdict)}{words}</tr>"


def _leak(name: str, path: PathReport, threshold: float) -> Iterator[str]:
    yield f"<p>{_badge(path.verdict)} <b>{escape(name)}</b> {escape(path.message)}</p>"
    yield '<div class="leaks">'
    yield _matrix("logits", path.matrix, threshold)
    for layer in path.layers:
        yield _matrix(layer.name or "the model itself", layer.matrix, threshold)
    yield "</div>"


def _matrix(caption: str, matrix: Sequence[Sequence[float]], threshold: float) -> str:
    """Draw how far each document (row) reaches each other (column): the darker, the further."""
    numbers = "".join(f"<th>{index}" for index in range(1, len(matrix) + 1))
    rows: list[str] = []
    for source, effects in enumerate(matrix, 1):
        cells = "".join(_cell(source, target, value, threshold) for target, value in enumerate(effects, 1))
        rows.append(f"<tr><th>{source}{cells}</tr>")
    return (
        f'<figure><table class="matrix"><tr><th>{numbers}</tr>{"".join(rows)}</table>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _cell(source: int, target: int, value: float, threshold: float) -> str:
    if source == target:
        return '<td class="own">'
    title = escape(f"document {source} reaches document {target}: {_number(value)}", quote=True)
    shade = _shade(value, threshold)
    style = f' style="background: rgba(207, 34, 46, {shade:.2f})"' if shade else ""
    return f'<td title="{title}"{style}>'


def _shade(value: float, threshold: float) -> float:
    """From 0 for what is below the threshold to 1, by orders of magnitude."""
    if not math.isfinite(value):
        return 1.0
    if value <= threshold:
        return 0.0
    share = 1 - math.log(min(value, 1.0)) / math.log(threshold)
    return 0.35 + 0.65 * share


def _badge(verdict: Verdict) -> str:
    return f'<span class="verdict" style="background: {_COLOURS[verdict]}">{verdict}</span>'


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:.0e}"
