"""The tests of isolation, as measurements: each compares what a model answers, and none of them judges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.subject import Answer


class Ask(Protocol):
    """Give the documents to a model in the way of one path."""

    def __call__(self, tokens: Tensor | None = None, grad: bool = False) -> Answer:
        """Answer, with `tokens` `[batch, sequence]` in place of the documents' own, and with a graph for gradients."""
        ...


@dataclass(frozen=True)
class Movement:
    """How far documents move when one of them is changed, or how much one depends on the embeddings of others.

    Attributes:
        cross: the greatest effect of a document on another, as a share of the scale.
        own: the smallest effect of a document on itself, as a share of the scale.
        source: index of the document whose effect is the greatest.
        target: index of the document that shows it.

    All effects are NaN where one of them is not finite.
    """

    cross: float
    own: float
    source: int
    target: int


@dataclass(frozen=True)
class Measurement:
    """What was measured on one path.

    Attributes:
        scale: how far the logits of the documents alone vary over their tokens.
        finite: whether the logits are, packed and alone.
        differences: of each document, by token, the greatest distance from the document alone, in scales.
        perturbation: movement of logits when all tokens of a document are changed.
        gradient: derivative of logits by embeddings, in the greatest derivative by a document's own; None where the
            model has no token embedding that could be watched.
        padding: the greatest effect of changed padding on a document, or of the embeddings of padding, in the same
            units.
        finite_padding: whether the logits at padding are finite.
    """

    scale: float
    finite: bool
    differences: tuple[tuple[float, ...], ...]
    perturbation: Movement
    gradient: Movement | None
    padding: float
    finite_padding: bool = True

    @property
    def difference(self) -> float:
        """The greatest of all differences."""
        return max(max(document) for document in self.differences)


def measure(ask: Ask, answer: Answer, packed: PackedDocuments, alone: Answer) -> Measurement:
    """Measure one path.

    Args:
        ask: gives the documents to the model.
        answer: what the model answers to them, with its graph.
        packed: the documents.
        alone: what the model answers to each document alone.
    """
    logits = [part.detach() for part in answer.logits]
    scale = variation(alone.logits)
    finite = all(bool(part.isfinite().all()) for part in [*logits, *alone.logits])
    unit = scale if scale > 0 and math.isfinite(scale) else 1.0
    perturbation = _perturbation(ask, packed, logits, unit)
    shares_calls = len(answer.embeddings) == 1  # documents in calls of their own have no padding
    by_padding = _worst(_moved(ask, packed.with_changed_padding(), logits, unit)) if shares_calls else 0.0
    gradient, by_padding_embeddings = _gradient(answer, packed.document_ids == 0)
    return Measurement(
        scale=scale,
        finite=finite,
        differences=tuple(
            tuple(float(distance) / unit for distance in (one - other).abs().amax(dim=1))
            for one, other in zip(logits, map(Tensor.detach, alone.logits), strict=True)
        ),
        perturbation=perturbation,
        gradient=gradient,
        padding=_worst([by_padding, by_padding_embeddings]),
        finite_padding=answer.finite_padding,
    )


def variation(logits: Sequence[Tensor]) -> float:
    """The greatest distance of a logit from its mean over all tokens: 0 for a model that always says the same."""
    tokens = torch.cat([part.detach() for part in logits])
    return float((tokens - tokens.mean(dim=0)).abs().max())


def sees_later_tokens(answer: Answer, packed: PackedDocuments) -> bool | None:
    """Tell whether the first token of the longest document depends on later tokens of it; None if it cannot be told."""
    longest = max(range(len(packed.places)), key=lambda index: packed.places[index].length)
    if not is_watched(answer):
        return None
    gradients = _gradients(answer, answer.logits[longest][0].sum())
    piece = answer.pieces[longest]
    later = piece.tokens[1:]
    return any(bool((gradient[piece.row, later] != 0).any()) for gradient in gradients[piece.call])


