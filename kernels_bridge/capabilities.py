"""From an attention implementation and a model's declarations to what its loader has to emit."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, cast

from torch import nn

from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import CapabilitiesError, Problem
from neatpack.kernels_bridge.models import (
    FLASH_IMPLEMENTATIONS,
    NATIVE_FA4,
    declared_backend,
    declared_flag,
    declared_mask_type,
    declared_position_policy,
    is_flash,
    is_hub_id,
    mainline_name,
    require_module,
    unbound_name,
)
from neatpack.kernels_bridge.spelling import suggest

_KNOWN: Final = ("eager", "sdpa", "flex_attention", "flex", "te", NATIVE_FA4, *FLASH_IMPLEMENTATIONS)
"""Names of Transformers and of NeMo AutoModel; whatever Transformers' registry holds is known as well."""


def get_packing_capabilities(attn_implementation: str, model: nn.Module | None = None) -> PackingCapabilities:
    """Tell what a loader has to emit for a model that runs with an attention implementation.

    Args:
        attn_implementation: `"fa4"`, a flash name of Transformers or a kernels-hub id, or another backend's name.
        model: the built model, in any wrapper of torch; its declarations count, by value.

    Returns:
        `document_ids` with NEAT metadata for native FlashAttention-4; `flash_varlen` for the flash
        implementations of Transformers; what the model declares, `document_ids` where it takes THD, or
        `block_causal`, for everything else.

    Raises:
        CapabilitiesError: nobody knows the name; `"fa4"` without a model that calls FlashAttention-4 itself; a flash
            backend and a different mask type of the model's own; or a declaration of the model is not one.
        ModelTypeError: `model` is no `torch.nn.Module`.

    Example:
        >>> get_packing_capabilities("flash_attention_2").packed_mask_type
        'flash_varlen'
        >>> get_packing_capabilities("sdpa").packed_mask_type
        'block_causal'
    """
    inner = None if model is None else require_module(model)
    capabilities = _of_attention(attn_implementation, inner)
    return capabilities if inner is None else with_own_limits(capabilities, inner)


def with_own_limits(capabilities: PackingCapabilities, model: nn.Module) -> PackingCapabilities:
    """Say in capabilities which position policy the unwrapped model declares, and whether it declares to take no holes.

    Raises:
        CapabilitiesError: a declaration is none.
    """
    takes_holes = declared_flag(model, "takes_holes", default=True) and capabilities.takes_holes
    return replace(capabilities, position_policy=declared_position_policy(model), takes_holes=takes_holes)


def _of_attention(attn_implementation: str, inner: nn.Module | None) -> PackingCapabilities:
    own_type = None if inner is None else declared_mask_type(inner)
    require_known(attn_implementation, inner)
    name = mainline_name(unbound_name(attn_implementation))
    metadata = inner is not None and declared_flag(inner, "requires_packed_sequence_metadata")
    native = inner is not None and declared_flag(inner, "uses_native_fa4")
    if name == NATIVE_FA4:
        if not native:
            raise CapabilitiesError(_no_native_consumer())
        return PackingCapabilities("document_ids", True, True)
    if not is_flash(name):
        thd = inner is not None and declared_flag(inner, "uses_thd") and own_type in (None, "document_ids")
        mask_type = "document_ids" if thd else own_type or "block_causal"
        return PackingCapabilities(mask_type, metadata, takes_holes=not thd)
    if own_type not in (None, "flash_varlen"):
        message = f"the model declares {own_type!r}, but {attn_implementation!r} takes flash_varlen"
        remedy = "Build the model with another backend, or let it declare what this one takes."
        raise CapabilitiesError(Problem("packed_mask_type", message, "disagreement", value=own_type, remedy=remedy))
    return PackingCapabilities("flash_varlen", metadata)


def _no_native_consumer() -> Problem:
    remedy = "Pass a model that declares `uses_native_fa4: bool = True`, or another attention implementation."
    message = "native FlashAttention-4 needs a model whose layers call it"
    return Problem("attn_implementation", message, "unsupported", value=repr(NATIVE_FA4), remedy=remedy)


def require_known(name: object, model: nn.Module | None) -> None:
    """Refuse a name that nobody knows. An author who declares the mask type may name a backend of their own.

    Args:
        name: of an attention implementation.
        model: the built model, without wrappers.

    Raises:
        CapabilitiesError: nobody knows the name, or it is no name.
    """
    if isinstance(name, str):
        known = {*_KNOWN, *_registered_names()}
        if unbound_name(name) in known or is_hub_id(unbound_name(name)):
            return
        if model is not None and declared_mask_type(model) is not None and declared_backend(model) == name:
            return
        remedy = suggest(name, known)
    else:
        remedy = "Pass a name, such as 'sdpa'."
    message = "is no attention implementation that neatpack or Transformers knows"
    raise CapabilitiesError(Problem("attn_implementation", message, "value", value=repr(name), remedy=remedy))


def _registered_names() -> list[str]:
    """Name what Transformers' registry holds, if Transformers has been imported."""
    interface: object = getattr(sys.modules.get("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", ())
    return list(cast("Iterable[str]", interface))
