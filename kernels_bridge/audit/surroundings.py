"""What surrounds an audit: what it ran on, and what it borrows of the process and gives back."""

from __future__ import annotations

import platform
import sys
import warnings
from importlib import import_module, metadata

import torch

import neatpack
from neatpack.kernels_bridge.audit.borrowing import Borrowed
from neatpack.kernels_bridge.audit.random_state import borrow_generators
from neatpack.kernels_bridge.audit.report import Environment
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


def borrow_surroundings(borrowed: Borrowed) -> None:
    """Let there be one thread, a known random state and no words of libraries, until all is given back."""
    borrow_generators(borrowed)
    borrowed.undo_by(torch.set_grad_enabled, torch.is_grad_enabled())
    borrowed.undo_by(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    catching = warnings.catch_warnings()
    catching.__enter__()
    borrowed.undo_by(catching.__exit__)
    warnings.simplefilter("ignore")
    _quiet_transformers(borrowed)


def _quiet_transformers(borrowed: Borrowed) -> None:
    """Keep Transformers from logging what it thinks of tiny models; it is not imported for that."""
    if "transformers" in sys.modules or _version("transformers") is not None:
        logging = import_module("transformers.utils.logging")
        borrowed.undo_by(logging.set_verbosity, logging.get_verbosity())
        logging.set_verbosity_error()
