"""Watching token embeddings: whatever turns token ids into floating numbers, in a module or in plain code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, cast

import torch
from torch import Tensor
from typing_extensions import Self

from neatpack.kernels_bridge.audit.borrowing import Borrowed

_FILLS: Final = frozenset({"masked_fill", "masked_fill_"})
_MOVES: Final = _FILLS | {
    "__getitem__",
    "cat",
    "clone",
    "contiguous",
    "flatten",
    "index_select",
    "pad",
    "permute",
    "reshape",
    "t",
    "to",
    "transpose",
    "view",
}
"""Functions whose entries are some of those that went in, at other places, or fill."""


class EmbeddingWatch(Borrowed):
    """Within, a leaf of zeros is added to all that is looked up by token ids, so that gradients can be taken by it.

    Lookups are known by what goes in: the tokens, or integers made from them. Within, these are of a class to which
    torch hands every function that reads them, and no other function. Values stay, and no graph is cut. Tokens may be
    looked up in other rows than they came in: which place each came from is followed.

    Attributes:
        leaves: one per lookup, floating `[batch, sequence, ...]`.

    Example:
        >>> tokens, table = torch.tensor([[0, 2]]), torch.eye(3)
        >>> with EmbeddingWatch(tokens) as watch:
        ...     looked_up = table[tokens]
        >>> (gradient,) = torch.autograd.grad(looked_up[0, 1, 2] * 5, watch.leaves)
        >>> gradient
        tensor([[[0., 0., 0.],
                 [0., 0., 5.]]])
    """

    active: ClassVar[EmbeddingWatch | None] = None
    """The watch that is entered."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.leaves: list[Tensor] = []
        self._tokens = tokens
        self._shape = tuple(tokens.shape)
        places = torch.arange(1, tokens.numel() + 1, device=tokens.device).view(tokens.shape)
        self._places = {id(tokens): places}  # from 1, so that what fills is no place

    def __enter__(self) -> Self:
        self.undo_by(setattr, EmbeddingWatch, "active", None)
        EmbeddingWatch.active = self
        self._watch(self._tokens)
        return self

    def look_at(
        self, func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], output: Tensor
    ) -> Tensor:
        """Watch what a function of torch made from tokens if these are integers; add a leaf if it is a lookup."""
        if not output.is_floating_point():
            self._watch(output)
            if isinstance(output, _Watched):
                self._follow(func, args, kwargs, output)
            return output
        shape = self._lookup_shape(tuple(output.shape))
        if not torch.is_grad_enabled():
            return output
        if shape is None:
            return self._add_to_moved(output, (*args, *kwargs.values()))
        leaf = torch.zeros(shape, dtype=output.dtype, device=output.device, requires_grad=True)
        self.leaves.append(leaf)
        return output + leaf.view(output.shape)

    def _watch(self, tensor: Tensor) -> None:
        if type(tensor) is Tensor:
            self.undo_by(setattr, tensor, "__class__", Tensor)  # also keeps its id from being taken by another tensor
            tensor.__class__ = _Watched

    def _follow(
        self, func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], output: Tensor
    ) -> None:
        """Move the numbers of the places as the tokens were moved."""
        name: str = getattr(func, "__name__", "")
        places = self._numbers(args[0]) if args else None
        if places is None or name not in _MOVES:
            return
        filled = (args[1], 0) if name in _FILLS else args[1:2] if name == "pad" else None
        moved = func(places, *args[1:], **kwargs) if filled is None else func(places, *filled)
        if isinstance(moved, Tensor) and moved.shape == output.shape:
            self._places[id(output)] = moved

    def _numbers(self, argument: object) -> object:
        """Give the numbers of the places of tokens, or of a sequence with tokens in it; None where there are none."""
        if isinstance(argument, (tuple, list)):
            parts = [part for part in cast("Sequence[object]", argument) if isinstance(part, Tensor)]
            numbers = [self._places.get(id(part), torch.zeros_like(part)) for part in parts]
            return numbers if any(id(part) in self._places for part in parts) else None
        return self._places.get(id(argument))

    def _add_to_moved(self, output: Tensor, arguments: Iterable[object]) -> Tensor:
        """Add a leaf to what was looked up by moved tokens, each entry where it belongs."""
        for places in [self._places[id(argument)] for argument in arguments if id(argument) in self._places]:
            rest = tuple(output.shape[places.ndim :])
            if rest and output.shape[: places.ndim] == places.shape:
                leaf = torch.zeros((*self._shape, *rest), dtype=output.dtype, device=output.device, requires_grad=True)
                self.leaves.append(leaf)
                return output + torch.cat([leaf.new_zeros(1, *rest), leaf.flatten(0, 1)])[places]
        return output

    def _lookup_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of a lookup with its tokens in rows; None if it has no axis beside those of the tokens."""
        batch, sequence = self._shape
        if len(shape) > 2 and shape[:2] == self._shape:
            return shape
        return (batch, sequence, *shape[1:]) if len(shape) > 1 and shape[0] == batch * sequence else None


class _Watched(Tensor):
    """The class of token ids while they are watched."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call one function of torch, and let the watch look at what came out."""
        del types
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # as torch's guide does
            output = func(*args, **kwargs)
            watch = EmbeddingWatch.active
            if watch is None or not isinstance(output, Tensor):
                return output
            return watch.look_at(func, args, kwargs, output)
