"""`block_causal`: Hugging Face models that run eager or sdpa attention, with dense 4-D masks.

Transformers takes a 4-D mask as it is. Eager attention adds it to the scores, so there it has to be additive; a bool
one would let everything through. Where layers differ in kind, each kind gets its own mask, or the window would be lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from neatpack.adapters.layer_masks import LayerView, build_layer_masks
from neatpack.kernels_bridge.calls import note_call
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.families import FULL, SLIDING, layer_types, sliding_window
from neatpack.kernels_bridge.hf_attention import inner_function, missing_boundaries
from neatpack.kernels_bridge.hf_models import HFConsumer
from neatpack.kernels_bridge.models import hf_implementation, text_config

_MAPPING: Final = "causal_mask_mapping"
"""What Transformers' modeling code calls the dict of one mask per layer type; forwards with it accept one."""
_WINDOWED: Final = "create_sliding_window_causal_mask"
"""What it calls to make a windowed mask. Without it, or a list of layer types, a window in the config is not used."""


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
    views = {FULL: LayerView(), SLIDING: LayerView(window=sliding_window(model))}
    masks = build_layer_masks(call.segments, {kind: views[kind] for kind in _mask_kinds(model)}, dtype)
    return {"attention_mask": masks if len(masks) > 1 else next(iter(masks.values()))}


def _reason_against(model: nn.Module) -> str | None:
    implementation = hf_implementation(model)
    if implementation not in ("eager", "sdpa"):
        return f"it runs with {implementation!r}, which takes no dense masks"
    kinds = _mask_kinds(model)
    if len(kinds) > 1 and _MAPPING not in _forward_words(model):
        return f"its layers are of the types {', '.join(kinds)}, but its forward takes one mask for all"
    return None


def _mask_kinds(model: nn.Module) -> tuple[str, ...]:
    kinds = tuple(kind for kind in layer_types(model) if kind in (FULL, SLIDING))
    listed = getattr(text_config(model), "layer_types", None) is not None
    return kinds if listed or SLIDING not in kinds or _WINDOWED in _forward_words(model) else (FULL,)


def _forward_words(model: nn.Module) -> set[str]:
    """Collect the names in the code of the forwards that make the masks."""
    config = text_config(model)
    makers = {type(layer) for layer in model.modules() if getattr(layer, "config", None) is config}
    codes = (getattr(inspect.unwrap(maker.forward), "__code__", None) for maker in makers)
    return {word for code in codes if code is not None for word in (*code.co_varnames, *code.co_names)}


def _scores_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of the model's weights, in which eager attention computes its scores."""
    floating = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    return next(floating, torch.float32)


CONSUMER: Final = HFConsumer("block_causal", "block_causal", attend, _arguments, _reason_against)
