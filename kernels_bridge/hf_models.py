"""What the consumers of Hugging Face models share: which models they take, and the arguments every such model gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from torch import nn

from neatpack.adapters.positions import build_position_ids
from neatpack.contracts.capabilities import PackedMaskType, PackingCapabilities
from neatpack.contracts.errors import EncodingError, Problem
from neatpack.contracts.kernels import Accepted, Attachment, Decision, Rejected
from neatpack.kernels_bridge.binding import get_binding
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.families import Knowledge, Way, knowledge
from neatpack.kernels_bridge.hf_attention import (
    GuardedFunction,
    attach_function,
    bound_users,
    interface_modules,
    reason_held_inside,
)
from neatpack.kernels_bridge.hf_masks import sees_images_both_ways
from neatpack.kernels_bridge.models import (
    bound_name,
    declared_backend,
    declared_flag,
    declared_mask_type,
    forward_arguments,
    takes_any_keyword,
    text_config,
)
from neatpack.kernels_bridge.neat_metadata import NEEDED, metadata_arguments

_IMAGES: Final = "pixel_values"
_CACHES: Final = ("use_cache", "use_mems")
"""How forwards name the choice whether they return a cache; XLNet's is its memories."""


def no_reason(model: nn.Module) -> None:
    """Object to no model."""
    del model


@dataclass(frozen=True)
class HFConsumer:
    """A consumer that binds one attention function to Hugging Face models.

    Attributes:
        name: the word by which it is registered.
        packed_mask_type: the form that its models take.
        attend: the attention function, importable by name.
        arguments: what it derives beside what every Hugging Face model gets.
        reason_against: why it does not take a model that Hugging Face consumers otherwise take; None where it does.
        way: how packed rows reach the attention of its models, which is what was measured of their families.
        takes_holes: whether what it derives can express a hole.
    """

    name: str
    packed_mask_type: PackedMaskType
    attend: GuardedFunction
    arguments: Callable[[nn.Module, PackedCall], Mapping[str, object]]
    reason_against: Callable[[nn.Module], str | None] = no_reason
    way: Way = "varlen"
    takes_holes: bool = True

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        """Accept a Hugging Face model by what it really runs with, whatever was asked for."""
        del attn_implementation
        offered = PackingCapabilities(self.packed_mask_type, takes_holes=self.takes_holes)
        decision = capabilities_or_reason(model, self.name, offered, self.known(model))
        reason = None if isinstance(decision, Rejected) else self.reason_against(model)
        return decision if reason is None else Rejected(reason)

    def known(self, model: nn.Module) -> Knowledge:
        """Tell what is known of the model and the way in which it would be given packed rows."""
        return knowledge(model, self.way)

    def attach(self, model: nn.Module) -> Attachment:
        """Set the attention function as the one that the model's config names."""
        return attach_function(self.name, self.attend, model)

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        """Give what every Hugging Face model gets, and the arguments of this consumer."""
        return {**common_arguments(model, call), **self.arguments(model, call)}


def capabilities_or_reason(model: nn.Module, consumer: str, offered: PackingCapabilities, known: Knowledge) -> Decision:
    """Decide for a consumer of Hugging Face models, as far as all of them decide alike.

    Args:
        model: an unwrapped module.
        consumer: who asks.
        offered: what it takes, whatever the model.
        known: what is known of the model and the way of the consumer.
    """
    backend = None if declared_flag(model, "uses_hf_attention") else declared_backend(model)
    if backend is not None:
        way_out = "declare `uses_hf_attention: bool = True` if the Hugging Face config rules"
        return Rejected(f"its attention is that of its backend, {backend!r}: {way_out}")
    own_type = declared_mask_type(model)
    if own_type is not None and (own_type != offered.packed_mask_type or own_type == "document_ids"):
        return Rejected(f"it declares that it takes {own_type!r} itself")
    if not interface_modules(model):
        lacking = "it has no layer that dispatches attention through Transformers' attention interface"
        return Rejected(reason_held_inside(model) or lacking)
    metadata = declared_flag(model, "requires_packed_sequence_metadata")
    reason = _not_causal(model) or shared_with_another(model, consumer)
    if metadata and not set(NEEDED).issubset(forward_arguments(model) or ()):
        reason = f"it requires packed sequence metadata, but its forward does not name {', '.join(NEEDED)}"
    elif not metadata:
        reason = known.evidence if known.is_right is False else reason
    capabilities = replace(offered, requires_packed_sequence_metadata=metadata)
    return Accepted(capabilities, known.evidence, known.verified) if reason is None else Rejected(reason)


def common_arguments(model: nn.Module, call: PackedCall) -> dict[str, object]:
    """Give what every Hugging Face model gets: no cache, positions if none came, metadata if it needs them.

    Raises:
        EncodingError: the call continues a cache, in which packed rows cannot be told apart; or it lacks positions
            that do not follow from the ids; or it brings images whose tokens see each other.
    """
    if call.arguments.get("past_key_values") is not None:
        remedy = "Leave past_key_values out: a packed row is whole."
        raise EncodingError(Problem("past_key_values", "packed rows take no cache", "unsupported", remedy=remedy))
    if call.arguments.get(_IMAGES) is not None and sees_images_both_ways(model):
        message = "tokens of one image see each other in this model, and a causal mask or kernel hides them"
        remedy = "Train it on text alone, or give every document a row of its own to the model as it was built."
        raise EncodingError(Problem(_IMAGES, message, "unsupported", remedy=remedy))
    arguments = {**metadata_arguments(model, call), **without_cache(model)}
    if call.arguments.get("position_ids") is None:
        if _has_positions_of_images(model):
            remedy = "Ship the axes' positions, counted for each document alone; the model would count over the row."
            message = "missing: a model that reads images has positions of several axes"
            raise EncodingError(Problem("position_ids", message, "missing", remedy=remedy))
        arguments["position_ids"] = build_position_ids(call.structural)
    return arguments


def without_cache(model: nn.Module) -> dict[str, object]:
    """Ask a model for no cache, if its forward names that, or its config does and its forward passes words on."""
    named = {name for name in _CACHES if name in (forward_arguments(model) or ())}
    passed = hasattr(text_config(model), "use_cache") and takes_any_keyword(model)
    return dict.fromkeys(sorted(named | ({"use_cache"} if passed else set[str]())), False)


def _has_positions_of_images(model: nn.Module) -> bool:
    config = text_config(model)
    rope: object = getattr(config, "rope_parameters", None)
    return config is not getattr(model, "config", None) and isinstance(rope, dict) and "mrope_section" in rope


def _not_causal(model: nn.Module) -> str | None:
    config = text_config(model)
    layers = (layer for layer in model.modules() if getattr(layer, "config", None) is config)
    layer = next((layer for layer in layers if getattr(layer, "is_causal", None) is False), None)
    if layer is not None:
        return f"its {type(layer).__name__} is not causal: built as an encoder, or attending to another sequence"
    if "position_ids" not in (forward_arguments(model) or ()):
        return "its forward takes no position_ids, so positions cannot restart with each document"
    return None


def shared_with_another(model: nn.Module, consumer: str) -> str | None:
    """Say with whom a model shares its config, if they are bound otherwise: a config names one function."""
    users, name = bound_users(model)
    binding = get_binding(model)
    own = 1 if binding is not None and name.startswith(bound_name(binding.consumer, "")) else 0
    if users == own or name.startswith(bound_name(consumer, "")):
        return None
    return f"its config is shared with a model that is bound as {name!r}: give it a config of its own"
