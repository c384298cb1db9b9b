"""Setting an attention function for one Hugging Face model, and taking it back without a trace.

The function goes, under a name of its own, into the `ALL_ATTENTION_FUNCTIONS` that the model's own modeling module
uses, through the mapping interface: its `register` has no undo. The text config is pointed at that name. Both are
counted, because models share registries and may share a config; with the last binding the function is deleted and
the config restored. A dropped model counts as removed. Transformers itself is never imported here: where there is a
model of it, it is there.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Final, TypeAlias, cast

from torch import Tensor, nn

from neatpack.contracts.errors import BoundariesMissingError, Problem
from neatpack.kernels_bridge.models import bound_name, text_config, unbound_name

HFAttentionFunction: TypeAlias = Callable[..., tuple[Tensor, Tensor | None]]
"""`(module, query, key, value, attention_mask, **options)`, with states `[batch, heads, sequence, head_dim]`."""

GuardedFunction: TypeAlias = Callable[..., tuple[Tensor, Tensor | None]]
"""An `HFAttentionFunction` that takes the name of the implementation it stands before as its first argument."""

_Interface: TypeAlias = MutableMapping[str, HFAttentionFunction]
_INTERFACE: Final = "ALL_ATTENTION_FUNCTIONS"
_FIELD: Final = "_attn_implementation_internal"


@dataclass
class _Use:
    count: int
    name: str
    original: object = None


_LOCK: Final = threading.RLock()
_FUNCTIONS: Final[dict[tuple[int, str], _Use]] = {}
"""Bindings per interface, by identity, and name. Modeling modules keep their interface for good."""
_CONFIGS: Final[dict[int, _Use]] = {}
"""Bindings per config, by identity; whoever is counted keeps the config alive."""


class HFAttachment:
    """One model's use of a bound attention function: registered, its config pointed at it.

    It can be pickled and copied; a copy registers itself for the copied config.
    """

    counts_calls = True

    def __init__(
        self, consumer: str, function: GuardedFunction, implementation: str, modules: tuple[str, ...], config: object
    ) -> None:
        self.name: str = bound_name(consumer, implementation)
        self._arguments = (consumer, function, implementation, modules, config)
        with _LOCK, ExitStack() as undo:
            _point(config, self.name)
            undo.callback(_restore, config, self.name)
            for interface in _interfaces(modules):
                _register(interface, self.name, partial(function, implementation))
                undo.callback(_unregister, interface, self.name)
            undo.pop_all()
        self._release = weakref.finalize(self, _release, modules, self.name, config)
        self._release.atexit = False

    def __reduce__(self) -> tuple[type[HFAttachment], tuple[object, ...]]:
        return HFAttachment, self._arguments

    def pause(self) -> None:
        """Let the model compute with the implementation that it was built with."""
        *_, implementation, _modules, config = self._arguments
        if getattr(config, _FIELD) == self.name:
            setattr(config, _FIELD, implementation)

    def resume(self) -> None:
        """Point the config at the function again, unless someone has chosen another implementation meanwhile."""
        *_, implementation, _modules, config = self._arguments
        if self._release.alive and getattr(config, _FIELD) == implementation:
            setattr(config, _FIELD, self.name)

    def detach(self) -> None:
        """Take the function and the name in the config back, if no other binding needs them."""
        self._release()


def attach_function(consumer: str, function: GuardedFunction, model: nn.Module) -> HFAttachment:
    """Bind `function` to a model that `interface_modules` finds an interface for.

    Args:
        consumer: name of the consumer, which becomes part of the function's name.
        function: importable by name, so that a binding can be pickled.
        model: an unwrapped Hugging Face model.
    """
    config = text_config(model)
    implementation = unbound_name(str(getattr(config, _FIELD)))
    return HFAttachment(consumer, function, implementation, interface_modules(model), config)


def interface_modules(model: nn.Module) -> tuple[str, ...]:
    """Name the modeling modules of the model's text layers that dispatch attention through an interface.

    Empty where there is none: the model computes its attention itself, and nothing can be set.
    """
    config = text_config(model)
    if config is None or not hasattr(config, _FIELD):
        return ()
    found = (
        base.__module__
        for layer in model.modules()
        if getattr(layer, "config", None) is config
        for base in type(layer).__mro__
        if base.__module__ != "transformers.modeling_utils" and hasattr(sys.modules.get(base.__module__), _INTERFACE)
    )
    return tuple(sorted(set(found)))


def reason_held_inside(model: nn.Module) -> str | None:
    """Say which part of a module is a Hugging Face model, where it is none itself; None where no part is."""
    if text_config(model) is not None:
        return None
    parts = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    held = next((name for name, part in parts if interface_modules(part)), None)
    if held is None:
        return None
    return f"it only holds a Hugging Face model, `{held}`: configure that one, as configure_packing(..., model.{held})"


def bound_users(model: nn.Module) -> tuple[int, str]:
    """Count the living bindings that point the model's config at a function, and name that function."""
    use = _CONFIGS.get(id(text_config(model)))
    return (0, "") if use is None else (use.count, use.name)


