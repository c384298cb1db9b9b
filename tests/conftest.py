"""Settings and fixtures that all tests share. The core's tests run without torch: it is not imported here."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest

from tests.environments import REPOSITORY, build_distribution, copy_checkout, make_environment

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Timing is no property of the code under test: a first call may import or compile something. By default every run
# draws the same examples, so that the same code always gets the same answer.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where there is none, and `sweep` where it is not asked for."""
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("sweep") is not None and "sweep" not in item.config.option.markexpr:
        pytest.skip("measures every family again: pytest -m sweep")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, in a folder with a space in its name."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("needs a git checkout")
    return copy_checkout(tmp_path_factory.mktemp("a checkout"))


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the checkout."""
    return build_distribution("wheel", checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def stranger(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which the wheel was installed, and what it requires, and nothing else."""
    return make_environment(tmp_path_factory.mktemp("stranger") / "venv", wheel)
