"""The report as a summary in Markdown, such as a CI job shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Final

from neatpack.kernels_bridge.audit.overview import figures_text
from neatpack.kernels_bridge.audit.report import ModelReport, Report

_MARKED: Final = re.compile(r"([\\`*_\[\]|#~!])")


def markdown_summary(report: Report) -> str:
    """Summarise the configured path of every model, and what to do about those that are not clean.

    Example:
        >>> from neatpack.kernels_bridge.audit.surroundings import audit_environment
        >>> print(markdown_summary(Report(audit_environment(), ())).splitlines()[0])
        ## neatpack audit: 0 of 0 clean
    """
    clean = sum(model.is_clean for model in report.models)
    lines = [f"## neatpack audit: {clean} of {len(report.models)} clean", ""]
    if report.models:
        lines += ["| model | configured path | kind | consumer | where |", "|---|---|---|---|---|"]
        lines += [_row(model) for model in report.models]
    details = [line for model in report.models for line in _details(model)]
    lines += ["", *details] if details else []
    here = report.environment
    versions = f"neatpack {here.neatpack}, torch {here.torch}, Transformers {here.transformers}, {here.dtype}"
    return (
        "\n".join([*lines, "", f"{_plain(versions)}, {_plain(here.device)}. {' '.join(figures_text(report))}"]) + "\n"
    )


def _row(model: ModelReport) -> str:
    path = model.paths.get("configured")
    verdict = "error" if path is None else path.verdict
    shown = verdict if model.is_clean else f"**{verdict}**"
    kind, where = (None, None) if path is None else (path.kind, path.where)
    cells = (_plain(model.name), shown, _plain(kind), _plain(model.configured.consumer), _plain(where))
    return f"| {' | '.join(cells)} |"


def _details(model: ModelReport) -> Iterator[str]:
    path = model.paths.get("configured")
    message = model.error if path is None else f"{'' if model.is_clean else path.message} {path.not_seen}"
    if message and not message.isspace():
        yield f"- **{_plain(model.name)}**: {_plain(message)}"
    remedy = model.remedy if path is None else path.remedy
    if remedy:
        yield f"  To do: {_plain(remedy.rstrip('.'))}."


def _plain(text: str | None) -> str:
    """Give text that Markdown and HTML show as it is, on one line."""
    return _MARKED.sub(r"\\\1", escape(" ".join((text or "").split()), quote=False))
