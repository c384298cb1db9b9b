"""The tests of isolation, as measurements: each compares what a model answers, and none of them judges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor

from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.subject import ANYTHING, Answer

ROUNDING: Final = 2e-6
"""Share of their scale up to which logits or gradients may differ by rounding: a fifth of what counts as a movement."""

SMALL: Final = 1 << 22
"""Logits up to which the gradients of several documents are derived in one pass, with as many times the memory."""


_LAST_PLACES: Final = 4
"""Units in the last place by which the last sums of a model may round: the logits' own, and what is added there."""


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
        matrix: the effect of each document on each other, `[source][target]`, in these shares; empty where documents
            were not tried one by one.

    All effects are NaN where one of them is not finite.
    """

    cross: float
    own: float
    source: int
    target: int
    matrix: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Measurement:
    """What was measured on one path.

    Attributes:
        scale: how far the logits of the documents alone vary over their tokens; of the packed ones where none was
            asked alone.
        finite: whether the logits are, packed and alone.
        differences: of each document, by token, the greatest distance from the document alone, in scales; empty for
            one that was not asked alone.
        perturbation: movement of logits when all tokens of a document are changed.
        gradient: derivative of logits by embeddings, in the greatest derivative by a document's own; None where the
            model has no token embedding that could be watched.
        padding: the greatest effect of changed padding on a document, or of the embeddings of padding, in the same
            units.
        finite_padding: whether the logits at padding are finite.
        scalars: by name, how far losses and statistics move when padding is changed, as a share of themselves.
        rounding: how far rounding alone may move logits of that size, in scales: much, where they vary little around
            a great number.
    """

    scale: float
    finite: bool
    differences: tuple[tuple[float, ...], ...]
    perturbation: Movement
    gradient: Movement | None
    padding: float
    finite_padding: bool = True
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    rounding: float = 0.0

    @property
    def difference(self) -> float:
        """The greatest of all differences."""
        return _worst([value for document in self.differences for value in document] or [0.0])


def measure(ask: Ask, answer: Answer, packed: PackedDocuments, alone: Answer | None) -> Measurement:
    """Measure one path.

    Args:
        ask: gives the documents to the model.
        answer: what the model answers to them, with its graph.
        packed: the documents.
        alone: what the model answers to each document alone; None where that is not to be compared.
    """
    logits = [part.detach() for part in answer.logits]
    by_themselves = logits if alone is None else [part.detach() for part in alone.logits]
    scale = variation(by_themselves)
    unit = scale if scale > 0 and math.isfinite(scale) else 1.0
    shares_calls = len(answer.embeddings) == 1  # documents in calls of their own have no padding
    gradient, by_padding_embeddings = _gradient(answer, packed.document_ids == 0)
    before = logits
    perturbation = _perturbation(ask, packed, before, unit, one_way=not shares_calls)
    if perturbation.cross > ROUNDING and gradient is not None and gradient.cross == 0:
        # With a graph for gradients, other kernels may have answered than do without, and have rounded otherwise.
        before = [part.detach() for part in ask().logits]
        perturbation = _perturbation(ask, packed, before, unit, one_way=not shares_calls)
    without_padding = ask(tokens=packed.with_changed_padding()) if shares_calls else None
    by_padding = [] if without_padding is None else _distances(without_padding.logits, before, unit)
    return Measurement(
        scale=scale,
        finite=all(bool(part.isfinite().all()) for part in [*logits, *by_themselves]),
        differences=() if alone is None else _differences(logits, by_themselves, unit),
        perturbation=perturbation,
        gradient=gradient,
        padding=_worst([*by_padding, by_padding_embeddings]),
        finite_padding=answer.finite_padding,
        scalars={} if without_padding is None else _scalars_moved(answer.scalars, without_padding.scalars),
        rounding=_rounding(by_themselves, unit),
    )


def variation(logits: Sequence[Tensor]) -> float:
    """The greatest distance of a logit from its mean over all tokens: 0 for a model that always says the same.

    Logits that are the same at every token, however great, are left out: a vocabulary may be filled up with such.
    """
    moving = _moving(logits)
    return float((moving - moving.mean(dim=0)).abs().max()) if moving.numel() else 0.0


def _moving(logits: Sequence[Tensor]) -> Tensor:
    """Those that are not the same at every token, `[tokens, values]`."""
    tokens = torch.cat([part.detach() for part in logits])
    return tokens[:, (tokens != tokens[:1]).any(dim=0)]


def _rounding(logits: Sequence[Tensor], unit: float) -> float:
    """A few units in the last place of the greatest logit that moves, in scales."""
    moving = _moving(logits)
    greatest = float(moving.abs().max()) if moving.numel() else 0.0
    return _LAST_PLACES * torch.finfo(moving.dtype).eps * greatest / unit


def sees_later_tokens(answer: Answer, packed: PackedDocuments) -> bool | None:
    """Tell whether the first token of the longest document depends on later tokens of it; None if it cannot be told."""
    longest = max(range(len(packed.places)), key=lambda index: len(answer.logits[index]))
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
    asked = [(one, other) for one, other in zip(before, after, strict=True) if len(one)]
    moved = [float((one[-1] - other[-1]).abs().max()) for one, other in asked]
    return _worst(moved) / (variation(before) or 1.0)


def _differences(packed: Sequence[Tensor], alone: Sequence[Tensor], unit: float) -> tuple[tuple[float, ...], ...]:
    """By document and token. One that was not asked alone has no tokens to compare."""
    return tuple(
        tuple(float(distance) / unit for distance in (one - other).abs().amax(dim=1)) if len(other) else ()
        for one, other in zip(packed, alone, strict=True)
    )


def _distances(changed: Sequence[Tensor], logits: Sequence[Tensor], unit: float) -> list[float]:
    """How far the logits of each document have moved."""
    distances = (torch.cat([part.detach() for part in changed]) - torch.cat(list(logits))).abs().amax(dim=1)
    return [value / unit for value in _greatest_of_each(distances, [len(part) for part in logits])]


def _greatest_of_each(values: Tensor, lengths: Sequence[int]) -> list[float]:
    """Cut `values` into parts of these lengths, and give the greatest of each, 0 where a part is empty."""
    owners = torch.repeat_interleave(torch.tensor(lengths, device=values.device))
    greatest = values.new_zeros(len(lengths)).scatter_reduce(0, owners, values, "amax")
    return [float(value) for value in greatest]


def _scalars_moved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    return {
        name: float((after[name] - value).abs() / value.abs().clamp(min=1e-6))
        for name, value in before.items()
        if name in after and value.isfinite() and after[name].isfinite()
    }


def read_tokens(answer: Answer, source: int, target: int) -> tuple[int, ...]:
    """Which tokens of one document the logits of another depend on, counted from its first; empty if unwatched."""
    if not is_watched(answer):
        return ()
    piece, logits = answer.pieces[source], answer.logits[target]
    read: set[int] = set()
    for gradient in _gradients(answer, *random_sums([logits], 0))[piece.call]:
        by_token = gradient[piece.row, piece.tokens].flatten(1).abs().amax(dim=1)
        read.update(int(token) for token in (by_token > 0).nonzero())
    return tuple(sorted(read))


def _perturbation(ask: Ask, packed: PackedDocuments, logits: Sequence[Tensor], unit: float, one_way: bool) -> Movement:
    def effects_of(sources: Group) -> list[float]:
        return _distances(ask(tokens=packed.with_changed(*sources)).logits, logits, unit)

    found = _Effects({group: effects_of(group) for group in _groups(len(packed.places), one_way)})
    cross, sources, target = found.worst
    source = _narrowed(sources, lambda part: effects_of(part)[target]) if cross > 0 else 0
    return found.movement(source, target, found.by_group if found.one_by_one else {})


def _gradient(answer: Answer, padding: Tensor) -> tuple[Movement | None, float]:
    if not is_watched(answer):
        return None, 0.0
    parts = random_sums(answer.logits, 0)
    by_padding = 0.0

    def effects_on(*groups: Group) -> dict[Group, list[float]]:
        nonlocal by_padding
        effects: dict[Group, list[float]] = {}
        values = [torch.stack([parts[target] for target in targets]).sum() for targets in groups]
        for group, gradients in zip(groups, _gradients_of_each(answer, values), strict=True):
            if gradients[0][0].shape[:2] == padding.shape:
                by_padding = _worst([by_padding, _greatest(gradient[padding] for gradient in gradients[0])])
            effects[group] = _by_document(answer, gradients)
        return effects

    effects = effects_on(*_groups(len(parts)))
    unit = max(effect[index] for group, effect in effects.items() for index in group) or 1.0
    found = _Effects({group: [value / unit for value in effect] for group, effect in effects.items()})
    cross, targets, source = found.worst
    target = _narrowed(targets, lambda part: effects_on(part)[part][source]) if cross > 0 else 0
    by_source = zip(*found.by_group.values(), strict=True) if found.one_by_one else ()
    matrix: dict[Group, Sequence[float]] = {(index,): effect for index, effect in enumerate(by_source)}
    return found.movement(source, target, matrix), by_padding / unit


def _by_document(answer: Answer, gradients: Sequence[Sequence[Tensor]]) -> list[float]:
    """The greatest derivative by the embeddings of each document."""
    greatest = [0.0] * len(answer.pieces)
    for call, by_leaf in enumerate(gradients):
        indices = [index for index, piece in enumerate(answer.pieces) if piece.call == call]
        pieces = [answer.pieces[index] for index in indices]
        lengths = [len(piece.tokens) for piece in pieces]
        of_pieces = torch.tensor([[piece.row for piece in pieces], lengths], device="cpu")
        rows = torch.repeat_interleave(*of_pieces)
        tokens = torch.cat([piece.tokens for piece in pieces])
        for gradient in by_leaf:
            by_token = gradient.flatten(2).abs().amax(dim=2)[rows.to(tokens.device), tokens]
            for index, value in zip(indices, _greatest_of_each(by_token, lengths), strict=True):
                greatest[index] = _worst([greatest[index], value])
    return greatest


Group: TypeAlias = tuple[int, ...]
"""Indices of documents that are changed, or looked at, together."""

ONE_BY_ONE: Final = 8
"""Documents up to which each is tried on its own."""


@dataclass(frozen=True)
class _Effects:
    """By group of documents, the effect between it and every document."""

    by_group: Mapping[Group, Sequence[float]]

    @property
    def one_by_one(self) -> bool:
        return all(len(group) == 1 for group in self.by_group)

    @property
    def worst(self) -> tuple[float, Group, int]:
        """The greatest effect, the group and the document outside of it."""
        found = [
            (effect, group, index)
            for group, effects in self.by_group.items()
            for index, effect in enumerate(effects)
            if index not in group
        ]
        return max(found, default=(0.0, (0,), 0))

    def movement(self, source: int, target: int, matrix: Mapping[Group, Sequence[float]]) -> Movement:
        """Sum the effects up. If any is not a finite number, none of them says anything."""
        if not all(math.isfinite(effect) for effects in self.by_group.values() for effect in effects):
            return Movement(math.nan, math.nan, 0, 0)
        own = min(effects[index] for group, effects in self.by_group.items() for index in group)
        return Movement(self.worst[0], own, source, target, tuple(tuple(effects) for effects in matrix.values()))


def _groups(documents: int, one_way: bool = False) -> list[Group]:
    """Choose groups such that for any two documents, one group holds the first and not the second.

    Many documents are each put into half of the groups, no two into the same half. With `one_way`, the first always
    comes before the second, as in calls of their own: then each bit of the index makes one group, of those without it.
    """
    if one_way:  # no index has all of these bits, so that each is in some group
        bits = range(documents.bit_length())
        return [tuple(index for index in range(documents) if not index >> bit & 1) for bit in bits]
    if documents <= ONE_BY_ONE:
        return [(index,) for index in range(documents)]
    number = next(number for number in itertools.count(2) if math.comb(number, number // 2) >= documents)
    halves = list(itertools.islice(itertools.combinations(range(number), number // 2), documents))
    return [tuple(index for index, half in enumerate(halves) if group in half) for group in range(number)]


def _narrowed(group: Group, effect_of: Callable[[Group], float]) -> int:
    """Find the document of a group that has the effect, by halves."""
    while len(group) > 1:
        halves = (group[: len(group) // 2], group[len(group) // 2 :])
        group = max(halves, key=effect_of)
    return next(iter(group))


def _greatest(parts: Iterable[Tensor]) -> float:
    return _worst([float(part.abs().max()) for part in parts if part.numel()] or [0.0])


def _worst(effects: Sequence[float]) -> float:
    """The greatest of them, and NaN where one is NaN."""
    return float(torch.tensor(effects, dtype=torch.float64, device="cpu").max())


def projected_gradients(answer: Answer) -> list[Tensor]:
    """Derive one random projection of all logits by the embeddings of every call."""
    total = torch.stack(random_sums(answer.logits, 1)).sum()
    return [gradient for call in _gradients(answer, total) for gradient in call]


def random_sums(parts: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Sum each of several tensors up by random weights, which are drawn on the host for every device."""
    generator = torch.Generator().manual_seed(seed)
    return [(part * torch.randn(part.shape, generator=generator, device="cpu").to(part)).sum() for part in parts]


