"""Instructions of one call, counted by valgrind in a process of its own. No neighbour changes them.

Run as a module with the name of a case and a side, this calls that side through a function of libc, inside which
alone callgrind counts.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

from benchmarks.records import Effort, Meter, Reading, Sides, Unavailable, compare

Side: TypeAlias = Literal["ours", "other"]

_COUNTED: Final = "lfind"
"""It calls back once for an array of one element, and nothing else here uses it."""

_PATIENCE: Final = 240
"""Seconds that valgrind may take for one side; most of them go into the import of torch."""

_SETTINGS: Final = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "ATEN_CPU_CAPABILITY": "avx2"}
"""Valgrind knows no AVX-512."""


def instructions(case: str) -> Meter:
    """Make the meter of a row whose sides are the case of that name in `benchmarks.rows`."""

    def meter(_sides: Sides, effort: Effort) -> Reading:
        if not effort.seconds:
            raise Unavailable("a quick run does not start valgrind")
        if shutil.which("valgrind") is None:
            raise Unavailable("valgrind is not installed")
        ours, other = _count(case, "ours"), _count(case, "other")
        return compare(ours, other, "instructions")

    return meter


def call_counted(call: Callable[[], object]) -> None:
    """Call a function inside of the one function of libc that callgrind watches."""
    libc = ctypes.CDLL(None)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    element, count = ctypes.c_char(), ctypes.c_size_t(1)

    def once(_key: int, _found: int) -> int:
        call()
        return 0

    libc.lfind(ctypes.byref(element), ctypes.byref(element), ctypes.byref(count), ctypes.c_size_t(1), compare(once))


def _count(case: str, side: Side) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--toggle-collect={_COUNTED}",
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
        if done.returncode or found is None:
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
