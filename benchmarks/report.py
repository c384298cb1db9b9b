"""The table: as text, as JSON, and as the page of the documentation."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

from benchmarks.records import Outcome, Reading, number

_PACKAGES: Final = ("neatpack", "torch", "numpy", "nemo-automodel", "transformers", "torchtitan", "trl", "fla-core")
_HEADER: Final = ("derivation", "size", "against", "measure", "goal", "figure", "met", "ours", "other")


@dataclass(frozen=True)
class Run:
    """Where, when and how the figures were read."""

    command: str
    date: str
    machine: str
    versions: dict[str, str]


def describe(command: str) -> Run:
    """Describe this run."""
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    load = f"load average {os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    cores = f"{os.cpu_count()} cores with a {load}"
    processor = f"{_processor()} with {torch.backends.cpu.get_cpu_capability()}"
    machine = f"{processor}, {cores}, {platform.system()}, Python {platform.python_version()}"
    return Run(command, today, machine, {name: _version(name) for name in _PACKAGES})


def text_line(outcome: Outcome) -> str:
    """Give one row for a terminal, as soon as it is known."""
    return "  ".join(filter(None, _cells(outcome)))


def text_table(outcomes: Sequence[Outcome]) -> str:
    """Give the table for a terminal."""
    lines = [_HEADER, *map(_cells, outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def as_json(outcomes: Sequence[Outcome], about: Run) -> str:
    """Give everything that was read."""
    rows = [
        {
            **dict(zip(_HEADER, _cells(outcome), strict=True)),
            "bound": outcome.row.goal.bound,
            "figure": outcome.figure,
            "met": outcome.met,
            "note": outcome.note,
            "ours": outcome.reading.ours if outcome.reading else None,
            "other": outcome.reading.other if outcome.reading else None,
            "unit": outcome.reading.unit if outcome.reading else None,
        }
        for outcome in outcomes
    ]
    return json.dumps({"run": about.__dict__, "rows": rows}, indent=2)


def as_markdown(outcomes: Sequence[Outcome], about: Run) -> str:
    """Give the page of the documentation."""
    versions = ", ".join(f"{name} {number}" for name, number in about.versions.items())
    lines = [_markdown_line(_HEADER), _markdown_line(["---"] * len(_HEADER))]
    lines += [_markdown_line(_cells(outcome)) for outcome in outcomes]
    goals = [outcome.met for outcome in outcomes if outcome.met is not None]
    return _PAGE.format(
        command=about.command,
        date=about.date,
        machine=about.machine,
        versions=versions,
        table="\n".join(lines),
        met=sum(goals),
        goals=len(goals),
    )


_PAGE: Final = """\
# Performance

Written by `{command}` on {date}; run it again in place of editing this page. {met} of {goals} goals are met.

- Machine: {machine}; one thread.
- Versions: {versions}.

Sizes are batch, places of a row, documents per row; k is 1,024 and M its square. Ids are int64, and a twentieth of each
row is padding. Both sides run in one process by turns, ours, other, ours, other, after their results were found equal
where they answer the same question. A figure is the median of the ratios of the turns: with `>=` how many times longer
the other side takes, with `<=` how many times longer ours takes. Time is that for which the one thread that works had a
processor, so that a busy machine takes less from a figure. "Warm" calls each side for 5 ms, untimed, before each timed
call; "cold" reads 96 MB of other data first. A read of the ids is one `ids.sum()`. Host reads and launches are counted
on tensors that claim to lie on a device; instructions are counted by valgrind.

{table}
"""


def _cells(outcome: Outcome) -> tuple[str, ...]:
    row, reading = outcome.row, outcome.reading
    figure, ours, other = outcome.note, "", ""
    if reading is not None and outcome.figure is not None:
        figure = number(outcome.figure) + ("" if row.goal.kind == "number" else "x")
        ours, other = _amount(reading, reading.ours), _amount(reading, reading.other)
    met = {True: "yes", False: "NO", None: ""}[outcome.met]
    return (row.name, str(row.size), row.against, row.measure, str(row.goal), figure, met, ours, other)


def _amount(reading: Reading, value: float) -> str:
    if reading.unit == "s":
        scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
        return f"{number(value * scale)} {unit}"
    if reading.unit == "bytes":
        return f"{number(value / 2**20)} MiB"
    return number(value)


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
