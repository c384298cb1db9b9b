"""A model, borrowed and given back: its parameters, buffers, gradients, hooks, mode and attributes, bit for bit."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.borrowing import Borrowed
from neatpack.kernels_bridge.audit.random_state import borrow_other_generators
from neatpack.kernels_bridge.binding import get_binding


def borrow_model(borrowed: Borrowed, model: nn.Module, gradients: bool = True) -> None:
    """Let a model be called, switched between modes and changed until it is given back, when it is as it was.

    Kept are the attributes of every module and its config, what lists, dicts and sets among them hold, and the values
    of buffers, gradients and other tensors that modules keep. Parameters are kept by reference: whoever writes to one
    keeps its values (see `redraw_zeros`).

    Args:
        borrowed: gives it back.
        model: the model.
        gradients: whether to keep gradients as well. Within `torch.no_grad` there is no need to.
    """
    borrow_other_generators(borrowed)
    configs: dict[int, object] = {}
    for module in model.modules():
        _keep_attributes(borrowed, module)
        config: object = vars(module).get("config")
        if hasattr(config, "__dict__"):
            configs[id(config)] = config
    for config in configs.values():  # which a forward may change, and a binding does
        _keep_attributes(borrowed, config)
    binding = get_binding(model)
    if binding is not None:
        _keep_attributes(borrowed, binding)
    for parameter in model.parameters() if gradients else ():
        if parameter.grad is not None:
            _keep_values(borrowed, parameter.grad)
        borrowed.undo_by(setattr, parameter, "grad", parameter.grad)
        borrowed.undo_by(parameter.requires_grad_, parameter.requires_grad)


def redraw_zeros(borrowed: Borrowed, model: nn.Module) -> None:
    """Let parameters that are all zero hold small random numbers until they are given back, so that no gate of zeros
    hides a leak."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        plain = type(parameter.data) is Tensor and parameter.is_floating_point() and not parameter.is_meta
        if plain and parameter.numel() and not parameter.any():
            values = parameter.data
            _keep_values(borrowed, values)
            width = parameter.shape[-1] if parameter.ndim > 1 else 1
            values.copy_(torch.randn(parameter.shape, generator=generator, device="cpu") * 0.5 / width**0.5)


def _keep_attributes(borrowed: Borrowed, holder: object) -> None:
    """Keep what an object's attributes are, and what the containers and plain tensors among them hold."""
    attributes = cast("dict[object, object]", holder.__dict__)
    before = dict(attributes)
    borrowed.undo_by(set_back, attributes, before)
    for value in before.values():
        if isinstance(value, dict):
            entries = cast("dict[object, object]", value)
            borrowed.undo_by(set_back, entries, entries.copy())
            for entry in entries.values():
                if isinstance(entry, Tensor) and not isinstance(entry, nn.Parameter):
                    _keep_values(borrowed, entry)
        elif isinstance(value, list):
            values = cast("list[object]", value)
            borrowed.undo_by(values.__setitem__, slice(None), values.copy())
        elif isinstance(value, set):
            members = cast("set[object]", value)
            borrowed.undo_by(_refill, members, members.copy())
        elif isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            _keep_values(borrowed, value)


def _keep_values(borrowed: Borrowed, tensor: Tensor) -> None:
    """Write the values of a tensor back if anything has been written to it, and else leave it alone."""
    if tensor.is_meta:
        return
    own = tensor.detach()
    values = own.clone()

    def write_back() -> None:
        if not torch.equal(own.nan_to_num(), values.nan_to_num()) or bool((own.isnan() ^ values.isnan()).any()):
            own.copy_(values)

    borrowed.undo_by(write_back)


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
