"""Where documents begin to mix: the first module whose output moves at a document whose input did not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Literal, cast

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.documents import Place

MixingKind = Literal["attention", "convolution", "recurrence", "mixing"]

_NAMES: Final[Mapping[MixingKind, tuple[str, ...]]] = {
    "convolution": ("conv",),
    "attention": ("attention", "attn"),
    "recurrence": ("mamba", "mixer", "ssm", "recurrent", "delta", "rwkv", "lstm", "gru", "rnn", "lru"),
}
"""What the classes of modules that mix tokens are called."""


@dataclass(frozen=True)
class Origin:
    """The innermost module at which one document first reaches another.

    Attributes:
        module: its path in the model; empty for the model itself.
        class_name: its class.
    """

    module: str
    class_name: str

    @property
    def kind(self) -> MixingKind:
        """What mixes tokens there, as far as the module's name tells."""
        name = self.class_name.lower()
        return next((kind for kind, words in _NAMES.items() if any(word in name for word in words)), "mixing")

    def __str__(self) -> str:
        return f"{self.module or 'the model itself'} ({self.class_name})"


@dataclass
class _Record:
    """What went into one call of a module and came out of it, at the tokens of one document."""

    name: str
    class_name: str
    given: list[Tensor]
    returned: list[Tensor]


def find_origin(
    model: nn.Module, before: Callable[[], object], after: Callable[[], object], target: Place, sequence: int
) -> Origin:
    """Find where a change of one document first reaches another.

    Args:
        model: the model that `before` and `after` call.
        before: calls the model on the documents as they are.
        after: calls it with the source document changed.
        target: the document that moves although it was not changed.
        sequence: places per row, by which the axis of tokens is known.
    """
    records = zip(_trace(model, before, target, sequence), _trace(model, after, target, sequence), strict=False)
    # Calls are recorded as they return, so that inner modules come before those that hold them.
    for one, other in records:
        same_input = bool(one.given) and one.name == other.name and not _differ(one.given, other.given)
        if same_input and _differ(one.returned, other.returned):
            return Origin(one.name, one.class_name)
    return Origin("", type(model).__name__)


def _trace(model: nn.Module, run: Callable[[], object], target: Place, sequence: int) -> list[_Record]:
    records: list[_Record] = []

    def record_as(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            given = _at_document((*args, *kwargs.values()), target, sequence)
            returned = _at_document(output if isinstance(output, tuple) else (output,), target, sequence)
            records.append(_Record(name, type(module).__name__, given, returned))

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                handle = module.register_forward_hook(record_as(name), with_kwargs=True)
                stack.callback(handle.remove)
        run()
    return records


def _at_document(values: object, target: Place, sequence: int) -> list[Tensor]:
    """Cut the floating tensors `[batch, sequence, ...]` and `[batch, channels, sequence, ...]` to one document."""
    tensors = [value for value in cast("tuple[object, ...]", values) if isinstance(value, Tensor)]
    parts: list[Tensor] = []
    for tensor in tensors:
        axis = next((axis for axis in (1, 2) if tensor.ndim > axis and tensor.shape[axis] >= sequence), None)
        if tensor.is_floating_point() and axis is not None and tensor.shape[0] > target.row:
            parts.append(tensor[target.row].narrow(axis - 1, target.start, target.length).detach().clone())
    return parts


def _differ(one: list[Tensor], other: list[Tensor]) -> bool:
    return any(not torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(one, other, strict=False))
