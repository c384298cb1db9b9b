"""Calling a model under audit: which arguments its forward takes, its logits, and its embeddings for gradients."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from neatpack.contracts.errors import ModelError, Problem
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.random_state import seeded


@dataclass(frozen=True)
class Piece:
    """Where one document's tokens stand in the output of a call.

    Attributes:
        call: index of the call.
        row: index along `batch`.
        span: indices along `sequence`.
    """

    call: int
    row: int
    span: slice


@dataclass(frozen=True)
class Answer:
    """What a model answered to all documents.

    Attributes:
        logits: of each document, `[length, vocabulary]`.
        pieces: where each document stands.
        embeddings: of each call, the outputs of its token embeddings, `[batch, sequence, ...]`, as leaves to which
            the logits are differentiable.
        finite_padding: whether the logits at padding are numbers; True where there is no padding.
    """

    logits: tuple[Tensor, ...]
    pieces: tuple[Piece, ...]
    embeddings: tuple[tuple[Tensor, ...], ...] = ()
    finite_padding: bool = True


@dataclass
class Subject:
    """A model under audit.

    Attributes:
        model: the built module, in evaluation mode.
        hooked: arguments that a hook on the model takes away before its forward.
        dropped: arguments that its forward does not take and that were left out, in the order in which they came.
        calls: how often it was called.
    """

    model: nn.Module
    hooked: frozenset[str] = frozenset()
    dropped: dict[str, None] = field(default_factory=dict[str, None])
    calls: int = 0

    def packed(
        self, packed: PackedDocuments, arguments: Mapping[str, object], tokens: Tensor | None = None, grad: bool = False
    ) -> Answer:
        """Give all documents in one call.

        Args:
            packed: the documents.
            arguments: what goes with the tokens.
            tokens: int64 `[batch, sequence]` in place of the documents' own.
            grad: whether to keep the embeddings and the graph from them to the logits.
        """
        tokens = packed.input_ids if tokens is None else tokens
        pieces = tuple(Piece(0, place.row, place.span) for place in packed.places)
        with self._embeddings(tokens, grad) as embeddings:
            logits = self._call(tokens, arguments)
        finite_padding = bool(logits[packed.document_ids == 0].isfinite().all())
        parts = tuple(logits[piece.row, piece.span] for piece in pieces)
        return Answer(parts, pieces, (tuple(embeddings),), finite_padding)

    def alone(self, packed: PackedDocuments, tokens: Tensor | None = None, grad: bool = False) -> Answer:
        """Give each document in a call of its own; arguments as in `packed`."""
        tokens = packed.input_ids if tokens is None else tokens
        logits: list[Tensor] = []
        kept: list[tuple[Tensor, ...]] = []
        for place in packed.places:
            own = tokens[place.row : place.row + 1, place.span]
            with self._embeddings(own, grad) as embeddings:
                logits.append(self._call(own, {"use_cache": False})[0])
            kept.append(tuple(embeddings))
        pieces = tuple(Piece(call, 0, slice(0, place.length)) for call, place in enumerate(packed.places))
        return Answer(tuple(logits), pieces, tuple(kept))

    def vocabulary(self) -> int:
        """The number of token ids that the model embeds; 256 where it has no embedding."""
        sizes = (getattr(module, "num_embeddings", None) for module in self._embedding_modules())
        return next((size for size in sizes if isinstance(size, int)), 256)

    def _embedding_modules(self) -> list[nn.Module]:
        """The module that the model names as its embedding of tokens, and every plain one."""
        named: object = None
        get_embeddings: object = getattr(self.model, "get_input_embeddings", None)
        if callable(get_embeddings):
            with suppress(AttributeError, NotImplementedError):
                named = get_embeddings()
        plain: list[nn.Module] = [module for module in self.model.modules() if isinstance(module, nn.Embedding)]
        return [named, *(module for module in plain if module is not named)] if isinstance(named, nn.Module) else plain

    @cached_property
    def _parameters(self) -> tuple[frozenset[str], bool]:
        """The names of the forward's arguments, and whether it takes any other."""
        parameters = inspect.signature(self.model.forward).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return frozenset(parameters), takes_any

    def _call(self, tokens: Tensor, arguments: Mapping[str, object]) -> Tensor:
        self.calls += 1
        names, takes_any = self._parameters
        taken = {name: value for name, value in arguments.items() if takes_any or name in names | self.hooked}
        self.dropped.update(dict.fromkeys(name for name in arguments if name not in taken and name != "use_cache"))
        first = () if "input_ids" in names else (tokens,)
        if not first:
            taken["input_ids"] = tokens
        with seeded():  # layers that draw random numbers draw the same in every call
            output: object = self.model(*first, **taken)
        return _logits(output, tokens)

    @contextmanager
    def _embeddings(self, tokens: Tensor, grad: bool) -> Generator[list[Tensor], None, None]:
        """Within, each output of an embedding of `tokens` becomes a copy of a leaf, which is kept in the list."""
        leaves: list[Tensor] = []

        def replace(_module: nn.Module, given: tuple[object, ...], output: Tensor) -> Tensor | None:
            if not (given and isinstance(given[0], Tensor) and torch.equal(given[0], tokens)):
                return None
            leaves.append(output.detach().requires_grad_())
            return leaves[-1].clone()  # a leaf itself could not be written to by the model

        handles = [module.register_forward_hook(replace) for module in self._embedding_modules()] if grad else []
        try:
            with torch.set_grad_enabled(grad):
                yield leaves
        finally:
            for handle in handles:
                handle.remove()


def _logits(output: object, tokens: Tensor) -> Tensor:
    """Take the logits out of a tensor, a tuple that begins with them, or an object that has them."""
    parts = (output,) if not isinstance(output, tuple) else cast("tuple[object, ...]", output)
    first = next(iter(parts), None)
    logits = first if isinstance(first, Tensor) else cast("object", getattr(first, "logits", None))
    if isinstance(logits, Tensor) and logits.shape[:2] == tokens.shape and logits.ndim == 3:
        return logits
    found = tuple(logits.shape) if isinstance(logits, Tensor) else type(first).__name__
    remedy = "The forward must return [batch, sequence, vocabulary], in a tuple first, or as .logits."
    raise ModelError(Problem("forward", "returned no logits", "shape", value=found, remedy=remedy))
