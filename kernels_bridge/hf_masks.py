"""Masks for Hugging Face models: one, or one for each kind of layer where the window would be lost otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final, TypeVar

from torch import nn

from neatpack.adapters.layer_masks import LayerView
from neatpack.kernels_bridge.families import FULL, SLIDING, layer_types, sliding_window
from neatpack.kernels_bridge.models import text_config

MaskT = TypeVar("MaskT")

_MAPPING: Final = "causal_mask_mapping"
"""What Transformers' modeling code calls the dict of one mask per layer type; forwards with it accept one."""
_WINDOWED: Final = "create_sliding_window_causal_mask"
"""What it calls to make a windowed mask. Without it, or a list of layer types, a window in the config is not used."""

_BLOCKS: Final = "block_sequence_ids"
"""What it calls the blocks of tokens that see each other both ways, where it makes masks for images."""


def one_mask_for_all(model: nn.Module) -> str | None:
    """Say why a model cannot be given the masks that its layers need; None where it can."""
    kinds = mask_kinds(model)
    if len(kinds) > 1 and _MAPPING not in _forward_words(model, text_config(model)):
        return f"its layers are of the types {', '.join(kinds)}, but its forward takes one mask for all"
    return None


def layer_views(model: nn.Module) -> dict[str, LayerView]:
    """Say for each kind of layer what its tokens see."""
    views = {FULL: LayerView(), SLIDING: LayerView(window=sliding_window(model))}
    return {kind: views[kind] for kind in mask_kinds(model)}


def one_or_each(masks: Mapping[str, MaskT]) -> MaskT | dict[str, MaskT]:
    """Give the masks of the kinds of layers as Transformers takes them: by name, or the only one as it is."""
    return dict(masks) if len(masks) > 1 else next(iter(masks.values()))


def sees_images_both_ways(model: nn.Module) -> bool:
    """Tell whether tokens of one image see each other in a model that reads images, which no causal mask lets them."""
    config: object = getattr(model, "config", None)
    return config is not text_config(model) and _BLOCKS in _forward_words(model, config)


def mask_kinds(model: nn.Module) -> tuple[str, ...]:
    """Name the kinds of layers of a model that need a mask each: those of its config, of which code may not use all."""
    kinds = tuple(kind for kind in layer_types(model) if kind in (FULL, SLIDING))
    listed = getattr(text_config(model), "layer_types", None) is not None
    return (
        kinds if listed or SLIDING not in kinds or _WINDOWED in _forward_words(model, text_config(model)) else (FULL,)
    )


def _forward_words(model: nn.Module, config: object) -> set[str]:
    """Collect the names in the code of the forwards of the modules that have a config."""
    makers = {type(layer) for layer in model.modules() if getattr(layer, "config", None) is config}
    codes = (getattr(inspect.unwrap(maker.forward), "__code__", None) for maker in makers)
    return {word for code in codes if code is not None for word in (*code.co_varnames, *code.co_names)}
