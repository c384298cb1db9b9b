"""The registry of consumers: named objects that bind models to an attention path, in order of preference.

neatpack's own are listed in `neatpack.contracts.kernels`, each in a module of its name. Others are registered in code,
or named by an installed distribution under the entry point group `neatpack.consumers`. Nothing is imported until that
consumer is needed: names are read from the metadata of distributions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module, metadata
from typing import Final, TypeAlias, cast

from torch import nn

from neatpack.contracts.errors import ConsumerError, PackingError, Problem
from neatpack.contracts.kernels import CONSUMER_NAMES, PREFERENCE, Accepted, AttentionConsumer, Decision, Rejected
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.models import get_model_attn_implementation, require_module
from neatpack.kernels_bridge.spelling import suggest

Consumer: TypeAlias = AttentionConsumer[nn.Module, PackedCall]

ENTRY_POINTS: Final = "neatpack.consumers"
"""The entry point group in which a distribution names its consumers."""

_MEMBERS: Final = ("name", "decide", "attach", "derive")


@dataclass
class _Entry:
    """One consumer under one name.

    Attributes:
        origin: who registered it, for errors.
        load: imports it.
        on_purpose: whether it takes the place of whatever else has its name.
        consumer: itself, once it has been needed.
    """

    origin: str
    load: Callable[[], Consumer]
    on_purpose: bool = False
    consumer: Consumer | None = None

    def get(self) -> Consumer:
        if self.consumer is None:
            self.consumer = self.load()
        return self.consumer


def _own_consumer(name: str) -> Consumer:
    consumer: Consumer = import_module(f"neatpack.kernels_bridge.consumers.{name}").CONSUMER
    return consumer


_REGISTERED: Final[dict[str, _Entry]] = {
    name: _Entry("neatpack", partial(_own_consumer, name)) for name in CONSUMER_NAMES
}
"""neatpack's own and those registered in code, by name, in order of preference."""


def register_consumer(consumer: Consumer, *, replace: bool = False) -> None:
    """Add a consumer, last in the order of preference of those that are not installed as plugins.

    Args:
        consumer: an object with a `name`, `decide`, `attach` and `derive`.
        replace: whether it may take the place of what has its name.

    Raises:
        ConsumerError: it lacks one of these, its name is no plain word, or is taken and `replace` is False; both are
            named.

    Example:
        >>> from neatpack.contracts.capabilities import PackingCapabilities
        >>> from neatpack.kernels_bridge.attachments import NothingAttached
        >>> class Lengths:
        ...     name = "lengths"
        ...     def decide(self, model, attn_implementation): return Accepted(PackingCapabilities("document_ids"))
        ...     def attach(self, model): return NothingAttached()
        ...     def derive(self, model, call): return {"seqlens": call.segments.lengths.tolist()}
        >>> register_consumer(Lengths())
        >>> "lengths" in consumer_names()
        True
        >>> unregister_consumer("lengths")
    """
    name = _checked_name(consumer)
    entry = _Entry(f"{type(consumer).__module__}.{type(consumer).__qualname__}", lambda: consumer, replace, consumer)
    taken = [] if replace else _entries(name)
    if taken:
        raise ConsumerError(_taken(name, [*taken, entry]))
    _REGISTERED[name] = entry


def unregister_consumer(name: str) -> None:
    """Remove a consumer that is neatpack's own or was registered in code. Models that are bound to it stay bound.

    Raises:
        ConsumerError: no consumer has this name, or an installed distribution brings it.

    Example:
        >>> unregister_consumer("no_such_consumer")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.ConsumerError: consumer = 'no_such_consumer': no consumer has this name. Known are ...
    """
    origin = _known_entries(name)[0].origin
    if name not in _REGISTERED:
        remedy = "Uninstall the distribution, or replace its consumer with register_consumer(..., replace=True)."
        raise ConsumerError(Problem("consumer", f"comes from {origin}", "unsupported", value=repr(name), remedy=remedy))
    del _REGISTERED[name]


def get_consumer(name: str) -> Consumer:
    """Return a consumer by name. It is imported now if it has not been needed before.

    Raises:
        ConsumerError: no consumer has this name, and the nearest is named, or all where none is near; several have it,
            and none was meant to replace the others; or its distribution cannot be imported.

    Example:
        >>> get_consumer("reference").name
        'reference'
    """
    return _entry(name).get()


def consumer_names() -> tuple[str, ...]:
    """Name the consumers in order of preference: neatpack's own, those registered in code, those installed.

    Example:
        >>> consumer_names()[:3]
        ('native_fa4', 'thd', 'declared')
    """
    return tuple(dict.fromkeys((*_REGISTERED, *sorted(_plugins()))))


def preference(name: str) -> str:
    """Say why a consumer stands where it does in the order of preference.

    Raises:
        ConsumerError: no consumer has this name, or several have it.

    Example:
        >>> preference("reference")
        'runs anywhere, slowly: when nothing else takes the model'
    """
    entry = _entry(name)
    own = next((reason for known, reason in PREFERENCE.items() if known == name), "")
    return own if entry.origin == "neatpack" else f"after neatpack's own: from {entry.origin}"


