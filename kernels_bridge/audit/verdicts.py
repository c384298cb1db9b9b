"""From measurements to a verdict: what the numbers prove, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neatpack.kernels_bridge.audit.documents import Place
from neatpack.kernels_bridge.audit.paths import Path
from neatpack.kernels_bridge.audit.probes import Measurement, Movement
from neatpack.kernels_bridge.audit.report import Kind, Verdict

THRESHOLD: Final = 1e-5
"""Share of the logit scale above which something has moved. Rounding stays below 2e-6; the weakest leak known in a
tiny model is 1e-1."""

SCALAR_NOISE: Final = 1e-4
"""Share of a loss above which it has moved: it is a sum of many terms."""


@dataclass(frozen=True)
class KernelCalls:
    """What a bound kernel saw in one forward.

    Attributes:
        calls: how often it was called.
        boundaries_seen: whether what it was given keeps the documents of the batch apart.
    """

    calls: int
    boundaries_seen: bool


@dataclass(frozen=True)
class Evidence:
    """All that a verdict rests on.

    Attributes:
        measurement: the numbers.
        kernel: what the bound kernel saw; None where none was bound.
        dropped: arguments that the model's forward does not take.
        had_effect: whether the logits change when the boundaries are left out; None where that was not tried.
        causal: whether tokens inside a document see no later ones; None where that was not tried.
        mixes_within: whether tokens answer to earlier ones of their document; None where that was not tried.
        chooses_experts: whether parts of the model send tokens to experts.
        noise: share of the logit scale up to which a movement may be rounding.
    """

    measurement: Measurement
    kernel: KernelCalls | None
    dropped: tuple[str, ...] = ()
    had_effect: bool | None = None
    causal: bool | None = None
    mixes_within: bool | None = None
    chooses_experts: bool = False
    noise: float = THRESHOLD

    @property
    def least(self) -> float:
        """Share of the logit scale from which on logits have moved: where they vary little around a great number, their
        last place says nothing."""
        return max(self.noise, self.measurement.rounding)

    @property
    def leaks(self) -> bool:
        """Whether one document reaches another, or padding a document or a loss."""
        padding = self.measurement.padding > self.least or bool(self.moved_scalars)
        return self.measurement.finite and (self.mixes_documents or padding)

    @property
    def moved_scalars(self) -> tuple[str, ...]:
        """Losses and statistics that padding moves."""
        return tuple(name for name, moved in self.measurement.scalars.items() if moved > max(self.noise, SCALAR_NOISE))

    @property
    def mixes_documents(self) -> bool:
        """Whether that is more than padding that reaches documents."""
        gradient = self.measurement.gradient
        # Where movements below a coarse noise say nothing, whether a gradient is exactly 0 decides.
        least = 0.0 if self.noise > THRESHOLD else THRESHOLD
        by_gradient = gradient is not None and gradient.cross > least
        return by_gradient or self.measurement.perturbation.cross > self.least

    @property
    def movement(self) -> Movement:
        """The test that shows the leak."""
        gradient = self.measurement.gradient
        by_gradient = gradient is not None and self.measurement.perturbation.cross <= self.least
        return gradient if gradient is not None and by_gradient else self.measurement.perturbation

    @property
    def differs(self) -> bool:
        """Whether documents answer otherwise than alone."""
        return self.measurement.difference > self.least


@dataclass(frozen=True)
class Finding:
    """A verdict, what it rests on, and a sentence for people. `kind` is None for a leak whose place is yet to be
    found."""

    verdict: Verdict
    kind: Kind | None
    message: str


def judge(evidence: Evidence, path: Path, places: Sequence[Place]) -> Finding:
    """Say what the evidence proves about a path."""
    unseen = _unseen(evidence.measurement)
    if unseen is not None and not evidence.leaks:
        return unseen
    if evidence.leaks:
        return Finding("leak", *_leak(evidence, path))
    if evidence.causal is False:
        return Finding("differs", "causality", "Tokens see later tokens of their own document.")
    if evidence.differs:
        return Finding("differs", *_difference(evidence, places))
    if evidence.kernel is not None and evidence.kernel.calls == 0:
        return Finding("inconclusive", "kernel_not_called", "The bound kernel was never called: this proves nothing.")
    if evidence.kernel is not None and not evidence.kernel.boundaries_seen:
        return Finding("inconclusive", "kwargs_dropped", "The kernel was called without the boundaries given.")
    if not evidence.measurement.finite_padding:
        message = "Logits at padding are not finite numbers: a loss over the row can carry them into every gradient."
        return Finding("inconclusive", "not_finite", message)
    if evidence.mixes_within is False:
        message = "No token of a document answers to an earlier one, so that a leak could not be seen."
        return Finding("inconclusive", "no_mixing", message)
    compared = any(evidence.measurement.differences)
    message = "Every document answers as it does alone." if compared else "No document reaches another."
    return Finding("clean", None, message)


def _unseen(measurement: Measurement) -> Finding | None:
    """Say why a leak could not have been seen; None if it could."""
    perturbation, gradient = measurement.perturbation, measurement.gradient
    numbers = [perturbation.cross, 0.0 if gradient is None else gradient.cross]
    if not measurement.finite or not all(map(math.isfinite, numbers)):
        return Finding("inconclusive", "not_finite", "Logits or gradients are not finite numbers.")
    if not math.isfinite(measurement.padding):
        return Finding("inconclusive", "not_finite", "Logits or gradients by padding are not finite numbers.")
    if measurement.scale == 0 or perturbation.own <= max(THRESHOLD, measurement.rounding):
        return Finding("inconclusive", "constant", "A document's own logits do not move when its tokens change.")
    if gradient is None:
        return Finding("inconclusive", "gradient_unseen", "No differentiable token embedding was found.")
    if gradient.own <= THRESHOLD:
        return Finding("inconclusive", "gradient_unseen", "No gradient reaches a document's own embeddings.")
    return None


def _leak(evidence: Evidence, path: Path) -> tuple[Kind | None, str]:
    if not evidence.mixes_documents and evidence.moved_scalars:
        kind: Kind = "router" if evidence.chooses_experts else "auxiliary_loss"
        return kind, f"Padding counts in {', '.join(evidence.moved_scalars)}."
    if not evidence.mixes_documents:
        return "padding", "Padding reaches documents, which do not reach one another."
    movement = evidence.movement
    reaches = f"Document {movement.source + 1} reaches document {movement.target + 1}."
    if evidence.kernel is not None and evidence.kernel.calls == 0:
        return "kernel_not_called", f"{reaches} The model never called the bound kernel."
    if evidence.kernel is not None and not evidence.kernel.boundaries_seen:
        return "kwargs_dropped", f"{reaches} The kernel was called without the boundaries given."
    lost = [name for name in evidence.dropped if path.carries_boundaries_in(name)]
    if lost:
        return "kwargs_dropped", f"{reaches} The forward does not take {', '.join(lost)}."
    if evidence.had_effect is False:
        return "kwargs_dropped", f"{reaches} The boundaries given change nothing in the answer."
    if evidence.causal is False:
        return "causality", f"{reaches} Tokens see later tokens of their own document, too."
    return None, reaches


def _difference(evidence: Evidence, places: Sequence[Place]) -> tuple[Kind, str]:
    """Name the cause of a difference without a leak by which tokens it is that differ."""
    compared = [
        (place, [value > evidence.least for value in document])
        for place, document in zip(places, evidence.measurement.differences, strict=True)
        if document
    ]
    starts_row = [any(document) for place, document in compared if place.start == 0]
    others = [document for place, document in compared if place.start > 0]
    if others and not any(starts_row) and all(any(document) for document in others):
        return "positions", "Documents that begin a row are right, all others are not: their positions do not restart."
    first = min(document.index(True) for _, document in compared if any(document))
    if first > 1 and all(all(document[first:]) for _, document in compared):
        return "window", f"Tokens from place {first} of their document on differ: a window of {first} is not kept."
    in_part = [document.index(True) for document in others if any(document) and not document[0]]
    could_show = any(place.start == 0 and len(document) > min(in_part, default=0) for place, document in compared)
    all_right = could_show and not any(starts_row)
    if all_right and len(in_part) > 1 and not any(document[0] for document in others):
        return "window", "Documents that begin a row are right, others only in part: a window is counted from the row."
    wrong = [place.length for place, document in compared if any(document)]
    right = [place.length for place, document in compared if not any(document)]
    if right and max(wrong) < min(right):
        return "length", "Only the longest documents are right: something is scaled by the longest of the batch."
    return "unexplained", "Documents answer otherwise than alone, and no cause is proved."
