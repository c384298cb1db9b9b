"""FlexAttention's BlockMask, from boundaries instead of pairs of tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from benchmarks import inputs
from benchmarks.records import Goal, Row, Sides, Size
from benchmarks.timing import warm
from neatpack.adapters.block_mask import build_block_mask


def rows() -> list[Row]:
    """Give the rows of this derivation: documents of 2,048 tokens on average."""
    name, peer = "build_block_mask", "compiled create_block_mask"
    wanted = {Size(1, 2**14, 8): 100, Size(1, 2**16, 32): 300, Size(1, 2**17, 64): 300}
    return [
        *(Row(name, size, peer, "warm", warm, Goal("faster", goal), _against_create) for size, goal in wanted.items()),
        Row(name, Size(1, 2**17, 64), "writing the result", "warm", warm, Goal("within", 2.5), _against_writing),
    ]


def _against_create(size: Size) -> Sides:
    """Take rows without padding, which the usual mask function lets see itself as a document."""
    ids, create = inputs.document_ids(size, padded=False), _compiled_create()

    def other() -> BlockMask:
        return create(_document_causal(ids), size.batch, None, size.sequence, size.sequence, device="cpu")

    return Sides(lambda: build_block_mask(ids), other, lambda: (_tensors(build_block_mask(ids)), _tensors(other())))


def _against_writing(size: Size) -> Sides:
    ids = inputs.document_ids(size, padded=False)
    result = _tensors(build_block_mask(ids))
    return Sides(lambda: build_block_mask(ids), lambda: [torch.zeros_like(tensor) for tensor in result])


@cache
def _compiled_create() -> Callable[..., BlockMask]:
    return torch.compile(create_block_mask)  # pyright: ignore[reportUnknownMemberType]


def _document_causal(ids: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001 - torch passes it
        return (ids[batch, query] == ids[batch, key]) & (query >= key)

    return sees


def _tensors(mask: BlockMask) -> list[Tensor]:
    parts: tuple[Any, ...] = mask.as_tuple()
    return [part for part in parts if isinstance(part, Tensor)]
