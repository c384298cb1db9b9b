"""Random states, borrowed and given back."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded() -> Generator[None, None, None]:
    """Within, torch's generators begin at seed 0; afterwards they go on where they were.

    These are the CPU's and, where CUDA is in use, those of its devices.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]  # of torch's own
    generators = [torch.default_generator, *(torch.cuda.default_generators[device] for device in devices)]
    with torch.random.fork_rng(devices):  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        for generator in generators:  # torch.manual_seed would also seed devices that are not in use yet
            generator.manual_seed(0)
        yield


@contextmanager
def preserved_generators() -> Generator[None, None, None]:
    """Afterwards, the generators of Python and numpy go on where they were."""
    state, numpy_state = random.getstate(), np.random.get_state()  # models may draw from it
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
