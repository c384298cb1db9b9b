"""Runs the tests that make torch know a device that is none, which has no undo, in processes of their own."""

from __future__ import annotations

import sys

import pytest

from tests.environments import run


@pytest.mark.parametrize(
    "tests",
    ["tests/adapters/on_a_device.py", "tests/kernels_bridge/on_a_device.py", "tests/benchmarks/harness.py"],
)
def test_on_a_device(tests: str) -> None:
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
