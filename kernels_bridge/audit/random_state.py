"""Random states, borrowed and given back."""

from __future__ import annotations

import random

import numpy as np
import torch

from neatpack.kernels_bridge.audit.borrowing import Borrowed


def seeded(seed: int = 0) -> Borrowed:
    """Within, torch's generators begin at `seed`; afterwards they go on where they were.

    These are the CPU's and, where CUDA is in use, those of its devices.
    """
    borrowed = Borrowed()
    borrow_generators(borrowed, seed)
    return borrowed


def borrow_generators(borrowed: Borrowed, seed: int = 0) -> None:
    """Let torch's generators begin at `seed` until they are given back."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]  # of torch's own
    generators = [torch.default_generator, *(torch.cuda.default_generators[device] for device in devices)]
    for generator in generators:  # torch.manual_seed would also seed devices that are not in use yet
        borrowed.undo_by(generator.set_state, generator.get_state())
        generator.manual_seed(seed)


def borrow_other_generators(borrowed: Borrowed) -> None:
    """Let the generators of Python and numpy, from which models may draw, go on afterwards where they are."""
    borrowed.undo_by(random.setstate, random.getstate())
    borrowed.undo_by(np.random.set_state, np.random.get_state())
