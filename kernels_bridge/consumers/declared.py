"""`declared`: models that learn the boundaries themselves, in the form that they declare.

A model's forward gets what it names: a `**kwargs` proves nothing, since what it swallows may reach no attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import nn

from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.adapters.positions import build_position_ids
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.kernels import Accepted, Attachment, Decision, Rejected
from neatpack.kernels_bridge.attachments import NothingAttached
from neatpack.kernels_bridge.capabilities import get_packing_capabilities
from neatpack.kernels_bridge.entry import ATTENTION_MASK, DOCUMENT_IDS, FLASH_FIELDS, PackedCall
from neatpack.kernels_bridge.hf_attention import interface_modules
from neatpack.kernels_bridge.models import NATIVE_FA4, declared_flag, declared_mask_type, forward_arguments, text_config
from neatpack.kernels_bridge.neat_metadata import NEEDED, metadata_arguments

_OWN: Final = "document_ids"
"""What a model declares whose attention is its own; the other types say what Transformers' attention is given."""


class DeclaredConsumer:
    """Takes models of any kind whose forward names what their declaration needs."""

    name: Final = "declared"

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        """Accept a model that declares what it takes, or a custom one that names the default, a 4-D mask."""
        if interface_modules(model) and attn_implementation != NATIVE_FA4 and declared_mask_type(model) != _OWN:
            return Rejected(f"its attention is dispatched by its Hugging Face config, and it does not declare {_OWN!r}")
        if text_config(model) is not None and not _declares(model):
            return Rejected("it declares nothing, and what its Hugging Face layers make of a 4-D mask is not known")
        capabilities = get_packing_capabilities(attn_implementation, model)
        reason = _reason_against(model, capabilities)
        return Accepted(capabilities) if reason is None else Rejected(reason)

    def attach(self, model: nn.Module) -> Attachment:
        """Set up nothing: the model's own attention is the consumer."""
        del model
        return NothingAttached()

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        """Give what the forward names of the ids, the declared form, NEAT metadata and positions."""
        names = set(forward_arguments(model) or ())
        arguments: dict[str, object] = {}
        if DOCUMENT_IDS in names:
            arguments[DOCUMENT_IDS] = call.document_ids
        arguments.update(_mask_arguments(names, call))
        arguments.update(metadata_arguments(model, call))
        if "position_ids" in names and call.arguments.get("position_ids") is None:
            arguments["position_ids"] = build_position_ids(call.structural)
        return arguments


CONSUMER: Final = DeclaredConsumer()


def _declares(model: nn.Module) -> bool:
    return declared_mask_type(model) is not None or declared_flag(model, "requires_packed_sequence_metadata")


def _mask_arguments(names: set[str], call: PackedCall) -> dict[str, object]:
    mask_type = call.capabilities.packed_mask_type
    if mask_type == "flash_varlen":
        return dict(flash_varlen_kwargs(call.segments)) if names.issuperset(FLASH_FIELDS) else {}
    if ATTENTION_MASK not in names:
        return {}
    if mask_type == "block_causal":
        return {ATTENTION_MASK: build_block_causal_mask(call.segments)}
    return {} if DOCUMENT_IDS in names else {ATTENTION_MASK: call.document_ids}


def _reason_against(model: nn.Module, capabilities: PackingCapabilities) -> str | None:
    names = forward_arguments(model)
    if names is None:
        return f"the signature of {type(model).__name__}.forward cannot be read"
    needed = NEEDED if capabilities.requires_packed_sequence_metadata else ()
    if not capabilities.uses_native_fa4:
        needed += _mask_names(names, capabilities)
    missing = [name for name in needed if name not in names]
    if not missing:
        return None
    spelled = ", ".join(f"`{name}`" for name in missing)
    alternative = "" if DOCUMENT_IDS in missing else f" or, if it reads ids, `{DOCUMENT_IDS}`"
    return (
        f"{type(model).__name__}.forward does not name {spelled}, and `**kwargs` is no proof that boundaries arrive: "
        f"add {spelled}{alternative} to its arguments"
    )


def _mask_names(names: tuple[str, ...], capabilities: PackingCapabilities) -> tuple[str, ...]:
    """Name the arguments by which the mask type can reach the forward."""
    if DOCUMENT_IDS in names:
        return (DOCUMENT_IDS,)
    if capabilities.packed_mask_type == "flash_varlen":
        return FLASH_FIELDS
    if capabilities.packed_mask_type == "document_ids" and ATTENTION_MASK not in names:
        return (DOCUMENT_IDS,)
    return (ATTENTION_MASK,)
