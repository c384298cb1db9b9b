"""Instructions of one call, counted by valgrind in a process of its own. No neighbour changes them.

Run as a module with the name of a case and a side, this calls that side. Callgrind looks at instructions from then on
alone, since what is imported before takes it minutes otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

import torch

from benchmarks.records import Effort, Meter, Reading, Sides, Unavailable, compare

Side: TypeAlias = Literal["ours", "other"]

_TOOLS: Final = ("valgrind", "callgrind_control")

_PATIENCE: Final = 600
"""Seconds that valgrind may take for one side; nearly all of them go into imports."""

_SETTINGS: Final = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "ATEN_CPU_CAPABILITY": "avx2"}
"""Valgrind knows no AVX-512."""


def instructions(case: str) -> Meter:
    """Make the meter of a row whose sides are the case of that name in `benchmarks.rows`."""

    def meter(_sides: Sides, effort: Effort) -> Reading:
        if not effort.seconds:
            raise Unavailable("a quick run does not start valgrind")
        if None in map(shutil.which, _TOOLS):
            raise Unavailable("valgrind is not installed")
        ours, other = _count(case, "ours"), _count(case, "other")
        return compare(ours, other, "instructions")

    return meter


def call_counted(call: Callable[[], object]) -> None:
    """Call a function, and let callgrind, which runs this process, count its instructions and no others."""
    looking = subprocess.Popen(["callgrind_control", "--instr=on", str(os.getpid())], stdout=subprocess.DEVNULL)  # noqa: S603, S607 - the tool that came with valgrind
    while looking.poll() is None:  # Valgrind obeys while the process runs, and not while it waits.
        pass
    # As torch's own benchmark utilities do.
    toggle = torch._C._valgrind_toggle  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # there is no other
    toggle()
    call()
    toggle()


def _count(case: str, side: Side) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--collect-atstart=no",
            f"--callgrind-out-file={out}",
            sys.executable,
            "-m",
            "benchmarks.instructions",
            case,
            side,
        ]
        settings = {**os.environ, **_SETTINGS}
        try:
            done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=_PATIENCE)  # noqa: S603 - the command is this file
        except subprocess.TimeoutExpired as late:
            raise Unavailable(f"valgrind did not end within {_PATIENCE} s") from late
        found = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode or found is None or found[1] == "0":
            raise Unavailable(f"valgrind failed: {done.stderr.strip().splitlines()[-1:]}")
        return float(found[1])


def main(case: str, side: str) -> None:
    """Call one side of a case twice, the second time counted."""
    from benchmarks.rows import counted_cases
    from benchmarks.timing import steady

    steady()
    sides = counted_cases()[case]()
    call = sides.ours if side == "ours" else sides.other
    call()
    call_counted(call)


if __name__ == "__main__":
    main(*sys.argv[1:])
