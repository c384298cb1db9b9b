"""FlexAttention's `BlockMask`, built from document boundaries block by block; no pair of tokens is ever looked at."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from neatpack.adapters.arguments import COMPARED_DTYPES, INT32_MAX, int_remedy, is_count, require_flag
from neatpack.adapters.block_lists import list_bands, list_blocks
from neatpack.adapters.document_ids import number_documents
from neatpack.adapters.segments import Segments, as_segments, require_ids_form
from neatpack.adapters.visibility import require_window, sees
from neatpack.adapters.visible_blocks import visible_blocks
from neatpack.contracts.errors import EncodingError, Problem

MaskFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of batch, head, query and key index, whether the query sees the key."""


def build_block_mask(
    document_ids: Tensor | Segments,
    *,
    causal: bool = True,
    window: int | None = None,
    block_size: int | tuple[int, int] = 128,
) -> BlockMask:
    """Give the mask of attention inside documents for FlexAttention. Padding and holes attend to themselves alone.

    All tensors of the result are those that torch's `create_block_mask` makes of the same mask function.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        causal: whether a query sees no key that comes after it.
        window: how many places a query sees, its own included, and without a causal mask as many after its own;
            None for no limit.
        block_size: places of a block, or those of a query block and of a key block.

    Returns:
        A mask of shape `[batch, 1, sequence, sequence]` on the device of the ids. It can be copied and pickled, but
        torch's `mask.to(device)` leaves the ids of its mask function behind: build it on the device.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: the window or the block size is no such thing.

    Example:
        >>> mask = build_block_mask(torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]]), block_size=2)
        >>> mask.kv_num_blocks.tolist(), mask.full_kv_num_blocks.tolist()
        ([[[1, 1, 1, 1]]], [[[0, 1, 0, 1]]])
    """
    window = require_window(window)
    require_flag(causal, "causal")
    query_size, key_size = checked_block_size(block_size)
    segments = as_segments(document_ids)
    blocks = visible_blocks(segments, query_size, key_size, window, causal)
    lists = (list_blocks if segments.holes.size else list_bands)(blocks, segments.device)
    ids = number_documents(segments, np.int32)
    return assemble(
        *lists,
        sequence=segments.sequence,
        block_size=(query_size, key_size),
        mask_function=mask_function(ids, window=window, causal=causal),
    )


def mask_function(document_ids: Tensor, *, window: int | None = None, causal: bool = True) -> MaskFunction:
    """Give the function that tells for one query and key whether the query sees the key, in each batch row and head.

    Args:
        document_ids: `[batch, sequence]`, 0 at padding and holes. The function keeps it.
        window: as `build_block_mask`.
        causal: as `build_block_mask`.

    Raises:
        DocumentIdsError: the ids are no integers `[batch, sequence]`; their values are not read.
        EncodingError: the window is not a positive int.

    Example:
        >>> function = mask_function(torch.tensor([[1, 1, 2]]))
        >>> zero, one, two = torch.arange(3)
        >>> function(zero, zero, one, zero), function(zero, zero, two, one)
        (tensor(True), tensor(False))
    """
    require_ids_form(document_ids, "document_ids")
    window = require_window(window)
    require_flag(causal, "causal")
    ids = document_ids if document_ids.dtype in COMPARED_DTYPES else document_ids.to(torch.int64)
    return functools.partial(_sees_place, ids, window, causal)  # A closure could not be pickled.


def _sees_place(
    ids: Tensor,
    window: int | None,
    causal: bool,
    batch: Tensor,
    head: Tensor,  # noqa: ARG001 - torch passes it
    query: Tensor,
    key: Tensor,
) -> Tensor:
    return sees(ids[batch, query], ids[batch, key], query, key, window=window, causal=causal)


def checked_block_size(block_size: object) -> tuple[int, int]:
    """Give the places of a query block and of a key block.

    Raises:
        EncodingError: it is no positive int, nor a tuple of two.
    """
    given = block_size
    sizes = cast("tuple[object, ...]", block_size) if isinstance(block_size, tuple) else (block_size, block_size)
    checked = [int(cast("int", size)) for size in sizes if is_count(size) and 0 < cast("int", size) <= INT32_MAX]
    if len(checked) != 2 or len(sizes) != 2:
        message = "must be a positive int, or a tuple of two"
        remedy = int_remedy(given, "Give 128, which kernels take, or (places of queries, places of keys).")
        raise EncodingError(Problem("block_size", message, "value", value=repr(given), remedy=remedy))
    return checked[0], checked[1]


def assemble(
    partial: tuple[Tensor, Tensor],
    full: tuple[Tensor, Tensor],
    transposed_partial: tuple[Tensor, Tensor],
    transposed_full: tuple[Tensor, Tensor],
    *,
    sequence: int,
    block_size: tuple[int, int],
    mask_function: MaskFunction,
) -> BlockMask:
    """Put counts and indices, `[batch, blocks]` and `[batch, blocks, blocks]`, together as one mask for all heads."""
    count, index, full_count, full_index, query_count, query_index, full_query_count, full_query_index = (
        tensor[:, None] for pair in (partial, full, transposed_partial, transposed_full) for tensor in pair
    )
    return BlockMask(
        seq_lengths=(sequence, sequence),
        kv_num_blocks=count,
        kv_indices=index,
        full_kv_num_blocks=full_count,
        full_kv_indices=full_index,
        q_num_blocks=query_count,
        q_indices=query_index,
        full_q_num_blocks=full_query_count,
        full_q_indices=full_query_index,
        BLOCK_SIZE=block_size,
        mask_mod=mask_function,
    )
