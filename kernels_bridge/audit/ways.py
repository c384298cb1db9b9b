"""One way of giving any documents to one model, so that it can be examined on several batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from neatpack.adapters.boundary_fields import PACKED_SEQ_IDS
from neatpack.kernels_bridge.audit.alone import BOUNDARY_FIELDS, arguments_alone
from neatpack.kernels_bridge.audit.computations import Computations
from neatpack.kernels_bridge.audit.configured import kernel_calls
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.examination import Examination, begin_examination
from neatpack.kernels_bridge.audit.inputs import path_arguments
from neatpack.kernels_bridge.audit.layers import layer_reports
from neatpack.kernels_bridge.audit.paths import PATHS, Path
from neatpack.kernels_bridge.audit.repeats import unless_it_varies
from neatpack.kernels_bridge.audit.report import PathReport
from neatpack.kernels_bridge.audit.subject import ANYTHING, Answer, Subject
from neatpack.kernels_bridge.audit.targets import layer_windows
from neatpack.kernels_bridge.audit.verdicts import THRESHOLD, KernelCalls
from neatpack.kernels_bridge.audit.weight_gradients import unless_weights_differ
from neatpack.kernels_bridge.binding import Binding

CONFIGURED: Path = next(path for path in PATHS if path.name == "configured")

Given = Callable[[PackedDocuments], Mapping[str, object]]


@dataclass
class Way:
    """How documents are given to a model.

    Attributes:
        model: the model.
        given: what goes with the tokens of a batch.
        alone: what goes with the tokens of one document, by its index.
        without: what goes with them where nothing says where documents end; None where nothing ever does.
        binding: what is bound to the model, and takes document ids away before its forward.
        path: what it is judged as.
        noise: share of the logit scale up to which a movement may be rounding.
        traces_layers: whether to report, for a leak, how far documents reach at each layer.
        from_batch: whether `given` is a whole batch, of which a forward takes what it knows.
        asks_alone: whether the model is asked about documents alone at all.
    """

    model: nn.Module
    given: Given
    alone: Callable[[PackedDocuments, int], Mapping[str, object]]
    without: Given | None
    binding: Binding | None = None
    path: Path = CONFIGURED
    noise: float = THRESHOLD
    traces_layers: bool = False
    from_batch: bool = False
    asks_alone: bool = True

    def examine(self, packed: PackedDocuments) -> PathReport:
        """Examine the model on some documents, and compare with each document alone."""
        return self._report(packed, self.without, compares=self.asks_alone)

    def examine_further(self, packed: PackedDocuments, compares: bool = True) -> PathReport:
        """Examine it on other documents, after some on which boundaries did have an effect."""
        return self._report(packed, None, compares and self.asks_alone)

    def give(self, packed: PackedDocuments) -> None:
        """Give it some documents as in training, and look at nothing."""
        self._subject(None, *self._hooked).packed(packed, self.given(packed), grad=True)

    @property
    def _hooked(self) -> tuple[str, ...]:
        return () if self.binding is None else (PACKED_SEQ_IDS,)

    def _report(self, packed: PackedDocuments, without: Given | None, compares: bool) -> PathReport:
        """Examine all that the model answers to each token: the logits first, and the rest if they do not leak."""
        subject = self._subject(None, *self._hooked)
        report = self._report_on(subject, packed, without, compares)
        for name in subject.others:
            if report.verdict == "leak":
                break
            with suppress(*ANYTHING):  # what comes only at times, or in another shape alone, is no answer to tokens
                found = self._report_on(self._subject(name, *self._hooked), packed, without, compares)
                if found.verdict == "leak" or (found.verdict == "differs" and report.verdict != "differs"):
                    report = replace(found, message=f"In {name}: {found.message}")
        return report

    def _report_on(
        self, subject: Subject, packed: PackedDocuments, without: Given | None, compares: bool
    ) -> PathReport:
        ask = partial(subject.packed, packed, self.given(packed))
        examination = self._examination(packed, compares, subject.output)
        computation = examination.computations.of(ask)
        if self.from_batch:
            subject.dropped = dict.fromkeys(_lost(subject.dropped, self.given(packed)))
        ask_without = None if without is None else partial(self._without, packed, without, subject.output)
        report = examination.report(self.path, subject, ask, computation, self._kernel(packed), ask_without)
        report = unless_it_varies(report, subject, ask, self.noise, seeds=compares and report.verdict == "differs")
        alone = examination.computations.alone
        if alone is not None and self.noise <= THRESHOLD:
            report = unless_weights_differ(
                report, self.model, computation.answer, alone, computation.measurement.rounding
            )
        if not self.traces_layers or report.from_document is None:
            return report
        return layer_reports(report, self.model, ask, packed)

    def _examination(self, packed: PackedDocuments, compares: bool, output: str | None) -> Examination:
        if not compares or not packed.asked_alone:
            return Examination(packed, Computations(packed, None), causal=False, mixes_within=False, noise=self.noise)
        ask_alone = partial(self._subject(output).alone, packed, arguments=partial(self.alone, packed))
        return begin_examination(packed, ask_alone, self.noise)

    def _without(self, packed: PackedDocuments, given: Given, output: str | None) -> Answer:
        return self._subject(output).packed(packed, given(packed))

    def _subject(self, output: str | None, *hooked: str) -> Subject:
        return Subject(self.model, frozenset(hooked), by_name=not self.from_batch, output=output)

    def _kernel(self, packed: PackedDocuments) -> KernelCalls | None:
        return None if self.binding is None else kernel_calls(self.binding, packed, layer_windows(self.model))


def _lost(dropped: Iterable[str], given: Iterable[str]) -> tuple[str, ...]:
    """What a forward should have taken of a batch: whatever says where documents end, if it takes nothing that does."""
    telling = BOUNDARY_FIELDS - {"padding_mask", "qkv_format"}
    left_out = frozenset(dropped)
    return () if telling & (frozenset(given) - left_out) else tuple(sorted(telling & left_out))


def configured_way(model: nn.Module, binding: Binding | None, noise: float = THRESHOLD, layers: bool = False) -> Way:
    """The way of a training job: `_packed_seq_ids` and positions, given to a model that is configured for them."""
    return Way(
        model,
        given=lambda packed: {
            **path_arguments(CONFIGURED, packed, layer_windows(model)),
            **_structural_ids(model, packed),
        },
        alone=lambda packed, document: arguments_alone(model, packed, document),
        without=lambda _packed: {"use_cache": False},
        binding=binding,
        noise=noise,
        traces_layers=layers,
    )


def _structural_ids(model: nn.Module, packed: PackedDocuments) -> dict[str, object]:
    """The ids as packed, where attention joins documents and the forward names them."""
    named = "document_ids" in inspect.signature(model.forward).parameters
    return {"document_ids": packed.structural_ids} if named and packed.structural_ids is not None else {}


def noise_of(model: nn.Module) -> float:
    """How far rounding may move logits in the model's own dtype and on its device, as a share of their scale.

    On a GPU sums are made in an order of its own, and in TF32 where that is allowed.
    """
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    coarsest = max((torch.finfo(tensor.dtype).eps for tensor in floating if tensor.dtype.itemsize > 1), default=0.0)
    if any(tensor.device.type != "cpu" for tensor in floating):
        coarsest = max(coarsest, 2**-10)
    return _noise(coarsest)


def noise_in(dtype: torch.dtype) -> float:
    """How far rounding may move logits that a CPU computes in a dtype, as a share of their scale.

    Example:
        >>> noise_in(torch.float32), noise_in(torch.bfloat16)
        (1e-05, 0.0625)
    """
    return _noise(torch.finfo(dtype).eps)


def _noise(unit: float) -> float:
    """Eight units in the last place, and no less than what counts in fp32."""
    return THRESHOLD if unit <= torch.finfo(torch.float32).eps else 8 * unit
