"""Dense 4-D masks for models whose layers differ: one for each type of layer, or the window of some would be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from neatpack.adapters.arguments import require_instance
from neatpack.adapters.masks import (
    MASK_BYTES_LIMIT,
    block_causal_mask_bytes,
    build_block_causal_mask,
    require_mask_dtype,
    require_mask_size,
)
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.visibility import require_chunk, require_window
from neatpack.contracts.errors import EncodingError, Problem


@dataclass(frozen=True)
class LayerView:
    """What a query of one type of layer sees of its document. By default, all of it up to the query.

    Attributes:
        window: how many places, its own included; None for no limit.
        chunk: places of the chunks into which a document is cut from its first token that may be seen, and in which
            attention stays; None for none.

    Raises:
        EncodingError: one is no positive int.

    Example:
        >>> LayerView(), LayerView(window=512)
        (LayerView(window=None, chunk=None), LayerView(window=512, chunk=None))
    """

    window: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", require_window(self.window))
        object.__setattr__(self, "chunk", require_chunk(self.chunk))


def build_layer_masks(
    document_ids: Tensor | Segments,
    views: Mapping[str, LayerView],
    dtype: torch.dtype = torch.bool,
    *,
    blocked: float | None = None,
    max_bytes: int = MASK_BYTES_LIMIT,
) -> dict[str, Tensor]:
    """Give the mask of causal attention inside documents for each type of layer.

    Types with equal views share one tensor. Padding and holes attend to themselves alone, in every one.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        views: what the layers of each type see, by the type's name.
        dtype: as `build_block_causal_mask`.
        blocked: as `build_block_causal_mask`.
        max_bytes: refuse to build more than this, all masks together.

    Returns:
        For each name a mask `[batch, 1, sequence, sequence]`, queries before keys.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: `views` are none, the dtype or `blocked` is no such thing, or the masks would be too large.

    Example:
        >>> views = {"full_attention": LayerView(), "sliding_attention": LayerView(window=2)}
        >>> masks = build_layer_masks(torch.tensor([[1, 1, 1, 2]]), views)
        >>> masks["sliding_attention"][0, 0].int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 0, 1]], dtype=torch.int32)
    """
    different = _different(views)
    require_mask_dtype(dtype)
    segments = as_segments(document_ids)
    shape = (segments.batch, 1, segments.sequence, segments.sequence)
    require_mask_size(shape, dtype, max_bytes, masks=len(different))
    masks = {
        view: build_block_causal_mask(
            segments, dtype, view.window, chunk=view.chunk, blocked=blocked, max_bytes=max_bytes
        )
        for view in different
    }
    return {name: masks[view] for name, view in views.items()}


def layer_masks_bytes(
    batch: int, sequence: int, views: Mapping[str, LayerView], dtype: torch.dtype = torch.bool
) -> int:
    """Tell the size of the masks of all types of layers before they are built, in bytes.

    Args:
        batch: rows.
        sequence: places of a row.
        views: what the layers of each type see; types with equal views share one mask.
        dtype: of the masks.

    Raises:
        EncodingError: a size is no count, `views` are none, or the dtype is none.

    Example:
        >>> layer_masks_bytes(4, 8192, {"full_attention": LayerView(), "sliding_attention": LayerView(window=512)})
        536870912
    """
    return len(_different(views)) * block_causal_mask_bytes(batch, sequence, dtype)


def _different(views: object) -> set[LayerView]:
    remedy = "Give a view for each type of layer, by its name."
    require_instance(views, Mapping, "views", remedy)
    given = cast("Mapping[object, object]", views)
    if not given:
        raise EncodingError(Problem("views", "name no type of layer", "missing", remedy=remedy))
    for name, view in given.items():
        require_instance(name, str, "views", remedy)
        require_instance(view, LayerView, f"views[{name!r}]", remedy)
    return {view for view in given.values() if isinstance(view, LayerView)}
