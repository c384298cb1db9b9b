"""Watching token embeddings: whatever turns token ids into floating numbers, in a module or in plain code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class EmbeddingWatch(TorchFunctionMode):
    """Within, a leaf of zeros is added to all that is looked up by token ids, so that gradients can be taken by it.

    Lookups are known by what goes in: the tokens, or integers made from them. Values stay, and no graph is cut.

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

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.leaves: list[Tensor] = []
        self._shape = tuple(tokens.shape)
        self._derived = {id(tokens): tokens}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call one function of torch, and look at what came out."""
        del types
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if not isinstance(output, Tensor) or not self._reads_tokens((*args, *kwargs.values())):
            return output
        if not output.is_floating_point():
            self._derived[id(output)] = output  # which also keeps its id from being taken by another tensor
            return output
        shape = self._lookup_shape(tuple(output.shape))
        if shape is None or not torch.is_grad_enabled():
            return output
        leaf = torch.zeros(shape, dtype=output.dtype, device=output.device, requires_grad=True)
        self.leaves.append(leaf)
        return output + leaf.view(output.shape)

    def _reads_tokens(self, arguments: Iterable[object]) -> bool:
        """Whether the tokens are among the arguments, or in a sequence among them, of indices say."""
        return any(
            id(argument) in self._derived
            or (isinstance(argument, (tuple, list)) and self._reads_tokens(cast("Sequence[object]", argument)))
            for argument in arguments
        )

    def _lookup_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of a lookup with its tokens in rows; None if it has no axis beside those of the tokens."""
        batch, sequence = self._shape
        if len(shape) > 2 and shape[:2] == self._shape:
            return shape
        return (batch, sequence, *shape[1:]) if len(shape) > 1 and shape[0] == batch * sequence else None
