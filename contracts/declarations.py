"""Reading what a built model declares: through any wrapper, by value, and without importing torch.

`validate_x` lists what is wrong with a declaration, `is_x` tells whether it holds, `parse_x` returns the model that
made it, with its wrappers taken off.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from typing_extensions import TypeIs

from neatpack.contracts.capabilities import flag_problems, validate_packed_mask_type, validate_position_policy
from neatpack.contracts.consumers import (
    HFAttentionConsumer,
    HolesConsumer,
    NativeFA4Consumer,
    PackedMaskConsumer,
    PackingMetadataConsumer,
    PositionPolicyConsumer,
    THDConsumer,
)
from neatpack.contracts.errors import CapabilitiesError, Problem

_WRAPPED_IN: Final = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper": "_checkpoint_wrapped_module",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
}
"""Where each wrapper of torch keeps the module that it wraps. A user's own submodule called `module` is no wrapper."""

_MISSING: Final = object()
_OLDER_NAMES: Final = {"uses_native_fa4": "_uses_native_fa4", "uses_hf_attention": "_uses_hf_attention"}
"""NeMo AutoModel's models declare these under a private name."""


def unwrap(model: object) -> object:
    """Take off every wrapper that torch put around a model: data parallel, sharded, compiled, checkpointed.

    Example:
        >>> class Model:
        ...     module = "a part of the user's own"
        >>> type(unwrap(Model())).__name__
        'Model'
    """
    while True:
        names = [f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__]
        inner = next((_WRAPPED_IN[name] for name in names if name in _WRAPPED_IN), None)
        if inner is None:
            return model
        model = getattr(model, inner)


def declared(model: object, name: str) -> object:
    """Read the declaration `name` of an unwrapped model, under its older private name too; None where there is none.

    Raises:
        CapabilitiesError: a property raised AttributeError, which Python would report as a missing attribute.

    Example:
        >>> class Model:
        ...     uses_native_fa4 = True
        >>> declared(Model(), "uses_native_fa4"), declared(Model(), "uses_thd")
        (True, None)
    """
    for spelling in (name, _OLDER_NAMES.get(name, name)):
        value = getattr(model, spelling, _MISSING)
        if value is not _MISSING:
            return value
        hidden = inspect.getattr_static(type(model), spelling, None)
        if isinstance(hidden, property) and hidden.fget is not None:
            _raise_cause(model, spelling, hidden.fget)
    return None


def validate_packed_mask_consumer(model: object) -> list[Problem]:
    """List what keeps `model` from being a `PackedMaskConsumer`.

    Example:
        >>> class Model:
        ...     packed_mask_type = "causal"
        >>> [(problem.field, problem.kind) for problem in validate_packed_mask_consumer(Model())]
        [('packed_mask_type', 'value')]
    """
    return _problems(model, "packed_mask_type", validate_packed_mask_type)


def is_packed_mask_consumer(model: object) -> TypeIs[PackedMaskConsumer]:
    """Tell whether `model`, or what its wrappers hold, declares a packed mask type.

    Example:
        >>> class Right:
        ...     packed_mask_type = "document_ids"
        >>> class Misspelt:
        ...     packed_mask_type = "document_id"
        >>> is_packed_mask_consumer(Right()), is_packed_mask_consumer(Misspelt())
        (True, False)
    """
    return not validate_packed_mask_consumer(model)


def parse_packed_mask_consumer(model: object) -> PackedMaskConsumer:
    """Return the unwrapped model, which declares a packed mask type.

    Raises:
        CapabilitiesError: it declares none, or one that does not exist.

    Example:
        >>> class Model:
        ...     packed_mask_type = "document_ids"
        >>> parse_packed_mask_consumer(Model()).packed_mask_type
        'document_ids'
    """
    return cast("PackedMaskConsumer", _parsed(model, validate_packed_mask_consumer(model)))


def validate_packing_metadata_consumer(model: object) -> list[Problem]:
    """List what keeps `model` from being a `PackingMetadataConsumer`.

    Example:
        >>> class Model:
        ...     requires_packed_sequence_metadata = "yes"
        >>> [(problem.field, problem.kind) for problem in validate_packing_metadata_consumer(Model())]
        [('requires_packed_sequence_metadata', 'type')]
    """
    return _problems(
        model, "requires_packed_sequence_metadata", partial(flag_problems, "requires_packed_sequence_metadata")
    )


