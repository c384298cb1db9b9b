"""Peak memory, read from the kernel's high-water mark of this process. Linux alone has it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.records import Effort, Reading, Sides, Unavailable, compare

_RESET_PEAK: Final = "5"


def peak_memory(sides: Sides, _effort: Effort) -> Reading:
    """Read by how much each call raises the memory of the process at its peak, its result included."""
    try:
        ours, other = _peak(sides.ours), _peak(sides.other)
    except OSError as error:
        raise Unavailable(f"the peak of this process cannot be read: {error}") from error
    return compare(ours, other, "bytes")


def _peak(call: Callable[[], object]) -> float:
    gc.collect()
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    before = _status("VmRSS")
    result = call()
    after = _status("VmHWM")
    del result
    return after - before


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
