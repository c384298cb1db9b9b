"""Models whose attention is their own: they get of the boundaries what their forward names, and nothing else.

A `**kwargs` proves nothing, since what it swallows may reach no attention.
"""

from __future__ import annotations

from torch import nn

from neatpack.adapters.boundary_fields import FLASH_FIELDS, PACKED_SEQ_IDS
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.adapters.positions import build_position_ids
from neatpack.kernels_bridge.entry import ATTENTION_MASK, PackedCall
from neatpack.kernels_bridge.models import forward_arguments
from neatpack.kernels_bridge.neat_metadata import metadata_arguments


def own_arguments(model: nn.Module, call: PackedCall) -> dict[str, object]:
    """Give what the forward names of the ids, the declared form, NEAT metadata and positions.

    Args:
        model: an unwrapped module.
        call: one forward of it.
    """
    names = set(forward_arguments(model) or ())
    arguments: dict[str, object] = {}
    if PACKED_SEQ_IDS in names:
        arguments[PACKED_SEQ_IDS] = call.document_ids
    arguments.update(_mask_arguments(names, call))
    arguments.update(metadata_arguments(model, call))
    if "position_ids" in names and call.arguments.get("position_ids") is None:
        arguments["position_ids"] = build_position_ids(call.structural)
    return arguments


def reason_unnamed(model: nn.Module, needed: tuple[str, ...]) -> str | None:
    """Say that a model's forward does not name all that it needs; None where it does.

    Args:
        model: an unwrapped module.
        needed: names of arguments.
    """
    names = forward_arguments(model)
    if names is None:
        return f"the signature of {type(model).__name__}.forward cannot be read"
    missing = [name for name in needed if name not in names]
    if not missing:
        return None
    spelled = ", ".join(f"`{name}`" for name in missing)
    alternative = "" if PACKED_SEQ_IDS in missing else f" or, if it reads ids, `{PACKED_SEQ_IDS}`"
    return (
        f"{type(model).__name__}.forward does not name {spelled}, and `**kwargs` is no proof that boundaries arrive: "
        f"add {spelled}{alternative} to its arguments"
    )


def _mask_arguments(names: set[str], call: PackedCall) -> dict[str, object]:
    mask_type = call.capabilities.packed_mask_type
    if mask_type == "flash_varlen":
        return dict(flash_varlen_kwargs(call.segments)) if names.issuperset(FLASH_FIELDS) else {}
    if ATTENTION_MASK not in names:
        return {}
    if mask_type == "block_causal":
        return {ATTENTION_MASK: build_block_causal_mask(call.segments)}
    return {} if PACKED_SEQ_IDS in names else {ATTENTION_MASK: call.document_ids}