def inner_function(module: nn.Module, implementation: str) -> HFAttentionFunction:
    """Find what a layer would have called without a binding: a registered function, or its file's own eager one.

    Args:
        module: the attention layer.
        implementation: as in its config before the binding.
    """
    for base in type(module).__mro__:
        home = sys.modules.get(base.__module__)
        interface = getattr(home, _INTERFACE, None)
        if interface is None:
            continue
        if implementation in interface:
            return cast("HFAttentionFunction", interface[implementation])
        eager: HFAttentionFunction | None = getattr(home, "eager_attention_forward", None)
        if eager is not None:
            return eager
    raise missing_boundaries(module, f"the {implementation} attention function of {type(module).__module__}")


def missing_boundaries(module: nn.Module, what: str) -> BoundariesMissingError:
    """Make the error of an attention function to which the boundaries did not come."""
    remedy = (
        "Call the bound model itself, with _packed_seq_ids, and not its forward or a part of it. A model that shares "
        "its config with a bound one needs a config of its own. If neither is the case, a layer of this family does "
        "not pass keyword arguments on: choose another consumer."
    )
    layer = type(module).__name__
    return BoundariesMissingError(Problem(what, f"did not arrive at {layer}", "missing", remedy=remedy))


def _interfaces(modules: tuple[str, ...]) -> list[_Interface]:
    """Give the interfaces of modeling modules; most modules share one."""
    found = [cast("_Interface", getattr(import_module(module), _INTERFACE)) for module in modules]
    return list({id(interface): interface for interface in found}.values())


def _register(interface: _Interface, name: str, function: HFAttentionFunction) -> None:
    use = _FUNCTIONS.setdefault((id(interface), name), _Use(0, name))
    use.count += 1
    if use.count == 1:
        interface[name] = function


def _point(config: object, name: str) -> None:
    current: object = getattr(config, _FIELD)
    original = unbound_name(current) if isinstance(current, str) else current
    setattr(config, _FIELD, name)
    _CONFIGS.setdefault(id(config), _Use(0, name, original)).count += 1


def _release(modules: tuple[str, ...], name: str, config: object) -> None:
    with _LOCK:
        for interface in _interfaces(modules):
            _unregister(interface, name)
        _restore(config, name)


def _unregister(interface: _Interface, name: str) -> None:
    use = _FUNCTIONS[id(interface), name]
    use.count -= 1
    if use.count == 0:
        del _FUNCTIONS[id(interface), name], interface[name]


def _restore(config: object, name: str) -> None:
    use = _CONFIGS[id(config)]
    use.count -= 1
    if use.count == 0:
        del _CONFIGS[id(config)]
        if getattr(config, _FIELD) == name:
            setattr(config, _FIELD, use.original)
