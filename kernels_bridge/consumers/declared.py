"""`declared`: models that learn the boundaries themselves, in the form that they declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import nn

from neatpack.adapters.boundary_fields import FLASH_FIELDS, PACKED_SEQ_IDS
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.kernels import Accepted, Attachment, Decision, Rejected
from neatpack.kernels_bridge.attachments import NothingAttached
from neatpack.kernels_bridge.capabilities import get_packing_capabilities
from neatpack.kernels_bridge.entry import ATTENTION_MASK, PackedCall
from neatpack.kernels_bridge.hf_attention import interface_modules, reason_held_inside
from neatpack.kernels_bridge.models import NATIVE_FA4, declared_flag, declared_mask_type, forward_arguments, text_config
from neatpack.kernels_bridge.neat_metadata import NEEDED
from neatpack.kernels_bridge.own_models import own_arguments, reason_unnamed

_OWN: Final = "document_ids"
"""What a model declares whose attention is its own; the other types say what Transformers' attention is given."""


class DeclaredConsumer:
    """Takes models of any kind whose forward names what their declaration needs."""

    name: Final = "declared"

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        """Accept a model that declares what it takes, or a custom one that names the default, a 4-D mask."""
        if attn_implementation == NATIVE_FA4:
            return Rejected("it runs with 'fa4', which takes gathered tokens and no mask")
        if declared_flag(model, "uses_thd") and declared_mask_type(model) is None:
            return Rejected("it declares that it takes THD, and no mask type")
        if interface_modules(model) and declared_mask_type(model) != _OWN:
            return Rejected(f"its attention is dispatched by its Hugging Face config, and it does not declare {_OWN!r}")
        if text_config(model) is not None and not _declares(model):
            return Rejected("it declares nothing, and what its Hugging Face layers make of a 4-D mask is not known")
        held = None if _declares(model) else reason_held_inside(model)
        if held is not None:
            return Rejected(held)
        capabilities = get_packing_capabilities(attn_implementation, model)
        needed = NEEDED if capabilities.requires_packed_sequence_metadata else ()
        reason = reason_unnamed(model, needed + _mask_names(forward_arguments(model) or (), capabilities))
        return Accepted(capabilities) if reason is None else Rejected(reason)

    def attach(self, model: nn.Module) -> Attachment:
        """Set up nothing: the model's own attention is the consumer."""
        del model
        return NothingAttached()

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        """Give what the forward names of the ids, the declared form, NEAT metadata and positions."""
        return own_arguments(model, call)


CONSUMER: Final = DeclaredConsumer()


def _declares(model: nn.Module) -> bool:
    return declared_mask_type(model) is not None or declared_flag(model, "requires_packed_sequence_metadata")


def _mask_names(names: tuple[str, ...], capabilities: PackingCapabilities) -> tuple[str, ...]:
    """Name the arguments by which the mask type can reach the forward."""
    if PACKED_SEQ_IDS in names:
        return (PACKED_SEQ_IDS,)
    if capabilities.packed_mask_type == "flash_varlen":
        return FLASH_FIELDS
    if capabilities.packed_mask_type == "document_ids" and ATTENTION_MASK not in names:
        return (PACKED_SEQ_IDS,)
    return (ATTENTION_MASK,)
