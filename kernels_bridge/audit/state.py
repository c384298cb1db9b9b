"""A model, borrowed and given back: its parameters, buffers, gradients, hooks, mode and attributes, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.random_state import preserved_generators
from neatpack.kernels_bridge.audit.undoing import undo_by
from neatpack.kernels_bridge.binding import get_binding

Undo = Callable[[], None]


@contextmanager
def preserved(model: nn.Module, gradients: bool = True) -> Generator[None, None, None]:
    """Within, the model may be called, switched between modes and changed; afterwards it is as it was.

    Kept are the attributes of every module, what lists, dicts and sets among them hold, and the values of buffers,
    gradients and other tensors that modules keep. Parameters are kept by reference: whoever writes to one keeps its
    values (see `redrawn_zeros`).

    Args:
        model: the model.
        gradients: whether to keep gradients as well. Within `torch.no_grad` there is no need to.
    """
    with ExitStack() as undo, preserved_generators():
        for module in model.modules():
            _keep_attributes(undo, module)
        binding = get_binding(model)
        if binding is not None:
            _keep_attributes(undo, binding)
        for parameter in model.parameters() if gradients else ():
            if parameter.grad is not None:
                _keep_values(undo, parameter.grad)
            undo_by(undo, setattr, parameter, "grad", parameter.grad)
            undo_by(undo, parameter.requires_grad_, parameter.requires_grad)
        yield


@contextmanager
def redrawn_zeros(model: nn.Module) -> Generator[tuple[str, ...], None, None]:
    """Within, parameters that are all zero hold small random numbers, so that no gate of zeros hides a leak.

    Gives their names.
    """
    generator = torch.Generator().manual_seed(0)
    names: list[str] = []
    with ExitStack() as undo, torch.no_grad():
        for name, parameter in model.named_parameters():
            plain = type(parameter.data) is Tensor and parameter.is_floating_point() and not parameter.is_meta
            if plain and parameter.numel() and not parameter.any():
                values = parameter.data
                _keep_values(undo, values)
                width = parameter.shape[-1] if parameter.ndim > 1 else 1
                values.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 / width**0.5)
                names.append(name)
        with torch.enable_grad():
            yield tuple(names)


def _keep_attributes(undo: ExitStack, holder: object) -> None:
    """Keep what an object's attributes are, and what the containers and plain tensors among them hold."""
    attributes = cast("dict[object, object]", holder.__dict__)
    before = dict(attributes)
    undo_by(undo, set_back, attributes, before)
    for value in before.values():
        if isinstance(value, dict):
            entries = cast("dict[object, object]", value)
            undo_by(undo, set_back, entries, entries.copy())
            for entry in entries.values():
                if isinstance(entry, Tensor) and not isinstance(entry, nn.Parameter):
                    _keep_values(undo, entry)
        elif isinstance(value, list):
            values = cast("list[object]", value)
            undo_by(undo, values.__setitem__, slice(None), values.copy())
        elif isinstance(value, set):
            members = cast("set[object]", value)
            undo_by(undo, _refill, members, members.copy())
        elif isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            _keep_values(undo, value)


def _keep_values(undo: ExitStack, tensor: Tensor) -> None:
    """Write the values of a tensor back if anything has been written to it, and else leave it alone."""
    if tensor.is_meta:
        return
    own = tensor.detach()
    values = own.clone()

    def write_back() -> None:
        if not torch.equal(own.nan_to_num(), values.nan_to_num()) or bool((own.isnan() ^ values.isnan()).any()):
            own.copy_(values)

    undo_by(undo, write_back)


def set_back(entries: dict[object, object], before: dict[object, object]) -> None:
    """Give a dict the entries that it had, in their order; one that has them still is not touched."""
    same = len(entries) == len(before) and all(
        one is other and value is kept
        for (one, value), (other, kept) in zip(entries.items(), before.items(), strict=True)
    )
    if not same:
        entries.clear()
        entries.update(before)


def _refill(members: set[object], before: set[object]) -> None:
    members.clear()
    members.update(before)