def is_packing_metadata_consumer(model: object) -> TypeIs[PackingMetadataConsumer]:
    """Tell whether `model`, or what its wrappers hold, declares whether it reads NEAT metadata.

    Example:
        >>> class Model:
        ...     requires_packed_sequence_metadata = True
        >>> is_packing_metadata_consumer(Model()), is_packing_metadata_consumer(object())
        (True, False)
    """
    return not validate_packing_metadata_consumer(model)


def parse_packing_metadata_consumer(model: object) -> PackingMetadataConsumer:
    """Return the unwrapped model, which declares whether it reads NEAT metadata.

    Raises:
        CapabilitiesError: it declares nothing, or something other than a bool.

    Example:
        >>> class Model:
        ...     requires_packed_sequence_metadata = True
        >>> parse_packing_metadata_consumer(Model()).requires_packed_sequence_metadata
        True
    """
    return cast("PackingMetadataConsumer", _parsed(model, validate_packing_metadata_consumer(model)))


def validate_native_fa4_consumer(model: object) -> list[Problem]:
    """List what keeps `model` from being a `NativeFA4Consumer`.

    Example:
        >>> class Model:
        ...     uses_native_fa4 = 1
        >>> [(problem.field, problem.kind) for problem in validate_native_fa4_consumer(Model())]
        [('uses_native_fa4', 'type')]
    """
    return _flag_problems(model, "uses_native_fa4")


def is_native_fa4_consumer(model: object) -> TypeIs[NativeFA4Consumer]:
    """Tell whether `model`, or what its wrappers hold, declares whether it calls FlashAttention-4.

    Example:
        >>> class Model:
        ...     uses_native_fa4 = True
        >>> is_native_fa4_consumer(Model()), is_native_fa4_consumer(object())
        (True, False)
    """
    return not validate_native_fa4_consumer(model)


def parse_native_fa4_consumer(model: object) -> NativeFA4Consumer:
    """Return the unwrapped model, which declares whether it calls FlashAttention-4.

    Raises:
        CapabilitiesError: it declares nothing, or something other than a bool.

    Example:
        >>> class Model:
        ...     uses_native_fa4 = True
        >>> parse_native_fa4_consumer(Model()).uses_native_fa4
        True
    """
    return cast("NativeFA4Consumer", _parsed(model, validate_native_fa4_consumer(model)))


def validate_thd_consumer(model: object) -> list[Problem]:
    """List what keeps `model` from being a `THDConsumer`.

    Example:
        >>> class Model:
        ...     uses_thd = 1
        >>> [(problem.field, problem.kind) for problem in validate_thd_consumer(Model())]
        [('uses_thd', 'type')]
    """
    return _flag_problems(model, "uses_thd")


def is_thd_consumer(model: object) -> TypeIs[THDConsumer]:
    """Tell whether `model`, or what its wrappers hold, declares whether it takes lengths of one stream.

    Example:
        >>> class Model:
        ...     uses_thd = True
        >>> is_thd_consumer(Model()), is_thd_consumer(object())
        (True, False)
    """
    return not validate_thd_consumer(model)


def parse_thd_consumer(model: object) -> THDConsumer:
    """Return the unwrapped model, which declares whether it takes lengths of one stream.

    Raises:
        CapabilitiesError: it declares nothing, or something other than a bool.

    Example:
        >>> class Model:
        ...     uses_thd = True
        >>> parse_thd_consumer(Model()).uses_thd
        True
    """
    return cast("THDConsumer", _parsed(model, validate_thd_consumer(model)))


def validate_position_policy_consumer(model: object) -> list[Problem]:
    """List what keeps `model` from being a `PositionPolicyConsumer`.

    Example:
        >>> class Model:
        ...     position_policy = "row"
        >>> [(problem.field, problem.kind) for problem in validate_position_policy_consumer(Model())]
        [('position_policy', 'value')]
    """
    return _problems(model, "position_policy", validate_position_policy)


