"""FlexAttention by every pair of tokens, where Transformers compiles it: the real one needs a compiler, and a GPU for
gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask


def replace_flex_kernel(masks: list[object], setting: Callable[[object, str, object], None] = setattr) -> None:
    """Put the stand-in into Transformers.

    Args:
        masks: the mask of each call is added to it.
        setting: how to set an attribute; that of a monkeypatch takes it back.
    """
    import transformers.integrations.flex_attention as integration

    def call(query: Tensor, key: Tensor, value: Tensor, training: bool = False, **options: Any) -> Tensor:
        del training
        masks.append(options["block_mask"])
        return _dense(query, key, value, **options)

    setting(integration, "compile_friendly_flex_attention", call)


def _dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: Callable[..., Tensor],
    block_mask: BlockMask,
    scale: float,
    **_options: object,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    sizes = (*query.shape[:3], key.shape[2])
    places = [
        torch.arange(size).view([-1 if axis == other else 1 for other in range(4)]) for axis, size in enumerate(sizes)
    ]
    scores = score_mod(query @ key.mT * scale, *places)
    # A query that sees nothing gives zeros, as FlexAttention has it.
    return scores.masked_fill(~block_mask.mask_mod(*places), -torch.inf).softmax(-1).nan_to_num(0.0) @ value
