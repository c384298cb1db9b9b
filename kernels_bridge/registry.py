"""The registry of consumers: named objects that bind models to an attention path, in order of preference."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Final, TypeAlias

from torch import nn

from neatpack.contracts.errors import ConsumerError, Problem
from neatpack.contracts.kernels import CONSUMER_NAMES, AttentionConsumer, Decision
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.models import get_model_attn_implementation, require_module
from neatpack.kernels_bridge.spelling import suggest

Consumer: TypeAlias = AttentionConsumer[nn.Module, PackedCall]

_REGISTERED: Final[dict[str, Consumer | None]] = dict.fromkeys(CONSUMER_NAMES)
"""By name, in order of preference; None where neatpack's own has not been imported yet."""
_MEMBERS: Final = ("name", "decide", "attach", "derive")


def register_consumer(consumer: Consumer, *, replace: bool = False) -> None:
    """Add a consumer, last in the order of preference.

    Args:
        consumer: an object with a `name`, `decide`, `attach` and `derive`.
        replace: whether it may take the place of the consumer that has its name.

    Raises:
        ConsumerError: it lacks one of these, its name is no plain word, or is taken and `replace` is False.
    """
    name = _checked_name(consumer)
    if name in _REGISTERED and not replace:
        remedy = "Choose another name, or pass replace=True to take its place on purpose."
        raise ConsumerError(Problem("name", "a consumer has this name already", "value", value=name, remedy=remedy))
    _REGISTERED[name] = consumer


def unregister_consumer(name: str) -> None:
    """Remove a consumer. Models that are bound to it stay bound.

    Raises:
        ConsumerError: no consumer has this name.
    """
    _require_known(name)
    del _REGISTERED[name]


def get_consumer(name: str) -> Consumer:
    """Return a consumer by name. It is imported now if it has not been needed before.

    Raises:
        ConsumerError: no consumer has this name; the nearest is named, or all where none is near.

    Example:
        >>> get_consumer("reference").name
        'reference'
    """
    _require_known(name)
    consumer = _REGISTERED[name]
    if consumer is None:
        consumer = _own_consumer(name)
        _REGISTERED[name] = consumer
    return consumer


def consumer_names() -> tuple[str, ...]:
    """Name the registered consumers in order of preference.

    Example:
        >>> consumer_names()
        ('declared', 'hf_flash', 'block_causal', 'reference')
    """
    return tuple(_REGISTERED)


@contextmanager
def use_consumer(consumer: Consumer) -> Generator[None, None, None]:
    """Register a consumer for the length of a `with` block, in place of the one that has its name.

    Raises:
        ConsumerError: it is no consumer, or its name is no plain word.
    """
    before = dict(_REGISTERED)
    register_consumer(consumer, replace=True)
    try:
        yield
    finally:
        _REGISTERED.clear()
        _REGISTERED.update(before)


def decide(model: nn.Module, attn_implementation: str | None = None) -> list[tuple[str, Decision]]:
    """Ask every consumer whether it takes a model, in order of preference. Nothing is changed.

    Args:
        model: a built module, in any wrapper of torch.
        attn_implementation: what it runs with; read from the model where None.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.
        CapabilitiesError: a declaration of the model is not one.
    """
    inner = require_module(model)
    implementation = attn_implementation or get_model_attn_implementation(inner)
    return [(name, get_consumer(name).decide(inner, implementation)) for name in consumer_names()]


def _require_known(name: object) -> None:
    if isinstance(name, str) and name in _REGISTERED:
        return
    remedy = suggest(name, _REGISTERED) if isinstance(name, str) else "Pass a name, such as 'reference'."
    raise ConsumerError(Problem("consumer", "no consumer has this name", "value", value=repr(name), remedy=remedy))


def _checked_name(consumer: object) -> str:
    missing = [member for member in _MEMBERS if not hasattr(consumer, member)]
    if missing:
        message = f"is no consumer: it has no {', '.join(missing)}"
        remedy = f"Pass an object with {', '.join(_MEMBERS)}."
        raise ConsumerError(Problem("consumer", message, "type", value=repr(consumer), remedy=remedy))
    name: object = getattr(consumer, "name", None)
    if isinstance(name, str) and name.isidentifier():
        return name
    remedy = "Use letters, digits and underscores: it becomes part of an attention function's name."
    raise ConsumerError(Problem("name", "is no plain word", "value", value=repr(name), remedy=remedy))


def _own_consumer(name: str) -> Consumer:
    consumer: Consumer = import_module(f"neatpack.kernels_bridge.consumers.{name}").CONSUMER
    return consumer
