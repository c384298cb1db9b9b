"""Dense 4-D masks, for attention that takes no boundaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from neatpack.adapters.arguments import INT64_MAX, is_integer, is_number, number_remedy, require_count, shown
from neatpack.adapters.host_arrays import to_tensor
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.visibility import VisibleSquare, fill_visible, require_chunk, require_window, visible_squares
from neatpack.contracts.errors import EncodingError, Problem

MASK_DTYPES: Final = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What a mask may hold: whether a query sees a key, or what is added to its score."""

MASK_BYTES_LIMIT: Final = 2**33
"""The largest mask that is built unless asked for: 8 GiB."""


def build_block_causal_mask(
    document_ids: Tensor | Segments,
    dtype: torch.dtype = torch.bool,
    window: int | None = None,
    *,
    chunk: int | None = None,
    blocked: float | None = None,
    max_bytes: int = MASK_BYTES_LIMIT,
) -> Tensor:
    """Give the mask of causal attention inside documents. Padding and holes attend to themselves alone.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        dtype: bool, where True allows; or a floating dtype to be added to scores, 0 where allowed and the lowest
            finite number elsewhere, so that no backend makes NaN of a row.
        window: how many places a query sees, its own included; None for no limit.
        chunk: cut each document into chunks of so many places from its start, in which attention stays; None for none.
        blocked: what an additive mask holds where attention is not allowed: `-math.inf`, or about the lowest finite
            number of its dtype, which is the default.
        max_bytes: refuse to build a larger mask.

    Returns:
        `[batch, 1, sequence, sequence]`, queries before keys, on the device of the ids.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: the dtype, the window, the chunk or `blocked` is no such thing, or the mask would be larger
            than `max_bytes`.

    Example:
        >>> build_block_causal_mask(torch.tensor([[1, 1, 2, 0]]))[0, 0].int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 0, 1]], dtype=torch.int32)
        >>> build_block_causal_mask(torch.tensor([[1, 2]]), torch.float16)[0, 0]
        tensor([[     0., -65504.],
                [-65504.,      0.]], dtype=torch.float16)
    """
    window = require_window(window)
    chunk = require_chunk(chunk)
    require_mask_dtype(dtype)
    added = _blocked_value(blocked, dtype)
    segments = as_segments(document_ids)
    require_mask_size((segments.batch, 1, segments.sequence, segments.sequence), dtype, max_bytes)
    visible = _visible(segments, window, chunk)
    if dtype == torch.bool:
        return visible
    mask = torch.full(visible.shape, added, dtype=dtype, device=segments.device)
    return mask.masked_fill_(visible, 0.0)


def block_causal_mask_bytes(batch: int, sequence: int, dtype: torch.dtype = torch.bool) -> int:
    """Tell the size of a mask before it is built, in bytes.

    Args:
        batch: rows.
        sequence: places of a row.
        dtype: of the mask.

    Raises:
        EncodingError: a size is no count, or the dtype is none of `MASK_DTYPES`.

    Example:
        >>> block_causal_mask_bytes(4, 8192)
        268435456
    """
    remedy = "Give the rows, and the places of a row."
    batch, sequence = (
        require_count(value, field, remedy) for field, value in (("batch", batch), ("sequence", sequence))
    )
    require_mask_dtype(dtype)
    return batch * sequence * sequence * dtype.itemsize


def require_mask_dtype(dtype: object) -> None:
    """Raise unless a mask may have this dtype.

    Raises:
        EncodingError: it is none of `MASK_DTYPES`.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in MASK_DTYPES:
        remedy = f"Give {MASK_DTYPES[0]}, or the dtype of the scores: {', '.join(map(str, MASK_DTYPES[1:]))}."
        raise EncodingError(Problem("dtype", "is no mask dtype", "dtype", value=dtype, remedy=remedy))


def require_mask_size(shape: tuple[int, int, int, int], dtype: torch.dtype, max_bytes: object, masks: int = 1) -> None:
    """Raise where masks of this shape would take more bytes than are allowed.

    Raises:
        EncodingError: they would, or `max_bytes` is no count.
    """
    limit = require_count(max_bytes, "max_bytes", "Give how many bytes masks may take.", most=INT64_MAX)
    size = masks * block_causal_mask_bytes(shape[0], shape[-1], dtype)
    if size > limit:
        what = "a mask of this shape takes" if masks == 1 else f"{masks} masks of this shape take"
        message = f"{what} {size} bytes, and at most {limit} are allowed"
        remedy = "Use a consumer that needs no mask, `hf_flash` or `reference`, or raise max_bytes."
        raise EncodingError(Problem("document_ids", message, "unsupported", value=shape, remedy=remedy))


def _blocked_value(blocked: object, dtype: torch.dtype) -> float:
    """Give what an additive mask holds where attention is not allowed."""
    if blocked is None:
        return 0.0 if dtype == torch.bool else torch.finfo(dtype).min
    if dtype == torch.bool:
        message = "is for an additive mask, and a bool one blocks by False"
        remedy = "Leave it out, or give the floating dtype of the scores."
        raise EncodingError(Problem("blocked", message, "disagreement", value=blocked, remedy=remedy))
    number = cast("float", blocked) if is_number(blocked) else 0.0
    number = int(number) if is_integer(blocked) else float(number)
    remedy = number_remedy(blocked, "Give -math.inf, or None for the lowest finite number of the dtype.")
    if -math.inf < number < torch.finfo(dtype).min:
        raise EncodingError(Problem("blocked", f"does not fit {dtype}", "value", value=blocked, remedy=remedy))
    if not number <= torch.finfo(dtype).min / 2:  # A lesser bias is outweighed by scores.
        message = f"must be -inf or about the lowest number of {dtype}, so that no score outweighs it"
        raise EncodingError(Problem("blocked", message, "value", value=shown(blocked), remedy=remedy))
    return float(number)


def _visible(segments: Segments, window: int | None, chunk: int | None) -> Tensor:
    sequence = segments.sequence
    visible = _none_visible((segments.batch, 1, sequence, sequence), segments.device)
    _fill_squares(visible, list(visible_squares(segments, chunk=chunk)), window)
    for hole in segments.holes.tolist():
        row, start = segments.locate(hole)
        places = slice(start, start + int(segments.lengths[hole]))
        visible[row, 0, places] = False
        visible[row, 0, :, places] = False
    visible.diagonal(dim1=-2, dim2=-1).fill_(True)
    return visible


def _fill_squares(visible: Tensor, squares: Sequence[VisibleSquare], window: int | None) -> None:
    """Fill the largest square, and copy its corner into the others."""
    if not squares:
        return
    largest = max(squares, key=lambda square: square.stop - square.start)
    # Numpy takes less time than torch for small squares, and both are written to in the same way.
    planes = cast("Tensor", visible.numpy()) if visible.is_cpu else visible
    places = slice(largest.start, largest.stop)
    fill_visible(visible[largest.row, 0, places, places], window)
    filled = planes[largest.row, 0, places, places]
    for square in squares:
        if square is not largest:
            places, size = slice(square.start, square.stop), square.stop - square.start
            planes[square.row, 0, places, places] = filled[:size, :size]


def _none_visible(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Make a mask of False. On the CPU, numpy's zeros take neither time nor memory where nothing is written later."""
    if device.type == "cpu":
        return to_tensor(np.zeros(shape, np.bool_), device)
    return torch.zeros(shape, dtype=torch.bool, device=device)
