"""The random state of torch, borrowed and given back."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def seeded() -> Generator[None, None, None]:
    """Within, torch's CPU generator begins at seed 0; afterwards it goes on where it was."""
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(0)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)
