"""Masks of fixed shape, dense ones and FlexAttention's, without a host read, each with the status of its ids."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from neatpack.adapters.block_lists import list_in_order
from neatpack.adapters.block_mask import assemble, checked_block_size, mask_function
from neatpack.adapters.masks import MASK_BYTES_LIMIT, require_mask_size
from neatpack.adapters.static_scan import StaticBounds, StaticScan, as_scan
from neatpack.adapters.static_status import StaticRule, first_fault
from neatpack.adapters.visibility import seen_range, sees
from neatpack.adapters.visible_blocks import VisibleBlocks


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
        bounds: tokens of a document.
        dtype: bool, or a floating dtype for a mask that is added to scores.
        window: how many places a query sees, its own included; None for no limit.
        max_bytes: refuse to build a larger mask.

    Returns:
        `[batch, 1, sequence, sequence]` in the dtype. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan; the dtype or the window is no such thing; or
            the mask would be larger than `max_bytes`.

    Example:
        >>> static_block_causal_mask(torch.tensor([[1, 1, 0]]), StaticBounds(1, 3, 3))[0].int()
        tensor([[[[1, 0, 0],
                  [1, 1, 0],
                  [0, 0, 1]]]], dtype=torch.int32)
    """
    scan = as_scan(document_ids, bounds)
    places, ids = scan.places, scan.ids[:, None, 2:]
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
        bounds: tokens of a document.
        causal: as `build_block_mask`.
        window: as `build_block_mask`.
        block_size: as `build_block_mask`.

    Returns:
        A mask of shape `[batch, 1, sequence, sequence]`. And the status.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan; or the window, the block size or `causal` is no
            such thing.

    Example:
        >>> ids = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]])
        >>> static_block_mask(ids, StaticBounds(2, 4, 4), block_size=2)[0].full_kv_num_blocks.tolist()
        [[[0, 1, 0, 1]]]
    """
    query_size, key_size = checked_block_size(block_size)
    scan = as_scan(document_ids, bounds)
    blocks = _visible_blocks(scan, query_size, key_size, window, causal)
    # Where each document begins: its own number, which int32 holds, as it may not hold the id.
    numbers = scan.first[:, 2:].to(torch.int32)
    mask = assemble(
        *list_in_order(*blocks.partial_and_full()),
        sequence=len(scan.places),
        block_size=(query_size, key_size),
        mask_function=mask_function(numbers, window=window, causal=causal),
    )
    return mask, first_fault(scan, {StaticRule.RETURNING_ID: scan.returning()})


def _visible_blocks(
    scan: StaticScan, query_size: int, key_size: int, window: int | None, causal: bool
) -> VisibleBlocks:
    of_queries = _tokens_of_blocks(scan, query_size)
    of_keys = of_queries if key_size == query_size else _tokens_of_blocks(scan, key_size)
    # Of the first and the last token of each block. Where it holds none, nothing of this is looked at.
    edges = torch.cat([of_queries.first, of_queries.last], 1)
    documents = scan.first[:, 2:].gather(1, edges)
    stops = scan.ends().gather(1, documents)
    lowest, highest = seen_range(edges, documents - 2, stops, window=window, causal=causal)
    first_lowest, last_lowest = lowest.chunk(2, 1)
    first_highest, last_highest = highest.chunk(2, 1)

    # Where a window ends among holes, the block around its end may hold no token of it.
    first, last = first_lowest // key_size, last_highest // key_size
    first = first + (of_keys.last.gather(1, first.clamp(min=0)) < first_lowest)
    last = last.add(of_keys.first.gather(1, last) > last_highest, alpha=-1)
    return VisibleBlocks(
        first=first,
        last=last.where(of_queries.tokens > 0, scan.counting(-1, 0)),
        own_first=(of_queries.begins // key_size).expand_as(first),
        own_last=((of_queries.begins + (query_size - 1)) // key_size).expand_as(first),
        full_first=(last_lowest + (key_size - 1)) // key_size,
        full_stop=(first_highest + 1) // key_size * (of_queries.tokens == query_size),
        some_token=of_keys.tokens > 0,
        all_tokens=of_keys.tokens == key_size,
        single=query_size == key_size == 1,
    )


class _BlockTokens(NamedTuple):
    """What is known of the blocks of a size.

    Attributes:
        begins: `[blocks]`, the first place of each.
        tokens: `[batch, blocks]`, how many tokens it holds.
        first, last: `[batch, blocks]`, the places of the first of them and of the last; any place where there is none.
    """

    begins: Tensor
    tokens: Tensor
    first: Tensor
    last: Tensor


def _tokens_of_blocks(scan: StaticScan, size: int) -> _BlockTokens:
    kept = scan.kept
    begins = scan.places[::size]
    size = min(size, kept.shape[1])  # Of a larger block, no more than a row is looked at.
    blocks = pad(kept, (0, -kept.shape[1] % size)).view(len(kept), -1, size)
    first = begins + blocks.view(torch.uint8).argmax(2)
    last = begins + blocks.cummax(2).indices[..., -1]
    return _BlockTokens(begins, blocks.sum(2), first, last.clamp(max=kept.shape[1] - 1))
