"""One model, some packed documents: what the tests find on each path, and the report of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from neatpack.kernels_bridge.audit.causes import Questions
from neatpack.kernels_bridge.audit.computations import Computation, Computations
from neatpack.kernels_bridge.audit.crossing import SENTENCES, pairs_of, pattern_of, telling_pair
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.origin import chooses_experts
from neatpack.kernels_bridge.audit.paths import Path
from neatpack.kernels_bridge.audit.probes import Ask, Measurement, answers_to_earlier_tokens, sees_later_tokens
from neatpack.kernels_bridge.audit.report import Kind, PathReport
from neatpack.kernels_bridge.audit.subject import ANYTHING, Answer, Subject
from neatpack.kernels_bridge.audit.targets import layer_windows
from neatpack.kernels_bridge.audit.verdicts import THRESHOLD, Evidence, Finding, KernelCalls, judge


@dataclass
class Examination:
    """A model that answers to packed documents on several paths.

    Attributes:
        packed: the documents.
        computations: what it was found to compute.
        causal: whether tokens alone see no later ones.
        mixes_within: whether tokens alone answer to earlier ones.
        noise: share of the logit scale up to which a movement may be rounding.
    """

    packed: PackedDocuments
    computations: Computations
    causal: bool
    mixes_within: bool
    noise: float = THRESHOLD

    def report(
        self,
        path: Path,
        subject: Subject,
        ask: Ask,
        computation: Computation,
        kernel: KernelCalls | None,
        without: Callable[[], Answer] | None = None,
    ) -> PathReport:
        """Judge one path.

        Args:
            path: which one.
            subject: the model, as it was asked.
            ask: gives it the documents on this path.
            computation: what it was found to compute there.
            kernel: what the bound kernel saw; None where none was bound.
            without: gives it the documents without their boundaries; None where nothing said where those are.
        """
        mixes_within = self.mixes_within or computation.mixes_within(ask)
        evidence = Evidence(
            computation.measurement, kernel, tuple(subject.dropped), mixes_within=mixes_within, noise=self.noise
        )
        if evidence.leaks and without is not None:
            evidence = replace(evidence, had_effect=_had_effect(computation, without))
        if evidence.moved_scalars:
            evidence = replace(evidence, chooses_experts=chooses_experts(subject.model))
        if (evidence.leaks or evidence.differs) and self.causal:
            evidence = replace(evidence, causal=computation.causal())
        finding = self._explained(judge(evidence, path, self.packed.places), evidence, path, subject, computation)
        report = _with_numbers(PathReport(finding.verdict, finding.kind, finding.message), evidence)
        mixes = finding.verdict == "leak" and evidence.mixes_documents
        return self._located(report, evidence, subject, ask, computation) if mixes else report

    def _explained(
        self, finding: Finding, evidence: Evidence, path: Path, subject: Subject, computation: Computation
    ) -> Finding:
        """Add to a difference the cause that another question proves, if any does."""
        alone = self.computations.alone
        if finding.verdict != "differs" or finding.kind == "causality" or alone is None or path.apart:
            return finding
        noise = evidence.least * computation.measurement.scale
        asked = Subject(subject.model, subject.hooked, subject.by_name, output=subject.output)
        questions = Questions(path, asked, self.packed, layer_windows(subject.model), noise)
        kind, message = questions.cause(computation.answer, alone) or (finding.kind, finding.message)
        # A window that is lost is a mask that is not the model's, too; by which tokens differ, more is known of it.
        lost_window = kind == "mask" and finding.kind == "window"
        return finding if lost_window else replace(finding, kind=kind, message=message)

    def _located(
        self, report: PathReport, evidence: Evidence, subject: Subject, ask: Ask, computation: Computation
    ) -> PathReport:
        """Add between which documents a leak is, where in the model they begin to mix, and how they do."""
        movement = evidence.movement
        pairs = pairs_of(movement.matrix, evidence.least) or [(movement.source, movement.target)]
        pair = telling_pair(pairs, self.packed.places)
        origin = computation.origin(ask, subject.model, pair)
        crossing = computation.crossing(ask, pair, evidence.least)
        pattern = pattern_of(pairs, self.packed.places, crossing)
        mechanism: Kind = origin.kind
        there = replace(crossing, moved=origin.moved or crossing.moved)
        # A state that is reset late is read at a few places, too, but it has read all that was before.
        few = there.reaches_a_little if mechanism == "recurrence" else there.moves_a_little
        if mechanism in ("mixing", "recurrence") and few:
            mechanism = "token_shift" if there.moved == (0,) else "convolution"
        return replace(
            report,
            kind=report.kind or mechanism,
            message=f"{report.message} They mix in {origin}. {SENTENCES[pattern]}",
            from_document=movement.source + 1,
            to_document=movement.target + 1,
            where=str(origin),
            mechanism=mechanism,
            pattern=pattern,
        )


def begin_examination(packed: PackedDocuments, ask_alone: Ask, noise: float = THRESHOLD) -> Examination:
    """Ask a model about each document alone, by which all its paths are judged."""
    alone = ask_alone(grad=True)
    sees_later = sees_later_tokens(alone, packed)
    packed = replace(packed, bidirectional=sees_later is True)
    mixes_within = answers_to_earlier_tokens(ask_alone, alone, packed) > noise
    return Examination(packed, Computations(packed, alone), sees_later is False, mixes_within, noise)


def _with_numbers(report: PathReport, evidence: Evidence) -> PathReport:
    measurement, kernel = evidence.measurement, evidence.kernel
    gradient, perturbation = measurement.gradient, measurement.perturbation
    return replace(
        report,
        difference=measurement.difference,
        perturbation=perturbation.cross,
        gradient=None if gradient is None else gradient.cross,
        padding=measurement.padding,
        own_perturbation=perturbation.own,
        own_gradient=None if gradient is None else gradient.own,
        logit_scale=measurement.scale,
        calls=None if kernel is None else kernel.calls,
        boundaries_seen=None if kernel is None else kernel.boundaries_seen,
        dropped=evidence.dropped,
        matrix=_matrix(measurement),
    )


def _matrix(measurement: Measurement) -> tuple[tuple[float, ...], ...]:
    """The effect of each document on each other, by the greater of both tests."""
    moved = measurement.perturbation.matrix
    if measurement.gradient is None or not measurement.gradient.matrix:
        return moved
    if not moved:
        return measurement.gradient.matrix
    both = zip(moved, measurement.gradient.matrix, strict=True)
    return tuple(tuple(map(max, row, others)) for row, others in both)


def _had_effect(computation: Computation, without: Callable[[], Answer]) -> bool:
    try:
        logits = without().logits
    except ANYTHING:  # a model that cannot do without the boundaries reads them
        return True
    return not computation.answers(logits)