def is_watched(answer: Answer) -> bool:
    """Whether there are embeddings, and the logits are differentiable to anything."""
    return all(answer.embeddings) and all(logits.requires_grad for logits in answer.logits)


def _gradients_of_each(answer: Answer, values: Sequence[Tensor]) -> list[list[list[Tensor]]]:
    """Derive each of several values as `_gradients` does: of a small answer in one pass, if it can be derived so."""
    if len(answer.embeddings) == 1 and sum(logits.numel() for logits in answer.logits) <= SMALL:
        leaves = answer.embeddings[0]
        with suppress(*ANYTHING):  # an operation of the model's own may derive one value alone
            found = torch.autograd.grad(
                torch.stack(list(values)),
                leaves,
                torch.eye(len(values), device="cpu").to(values[0]),
                retain_graph=True,
                materialize_grads=True,
                allow_unused=True,
                is_grads_batched=True,
            )
            # By a leaf that nothing depends on, zeros come once for all values.
            by_leaf = [one.expand(len(values), *leaf.shape) for one, leaf in zip(found, leaves, strict=True)]
            return [[[gradient[index] for gradient in by_leaf]] for index in range(len(values))]
    return [_gradients(answer, value) for value in values]


def _gradients(answer: Answer, value: Tensor) -> list[list[Tensor]]:
    """Derive `value` by the embeddings of every call, zeros where it does not depend on them."""
    leaves = [leaf for call in answer.embeddings for leaf in call]
    flat = iter(torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True, allow_unused=True))
    return [[next(flat) for _ in call] for call in answer.embeddings]
