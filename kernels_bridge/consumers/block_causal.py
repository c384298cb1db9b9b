"""`block_causal`: Hugging Face models that run eager or sdpa attention, with dense 4-D masks.

Transformers takes a 4-D mask as it is. Eager attention adds it to the scores, so there it has to be additive; a bool
one would let everything through. Where layers differ in kind, each kind gets its own mask, or the window would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from neatpack.adapters.layer_masks import build_layer_masks
from neatpack.kernels_bridge.calls import note_call
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.hf_attention import inner_function, missing_boundaries
from neatpack.kernels_bridge.hf_masks import layer_views, one_mask_for_all, one_or_each
from neatpack.kernels_bridge.hf_models import HFConsumer
from neatpack.kernels_bridge.models import hf_implementation


def attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """Check that a 4-D mask arrived, and call the model's eager or sdpa function.

    Raises:
        BoundariesMissingError: no 4-D mask arrived that fits the states.
    """
    if attention_mask is None or attention_mask.ndim != 4 or attention_mask.shape[-2] != query.shape[-2]:
        raise missing_boundaries(module, "a 4-D attention_mask")
    note_call(attention_mask)
    function = inner_function(module, implementation)
    return function(module, query, key, value, attention_mask, **options)


def _arguments(model: nn.Module, call: PackedCall) -> Mapping[str, object]:
    """Give one mask, or one per kind of layer."""
    dtype = torch.bool if hf_implementation(model) == "sdpa" else _scores_dtype(model)
    return {"attention_mask": one_or_each(build_layer_masks(call.segments, layer_views(model), dtype))}


def _reason_against(model: nn.Module) -> str | None:
    implementation = hf_implementation(model)
    if implementation not in ("eager", "sdpa"):
        return f"it runs with {implementation!r}, which takes no dense masks"
    return one_mask_for_all(model)


def _scores_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of the model's weights, in which eager attention computes its scores."""
    floating = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    return next(floating, torch.float32)


CONSUMER: Final = HFConsumer("block_causal", "block_causal", attend, _arguments, _reason_against, "masks")
