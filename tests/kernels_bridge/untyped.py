"""Methods of tensors that torch leaves partly untyped."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor


def backward(value: Tensor) -> None:
    cast("Any", value).backward()


def ints(values: Tensor) -> list[int]:
    return cast("list[int]", cast("Any", values).tolist())


def different(values: Tensor) -> Tensor:
    return cast("Tensor", cast("Any", values).unique())
