"""FlashAttention-4 on the CPU: a function of its recorded signature, which attends over the whole stream at once."""

# ruff: noqa: ARG001  # every argument of the real function is named, whether or not it is used here
from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "signatures" / "flash_attn_4-4.0.0b36.json").read_text())
"""The parameters of the real function with their defaults, as the distribution of that version spells them."""


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: object = None,
    score_mod_bwd: object = None,
    mask_mod: Callable[[Tensor, Tensor], Tensor] | None = None,
    block_sparse_tensors: object = None,
    aux_tensors: object = None,
    aux_scalars: object = None,
    return_lse: bool = False,
    scheduler_metadata: object = None,
    seqlen_k_per_split: int | None = None,
    disable_scheduler_metadata: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend as the real one does, as far as it is called here. A `mask_mod` switches causality and windows off."""
    given = inspect.currentframe()
    assert given is not None
    unused = {name for name, value in given.f_locals.items() if name in _UNUSED and value not in (None, False, 1)}
    assert not unused
    assert cu_seqlens_q is not None
    assert cu_seqlens_k is not None
    for offsets in (cu_seqlens_q, cu_seqlens_k):
        assert offsets.dtype == torch.int32
        assert offsets.is_contiguous()
    document, place = _places(cu_seqlens_q, len(q))
    key_document, key_place = _places(cu_seqlens_k, len(k))
    assert max_seqlen_q is None or len(q) == 0 or int(place.max()) < max_seqlen_q
    distance = place[:, None] - key_place
    visible = document[:, None] == key_document
    if mask_mod is not None:
        visible &= mask_mod(place[:, None], key_place)
    else:
        left, right = window_size
        right = 0 if causal else right
        visible &= distance <= (math.inf if left is None else left)
        visible &= distance >= (-math.inf if right is None else -right)
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (states.to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1) for states in (k, v))
    scores = (q.to(wide).transpose(0, 1) @ keys.permute(1, 2, 0)) * (softmax_scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~visible, -math.inf)
    sink = torch.full((q.shape[1],), -math.inf) if learnable_sink is None else learnable_sink
    everything = torch.cat([scores, sink.to(wide)[:, None, None].expand(-1, len(q), 1)], -1)
    lse = everything.logsumexp(-1)
    output = ((scores - lse[..., None]).exp() @ values.transpose(0, 1)).transpose(0, 1).to(q.dtype)
    return output, lse if return_lse or q.requires_grad else None


_UNUSED = {name for name, _ in cast("list[list[str]]", RECORDED["parameters"])} - {
    *("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal"),
    *("window_size", "learnable_sink", "softcap", "mask_mod", "return_lse"),
}


def _places(offsets: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Number the document of each token, and its place in it."""
    places = torch.arange(tokens)
    document = torch.searchsorted(offsets, places, right=True) - 1
    return document, places - offsets[document]
