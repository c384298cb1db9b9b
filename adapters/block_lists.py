"""The lists of a BlockMask: how many blocks each block sees or is seen by, and which, written where the mask lies."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.host_arrays import Integers, narrowed, to_tensor
from neatpack.adapters.visible_blocks import VisibleBlocks

Ranges: TypeAlias = tuple[tuple[Integers, Integers], ...]
"""Where each of several ranges begins and stops, for each row."""


def list_in_order(partial: Tensor, full: Tensor) -> list[tuple[Tensor, Tensor]]:
    """List partial and full blocks by rows, then by columns: count the True ones, then give these before the others.

    Args:
        partial, full: bool `[batch, query blocks, key blocks]`.

    Returns:
        Four times int32 `[batch, blocks]` and `[batch, blocks, blocks]`, on the device of the blocks.
    """
    rows, columns = (partial, full), (partial.mT, full.mT)
    # Lists of one shape are sorted together: fewer kernels to start.
    same = partial.shape == partial.mT.shape
    return _in_order(*rows, *columns) if same else [*_in_order(*rows), *_in_order(*columns)]


def _in_order(*blocks: Tensor) -> list[tuple[Tensor, Tensor]]:
    stacked = torch.stack(blocks)
    listed = stacked.view(torch.uint8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return list(zip(stacked.sum(-1, dtype=torch.int32), listed, strict=True))


def list_blocks(blocks: VisibleBlocks, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """List partial and full blocks by rows, then by columns, where holes leave gaps among them."""
    if not _is_host(device):
        return list_in_order(*blocks.to(device).partial_and_full())
    partial, full = blocks.partial_and_full()
    return [_in_order_on_host(each.numpy()) for each in (partial, full, partial.mT, full.mT)]


def _in_order_on_host(blocks: npt.NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Do the same as `_in_order`: numpy sorts words of one byte in a third of the time."""
    listed = np.argsort(np.logical_not(blocks), axis=-1, kind="stable").astype(np.int32)
    counts: Integers = np.count_nonzero(blocks, axis=-1)
    return narrowed(counts), to_tensor(listed)


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


def list_bands(blocks: VisibleBlocks, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """List partial and full blocks by rows, then by columns, without holes: each row sees one range of columns.

    No end of a range falls from one row to the next, so each column is seen by one range of rows.
    """
    first = np.minimum(blocks.first.numpy(), blocks.own_first.numpy())
    stop = np.maximum(blocks.last.numpy(), blocks.own_last.numpy()) + 1
    full_first, full_stop = (first, stop) if blocks.single else (blocks.full_first.numpy(), blocks.full_stop.numpy())
    columns = blocks.some_token.shape[1]
    seen = _transpose(first, stop, columns)
    # Rows that see nothing in full take the ends of their neighbours, so that none falls.
    some = full_first < full_stop
    ends = np.maximum.accumulate(np.where(some, full_stop, 0), axis=1)
    begins = np.minimum.accumulate(np.where(some, full_first, columns)[:, ::-1], axis=1)[:, ::-1]
    seen_in_full = _transpose(begins, ends, columns)
    return [
        *_list_ranges((first, stop), (full_first, full_stop), columns, device),
        *_list_ranges(seen, seen_in_full, first.shape[1], device),
    ]


def _transpose(first: Integers, stop: Integers, columns: int) -> tuple[Integers, Integers]:
    """Turn the range of columns of each row into the range of rows of each column; neither end ever falls."""
    column = np.arange(columns)
    begins = np.stack([np.searchsorted(row, column, side="right") for row in stop])
    ends = np.stack([np.searchsorted(row, column, side="right") for row in first])
    return begins, ends


def _list_ranges(
    seen: tuple[Integers, Integers], full: tuple[Integers, Integers], columns: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """List the columns of each row that are seen but not in full, then those that are, and the others after them."""
    zero, end = np.zeros_like(seen[0]), np.full_like(seen[0], columns)
    some = full[0] < full[1]
    full = np.where(some, full[0], seen[0]), np.where(some, full[1], seen[0])
    partial = ((seen[0], full[0]), (full[1], seen[1]))
    return [
        _list_pieces(partial, ((zero, seen[0]), full, (seen[1], end)), columns, device),
        _list_pieces((full,), ((zero, full[0]), (full[1], end)), columns, device),
    ]


def _list_pieces(listed: Ranges, others: Ranges, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Count the columns of the first ranges of each row, and write all ranges one after the other."""
    # How far each range stands from the place where it is written, and how many columns it has.
    shifts: list[Integers] = []
    lengths: list[Integers] = []
    written = np.zeros_like(listed[0][0])
    for begin, stop in (*listed, *others):
        shifts.append(begin - written)
        lengths.append(stop - begin)
        written = written + lengths[-1]
    counts = sum(lengths[: len(listed)], np.zeros_like(written))
    moved = _repeated(np.stack(shifts, axis=-1), np.stack(lengths, axis=-1), written.size * columns, device)
    # On rows this short, torch adds twice as fast as numpy.
    indices = moved.view(*written.shape, columns).add_(torch.arange(columns, dtype=torch.int32, device=device))
    return narrowed(counts).to(device), indices


def _repeated(shifts: Integers, lengths: Integers, places: int, device: torch.device) -> Tensor:
    """Repeat each shift over its range: on the device, to which the square of blocks is not sent but made there."""
    shift = shifts.astype(np.int32).ravel()
    if _is_host(device):
        return to_tensor(shift.repeat(lengths.ravel()))
    ranges = to_tensor(np.stack([shift, lengths.astype(np.int32).ravel()]), device)
    return ranges[0].repeat_interleave(ranges[1], output_size=places)
