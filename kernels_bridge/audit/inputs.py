"""The arguments of each path, derived from the document ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.adapters.visibility import sees
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.paths import Given, Path

LayerWindows = Mapping[str, int | None]
"""The kinds of attention layer of a model, by the name under which it takes a mask for them, and how many keys a
query of theirs sees; None for all before it."""

CHUNKED: Final = "chunked_attention"
"""The kind of layer that sees the keys of its chunk, and not those of a sliding window."""


def path_arguments(path: Path, packed: PackedDocuments, windows: LayerWindows) -> dict[str, object]:
    """Build what `path` gives beside the tokens, under the names that models read."""
    arguments: dict[str, object] = {} if path.leaves_cache else {"use_cache": False}
    for given in path.given:
        arguments.update(BUILDERS[given](packed, windows))
    return arguments


def layer_mask(packed: PackedDocuments, kind: str, window: int | None, dtype: torch.dtype) -> Tensor:
    """Build the mask of one kind of layer, `[batch, 1, sequence, sequence]`."""
    ids = packed.document_ids
    if kind == CHUNKED and window is not None:
        # To such a layer, each chunk of a document is a document.
        chunks = ids * ids.shape[1] + packed.position_ids // window
        return build_block_causal_mask(torch.where(ids == 0, 0, chunks), dtype)
    if packed.bidirectional:
        return _block_mask(packed, window, dtype)
    return build_block_causal_mask(ids, dtype, window)


def _block_mask(packed: PackedDocuments, window: int | None, dtype: torch.dtype) -> Tensor:
    """Build the mask by which all tokens of a document see each other, within `window` places on either side."""
    ids = packed.document_ids
    places = torch.arange(ids.shape[1], device=ids.device)
    width = None if window is None else window + 1
    visible = sees(ids[:, :, None], ids[:, None], places[:, None], places, window=width, causal=False)[:, None]
    if dtype == torch.bool:
        return visible
    return torch.zeros(visible.shape, dtype=dtype, device=ids.device).masked_fill_(~visible, torch.finfo(dtype).min)


def _segment_index(packed: PackedDocuments) -> Tensor:
    """Number the segments of each row from 0, padding as the last one: int32 `[batch, sequence]`."""
    ids = packed.document_ids
    last = ids.amax(dim=1, keepdim=True).expand_as(ids)
    return torch.where(ids == 0, last, ids - 1).to(torch.int32)


def _masks_per_layer(packed: PackedDocuments, windows: LayerWindows) -> Tensor | dict[str, Tensor]:
    masks = {kind: layer_mask(packed, kind, window, packed.mask_dtype) for kind, window in windows.items()}
    return next(iter(masks.values())) if len(masks) == 1 else masks


BUILDERS: Final[Mapping[Given, Callable[[PackedDocuments, LayerWindows], Mapping[str, object]]]] = {
    "position_ids": lambda packed, _: {"position_ids": packed.position_ids},
    "flash_varlen": lambda packed, _: flash_varlen_kwargs(packed.document_ids),
    "seq_idx": lambda packed, _: {"seq_idx": _segment_index(packed)},
    "cu_seqlens": lambda packed, _: {"cu_seqlens": flash_varlen_kwargs(packed.document_ids)["cu_seq_lens_q"]},
    "mask_4d_float": lambda packed, _: {"attention_mask": layer_mask(packed, "", None, packed.mask_dtype)},
    "mask_4d_bool": lambda packed, _: {"attention_mask": layer_mask(packed, "", None, torch.bool)},
    "mask_4d_per_layer": lambda packed, windows: {"attention_mask": _masks_per_layer(packed, windows)},
    "mask_2d": lambda packed, _: {"attention_mask": (packed.document_ids > 0).to(torch.int64)},
    "packed_seq_ids": lambda packed, _: {"_packed_seq_ids": packed.document_ids},
}
"""How each kind of argument is built."""
