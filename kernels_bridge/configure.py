"""Configuring a built model for packing: thin over the registry and the binding."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

import torch.distributed as dist
from torch import nn

from neatpack.adapters.boundary_fields import FLASH_FIELDS, PACKED_SEQ_IDS
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import CapabilitiesError, ConsumerError, ModelError, ModelTypeError, Problem
from neatpack.contracts.kernels import LAST_RESORT, Rejected
from neatpack.kernels_bridge.binding import Binding, bind, restored_if_refused
from neatpack.kernels_bridge.capabilities import get_packing_capabilities, require_known, with_own_limits
from neatpack.kernels_bridge.forward_ranks import WRAPPERS
from neatpack.kernels_bridge.hf_attention import interface_modules
from neatpack.kernels_bridge.models import (
    NATIVE_FA4,
    declared_flag,
    forward_arguments,
    get_model_attn_implementation,
    hf_implementation,
    is_flash,
    mainline_name,
    require_module,
    text_config,
    unbound_name,
)
from neatpack.kernels_bridge.ranks import gather, raising_together
from neatpack.kernels_bridge.registry import decisions, get_consumer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def configure_packing(
    attn_implementation: str,
    model: nn.Module | None = None,
    *,
    consumer: str | None = None,
    verify: bool = False,
    agree_across: ProcessGroup | Literal["wrappers"] | None = "wrappers",
) -> PackingCapabilities:
    """Bind a model to the consumer that fits it, and return what its loader has to emit.

    The binding is found by `get_binding(model)`. Configuring equally again changes nothing; configuring otherwise
    replaces the binding. If anything is refused, the model stays as it was.

    Args:
        attn_implementation: what the built model runs with, as `get_model_attn_implementation` names it.
        model: the built model, in any wrapper of torch. Without it, only the capabilities are looked up.
        consumer: bind this consumer instead of the first that takes the model.
        verify: prove by call that boundaries arrive: run some tiny batches through the model, in evaluation mode and
            without gradients, in which one document changes at a time. What the model held is afterwards as it was.
        agree_across: the ranks on all of which the checks of a training step raise if they do on one; each step then
            waits for an all-reduce of one number. `"wrappers"` are those with which DistributedDataParallel or FSDP,
            put around the model before or after, makes the forward run together. A group is one of data-parallel
            ranks that also call this together, and then raise together. With None, each rank is on its own. Pipeline
            stages run at different times and cannot agree in this way; use `raising_together` before the schedule.

    Raises:
        CapabilitiesError: the name or a declaration of the model is wrong, as in `get_packing_capabilities`, or the
            name is not the one by which the model's Hugging Face config dispatches its attention.
        ConsumerError: no consumer has the given name, it returns no attachment, there is no model to bind it to, or
            `agree_across` is no group.
        ModelError: no consumer takes the model; the reasons are named. Or flash attention is asked for, and the
            installed Transformers takes no varlen kwargs. Or the proof was asked for and failed, or cannot be made.
        ModelTypeError: `model` is no `torch.nn.Module`.
        PackingError: another rank of `agree_across` failed, in the class of its error.

    Example:
        >>> from typing import Literal
        >>> class Model(nn.Module):
        ...     packed_mask_type: Literal["document_ids"] = "document_ids"
        ...     def forward(self, input_ids, _packed_seq_ids): ...
        >>> configure_packing("sdpa", Model()).packed_mask_type
        'document_ids'
    """
    group = _named_group(agree_across)
    if model is None:
        _require_no_model_needed(consumer, verify, group)
        validate_flash_packing_support(attn_implementation)
        return get_packing_capabilities(attn_implementation)
    inner = require_module(model)
    with restored_if_refused(inner):
        with raising_together(group):
            _require_own_implementation(attn_implementation, inner)
            name, capabilities = choose(attn_implementation, inner, consumer)
            if capabilities.packed_mask_type == "flash_varlen":
                validate_flash_packing_support(attn_implementation, inner)
            binding = bind(inner, name, unbound_name(attn_implementation), capabilities, agree_across)
            if verify:
                _prove(model, binding)
        if group is not None:
            _require_one_choice(group, f"{name}, {capabilities}")
    return capabilities


def configure_packing_for_models(models: Sequence[nn.Module]) -> PackingCapabilities:
    """Bind the local pipeline stages of one model, each as its own attention demands, and join what they need.

    Args:
        models: the built stages, which consume the same batch.

    Returns:
        The common mask type, with metadata if any stage needs it.

    Raises:
        CapabilitiesError: there is no stage, or their mask types differ. No stage has been bound.
        ModelError: no consumer takes a stage. No stage has been bound.
        ModelTypeError: `models` holds no stages, or a stage is no `torch.nn.Module`.

    Example:
        >>> from typing import Literal
        >>> class Stage(nn.Module):
        ...     packed_mask_type: Literal["document_ids"] = "document_ids"
        ...     requires_packed_sequence_metadata = True
        ...     def forward(self, hidden, _packed_seq_ids, packed_token_indices, cu_seqlens, max_seqlen): ...
        >>> configure_packing_for_models([Stage(), Stage()]).requires_packed_sequence_metadata
        True
    """
    stages = _require_modules(models)
    chosen = [(stage, get_model_attn_implementation(stage)) for stage in stages]
    choices = [choose(implementation, stage, None) for stage, implementation in chosen]
    combined = PackingCapabilities.combine(capabilities for _, capabilities in choices)
    with ExitStack() as stack:
        for (stage, implementation), (name, capabilities) in zip(chosen, choices, strict=True):
            stack.enter_context(restored_if_refused(stage))
            bind(stage, name, implementation, capabilities)
    return combined


def validate_flash_packing_support(attn_implementation: str = "sdpa", model: nn.Module | None = None) -> None:
    """Raise if flash varlen kwargs could not reach the kernel. Other implementations need no such check.

    Args:
        attn_implementation: what the model runs with.
        model: the built model, in any wrapper of torch; where None, only Transformers is checked.

    Raises:
        CapabilitiesError: nobody knows the name.
        ModelError: the installed Transformers takes no varlen kwargs, or the forward of a custom model names neither
            all four nor `_packed_seq_ids`.
        ModelTypeError: `model` is no `torch.nn.Module`.

    Example:
        >>> validate_flash_packing_support("sdpa", nn.Linear(2, 2))
    """
    inner = None if model is None else require_module(model)
    require_known(attn_implementation, inner)
    if not is_flash(unbound_name(attn_implementation)):
        return
    if inner is None or interface_modules(inner):
        _require_varlen_transformers()
        return
    names = set(forward_arguments(inner) or ())
    if PACKED_SEQ_IDS not in names and not names.issuperset(FLASH_FIELDS):
        message = f"{type(inner).__name__}.forward names neither {PACKED_SEQ_IDS} nor all of {', '.join(FLASH_FIELDS)}"
        remedy = "Add them to its arguments: `**kwargs` is no proof that boundaries arrive."
        raise ModelError(Problem("forward", message, "unsupported", remedy=remedy))


def _named_group(agree_across: object) -> ProcessGroup | None:
    """Give the group that was named, if it was one."""
    if agree_across is None or agree_across == WRAPPERS:
        return None
    if dist.is_available() and isinstance(agree_across, dist.ProcessGroup):
        return agree_across
    message = f'must be a process group, "{WRAPPERS}" or None'
    remedy = "Of a device mesh, pass `mesh.get_group()`."
    raise ConsumerError(Problem("agree_across", message, "type", value=repr(agree_across), remedy=remedy))


def _require_no_model_needed(consumer: str | None, verify: bool, group: ProcessGroup | None) -> None:
    for given, message in (
        (consumer is not None, "there is no model to bind it to"),
        (verify, "there is no model to try"),
        (group is not None, "there is no model whose calls could agree"),
    ):
        if given:
            raise ConsumerError(Problem("model", message, "missing", remedy="Pass the built model as well."))


def _require_one_choice(group: ProcessGroup, choice: str) -> None:
    choices = gather(group, choice)
    rank = next((rank for rank, other in enumerate(choices) if other != choices[0]), None)
    if rank is not None:
        message = f"rank {rank} of the group chose {choices[rank]}, but rank 0 {choices[0]}"
        remedy = "Build the model with the same attention on every rank."
        raise CapabilitiesError(Problem("agree_across", message, "disagreement", remedy=remedy))


def _prove(model: nn.Module, binding: Binding) -> None:
    """Import the audit, which itself imports this module, only where a proof is asked for."""
    prove = import_module("neatpack.kernels_bridge.proof").prove
    prove(model, binding)


def _require_own_implementation(attn_implementation: str, model: nn.Module) -> None:
    """Refuse a name that contradicts the Hugging Face config by which the model's attention is dispatched."""
    require_known(attn_implementation, model)
    own = get_model_attn_implementation(model)
    by_config = interface_modules(model) and own == hf_implementation(model)
    name = mainline_name(unbound_name(attn_implementation))
    own_layers = name == NATIVE_FA4 and not declared_flag(model, "uses_hf_attention")
    if not by_config or own_layers or name == own:
        return
    message = f"the model runs with {own!r}, as its config says"
    remedy = "Pass `get_model_attn_implementation(model)`, or build the model with the attention that you name."
    raise CapabilitiesError(
        Problem("attn_implementation", message, "disagreement", value=repr(attn_implementation), remedy=remedy)
    )