@contextmanager
def use_consumer(consumer: Consumer) -> Generator[None, None, None]:
    """Register a consumer for the length of a `with` block, in place of the one that has its name.

    Raises:
        ConsumerError: it is no consumer, or its name is no plain word.

    Example:
        >>> own = get_consumer("reference")
        >>> with use_consumer(own):
        ...     get_consumer("reference") is own
        True
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

    A consumer of others that cannot be imported, or whose `decide` fails, is reported as rejected, with the error.

    Args:
        model: a built module, in any wrapper of torch.
        attn_implementation: what it runs with; read from the model where None.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.
        CapabilitiesError: a declaration of the model is not one.

    Example:
        >>> name, decision = decide(nn.Linear(2, 2))[0]
        >>> name, type(decision).__name__
        ('native_fa4', 'Rejected')
    """
    inner = require_module(model)
    return list(decisions(inner, attn_implementation or get_model_attn_implementation(inner)))


def decisions(model: nn.Module, attn_implementation: str) -> Iterator[tuple[str, Decision]]:
    """Ask one consumer after the other, as `decide` does. Those that are not reached are not imported.

    Args:
        model: an unwrapped module.
        attn_implementation: what it runs with.
    """
    return ((name, _ask(name, model, attn_implementation)) for name in consumer_names())


def _ask(name: str, model: nn.Module, implementation: str) -> Decision:
    try:
        entry = _entry(name)
        consumer = entry.get()
    except ConsumerError as error:
        return Rejected(str(error))
    if entry.origin == "neatpack":
        return consumer.decide(model, implementation)
    try:
        decision = cast("object", consumer.decide(model, implementation))
    except PackingError:
        raise
    except Exception as error:  # noqa: BLE001  # the code of others; it must not keep the rest from being asked
        return Rejected(f"its decide raised {type(error).__name__}: {error}")
    if isinstance(decision, (Accepted, Rejected)):
        return decision
    return Rejected(f"its decide returned {type(decision).__name__}, and neither Accepted nor Rejected")


def _entry(name: str) -> _Entry:
    """Find the one consumer that `name` means."""
    entries = _known_entries(name)
    if len(entries) > 1:
        raise ConsumerError(_taken(name, entries))
    return entries[0]


def _entries(name: str) -> list[_Entry]:
    registered = _REGISTERED.get(name)
    if registered is not None and registered.on_purpose:
        return [registered]
    return [*([registered] if registered else []), *_plugins().get(name, ())]


def _taken(name: str, entries: list[_Entry]) -> Problem:
    remedy = "Rename or uninstall one, or register the one you mean with replace=True."
    origins = " and ".join(entry.origin for entry in entries)
    return Problem("name", f"is the name of several consumers: of {origins}", "value", value=repr(name), remedy=remedy)


def _plugins() -> dict[str, tuple[_Entry, ...]]:
    return _plugins_on(tuple(sys.path))


@lru_cache(maxsize=8)
def _plugins_on(_path: tuple[str, ...]) -> dict[str, tuple[_Entry, ...]]:
    """Read what the distributions on a path bring, without importing any of it."""
    found: dict[str, tuple[_Entry, ...]] = {}
    for name, entry in _installed():
        found[name] = (*found.get(name, ()), entry)
    return found


def _installed() -> Iterator[tuple[str, _Entry]]:
    for point in metadata.entry_points(group=ENTRY_POINTS):
        distribution = point.dist
        by = "an unnamed distribution" if distribution is None else f"{distribution.name} {distribution.version}"
        origin = f"{by} ({point.value})"
        yield point.name, _Entry(origin, partial(_load_plugin, point, origin))


def _load_plugin(point: metadata.EntryPoint, origin: str) -> Consumer:
    remedy = "Repair or uninstall that distribution."
    try:
        loaded: object = point.load()
    except (Exception, SystemExit) as error:
        message = f"cannot be loaded from {origin}: {type(error).__name__}: {error}"
        raise ConsumerError(Problem("consumer", message, "missing", value=repr(point.name), remedy=remedy)) from error
    try:
        name = _checked_name(loaded)
    except ConsumerError as error:
        raise ConsumerError(Problem("consumer", f"from {origin}: {error}", "type", remedy=remedy)) from error
    if name != point.name:
        message = f"is called {name!r} by itself, in {origin}"
        raise ConsumerError(Problem("consumer", message, "disagreement", value=repr(point.name), remedy=remedy))
    return cast("Consumer", loaded)


def _known_entries(name: object) -> list[_Entry]:
    entries = _entries(name) if isinstance(name, str) else []
    if entries:
        return entries
    names = consumer_names()
    remedy = suggest(name, names) if isinstance(name, str) else "Pass a name, such as 'reference'."
    raise ConsumerError(Problem("consumer", "no consumer has this name", "value", value=repr(name), remedy=remedy))


def _checked_name(consumer: object) -> str:
    missing = [member for member in _MEMBERS if not hasattr(consumer, member)]
    if missing or isinstance(consumer, type):
        message = f"is no consumer: it has no {', '.join(missing)}" if missing else "is a class, and not a consumer"
        remedy = f"Pass an object with {', '.join(_MEMBERS)}."
        raise ConsumerError(Problem("consumer", message, "type", value=repr(consumer), remedy=remedy))
    name: object = getattr(consumer, "name", None)
    if isinstance(name, str) and name.isidentifier():
        return name
    remedy = "Use letters, digits and underscores: it becomes part of an attention function's name."
    raise ConsumerError(Problem("name", "is no plain word", "value", value=repr(name), remedy=remedy))
