"""Tensors read on the host as arrays of numpy, and arrays brought to a device as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from neatpack.contracts.errors import EncodingError, Problem

Integers: TypeAlias = npt.NDArray[np.int64]

_CPU: Final = torch.device("cpu")


def read_on_host(tensor: Tensor, field: str = "tensor") -> npt.NDArray[Any]:
    """Give a tensor as an array: without a copy on the CPU, in one read from a device.

    Raises:
        EncodingError: torch compiles or transforms the code that asks, so that there are no values yet; it calls the
            tensor `field`.
    """
    if is_dynamo_compiling() or _is_recorded(tensor):
        raise _no_values(field)  # In a graph: call this before it, or take the static_* function.
    host = tensor if tensor.is_cpu else tensor.cpu()
    try:
        return host.numpy()
    except RuntimeError as error:
        raise _no_values(field) from error


def read_together(*tensors: Tensor, field: str = "tensor") -> Sequence[npt.NDArray[Any]]:
    """Give integer or bool tensors as arrays of their dtypes: without a copy on the CPU, in one read from each device.

    Raises:
        EncodingError: as `read_on_host`; `field` is what the first is called, beside which the others came.
    """
    if len(tensors) == 1 or all(map(_lies_on_host, tensors)):
        return [read_on_host(tensor, field) for tensor in tensors]
    together: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        together.setdefault(tensor.device, []).append(tensor)
    read = {device: iter(_read_joined(own, field)) for device, own in together.items()}
    return [next(read[tensor.device]) for tensor in tensors]


def _read_joined(tensors: Sequence[Tensor], field: str) -> Sequence[npt.NDArray[Any]]:
    joined = read_on_host(torch.cat([tensor.reshape(-1).to(torch.int64) for tensor in tensors]), field)
    ends = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    return [
        # Joined as int64, values past it keep their bits.
        np.reshape(part.astype(torch.empty(0, dtype=tensor.dtype, device=_CPU).numpy().dtype, copy=False), tensor.shape)
        for part, tensor in zip(np.split(joined, ends), tensors, strict=True)
    ]


def _lies_on_host(tensor: Tensor) -> bool:
    return tensor.is_cpu


_is_recorded: Final = torch._is_functional_tensor  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]  # no public name
"""Whether torch keeps the values of a tensor elsewhere, so that numpy would read other memory."""


def _no_values(field: str) -> EncodingError:
    message = "is read on the host, where torch.compile, torch.func and fake tensors have no values"
    remedy = "Call this before, mark the caller with torch.compiler.disable, or take the static_* function."
    return EncodingError(Problem(field, message, "device", remedy=remedy))


def to_tensor(array: npt.NDArray[Any], device: torch.device = _CPU) -> Tensor:
    """Bring an array to a device; on the CPU, which is the default, the memory is shared."""
    tensor = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    return tensor if device == _CPU else tensor.to(device)


def narrowed(numbers: Integers) -> Tensor:
    """Give numbers that int32 holds as a tensor of it, on the host."""
    return to_tensor(numbers.astype(np.int32))


@lru_cache(maxsize=2)  # Rows of the next batch are as long, and to copy numbers takes less time than to count.
def row_places(sequence: int) -> Integers:
    """Give 0, 1, ..., as many as a row has places. They are kept, and cannot be written to."""
    places = np.arange(sequence)
    places.flags.writeable = False
    return places
