"""Time, read by turns in one process: ours, other, ours, other. What a noisy neighbour takes, it takes from both.

Read is the time for which the one thread that works had a processor: while a neighbour has it, nothing is counted.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np
import torch

from benchmarks.records import Effort, Reading, Sides

_FLUSH: Final = np.ones(96 * 2**20 // 8)
"""96 MB, more than the caches hold: reading it leaves nothing else in them."""

_LONG: Final = 0.05
"""A call of so many seconds gains nothing from calls before it that warm the caches."""

_WARMING: Final = 0.005
"""Seconds of calls before a timed one: the last cache keeps data only after several passes over them."""

_MALLOC_TRIM_THRESHOLD: Final = -1
_MALLOC_MMAP_THRESHOLD: Final = -3
_MOST_MMAP_THRESHOLD: Final = 32 * 2**20


def steady() -> None:
    """Take one thread, and let malloc keep its pages between calls, so that no call pays for fetching them."""
    torch.set_num_threads(1)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MALLOC_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MALLOC_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)


def warm(sides: Sides, effort: Effort) -> Reading:
    """Time both sides, each after untimed calls of its own."""
    return _by_turns(sides, effort, _timed_warm)


def cold(sides: Sides, effort: Effort) -> Reading:
    """Time both sides, each after other data was read through the caches."""
    return _by_turns(sides, effort, _timed_cold)


def _by_turns(sides: Sides, effort: Effort, timed: Callable[[Callable[[], object]], float]) -> Reading:
    ours: list[float] = []
    other: list[float] = []
    gc.collect()
    gc.disable()
    try:
        deadline = time.perf_counter() + effort.seconds
        while len(ours) < effort.turns or time.perf_counter() < deadline:
            ours.append(timed(sides.ours))
            other.append(timed(sides.other))
    finally:
        gc.enable()
    ratio = median(one / two for one, two in zip(ours, other, strict=True))
    return Reading(median(ours), median(other), ratio, "s")


def _timed(call: Callable[[], object]) -> float:
    start = time.thread_time()
    result = call()
    took = time.thread_time() - start
    del result  # Freed outside of the timed part, on both sides.
    return took


def _timed_warm(call: Callable[[], object]) -> float:
    took = _timed(call)
    if took > _LONG:
        return took
    begun = time.thread_time()
    while time.thread_time() - begun < _WARMING:
        call()
    return _timed(call)


def _timed_cold(call: Callable[[], object]) -> float:
    _FLUSH.sum()
    return _timed(call)
