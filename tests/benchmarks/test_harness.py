"""Runs `harness.py`, in a process of its own: its tests make torch know a device that is none, which has no undo."""

from __future__ import annotations

import sys

from tests.environments import run


def test_the_harness() -> None:
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/benchmarks/harness.py")
