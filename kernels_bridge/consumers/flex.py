"""`flex`: Hugging Face models that run FlexAttention, with a BlockMask for each kind of layer.

Transformers takes a BlockMask as it is. It is built once per forward from the boundaries, and never by looking at pairs
of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from neatpack.adapters.block_mask import build_block_mask
from neatpack.kernels_bridge.calls import note_call
from neatpack.kernels_bridge.entry import ATTENTION_MASK, PackedCall
from neatpack.kernels_bridge.hf_attention import inner_function, missing_boundaries
from neatpack.kernels_bridge.hf_masks import layer_views, one_mask_for_all, one_or_each
from neatpack.kernels_bridge.hf_models import HFConsumer
from neatpack.kernels_bridge.models import hf_implementation, text_config

FLEX: Final = "flex_attention"


def attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """Check that a BlockMask of these tokens arrived, and call Transformers' function for FlexAttention.

    Raises:
        BoundariesMissingError: no BlockMask arrived that fits the states.
    """
    fits = isinstance(attention_mask, BlockMask) and attention_mask.seq_lengths == (query.shape[-2], key.shape[-2])
    if not isinstance(attention_mask, BlockMask) or not fits:
        raise missing_boundaries(module, "a BlockMask")
    note_call(attention_mask)
    function = inner_function(module, implementation)
    return function(module, query, key, value, attention_mask, **options)


def _arguments(model: nn.Module, call: PackedCall) -> Mapping[str, object]:
    """Give one BlockMask, or one per kind of layer."""
    views = layer_views(model)
    masks = {kind: build_block_mask(call.segments, window=view.window) for kind, view in views.items()}
    return {ATTENTION_MASK: one_or_each(masks)}


def _reason_against(model: nn.Module) -> str | None:
    implementation = hf_implementation(model)
    if implementation != FLEX:
        return f"it runs with {implementation!r}, which takes no BlockMask"
    if getattr(text_config(model), "attention_dropout", 0.0):
        return "its config drops attention weights, which FlexAttention cannot: set attention_dropout=0.0"
    return one_mask_for_all(model)


CONSUMER: Final = HFConsumer("flex", "document_ids", attend, _arguments, _reason_against, "masks")
