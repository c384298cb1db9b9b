"""What a built model says of itself: its declarations, its attention, its forward's arguments, through any wrapper."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Final

from torch import nn

from neatpack.contracts.capabilities import (
    PackedMaskType,
    PositionPolicy,
    flag_problems,
    parse_packed_mask_type,
    parse_position_policy,
)
from neatpack.contracts.declarations import declared, unwrap
from neatpack.contracts.errors import CapabilitiesError, ModelTypeError, Problem

BOUND_PREFIX: Final = "neatpack"
"""First part of the names under which attention functions are bound: `neatpack|CONSUMER|IMPLEMENTATION`."""

FLASH_IMPLEMENTATIONS: Final = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
NATIVE_FA4: Final = "fa4"

_HUB_ID: Final = re.compile(r"(?P<repo>[^/:@\s]+/[^/:@\s]+)(@[^:]+)?(:.+)?")


def require_module(model: object) -> nn.Module:
    """Return the module inside torch's wrappers: data parallel, sharded, compiled, checkpointed.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.

    Example:
        >>> inner = nn.Linear(2, 2)
        >>> require_module(nn.DataParallel(inner)) is inner
        True
    """
    inner = unwrap(model)
    if isinstance(inner, nn.Module):
        return inner
    remedy = "Pass the built model itself."
    raise ModelTypeError(
        Problem("model", "must be a torch.nn.Module", "type", value=type(model).__name__, remedy=remedy)
    )


def declared_flag(model: nn.Module, name: str, *, default: bool = False) -> bool:
    """Read a declaration that is a bool; `default` where the model makes none.

    Raises:
        CapabilitiesError: it is something else, or a property that raises.
    """
    value = declared(model, name)
    if value is None:
        return default
    problems = flag_problems(name, value)
    if problems:
        raise CapabilitiesError(*problems)
    return value is True


def declared_mask_type(model: nn.Module) -> PackedMaskType | None:
    """Read the mask type that the model declares; None where it declares none.

    Raises:
        CapabilitiesError: no such mask type exists, or a property raises.
    """
    value = declared(model, "packed_mask_type")
    return None if value is None else parse_packed_mask_type(value)


def declared_position_policy(model: nn.Module) -> PositionPolicy:
    """Read the position policy that the model declares: positions restart in each document where it declares none.

    Raises:
        CapabilitiesError: no such policy exists, or a property raises.
    """
    value = declared(model, "position_policy")
    return "document" if value is None else parse_position_policy(value)


def get_model_attn_implementation(model: object) -> str:
    """Name the attention that a built model runs with.

    A custom model says it in `backend.attn`. A Hugging Face model holds it in its text config, as resolved when it
    was built. A model with both declares `uses_hf_attention` if the config rules.

    Args:
        model: a built module, in any wrapper of torch.

    Returns:
        The name; kernels-hub ids are mapped back to the flash implementation that they stand in for, and the names
        that neatpack binds to what they stand before. `"sdpa"` where the model says nothing.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.
        CapabilitiesError: a declaration of the model is not one.

    Example:
        >>> get_model_attn_implementation(nn.Linear(2, 2))
        'sdpa'
    """
    inner = require_module(model)
    backend = None if declared_flag(inner, "uses_hf_attention") else declared_backend(inner)
    return backend or hf_implementation(inner) or "sdpa"


def declared_backend(model: nn.Module) -> str | None:
    """Read `backend.attn` of a custom model; None where it has none.

    Raises:
        CapabilitiesError: it is no string.
    """
    value: object = getattr(getattr(model, "backend", None), "attn", None)
    if value is None or isinstance(value, str):
        return value
    remedy = "Name the attention that the model was built with."
    raise CapabilitiesError(Problem("backend.attn", "must be a str", "type", value=type(value).__name__, remedy=remedy))


def text_config(model: nn.Module) -> object | None:
    """Return the Hugging Face config that rules the text layers; None where the model has no such config."""
    config: object = getattr(model, "config", None)
    get_text_config: object = getattr(config, "get_text_config", None)
    if callable(get_text_config):
        config = get_text_config(decoder=True)
    return config if hasattr(config, "_attn_implementation") else None


def hf_implementation(model: nn.Module) -> str | None:
    """Name the attention in a model's Hugging Face config, as `get_model_attn_implementation` does."""
    name: object = getattr(text_config(model), "_attn_implementation", None)
    return mainline_name(unbound_name(name)) if isinstance(name, str) else None


def bound_name(consumer: str, implementation: str) -> str:
    """Name the attention function of a consumer that stands before `implementation`.

    Example:
        >>> unbound_name(bound_name("reference", "sdpa"))
        'sdpa'
    """
    return f"{BOUND_PREFIX}|{consumer}|{implementation}"


def unbound_name(name: str) -> str:
    """Undo `bound_name`; other names stay as they are."""
    prefix, _, rest = name.partition("|")
    return rest.partition("|")[2] if prefix == BOUND_PREFIX else name


def mainline_name(name: str) -> str:
    """Map a kernels-hub id to the implementation for which Transformers loads it; other names stay as they are."""
    hub = _HUB_ID.fullmatch(name)
    flash_utils = sys.modules.get("transformers.modeling_flash_attention_utils")
    if hub is None or flash_utils is None:
        return name
    fallbacks: dict[str, str] = getattr(flash_utils, "FLASH_ATTN_KERNEL_FALLBACK", {})
    return next((mainline for mainline, repo in fallbacks.items() if repo == hub["repo"]), name)


def is_hub_id(name: str) -> bool:
    """Tell whether `name` is a kernels-hub id: `org/name`, perhaps with a revision and a function."""
    return _HUB_ID.fullmatch(name) is not None


def is_flash(name: str) -> bool:
    """Tell whether an implementation takes flash varlen kwargs; a hub id does if it says flash in its name.

    Example:
        >>> is_flash("flash_attention_2"), is_flash("kernels-community/flash-attn3"), is_flash("sdpa")
        (True, True, False)
    """
    return mainline_name(name) in FLASH_IMPLEMENTATIONS or (is_hub_id(name) and "flash" in name)


def forward_arguments(model: nn.Module) -> tuple[str, ...] | None:
    """Name the arguments that the model's forward spells out, in order; None where they cannot be read.

    An adapter model, as PEFT makes them, hands its `**kwargs` on to its base model, whose arguments then count as well.
    """
    names = _argument_names(model, (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY))
    base = _adapted(model)
    if names is None or base is None or not takes_any_keyword(model):
        return names
    return tuple(dict.fromkeys((*names, *(forward_arguments(base) or ()))))


def positional_arguments(model: nn.Module) -> tuple[str, ...]:
    """Name the arguments that the model's forward takes by position and by keyword, in order."""
    return _argument_names(model, (inspect.Parameter.POSITIONAL_OR_KEYWORD,)) or ()


def takes_any_keyword(model: nn.Module) -> bool:
    """Tell whether the model's forward has a `**kwargs`. What becomes of them is not said."""
    return bool(_argument_names(model, (inspect.Parameter.VAR_KEYWORD,)))


def _adapted(model: nn.Module) -> nn.Module | None:
    """The model around which adapters were put; None where `model` says of none."""
    get_base_model: object = getattr(model, "get_base_model", None)
    base: object = get_base_model() if callable(get_base_model) else None
    return base if isinstance(base, nn.Module) and base is not model else None


def _argument_names(model: nn.Module, kinds: tuple[object, ...]) -> tuple[str, ...] | None:
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
