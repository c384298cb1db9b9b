"""Offsets of segments that stand one after another: made of their lengths, read, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import require_readable
from neatpack.adapters.host_arrays import Integers, read_on_host
from neatpack.contracts.errors import EncodingError, Problem


def offsets_of(lengths: Integers) -> npt.NDArray[np.int32]:
    """Give where each of some segments begins and the last one ends, by their lengths; `[segments + 1]`."""
    offsets = np.zeros(lengths.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def read_offsets(cu_seqlens: object, field: str = "cu_seqlens") -> Integers:
    """Read the offsets of one stream.

    Raises:
        EncodingError: they are no int32 or int64 `[segments + 1]`, do not start at 0, or fall.
    """
    require_readable(**{field: cu_seqlens})
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        found = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        remedy = f"Convert it: {field}.long()."
        raise EncodingError(Problem(field, "must be an int32 or int64 tensor", "dtype", value=found, remedy=remedy))
    one_stream = "Give the offsets of one stream, from 0 on."
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() == 0:
        message = "must be [segments + 1]"
        remedy = "Flatten the rows into one stream first." if cu_seqlens.ndim > 1 else one_stream
        raise EncodingError(Problem(field, message, "rank", value=tuple(cu_seqlens.shape), remedy=remedy))
    offsets: Integers = read_on_host(cu_seqlens, field).astype(np.int64)
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if offsets[0] != 0 or falls.size:
        position = 0 if offsets[0] != 0 else int(falls[0]) + 1
        message, value = "must start at zero and never fall", int(offsets[position])
        raise EncodingError(Problem(field, message, "value", position=position, value=value, remedy=one_stream))
    return offsets


def wrong_offset(offsets: npt.NDArray[Any], total: int) -> int | None:
    """Find the first offset that is not 0 at the start, falls, or is not `total` at the end.

    Returns:
        Its index; 0 where there are no offsets, and None where all are right.
    """
    if not offsets.size:
        return 0
    wrong = np.append(offsets[0] != 0, offsets[1:] < offsets[:-1])
    wrong[-1] |= offsets[-1] != total
    return int(wrong.argmax()) if wrong.any() else None


def used_offsets(offsets: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Give the offsets before the fill, which is negative; None where they fall, or go on after it."""
    unused = np.cumsum(offsets < 0) > 0
    used = offsets[~unused]
    falls = (offsets[unused] >= 0).any() or (used[1:] < used[:-1]).any()
    return None if falls else used
