"""What surrounds an audit: what it ran on, and what it borrows of the process and gives back."""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module, metadata

import torch

import neatpack
from neatpack.kernels_bridge.audit.random_state import seeded
from neatpack.kernels_bridge.audit.report import Environment
from neatpack.kernels_bridge.audit.undoing import undo_by
from neatpack.kernels_bridge.audit.verdicts import THRESHOLD


def audit_environment(
    dtype: torch.dtype = torch.float32, device: str = "cpu", threshold: float = THRESHOLD
) -> Environment:
    """Say on what an audit runs, and by what it judges."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        neatpack=neatpack.__version__,
        torch=torch.__version__,
        transformers=_version("transformers"),
        threads=1,
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        threshold=threshold,
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def undisturbed() -> Generator[None, None, None]:
    """Within: one thread, no warnings of libraries. Afterwards: threads, random state and warnings as they were."""
    with ExitStack() as undo, warnings.catch_warnings(), seeded(), _quiet_transformers():
        warnings.simplefilter("ignore")
        undo_by(undo, torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        yield


@contextmanager
def _quiet_transformers() -> Generator[None, None, None]:
    """Keep Transformers from logging what it thinks of tiny models; it is not imported for that."""
    if "transformers" not in sys.modules and _version("transformers") is None:
        yield
        return
    logging = import_module("transformers.utils.logging")
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