def is_position_policy_consumer(model: object) -> TypeIs[PositionPolicyConsumer]:
    """Tell whether `model`, or what its wrappers hold, declares a position policy.

    Example:
        >>> class Model:
        ...     position_policy = "sequence"
        >>> is_position_policy_consumer(Model()), is_position_policy_consumer(object())
        (True, False)
    """
    return not validate_position_policy_consumer(model)


def parse_position_policy_consumer(model: object) -> PositionPolicyConsumer:
    """Return the unwrapped model, which declares a position policy.

    Raises:
        CapabilitiesError: it declares none, or one that does not exist.

    Example:
        >>> class Model:
        ...     position_policy = "sequence"
        >>> parse_position_policy_consumer(Model()).position_policy
        'sequence'
    """
    return cast("PositionPolicyConsumer", _parsed(model, validate_position_policy_consumer(model)))


def validate_holes_consumer(model: object) -> list[Problem]:
    """List what keeps `model` from being a `HolesConsumer`.

    Example:
        >>> class Model:
        ...     takes_holes = 1
        >>> [(problem.field, problem.kind) for problem in validate_holes_consumer(Model())]
        [('takes_holes', 'type')]
    """
    return _flag_problems(model, "takes_holes")


def is_holes_consumer(model: object) -> TypeIs[HolesConsumer]:
    """Tell whether `model`, or what its wrappers hold, declares whether ids may have holes.

    Example:
        >>> class Model:
        ...     takes_holes = False
        >>> is_holes_consumer(Model()), is_holes_consumer(object())
        (True, False)
    """
    return not validate_holes_consumer(model)


def parse_holes_consumer(model: object) -> HolesConsumer:
    """Return the unwrapped model, which declares whether ids may have holes.

    Raises:
        CapabilitiesError: it declares nothing, or something other than a bool.

    Example:
        >>> class Model:
        ...     takes_holes = False
        >>> parse_holes_consumer(Model()).takes_holes
        False
    """
    return cast("HolesConsumer", _parsed(model, validate_holes_consumer(model)))


def validate_hf_attention_consumer(model: object) -> list[Problem]:
    """List what keeps `model` from being an `HFAttentionConsumer`.

    Example:
        >>> class Model:
        ...     uses_hf_attention = 1
        >>> [(problem.field, problem.kind) for problem in validate_hf_attention_consumer(Model())]
        [('uses_hf_attention', 'type')]
    """
    return _flag_problems(model, "uses_hf_attention")


def is_hf_attention_consumer(model: object) -> TypeIs[HFAttentionConsumer]:
    """Tell whether `model`, or what its wrappers hold, declares whether its Hugging Face config rules.

    Example:
        >>> class Model:
        ...     uses_hf_attention = True
        >>> is_hf_attention_consumer(Model()), is_hf_attention_consumer(object())
        (True, False)
    """
    return not validate_hf_attention_consumer(model)


def parse_hf_attention_consumer(model: object) -> HFAttentionConsumer:
    """Return the unwrapped model, which declares whether its Hugging Face config rules.

    Raises:
        CapabilitiesError: it declares nothing, or something other than a bool.

    Example:
        >>> class Model:
        ...     uses_hf_attention = True
        >>> parse_hf_attention_consumer(Model()).uses_hf_attention
        True
    """
    return cast("HFAttentionConsumer", _parsed(model, validate_hf_attention_consumer(model)))


def _problems(model: object, name: str, validate: Callable[[object], list[Problem]]) -> list[Problem]:
    try:
        return validate(declared(unwrap(model), name))
    except CapabilitiesError as error:
        return list(error.problems)


def _flag_problems(model: object, name: str) -> list[Problem]:
    return _problems(model, name, partial(flag_problems, name))


def _parsed(model: object, problems: list[Problem]) -> object:
    if problems:
        raise CapabilitiesError(*problems)
    return unwrap(model)


def _raise_cause(model: object, name: str, getter: Callable[[object], object]) -> None:
    try:
        getter(model)
    except AttributeError as cause:
        remedy = f"Correct the property `{name}` of {type(model).__name__}."
        raise CapabilitiesError(Problem(name, f"its property raised: {cause}", "value", remedy=remedy)) from cause
