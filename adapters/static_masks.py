"""Masks of fixed shape, dense ones and FlexAttention's, without a host read, each with the status of its ids."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from neatpack.adapters.arguments import require_flag
from neatpack.adapters.block_mask import VisibleBlocks, assemble, checked_block_size, mask_function
from neatpack.adapters.masks import MASK_BYTES_LIMIT, require_mask_dtype, require_mask_size
from neatpack.adapters.static_scan import StaticBounds, StaticScan, as_scan
from neatpack.adapters.static_status import StaticRule, first_fault
from neatpack.adapters.visibility import require_window, seen_range, sees


def static_block_causal_mask(
    document_ids: Tensor | StaticScan,
    bounds: StaticBounds,
    dtype: torch.dtype = torch.bool,
    window: int | None = None,
    *,
    max_bytes: int = MASK_BYTES_LIMIT,
) -> tuple[Tensor, Tensor]:
    """Give the mask of causal attention inside documents, as `build_block_causal_mask` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: documents of a row and tokens of a document.
        dtype: bool, or a floating dtype for a mask that is added to scores.
        window: how many places a query sees, its own included; None for no limit.
        max_bytes: refuse to build a larger mask.

    Returns:
        `[batch, 1, sequence, sequence]` in the dtype. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the dtype or the window is no such thing, or the mask would be larger than `max_bytes`.

    Example:
        >>> static_block_causal_mask(torch.tensor([[1, 1, 0]]), StaticBounds(1, 3, 3))[0].int()
        tensor([[[[1, 0, 0],
                  [1, 1, 0],
                  [0, 0, 1]]]], dtype=torch.int32)
    """
    require_mask_dtype(dtype)
    scan = as_scan(document_ids, bounds)
    places, ids = scan.places, scan.ids[:, None, 1:]
    require_mask_size((ids.shape[0], 1, ids.shape[2], ids.shape[2]), dtype, max_bytes)
    visible = sees(ids[..., None], ids[..., None, :], places[:, None], places, window=window)
    status = first_fault(scan, {StaticRule.RETURNING_ID: scan.returning()})
    if dtype == torch.bool:
        return visible, status
    mask = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype, device=visible.device)
    return mask.masked_fill(visible, 0.0), status


def static_block_mask(
    document_ids: Tensor | StaticScan,
    bounds: StaticBounds,
    *,
    causal: bool = True,
    window: int | None = None,
    block_size: int | tuple[int, int] = 128,
) -> tuple[BlockMask, Tensor]:
    """Give FlexAttention's mask, as `build_block_mask` does. And give the status.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: documents of a row and tokens of a document.
        causal: as `build_block_mask`.
        window: as `build_block_mask`.
        block_size: as `build_block_mask`.

    Returns:
        A mask of shape `[batch, 1, sequence, sequence]`. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the window, the block size or `causal` is no such thing.

    Example:
        >>> ids = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]])
        >>> static_block_mask(ids, StaticBounds(2, 4, 4), block_size=2)[0].full_kv_num_blocks.tolist()
        [[[0, 1, 0, 1]]]
    """
    window = require_window(window)
    require_flag(causal, "causal")
    sizes = checked_block_size(block_size)
    scan = as_scan(document_ids, bounds)
    blocks = _visible_blocks(scan, *sizes, window, causal)
    partial, full = blocks.partial_and_full()
    # Where each document begins: its own number, which int32 holds, as it may not hold the id.
    numbers = scan.first[:, 1:].to(torch.int32)
    mask = assemble(
        *(_ordered(each) for each in (partial, full, partial.mT, full.mT)),
        device=scan.ids.device,
        sequence=len(scan.places),
        block_size=sizes,
        mask_function=mask_function(numbers, window=window, causal=causal),
    )
    return mask, first_fault(scan, {StaticRule.RETURNING_ID: scan.returning()})


def _visible_blocks(
    scan: StaticScan, query_size: int, key_size: int, window: int | None, causal: bool
) -> VisibleBlocks:
    sequence, places, kept = len(scan.places), scan.places, scan.kept
    until = places.where(kept, -1).cummax(1).values
    after = places.where(kept, sequence).flip(1).cummin(1).values.flip(1)
    starts, stops = scan.spans()
    lowest, highest = seen_range(places.expand_as(starts), starts, stops, window=window, causal=causal)

    begins = torch.arange(0, sequence, query_size, device=scan.ids.device)
    ends = (begins + query_size).clamp(max=sequence)
    own_first, own_last = begins // key_size, (ends - 1) // key_size
    head, tail = after[:, begins], until[:, ends - 1]
    some = head < ends
    # Where a block holds no token, any place will do: it is not looked at.
    head, tail = head.clamp(max=sequence - 1), tail.clamp(min=0)
    first_key = after.gather(1, lowest.gather(1, head).clamp(0, sequence - 1))
    last_key = until.gather(1, highest.gather(1, tail).clamp(0, sequence - 1))
    full = _held(kept, query_size) == query_size
    held = _held(kept, key_size)
    return VisibleBlocks(
        first=torch.where(some, first_key // key_size, own_first),
        last=torch.where(some, last_key // key_size, own_last),
        own_first=own_first.expand_as(head),
        own_last=own_last.expand_as(head),
        full_first=torch.where(full, -(-lowest.gather(1, tail) // key_size), 0),
        full_stop=torch.where(full, (highest.gather(1, head) + 1) // key_size, 0),
        some_token=held > 0,
        all_tokens=held == key_size,
        single=query_size == key_size == 1,
    )


def _held(kept: Tensor, size: int) -> Tensor:
    """Count the tokens of each block."""
    padded = pad(kept, (0, -kept.shape[1] % size))
    return padded.view(kept.shape[0], -1, size).sum(2)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Count the True columns of each row, and list them in order, and the others after them."""
    # `contiguous()` would keep the strides of a transposed dimension of one place, which torch's own masks do not have.
    laid_out = blocks.clone(memory_format=torch.contiguous_format)
    listed = torch.argsort(laid_out.view(torch.uint8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32), listed.to(torch.int32)
