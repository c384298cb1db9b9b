"""Calling a model under audit: which arguments its forward takes, its logits, and its embeddings for gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.embeddings import EmbeddingWatch
from neatpack.kernels_bridge.audit.outputs import find_logits, find_scalars, other_outputs
from neatpack.kernels_bridge.audit.random_state import seeded
from neatpack.kernels_bridge.models import takes_any_keyword, text_config

ANYTHING: Final = (Exception, SystemExit)
"""What the code of a model under audit may raise: anything, and `SystemExit` where it reads a command line."""

FEWEST_TOKEN_IDS: Final = 16
"""A table with fewer rows than this embeds something else than tokens: kinds of segments, say."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Where one document's tokens stand in the output of a call.

    Attributes:
        call: index of the call.
        row: index along `batch`.
        tokens: indices along `sequence`, int64 `[length]`.
    """

    call: int
    row: int
    tokens: Tensor


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model answered to all documents.

    Attributes:
        logits: of each document, `[length, vocabulary]`; of no tokens where the document was left out.
        pieces: where each document stands.
        embeddings: of each call, leaves that were added to its token embeddings, `[batch, sequence, ...]`, to which the
            logits are differentiable.
        finite_padding: whether the logits at padding are numbers; True where there is no padding.
        scalars: what was answered to all documents together, such as losses, by name.
    """

    logits: tuple[Tensor, ...]
    pieces: tuple[Piece, ...]
    embeddings: tuple[tuple[Tensor, ...], ...] = ()
    finite_padding: bool = True
    scalars: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass
class Subject:
    """A model under audit.

    Attributes:
        model: the built module, in evaluation mode.
        hooked: arguments that a hook on the model takes away before its forward.
        by_name: whether arguments go by name alone, also where the forward takes any, but for one around a Hugging Face
            model: where the words of others end is not known.
        dropped: arguments that its forward does not take and that were left out, in the order in which they came.
        calls: how often it was called.
        output: the name of what is taken for its logits; None for the logits themselves.
        others: names of what it answers to each token beside these.
        seed: where torch's generators begin in each call.
    """

    model: nn.Module
    hooked: frozenset[str] = frozenset()
    by_name: bool = False
    dropped: dict[str, None] = field(default_factory=dict[str, None])
    calls: int = 0
    output: str | None = None
    others: dict[str, None] = field(default_factory=dict[str, None])
    seed: int = 0

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
        pieces = tuple(Piece(0, place.row, packed.tokens_of(index)) for index, place in enumerate(packed.places))
        logits, embeddings, scalars = self._call(tokens, arguments, grad)
        finite_padding = bool(logits[packed.document_ids == 0].isfinite().all())
        parts = tuple(logits[piece.row, piece.tokens] for piece in pieces)
        return Answer(parts, pieces, (embeddings,), finite_padding, scalars)

    def alone(
        self,
        packed: PackedDocuments,
        tokens: Tensor | None = None,
        grad: bool = False,
        arguments: Callable[[int], Mapping[str, object]] = lambda _document: {"use_cache": False},
    ) -> Answer:
        """Give each document in a call of its own, some of them where they are many.

        Args:
            packed: the documents.
            tokens: as in `packed`.
            grad: as in `packed`.
            arguments: what goes with the tokens of each document, by its index.
        """
        tokens = packed.input_ids if tokens is None else tokens
        logits: dict[int, Tensor] = {}
        kept: list[tuple[Tensor, ...]] = []
        pieces: list[Piece] = []
        for index, place in enumerate(packed.places):
            own = packed.tokens_of(index)
            pieces.append(Piece(len(kept), 0, torch.arange(own.numel(), device=own.device)))
            if index in packed.asked_alone:
                answer, embeddings, _ = self._call(tokens[place.row, own][None], arguments(index), grad)
                logits[index] = answer[0]
                kept.append(embeddings)
        nothing = next(iter(logits.values()))[:0]
        return Answer(tuple(logits.get(index, nothing) for index in range(len(pieces))), tuple(pieces), tuple(kept))

    def logits(self, tokens: Tensor, arguments: Mapping[str, object]) -> Tensor:
        """Call the model once, without gradients: its logits, `[batch, sequence, vocabulary]`."""
        return self._call(tokens, arguments, grad=False)[0]

    def vocabulary(self) -> int:
        """A number of token ids that the model surely embeds; 256 where nothing tells."""
        sizes: list[object] = [getattr(module, "num_embeddings", None) for module in self._embedding_modules()]
        known = [size for size in sizes if isinstance(size, int)]
        if not known:  # a table of the model's own is one of its matrices
            known = [parameter.shape[0] for parameter in self.model.parameters() if parameter.ndim > 1]
        return min((size for size in known if size >= FEWEST_TOKEN_IDS), default=max(known, default=256))

    def _embedding_modules(self) -> list[nn.Module]:
        """The module that the model names as its embedding of tokens; where it names none, all that have a table."""
        get_embeddings: object = getattr(self.model, "get_input_embeddings", None)
        if callable(get_embeddings):
            with suppress(AttributeError, NotImplementedError):
                named: object = get_embeddings()
                if isinstance(named, nn.Module):
                    return [named]
        return [module for module in self.model.modules() if hasattr(module, "num_embeddings")]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.model.forward).parameters)

    @cached_property
    def _knows_words(self) -> bool:
        """Whether a forward of any keywords passes them to a Hugging Face model, which knows those of the audit."""
        holds = any(text_config(module) is not None for module in self.model.modules())
        return holds and takes_any_keyword(self.model)

    @cached_property
    def _gives_any_word(self) -> bool:
        return self._knows_words or (takes_any_keyword(self.model) and not self.by_name)

    def _call(
        self, tokens: Tensor, arguments: Mapping[str, object], grad: bool
    ) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        """Call the model once: its logits, the leaves at its embeddings, and its scalars."""
        self.calls += 1
        names = self._names
        taken = {
            name: value for name, value in arguments.items() if self._gives_any_word or name in names | self.hooked
        }
        if not (self._knows_words or "use_cache" in names):
            taken.pop("use_cache", None)
        self.dropped.update(dict.fromkeys(name for name in arguments if name not in taken and name != "use_cache"))
        tokens = tokens.detach()  # a tensor of this call's own, for the watch to change its class
        first = () if "input_ids" in names else (tokens,)
        if not first:
            taken["input_ids"] = tokens
        watch = EmbeddingWatch(tokens)
        # Layers that draw random numbers draw the same in every call.
        with seeded(self.seed), torch.set_grad_enabled(grad), watch if grad else nullcontext():
            output: object = self.model(*first, **taken)
        others = other_outputs(output, tokens)
        self.others.update(dict.fromkeys(others))
        logits = find_logits(output, tokens) if self.output is None else others[self.output]
        return logits, tuple(watch.leaves), find_scalars(output)
