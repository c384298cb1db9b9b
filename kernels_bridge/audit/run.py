"""Auditing models: every path of every target, measured, judged and reported, with nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor, nn

from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.contracts.errors import PackingError
from neatpack.kernels_bridge.audit.advice import with_advice
from neatpack.kernels_bridge.audit.alone import arguments_alone
from neatpack.kernels_bridge.audit.borrowing import Borrowed
from neatpack.kernels_bridge.audit.computations import Computation, Computations
from neatpack.kernels_bridge.audit.configured import configured, kernel_calls
from neatpack.kernels_bridge.audit.documents import LENGTHS, PackedDocuments, pack_documents
from neatpack.kernels_bridge.audit.examination import Examination, begin_examination
from neatpack.kernels_bridge.audit.inputs import path_arguments
from neatpack.kernels_bridge.audit.layers import layer_reports
from neatpack.kernels_bridge.audit.paths import PATH_NAMES, PATHS, Attention, Path, PathName
from neatpack.kernels_bridge.audit.probes import Ask
from neatpack.kernels_bridge.audit.remedies import GIVE_A_BATCH, with_remedies
from neatpack.kernels_bridge.audit.report import Configured, ModelReport, PathReport, Report, Run
from neatpack.kernels_bridge.audit.subject import ANYTHING, Answer, Subject
from neatpack.kernels_bridge.audit.surroundings import audit_environment, borrow_surroundings
from neatpack.kernels_bridge.audit.targets import Target, Variant, layer_windows, prepared
from neatpack.kernels_bridge.audit.texts import excerpts
from neatpack.kernels_bridge.audit.trials import examine_first_taken, not_reached, try_further, usual_documents
from neatpack.kernels_bridge.audit.verdicts import KernelCalls
from neatpack.kernels_bridge.audit.ways import configured_way, noise_in, noise_of
from neatpack.kernels_bridge.audit.witness import Witness
from neatpack.kernels_bridge.binding import Binding

__all__ = ["audit_models"]

Progress = Callable[[str], None]
"""Told in a few words what is being done."""

DECLINES: Final = ("packed sequences apart",)
"""What Transformers' own errors say where it declines for a reason of packing."""

_OTHER_ATTENTIONS: Final[tuple[Attention, ...]] = ("kernel", "sdpa", "built")
"""Those beside eager attention, with which documents are asked alone."""


