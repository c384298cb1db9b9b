"""What a model computes on a path, tested once for all paths on which it computes the same but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.crossing import Crossing, Pair, find_crossing
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.origin import Origin, find_origin
from neatpack.kernels_bridge.audit.probes import (
    ROUNDING,
    Ask,
    Measurement,
    answers_to_earlier_tokens,
    is_watched,
    measure,
    projected_gradients,
    sees_later_tokens,
)
from neatpack.kernels_bridge.audit.subject import Answer
from neatpack.kernels_bridge.audit.verdicts import THRESHOLD


@dataclass(eq=False)
class Computation:
    """What a model computes, and what the tests say of it. Each test runs when it is first asked for, and once.

    Attributes:
        packed: the documents.
        answer: what the model answers to them, with its graph.
        gradients: gives those of one projection of the answer, by the embeddings; none where they cannot be watched.
        measurement: the numbers.
    """

    packed: PackedDocuments
    answer: Answer
    gradients: Callable[[], Sequence[Tensor]]
    measurement: Measurement
    _causal: bool | None = field(default=None, init=False)
    _mixes_within: bool | None = field(default=None, init=False)
    _changed: dict[int, Answer] = field(default_factory=dict[int, Answer], init=False)
    _origins: dict[Pair, Origin] = field(default_factory=dict[Pair, Origin], init=False)
    _crossings: dict[Pair, Crossing] = field(default_factory=dict[Pair, Crossing], init=False)

    def causal(self) -> bool:
        """Whether no token is known to see later ones of its document."""
        if self._causal is None:
            self._causal = sees_later_tokens(self.answer, self.packed) is not True
        return self._causal

    def mixes_within(self, ask: Ask) -> bool:
        """Whether tokens answer to earlier ones of their document."""
        if self._mixes_within is None:
            self._mixes_within = answers_to_earlier_tokens(ask, self.answer, self.packed) > THRESHOLD
        return self._mixes_within

    def origin(self, ask: Ask, model: nn.Module, pair: Pair) -> Origin:
        """Where in the model one document begins to reach another."""
        source, target = pair

        def ask_changed() -> None:
            self._changed[source] = ask(tokens=self.packed.with_changed(source))

        if pair not in self._origins:
            place, sequence = self.packed.places[target], self.packed.input_ids.shape[1]
            self._origins[pair] = find_origin(model, ask, ask_changed, place, sequence)
        return self._origins[pair]

    def crossing(self, ask: Ask, pair: Pair, noise: float) -> Crossing:
        """Which tokens of one document reach which of another. Up to `noise`, in scales, a movement may be rounding."""
        if pair not in self._crossings:
            unit = noise * max(self.measurement.scale, torch.finfo(torch.float32).tiny)
            changed = self._changed.get(pair[0]) or ask(tokens=self.packed.with_changed(pair[0]))
            self._crossings[pair] = find_crossing(self.answer, changed, self.packed, pair, unit)
        return self._crossings[pair]

    def answers(self, logits: Sequence[Tensor]) -> bool:
        """Whether it gives these logits, but for rounding."""
        return _are_close(self.answer.logits, logits, self.measurement.scale)

    def is_the_same(self, answer: Answer, gradients: Callable[[], Sequence[Tensor]]) -> bool:
        """Whether another answer is this one but for rounding, in its logits and in how they depend on every token."""
        return (
            self.answer.finite_padding == answer.finite_padding
            and self.answer.scalars.keys() == answer.scalars.keys()
            and all(
                torch.allclose(one, answer.scalars[name], ROUNDING, 0.0) for name, one in self.answer.scalars.items()
            )
            and self.answers(answer.logits)
            and len(self.gradients()) == len(gradients()) > 0
            and _are_close(self.gradients(), gradients(), max(float(one.abs().max()) for one in self.gradients()))
        )


@dataclass
class Computations:
    """All that one model was found to compute.

    Attributes:
        packed: the documents.
        alone: what the model answers to each document alone; None where that is not compared.
    """

    packed: PackedDocuments
    alone: Answer | None
    known: list[Computation] = field(default_factory=list[Computation])

    def of(self, ask: Ask) -> Computation:
        """Find what the model computes when it is asked in this way, and measure it if it is new."""
        answer = ask(grad=True)
        gradients = cache(lambda: projected_gradients(answer) if is_watched(answer) else [])
        for computation in self.known:
            if computation.is_the_same(answer, gradients):
                return computation
        measurement = measure(ask, answer, self.packed, self.alone)
        self.known.append(Computation(self.packed, answer, gradients, measurement))
        return self.known[-1]


def _are_close(ones: Sequence[Tensor], others: Sequence[Tensor], scale: float) -> bool:
    """Whether nothing is further apart than `ROUNDING` of a scale. What is not a number is not the same."""
    return all(
        one.shape == other.shape and bool(((one - other).abs() <= ROUNDING * scale).all())
        for one, other in zip(ones, others, strict=True)
    )
