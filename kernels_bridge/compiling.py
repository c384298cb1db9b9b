"""What torch.compile must not look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def eagerly(function: FunctionT) -> FunctionT:
    """Keep torch.compile out of a function that reads tensors on the host, or changes more than tensors."""
    return cast("FunctionT", torch.compiler.disable(function))  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