def audit_models(
    targets: Sequence[Target],
    texts: Sequence[bytes],
    progress: Progress = lambda _message: None,
    paths: Collection[PathName] = PATH_NAMES,
    keep_weights: bool = False,
    layers: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Report:
    """Audit several models, one after the other.

    One thread is used. Thread count, random state and warnings are afterwards as they were.

    Args:
        targets: what to audit.
        texts: where the documents are cut from.
        progress: told what is being done.
        paths: which ways to try.
        keep_weights: leave parameters that are all zero as they are; else they are redrawn, since a gate of zeros
            hides whatever lies behind it.
        layers: report, for a leak, how far documents reach at each layer.
        dtype: of parameters, buffers and masks.

    Raises:
        BatchError: the texts are too short.

    Example:
        >>> from neatpack.kernels_bridge.audit.targets import Builder
        >>> token_by_token = Builder("mlp", lambda: nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 16)))
        >>> report = audit_models([token_by_token], [bytes(range(200))])
        >>> report.models[0].paths["mask_2d"].kind  # it could not leak, whatever the boundaries
        'no_mixing'
    """
    excerpts(texts, LENGTHS)
    started = time.perf_counter()
    with Borrowed() as borrowed:
        borrow_surroundings(borrowed)
        here = audit_environment(dtype, threshold=noise_in(dtype))
        models = [
            _audit_model(
                prepared(target, keep_weights=keep_weights, dtype=dtype),
                texts,
                _numbered(progress, f"[{index}/{len(targets)}] {target.name}"),
                paths,
                layers,
            )
            for index, target in enumerate(targets, start=1)
        ]
    return Report(here, tuple(models), Run(time.perf_counter() - started))


def _audit_model(
    target: Target, texts: Sequence[bytes], progress: Progress, paths: Collection[PathName], layers: bool
) -> ModelReport:
    """Audit one model. One that cannot be built, or answers in no way, is reported with its `error`."""
    started = time.perf_counter()
    try:
        with target.variant("eager") as variant:
            subject = Subject(variant.model)
            packed = pack_documents(texts, subject.vocabulary(), _device(variant.model), variant.images)
            packed = replace(packed, mask_dtype=_dtype(variant.model))
            examination, declined = _begun(subject, packed, target.custom)
            audit = _Audit(target, examination, progress, paths, layers)
            class_name = type(variant.model).__name__
            reports: dict[str, PathReport] = dict(audit.on_paths("eager", variant))
        for attention in _OTHER_ATTENTIONS:
            reports.update(audit.with_attention(attention))
    except ANYTHING as error:
        message, remedy = _apart(error)
        return ModelReport(target.name, None, Configured(), {}, message, time.perf_counter() - started, remedy)
    seconds = time.perf_counter() - started
    if declined is not None and all(path.verdict in ("error", "refused") for path in reports.values()):
        return ModelReport(target.name, None, Configured(), {}, _describe(declined), seconds, GIVE_A_BATCH)
    in_order: dict[str, PathReport] = {name: reports[name] for name in PATH_NAMES if name in reports}
    return ModelReport(target.name, class_name, audit.choice, with_remedies(in_order), None, seconds)


def _begun(subject: Subject, packed: PackedDocuments, custom: bool) -> tuple[Examination, BaseException | None]:
    """Ask a model about each document alone. A module of one's own may take other rows than these, or more beside the
    tokens: then it is compared with nothing yet, and why is given."""
    noise = noise_of(subject.model)
    try:
        alone = partial(subject.alone, packed, arguments=partial(arguments_alone, subject.model, packed))
        return begin_examination(packed, alone, noise), None
    except ANYTHING as error:
        if not custom:
            raise
        return Examination(packed, Computations(packed, None), causal=False, mixes_within=False, noise=noise), error


@dataclass
class _Audit:
    """The audit of one model.

    Attributes:
        target: what is audited.
        examination: what it answers to each document alone, and on each path.
        progress: told which path is being tried.
        chosen: which paths to try.
        layers: whether to report, for a leak, how far documents reach at each layer.
        choice: what `configure_packing` chose.
    """

    target: Target
    examination: Examination
    progress: Progress
    chosen: Collection[PathName]
    layers: bool = False
    choice: Configured = field(default_factory=Configured)

    @property
    def packed(self) -> PackedDocuments:
        """The documents."""
        return self.examination.packed

    def with_attention(self, attention: Attention) -> Iterator[tuple[PathName, PathReport]]:
        """Build the model with an attention, and try the paths of this."""
        paths = self._paths(attention)
        if not paths:
            return
        try:
            with self.target.variant(attention) as variant:
                yield from self.on_paths(attention, variant)
        except ANYTHING as error:
            for path in paths:
                yield path.name, _failed(error)

    def on_paths(self, attention: Attention, variant: Variant) -> Iterator[tuple[PathName, PathReport]]:
        """Try the paths of one attention on a model that was built with it."""
        without = self._without(variant.model)
        for path in self._paths(attention):
            self.progress(path.name)
            yield path.name, self._report(path, variant, without)

    def _paths(self, attention: Attention) -> list[Path]:
        return [path for path in PATHS if path.attention == attention and self._is_tried(path)]

    def _is_tried(self, path: Path) -> bool:
        return path.name in self.chosen and (path.of_encoders or not self.packed.bidirectional)

    def _report(self, path: Path, variant: Variant, without: Callable[[], Answer]) -> PathReport:
        try:
            if path.name == "configured":
                return self._configured(path, variant.model)
            subject = Subject(variant.model)
            ask = self._ask(path, subject)
            if variant.witness is not None:
                variant.witness.boundaries.clear()
            computation = self.examination.computations.of(ask)
            kernel = None if variant.witness is None else self._witnessed(variant.witness, subject.calls)
            return self._judge(path, subject, ask, computation, kernel, without)
        except ANYTHING as error:
            report = _failed(error)
            of_batch = self.target.custom and path.name == "configured" and report.verdict == "error"
            return replace(report, remedy=GIVE_A_BATCH) if of_batch else report

    def _configured(self, path: Path, model: nn.Module) -> PathReport:
        with configured(model) as state:
            self.choice = state.choice
            if state.refusal is not None:
                return _failed(state.refusal)
            way = configured_way(model, state.binding, self.examination.noise, self.layers)
            if self.target.custom:
                _, *others = usual_documents(self.packed.vocabulary, _device(model))
                report = try_further(examine_first_taken(way, [self.packed, *others]))
            else:
                longest = max(place.length for place in self.packed.places)
                report = self._usual_report(path, model, state.binding)
                report = replace(report, untried=not_reached(model, longest))
            self.choice, _ = with_advice(model, state.choice, report)
            return report

    def _usual_report(self, path: Path, model: nn.Module, binding: Binding | None) -> PathReport:
        subject = Subject(model, hooked=frozenset({"_packed_seq_ids"}), by_name=True)
        ask = self._ask(path, subject)
        computation = self.examination.computations.of(ask)
        kernel = None if binding is None else kernel_calls(binding, self.packed, layer_windows(model))
        return self._judge(path, subject, ask, computation, kernel, self._without(model))

    def _without(self, model: nn.Module) -> Callable[[], Answer]:
        """Gives, asked once, what the model answers where nothing says where documents end."""
        return cache(partial(Subject(model).packed, self.packed, {"use_cache": False}))

    def _ask(self, path: Path, subject: Subject) -> Ask:
        if path.apart:
            return partial(subject.alone, self.packed, arguments=partial(arguments_alone, subject.model, self.packed))
        return partial(subject.packed, self.packed, path_arguments(path, self.packed, layer_windows(subject.model)))

    def _witnessed(self, witness: Witness, forwards: int) -> KernelCalls:
        expected = flash_varlen_kwargs(self.packed.document_ids)["cu_seq_lens_q"]
        seen = [boundaries is not None and torch.equal(boundaries, expected) for boundaries in witness.boundaries]
        return KernelCalls(len(seen) // forwards, bool(seen) and all(seen))

    def _judge(
        self,
        path: Path,
        subject: Subject,
        ask: Ask,
        computation: Computation,
        kernel: KernelCalls | None,
        without: Callable[[], Answer],
    ) -> PathReport:
        carried = without if path.carries_boundaries else None
        report = self.examination.report(path, subject, ask, computation, kernel, carried)
        mixes = self.layers and report.from_document is not None
        return layer_reports(report, subject.model, ask, self.packed) if mixes else report


def _device(model: nn.Module) -> torch.device:
    tensors: Iterable[Tensor] = (*model.parameters(), *model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _dtype(model: nn.Module) -> torch.dtype:
    return next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)


def _failed(error: BaseException) -> PathReport:
    """Tell who declined for a reason of packing from all else that can go wrong."""
    declined = isinstance(error, PackingError) or any(words in str(error) for words in DECLINES)
    return PathReport("refused" if declined else "error", message=_describe(error))


def _apart(error: BaseException) -> tuple[str, str]:
    """What an error says, and apart from it what to do, where one thing is wrong."""
    if not isinstance(error, PackingError) or len(error.problems) != 1:
        return _describe(error), ""
    problem = error.problems[0]
    return f"{type(error).__name__}: {replace(problem, remedy='')}", problem.remedy


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _numbered(progress: Progress, prefix: str) -> Progress:
    return lambda message: progress(f"{prefix}: {message}")
