"""The audit of one model as it stands: built, wrapped, on its device, with its own weights and on its own batch."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, cast

import torch
from torch import Tensor, nn

from neatpack.adapters.arguments import require_instance
from neatpack.adapters.boundary_fields import IDS, PACKED_SEQ_IDS
from neatpack.contracts.errors import BatchError, IsolationError, ModelError, ModelTypeError, PackingError, Problem
from neatpack.kernels_bridge.audit.advice import with_advice
from neatpack.kernels_bridge.audit.alone import (
    BOUNDARY_FIELDS,
    cut_mask,
    cut_to_document,
    fields_of_one,
    required_arguments,
)
from neatpack.kernels_bridge.audit.borrowing import Borrowed
from neatpack.kernels_bridge.audit.configured import choice_of, configured
from neatpack.kernels_bridge.audit.documents import PackedDocuments, read_documents
from neatpack.kernels_bridge.audit.remedies import GIVE_A_BATCH
from neatpack.kernels_bridge.audit.report import Configured, Environment, Kind, ModelReport, PathReport, Report, Verdict
from neatpack.kernels_bridge.audit.state import borrow_model, redraw_zeros
from neatpack.kernels_bridge.audit.subject import ANYTHING, Subject
from neatpack.kernels_bridge.audit.surroundings import audit_environment, borrow_surroundings
from neatpack.kernels_bridge.audit.trials import (
    NOTES,
    examine_first_taken,
    not_reached,
    try_further,
    usual_documents,
)
from neatpack.kernels_bridge.audit.ways import Way, configured_way, noise_of
from neatpack.kernels_bridge.binding import Binding, get_binding
from neatpack.kernels_bridge.entry import ATTENTION_MASK
from neatpack.kernels_bridge.forward_ranks import is_sharded
from neatpack.kernels_bridge.inspect import find_document_ids

_EXECUTING: Final = ("OptimizedModule", "DistributedDataParallel", "DataParallel")
"""Wrappers that decide how a module is run and not what it computes: the module inside is audited."""


@dataclass(frozen=True)
class IsolationReport:
    """What `audit_isolation` found.

    Attributes:
        model: the model, with one path: `configured`.
        environment: where it ran, and from which share of the logit scale on something counts.
    """

    model: ModelReport
    environment: Environment

    @property
    def path(self) -> PathReport:
        """Verdict, kind, numbers, and where documents mix."""
        return self.model.paths["configured"]

    @property
    def verdict(self) -> Verdict:
        """What was found."""
        return self.path.verdict

    @property
    def kind(self) -> Kind | None:
        """What the verdict rests on."""
        return self.path.kind

    @property
    def is_clean(self) -> bool:
        """Whether every document answers as it does alone, and the tests could have shown otherwise."""
        return self.model.is_clean

    def raise_if_not_clean(self) -> None:
        """Raise unless the model is clean.

        Raises:
            IsolationError: it is not; the message says what was found, and where.
        """
        if self.is_clean:
            return
        path = self.path
        found = f"{path.verdict}{'' if path.kind is None else f' ({path.kind})'}"
        raise IsolationError(
            Problem(self.model.name, f"{found}: {path.message.rstrip('.')}", "value", remedy=path.remedy)
        )

    def as_report(self) -> Report:
        """Give it as a report of one model, which can be printed and written as those of `neatpack audit`."""
        return Report(self.environment, (self.model,))


def audit_isolation(
    model: nn.Module,
    batch: Mapping[str, object] | None = None,
    *,
    keep_weights: bool = False,
    layers: bool = True,
) -> IsolationReport:
    """Prove that a built model keeps documents apart, or show where it does not.

    To be called in a test, or before the first step of training. The model is audited as it stands: with its weights,
    dtype, device and binding, in evaluation mode and in training mode. Afterwards weights, gradients, buffers, hooks,
    attributes, mode and random states are what they were, also where the audit is interrupted.

    Args:
        model: a built module, in any wrapper of torch that leaves it whole. Data parallel and compiled ones are audited
            inside; each rank may audit another batch.
        batch: what the training loop passes to the model by keyword: int64 `input_ids` `[batch, sequence]`, and
            whatever says where documents end. Entries that the forward does not take are left out. Where None, the
            model is given documents of the audit's own, as `_packed_seq_ids` and positions; if it is not configured
            for packing yet, it is for the length of the audit.
        keep_weights: leave parameters that are all zero as they are; else they are redrawn meanwhile, since a gate
            of zeros hides whatever lies behind it.
        layers: report for a leak how far it reaches at each layer.

    Returns:
        The report. Nothing is raised for a leak: see `raise_if_not_clean`.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.
        ModelError: it is sharded over processes, which would have to call it in step.
        BatchError: the batch is no mapping, it has no tokens, nothing in it says where documents end, or it holds
            fewer than two.
        DocumentIdsError: what says so is malformed.

    Example:
        >>> from typing import Literal
        >>> class Averages(nn.Module):
        ...     packed_mask_type: Literal["document_ids"] = "document_ids"
        ...     def __init__(self) -> None:
        ...         super().__init__()
        ...         self.embed = nn.Embedding(64, 4)
        ...     def forward(self, input_ids, _packed_seq_ids=None):
        ...         return self.embed(input_ids).cumsum(dim=1)
        >>> report = audit_isolation(Averages())
        >>> report.verdict, report.kind
        ('leak', 'kwargs_dropped')
    """
    if not isinstance(cast("object", model), nn.Module):
        remedy = "Pass the built model itself."
        raise ModelTypeError(
            Problem("model", "must be a torch.nn.Module", "type", value=type(model).__name__, remedy=remedy)
        )
    if is_sharded(model):
        message, remedy = "is sharded over processes, each with a part", "Audit it before it is sharded: bindings stay."
        raise ModelError(Problem("model", message, "unsupported", value=type(model).__name__, remedy=remedy))
    started = time.perf_counter()
    inner = _executed(model)
    noise = noise_of(inner)
    packed = None if batch is None else _documents_of(batch)
    borrowed = Borrowed()
    try:
        with borrowed:
            borrow_surroundings(borrowed)
            borrow_model(borrowed, inner)
            if not keep_weights:
                redraw_zeros(borrowed, inner)
            inner.eval()
            auditor = _Auditor(inner, noise, layers, borrowed)
            choice, path = auditor.on_own_documents() if batch is None or packed is None else auditor.on(batch, packed)
    finally:
        borrowed.give_back()
    where = audit_environment(_dtype(inner), str(_device(inner)), noise)
    report = ModelReport(type(inner).__name__, type(inner).__name__, choice, {"configured": path})
    return IsolationReport(replace(report, seconds=time.perf_counter() - started), where)


@dataclass
class _Auditor:
    """The audit of one model.

    Attributes:
        model: in evaluation mode.
        noise: share of the logit scale up to which a movement may be rounding.
        layers: whether to report how far a leak reaches at each layer.
        borrowed: gives back what the audit changes.
    """

    model: nn.Module
    noise: float
    layers: bool
    borrowed: Borrowed

    def on_own_documents(self) -> tuple[Configured, PathReport]:
        """Give it the documents of the audit."""
        bound_before = get_binding(self.model)
        with _as_configured(self.model) as (choice, binding, refusal):
            if binding is not None and binding is not bound_before:
                self.borrowed.undo_by(binding.remove)  # also where it is interrupted as the block is left
            if refusal is not None:
                return choice, PathReport("refused", message=f"{type(refusal).__name__}: {refusal}")
            way = configured_way(self.model, binding, self.noise, self.layers)
            try:
                own = usual_documents(Subject(self.model).vocabulary(), _device(self.model))
                report = try_further(examine_first_taken(way, own))
            except ANYTHING as error:
                report = PathReport("error", message=f"{type(error).__name__}: {error}", remedy=GIVE_A_BATCH)
            return with_advice(self.model, choice, report)

    def on(self, batch: Mapping[str, object], packed: PackedDocuments) -> tuple[Configured, PathReport]:
        """Give it the batch of its training loop, in both modes."""
        binding = get_binding(self.model)
        choice = Configured() if binding is None else choice_of(self.model, binding)
        way = self._way_of(batch, binding)
        try:
            longest = max(place.length for place in packed.places)
            taken = examine_first_taken(way, [packed])
            untried = (*taken.report.untried, *not_reached(self.model, longest))
            report = replace(taken.report, trial="plain", untried=untried)
            if report.verdict != "leak":
                self.model.train()
                found = taken.way.examine_further(packed, compares=False)
                if found.verdict == "leak" or found.kind == "not_deterministic":
                    report = replace(found, trial="training", message=NOTES["training"] + found.message)
        except ANYTHING as error:
            report = PathReport("error", message=f"{type(error).__name__}: {error}")
        finally:
            self.model.eval()
        return with_advice(self.model, choice, report)

    def _way_of(self, batch: Mapping[str, object], binding: Binding | None) -> Way:
        given = {name: value for name, value in batch.items() if name != "input_ids"}
        others = {name: value for name, value in given.items() if name not in BOUNDARY_FIELDS}
        needed = required_arguments(self.model)

        def alone(packed: PackedDocuments, document: int) -> Mapping[str, object]:
            length = packed.tokens_of(document).numel()
            fields = fields_of_one(length, self.model, packed.input_ids.device)
            if ATTENTION_MASK in given:
                fields[ATTENTION_MASK] = cut_mask(given[ATTENTION_MASK], packed, document)
            own = {name: value for name, value in fields.items() if name in needed}
            return {"use_cache": False, **own, **cut_to_document(others, packed, document)}

        return Way(
            self.model,
            given=lambda _packed: given,
            alone=alone,
            without=lambda _packed: {"use_cache": False, **others},
            binding=binding,
            noise=self.noise,
            traces_layers=self.layers,
            from_batch=True,
        )


@contextmanager
def _as_configured(
    model: nn.Module,
) -> Generator[tuple[Configured, Binding | None, PackingError | None], None, None]:
    """Take a model as it is bound; one that is not, is for the length of the block."""
    binding = get_binding(model)
    if binding is not None:
        yield choice_of(model, binding), binding, None
        return
    with configured(model) as state:
        yield state.choice, state.binding, state.refusal


def audit_build(name: str, model: nn.Module, batch: Mapping[str, object], keep_weights: bool = False) -> ModelReport:
    """Audit a model that was just built on a saved batch: configured for packing where a consumer takes it.

    Raises:
        BatchError: as in `audit_isolation`.
        DocumentIdsError: likewise.
    """
    with _as_configured(_executed(model)) as (_, binding, _):
        if binding is not None:
            batch = {**batch, PACKED_SEQ_IDS: _documents_of(batch).document_ids}
        report = audit_isolation(model, batch, keep_weights=keep_weights)
    return replace(report.model, name=name)


def _documents_of(batch: Mapping[str, object]) -> PackedDocuments:
    require_instance(batch, Mapping, "batch", "Give what the model is called with, by name.", error=BatchError)
    tokens = batch.get("input_ids")
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        remedy = "Give the batch as the model takes it, tokens int64 [batch, sequence]."
        raise BatchError(Problem("input_ids", "must be the tokens of the batch", "missing", remedy=remedy))
    ids = next((batch[name] for name in IDS if isinstance(batch.get(name), Tensor)), None)
    if not isinstance(ids, Tensor):
        ids = find_document_ids({name: value for name, value in batch.items() if isinstance(value, (Tensor, int, str))})
    if ids.shape != tokens.shape:
        remedy = "Cut and pad ids together with the tokens that they belong to."
        message = f"must be [batch, sequence] like input_ids, {tuple(tokens.shape)}"
        raise BatchError(Problem("document_ids", message, "shape", value=tuple(ids.shape), remedy=remedy))
    packed = read_documents(tokens, ids.to(tokens.device), int(tokens.max()) + 1)
    if len(packed.places) < 2:
        remedy = "Give a batch in which rows hold several documents."
        raise BatchError(Problem("batch", "holds fewer than two documents", "value", remedy=remedy))
    return replace(packed, begun_late=_begun_late(batch, packed))


def _begun_late(batch: Mapping[str, object], packed: PackedDocuments) -> frozenset[int]:
    """Find the documents behind a token that policy took out, of them as the ids as packed tell; a padding mask tells
    of no token whose it was."""
    structural, padding = (batch.get(name) for name in ("document_ids", "padding_mask"))
    ids = packed.document_ids.cpu()
    kept = torch.zeros_like(ids, dtype=torch.bool)
    if isinstance(structural, Tensor) and structural.shape == ids.shape:
        own = structural.cpu()
        kept[:, :-1] = (own[:, :-1] > 0) & (own[:, :-1] == own[:, 1:])
    elif isinstance(padding, Tensor) and padding.shape == ids.shape:
        kept = padding.cpu() == 0
    holes = kept & (ids == 0)
    places = enumerate(packed.places)
    return frozenset(number for number, place in places if place.start and holes[place.row, place.start - 1])


def _executed(model: nn.Module) -> nn.Module:
    """Take off the wrappers that decide how a module is run."""
    while type(model).__name__ in _EXECUTING and type(model).__module__.startswith("torch."):
        model = cast("nn.Module", getattr(model, "_orig_mod", None) or getattr(model, "module", model))
    return model


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def _dtype(model: nn.Module) -> torch.dtype:
    return next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
