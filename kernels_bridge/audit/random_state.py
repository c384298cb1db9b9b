"""Random states, borrowed and given back."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from neatpack.kernels_bridge.audit.undoing import undo_by


@contextmanager
def seeded(seed: int = 0) -> Generator[None, None, None]:
    """Within, torch's generators begin at `seed`; afterwards they go on where they were.

    These are the CPU's and, where CUDA is in use, those of its devices.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]  # of torch's own
    generators = [torch.default_generator, *(torch.cuda.default_generators[device] for device in devices)]
    with ExitStack() as undo:
        for generator in generators:  # torch.manual_seed would also seed devices that are not in use yet
            undo_by(undo, generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        yield


@contextmanager
def preserved_generators() -> Generator[None, None, None]:
    """Afterwards, the generators of Python and numpy go on where they were."""
    with ExitStack() as undo:
        undo_by(undo, random.setstate, random.getstate())
        undo_by(undo, np.random.set_state, np.random.get_state())  # models may draw from it
        yield
