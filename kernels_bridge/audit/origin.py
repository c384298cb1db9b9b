"""Where documents begin to mix: the first module whose output moves at a document whose input did not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from neatpack.kernels_bridge.audit.documents import Place

MixingKind = Literal["attention", "convolution", "recurrence", "token_shift", "router", "mixing"]

_NAMES: Final[tuple[tuple[MixingKind, tuple[str, ...]], ...]] = (
    ("convolution", ("conv",)),
    ("recurrence", ("delta", "mamba", "mixer", "ssm", "rwkv", "lstm", "gru", "rnn", "lru")),
    ("attention", ("attention", "attn")),
    ("recurrence", ("recurren", "retention", "scan")),
)
"""What the classes of modules that mix tokens are called; the first match holds."""

_ROUTERS: Final = ("router", "moe", "expert")
"""What the classes of modules that send tokens to experts are called."""

_SCORES: Final = "scores of pairs of tokens"
"""What a product of matrices is called that has an entry for every pair of tokens."""

_PRODUCTS: Final = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})

_SUMS: Final = frozenset({"cumsum", "cumprod", "logcumsumexp"})
"""Sums over all earlier tokens: states, where they are not of whole numbers, which count places."""

_OPERATIONS: Final[tuple[tuple[MixingKind, frozenset[str]], ...]] = (
    # A product of Fourier transforms, turned back, is a convolution; a transform alone is none.
    ("convolution", frozenset({"conv1d", "conv2d", "unfold", "fft_irfft", "fft_ifft"})),
    ("attention", frozenset({"scaled_dot_product_attention", _SCORES})),
    ("router", frozenset({"topk", "one_hot", "argmax", "bincount"})),  # which may take a softmax or a sum, too
    ("attention", frozenset({"softmax"})),
    ("recurrence", _SUMS | {"lstm", "gru", "rnn_tanh", "rnn_relu"}),
)
"""What torch calls the functions by which tokens are mixed, for modules whose names tell nothing."""

_PADDED: Final = 8
"""Places that a convolution or a whole number of windows may add."""


@dataclass(frozen=True)
class Origin:
    """The innermost module at which one document first reaches another.

    Attributes:
        module: its path in the model; empty for the model itself.
        class_name: its class.
        moved: which tokens of the reached document move in its output, counted from the first of the document; empty
            where that cannot be told.
        operations: the functions of torch that it calls, where its names tell nothing.
        within: the classes of the modules that it is part of.
    """

    module: str
    class_name: str
    moved: tuple[int, ...] = ()
    operations: frozenset[str] = frozenset()
    within: tuple[str, ...] = ()

    @property
    def kind(self) -> MixingKind:
        """What mixes tokens there, as far as its names and its operations tell."""
        kinds = _named(self.class_name)
        if self.module and any(word in self.class_name.lower() for word in _ROUTERS):
            kinds.append("router")
        kinds.extend(kind for kind, names in _OPERATIONS if not names.isdisjoint(self.operations))
        if not _PRODUCTS.isdisjoint(self.operations):  # of an attention that is made of several modules
            kinds.extend(kind for name in self.within for kind in _named(name) if kind == "attention")
        if not kinds and "shift" in self.module.rpartition(".")[2]:
            return "token_shift"
        return kinds[0] if kinds else "mixing"

    def __str__(self) -> str:
        return f"{self.module or 'the model itself'} ({self.class_name})"


def _named(class_name: str) -> list[MixingKind]:
    return [kind for kind, words in _NAMES if any(word in class_name.lower() for word in words)]


def chooses_experts(model: nn.Module) -> bool:
    """Whether any part of a model, by its name or its class, sends tokens to experts."""
    modules = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    names = (f"{path.rpartition('.')[2]} {type(part).__name__}".lower() for path, part in modules if path)
    return any(word in name for name in names for word in _ROUTERS)


@dataclass(eq=False)
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
    origin = Origin("", type(model).__name__)
    for one, other in records:
        same_input = bool(one.given) and one.name == other.name and not _differ(one.given, other.given)
        if same_input and _differ(one.returned, other.returned):
            origin = Origin(one.name, one.class_name, _moved(one.returned, other.returned))
            break
    if origin.kind != "mixing":
        return origin
    path = origin.module.split(".")[:-1]
    around = [model, *(model.get_submodule(".".join(path[: end + 1])) for end in range(len(path)))]
    operations = _operations(model.get_submodule(origin.module), before, sequence)
    return replace(origin, operations=operations, within=tuple(type(one).__name__ for one in around))


def _trace(model: nn.Module, run: Callable[[], object], target: Place, sequence: int) -> list[_Record]:
    records: list[_Record] = []

    def record_as(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            given = _at_document((*args, *kwargs.values()), target, sequence)
            returned = [part for part in _at_document(output, target, sequence) if part.is_floating_point()]
            records.append(_Record(name, type(module).__name__, given, returned))

        return hook

    with ExitStack() as stack:
        modules = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
        for name, module in modules:
            if name:
                handle = module.register_forward_hook(record_as(name), with_kwargs=True)
                stack.callback(handle.remove)
        run()
    return records


def _at_document(values: object, target: Place, sequence: int) -> list[Tensor]:
    """Cut the tensors among `values` to one document: `[batch, sequence, ...]`, `[batch, channels, sequence, ...]` and
    `[sequence, batch, ...]`."""
    if isinstance(values, (tuple, list)):
        inner = cast("Sequence[object]", values)
        return [part for value in inner for part in _at_document(value, target, sequence)]
    if not isinstance(values, Tensor):
        return []
    axis = token_axis(values, sequence)
    rows, before = 0, 0
    if axis is None and values.ndim == 3 and values.shape[1] > sequence:  # prompts that the model puts before the row
        axis, before = 1, values.shape[1] - sequence
    if axis is None and values.ndim > 1 and values.shape[0] == sequence:
        axis, rows = 0, 1
    if axis is None or values.shape[rows] <= target.row:
        return []
    part = values.select(rows, target.row).movedim(max(axis - 1, 0), 0)
    return [part.narrow(0, before + target.start, target.length).detach().clone()]


def token_axis(tensor: Tensor, sequence: int) -> int | None:
    """Find the axis of tokens by its size. A convolution may leave its padding behind the channels' tokens, and a model
    may pad rows to whole windows."""
    axes = [axis for axis in (1, 2) if tensor.ndim > axis and tensor.shape[axis] == sequence]
    if axes or tensor.ndim != 3:
        return axes[0] if axes else None
    return next((axis for axis in (2, 1) if sequence < tensor.shape[axis] <= sequence + _PADDED), None)


def _differ(one: list[Tensor], other: list[Tensor]) -> bool:
    return any(not torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(one, other, strict=False))


def _moved(one: list[Tensor], other: list[Tensor]) -> tuple[int, ...]:
    """The tokens at which any of these tensors, `[length, ...]`, differ."""
    moved: set[int] = set()
    for a, b in zip(one, other, strict=False):
        same = torch.isclose(a, b, rtol=1e-4, atol=1e-5).flatten(1).all(1)
        moved.update(int(token) for token in (~same).nonzero())
    return tuple(sorted(moved))


class _Calls(TorchFunctionMode):
    """Collects the names of the functions of torch that are called while it is counting."""

    def __init__(self, sequence: int) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.depth = 0
        self.sequence = sequence

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call one function of torch."""
        del types
        output = func(*args, **(kwargs or {}))
        if self.depth > 0:
            name: str = getattr(func, "__name__", "")
            counts = isinstance(output, Tensor) and not output.is_floating_point() and name in _SUMS
            self.names.update(() if counts else (name,))
            if name in _PRODUCTS and isinstance(output, Tensor) and output.shape[-2:] == (self.sequence,) * 2:
                self.names.add(_SCORES)
        return output


def _operations(module: nn.Module, run: Callable[[], object], sequence: int) -> frozenset[str]:
    """Name the functions of torch that `module` calls during `run`, those of its parts left out."""
    calls = _Calls(sequence)

    def count(by: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            calls.depth += by

        return hook

    with ExitStack() as stack:
        for part in module.modules():
            # Within a part of the module, the depth is 0 or less.
            inward = 1 if part is module else -1
            stack.callback(part.register_forward_pre_hook(count(inward)).remove)
            stack.callback(part.register_forward_hook(count(-inward), always_call=True).remove)
        stack.enter_context(calls)
        run()
    return frozenset(calls.names)
