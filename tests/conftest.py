"""Settings that all tests share. The core's tests run without torch, so nothing here imports it up front."""

from __future__ import annotations

import importlib.util
import os

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Timing is no property of the code under test: a first call may import or compile something.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked ``gpu`` where there is none."""
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        pytest.skip("needs a CUDA device")
