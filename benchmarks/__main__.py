"""The command: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence

from benchmarks.records import Effort, Outcome, run
from benchmarks.report import as_json, as_markdown, describe, text_line, text_table
from benchmarks.rows import all_rows
from benchmarks.timing import steady


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and give 1 if a figure misses its goal or two sides differ."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    steady()
    outcomes = list(_measure(options))
    about = describe(shlex.join(["python", "-m", "benchmarks", *given]))
    if options.json:
        text = as_json(outcomes, about)
    elif options.markdown:
        text = as_markdown(outcomes, about)
    else:
        text = text_table(outcomes)
    sys.stdout.write(text.rstrip() + "\n")
    return int(any(outcome.met is False for outcome in outcomes))


def _measure(options: argparse.Namespace) -> Iterator[Outcome]:
    effort = Effort(0, 1) if options.quick else Effort(options.seconds)
    for row in all_rows():
        described = f"{row.name} ({row.size}) {row.against} {row.measure}"
        if options.only and not any(part in described for part in options.only):
            continue
        outcome = run(row, effort, tiny=options.quick)
        sys.stderr.write(f"{text_line(outcome)}\n")
        yield outcome


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Compare the derivations with their peers.")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print all that was read as JSON")
    output.add_argument("--markdown", action="store_true", help="print docs/performance.md")
    parser.add_argument(
        "--only",
        metavar="TEXT",
        action="append",
        help="only rows with this in 'derivation (size) peer measure'; repeatable",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one turn: that it runs, not how fast")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each row (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