def answers_to_earlier_tokens(ask: Ask, answer: Answer, packed: PackedDocuments) -> float:
    """How far the last token of any document moves when all earlier ones of it change, as a share of the scale."""
    before = [part.detach() for part in answer.logits]
    after = ask(tokens=packed.with_earlier_changed()).logits
    moved = [float((one[-1] - other[-1]).abs().max()) for one, other in zip(before, after, strict=True)]
    return _worst(moved) / (variation(before) or 1.0)


def _perturbation(ask: Ask, packed: PackedDocuments, logits: Sequence[Tensor], unit: float) -> Movement:
    sources = range(len(packed.places))
    return _movement([_moved(ask, packed.with_changed(source), logits, unit) for source in sources])


def _moved(ask: Ask, tokens: Tensor, logits: Sequence[Tensor], unit: float) -> list[float]:
    """Ask again with other tokens, and tell how far each document's logits have moved."""
    changed = ask(tokens=tokens).logits
    return [float((one - other).abs().max()) / unit for one, other in zip(changed, logits, strict=True)]


def _gradient(answer: Answer, padding: Tensor) -> tuple[Movement | None, float]:
    if not is_watched(answer):
        return None, 0.0
    generator = torch.Generator().manual_seed(0)
    count = len(answer.logits)
    effects = [[0.0] * count for _ in range(count)]
    by_padding = 0.0
    for target, logits in enumerate(answer.logits):
        weights = torch.randn(logits.shape, generator=generator).to(logits)
        gradients = _gradients(answer, (logits * weights).sum())
        for source, piece in enumerate(answer.pieces):
            effects[source][target] = _greatest(gradient[piece.row, piece.tokens] for gradient in gradients[piece.call])
        if gradients[0][0].shape[:2] == padding.shape:
            by_padding = _worst([by_padding, _greatest(gradient[padding] for gradient in gradients[0])])
    unit = max((effects[index][index] for index in range(count)), default=0.0) or 1.0
    return _movement([[effect / unit for effect in row] for row in effects]), by_padding / unit


def _greatest(parts: Iterable[Tensor]) -> float:
    return _worst([float(part.abs().max()) for part in parts if part.numel()] or [0.0])


def _worst(effects: Sequence[float]) -> float:
    """The greatest of them, and NaN where one is NaN."""
    return float(torch.tensor(effects, dtype=torch.float64).max())


def projected_gradients(answer: Answer) -> list[Tensor]:
    """Derive one random projection of all logits by the embeddings of every call."""
    generator = torch.Generator().manual_seed(1)
    parts = [(part * torch.randn(part.shape, generator=generator).to(part)).sum() for part in answer.logits]
    return [gradient for call in _gradients(answer, torch.stack(parts).sum()) for gradient in call]


def is_watched(answer: Answer) -> bool:
    """Whether there are embeddings, and the logits are differentiable to anything."""
    return all(answer.embeddings) and all(logits.requires_grad for logits in answer.logits)


def _gradients(answer: Answer, value: Tensor) -> list[list[Tensor]]:
    """Derive `value` by the embeddings of every call, zeros where it does not depend on them."""
    leaves = [leaf for call in answer.embeddings for leaf in call]
    flat = iter(torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True, allow_unused=True))
    return [[next(flat) for _ in call] for call in answer.embeddings]


def _movement(effects: Sequence[Sequence[float]]) -> Movement:
    """Read `effects[source][target]`. If any is not a finite number, none of them says anything."""
    if not all(math.isfinite(effect) for row in effects for effect in row):
        return Movement(math.nan, math.nan, 0, 0)
    pairs = [(source, target) for source in range(len(effects)) for target in range(len(effects)) if source != target]
    source, target = max(pairs, key=lambda pair: effects[pair[0]][pair[1]])
    return Movement(effects[source][target], min(row[index] for index, row in enumerate(effects)), source, target)