def _require_modules(models: object) -> list[nn.Module]:
    if isinstance(models, Iterable):
        return [require_module(model) for model in cast("Iterable[object]", models)]
    remedy = "Pass a list of the built stages."
    raise ModelTypeError(
        Problem("models", "must be a sequence of torch.nn.Module", "type", value=type(models).__name__, remedy=remedy)
    )


def choose(attn_implementation: str, model: nn.Module, consumer: str | None) -> tuple[str, PackingCapabilities]:
    """Choose the consumer that would be bound, and say what its loader has to emit.

    It is the given one, or the first that takes the model in the form that its attention asks for, or the first that
    takes it at all: of a custom model it has to be known that this is right.

    Raises:
        CapabilitiesError: as `get_packing_capabilities`.
        ConsumerError: no consumer has the given name.
        ModelError: no consumer takes the model, or not the given one; the reasons are named.
    """
    name, capabilities = _choose_consumer(attn_implementation, model, consumer)
    return name, with_own_limits(capabilities, model)


def _choose_consumer(
    attn_implementation: str, model: nn.Module, consumer: str | None
) -> tuple[str, PackingCapabilities]:
    wanted = get_packing_capabilities(attn_implementation, model)
    if consumer is not None:
        decision = get_consumer(consumer).decide(model, attn_implementation)
        if isinstance(decision, Rejected):
            raise ModelError(_rejected(model, {consumer: decision.reason}))
        return consumer, decision.capabilities
    reasons: dict[str, str] = {}
    others: list[tuple[str, PackingCapabilities]] = []
    for name, decision in decisions(model, attn_implementation):
        if isinstance(decision, Rejected):
            reasons[name] = decision.reason
        elif decision.capabilities.packed_mask_type == wanted.packed_mask_type:
            return name, decision.capabilities
        elif decision.verified or text_config(model) is not None:
            others.append((name, decision.capabilities))
        else:
            reasons[name] = f"{decision.evidence}: ask for it by name to use it"
    if others:
        return next((each for each in others if each[0] != LAST_RESORT), others[0])
    raise ModelError(_rejected(model, reasons))


def _rejected(model: nn.Module, reasons: dict[str, str]) -> Problem:
    names_of: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names_of.setdefault(reason, []).append(name)
    listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in names_of.items())
    remedy = "`neatpack audit` shows which ways keep its documents apart."
    return Problem("model", f"no consumer takes {type(model).__name__} ({listed})", "unsupported", remedy=remedy)


def _require_varlen_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        return
    flash_utils = import_module("transformers.modeling_flash_attention_utils")
    parameters = inspect.signature(flash_utils._flash_attention_forward).parameters  # noqa: SLF001  # no public name
    missing = [name for name in FLASH_FIELDS if name not in parameters]
    if missing:
        message = f"the installed Transformers takes no {', '.join(missing)} in its flash attention"
        raise ModelError(Problem("transformers", message, "unsupported", remedy="Install transformers>=5."))
