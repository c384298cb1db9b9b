"""The page of audited families in the documentation: written from a report, never by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from neatpack.kernels_bridge.audit.paths import PATH_NAMES, PATHS
from neatpack.kernels_bridge.audit.report import Environment, ModelReport, Report, Verdict

WORDS: Final[Mapping[Verdict, str]] = {
    "clean": "ok",
    "differs": "diff",
    "leak": "LEAK",
    "refused": "ref",
    "error": "err",
    "inconclusive": "?",
}
"""What stands for each verdict in a cell."""

COMMAND: Final = "neatpack audit --all --page"


def families_page(report: Report) -> str:
    """Write the page: families that answer alike in one row, then those that were not audited and why.

    How long the audit took is left out, so that the page changes only with what was found.
    """
    models = sorted(report.models, key=lambda model: model.name)
    return "\n".join([*_introduction(report.environment), "", *_table(models), "", *_unaudited(models), ""])


def _introduction(environment: Environment) -> Iterator[str]:
    yield "# Audited families"
    yield ""
    yield f"Written by `{COMMAND}`; do not edit."
    yield (
        f"Measured with Transformers {environment.transformers}, torch {environment.torch} and neatpack "
        f"{environment.neatpack} on tiny models with random weights, {environment.dtype}, {environment.device}."
    )
    yield "[The audit](audit-reference.md) says what the paths and kinds mean."
    yield ""
    words = ", ".join(f"`{word}` {verdict}" for verdict, word in WORDS.items())
    yield f"Cells: {words}. Kinds are followed by the paths that they explain."
    yield ""
    for number, path in enumerate(PATHS, start=1):
        yield f"{number}. `{path.name}`: {path.stands_for}"
    yield ""


def _table(models: Sequence[ModelReport]) -> Iterator[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for model in models:
        if model.error is None:
            rows.setdefault(_cells(model), []).append(f"`{model.name}`")
    numbers = [str(number) for number in range(1, len(PATH_NAMES) + 1)]
    yield _row(["families", *numbers, "consumer", "kinds"])
    yield _row(["---"] * (len(numbers) + 3))
    for cells, names in sorted(rows.items(), key=lambda item: (-len(item[1]), item[1])):
        yield _row([" ".join(names), *cells])


def _cells(model: ModelReport) -> tuple[str, ...]:
    verdicts = [WORDS[model.paths[name].verdict] if name in model.paths else "" for name in PATH_NAMES]
    consumer = f"`{model.configured.consumer}`" if model.configured.consumer else "none"
    return (*verdicts, consumer, _kinds(model))


def _kinds(model: ModelReport) -> str:
    numbers: dict[str, list[str]] = {}
    for number, name in enumerate(PATH_NAMES, start=1):
        kind = model.paths[name].kind if name in model.paths else None
        if kind is not None:
            numbers.setdefault(kind, []).append(str(number))
    return "; ".join(f"{kind} {' '.join(paths)}" for kind, paths in numbers.items())


def _unaudited(models: Sequence[ModelReport]) -> Iterator[str]:
    yield "## Not audited"
    yield ""
    failed = [model for model in models if model.error is not None]
    yield _row(["family", "why"])
    yield _row(["---", "---"])
    for model in failed:
        yield _row([f"`{model.name}`", _one_line(model.error or "")])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
