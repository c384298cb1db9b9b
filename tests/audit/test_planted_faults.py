"""Every planted fault is found and named for what it is; unusual models without one are not accused."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neatpack.kernels_bridge import audit_isolation
from neatpack.kernels_bridge.audit.report import Kind, Pattern, Trial, Verdict
from tests.audit import planted
from tests.audit.planted import (
    Attention,
    Convolution,
    ConvolvesAndRecurs,
    LearnedPositions,
    Model,
    Recurrence,
    ShiftsTokens,
    block_causal,
    causal,
    same,
)


@dataclass(frozen=True)
class Fault:
    """A broken model, and what has to be said of it. What is None may be anything."""

    build: Callable[[], nn.Module]
    kind: Kind
    pattern: Pattern | None = None
    trial: Trial = "plain"
    where: str | None = None
    verdict: Verdict = "leak"
    mechanism: Kind | None = None


def attention(mask: planted.Mask, window: int | None = None) -> Callable[[], nn.Module]:
    return lambda: Model(Attention(mask, window))


def cast_to(dtype: torch.dtype) -> planted.Mask:
    return lambda ids: block_causal(ids.to(dtype).to(torch.int64).abs())


def in_training(mask: planted.Mask) -> Callable[[], nn.Module]:
    return lambda: Model(planted.MasksOtherwiseInTraining(mask))


def nothing_is_padding(ids: Tensor) -> bool:
    return bool((ids != 0).all())


FAULTS: dict[str, Fault] = {
    "a boundary one token late": Fault(attention(planted.shifted_ids(1)), "attention", "first_token"),
    "a boundary one token late in rows of whole blocks": Fault(
        lambda: planted.TakesWholeBlocks(Attention(planted.shifted_ids(1))), "attention", "first_token"
    ),
    "no mask for the last of several rows of whole blocks": Fault(
        lambda: planted.TakesWholeBlocks(Attention(planted.later_row)), "attention"
    ),
    "a convolution reset one token late behind prompts of the model": Fault(
        lambda: planted.PutsPromptsBefore(Convolution(late=1), Attention()),
        "convolution",
        where="layers.0 (Convolution)",
    ),
    "a boundary one token early": Fault(attention(planted.shifted_ids(-1)), "attention", "last_token"),
    "the last boundary lost": Fault(attention(planted.last_lost), "attention", "last_document"),
    "the first boundary lost": Fault(attention(planted.first_lost), "attention", "first_document"),
    "ids cast to bool": Fault(
        attention(cast_to(torch.bool)), "kwargs_dropped", "every_document", mechanism="attention"
    ),
    "ids cast to uint8": Fault(attention(cast_to(torch.uint8)), "attention", trial="ids"),
    "ids cast to int8": Fault(attention(cast_to(torch.int8)), "attention", trial="ids"),
    "ids cast to int16": Fault(attention(cast_to(torch.int16)), "attention", trial="ids"),
    "ids cast to int32": Fault(attention(cast_to(torch.int32)), "attention", trial="ids"),
    "ids cast to half": Fault(attention(lambda ids: block_causal(ids.half())), "attention", trial="ids"),
    "ids cast to float": Fault(attention(lambda ids: block_causal(ids.float())), "attention", trial="ids"),
    "ids modulo 128": Fault(
        attention(lambda ids: block_causal(torch.where(ids > 0, ids % 128 + 1, 0))), "attention", trial="ids"
    ),
    "more documents than fit a byte": Fault(attention(planted.ranks_in_a_byte), "attention", trial="many"),
    "tokens sorted by id": Fault(lambda: Model(planted.SortsByIds()), "attention", trial="ids"),
    "masks kept by shape": Fault(lambda: Model(planted.Caches()), "attention", trial="shape"),
    "masks kept by shape in training": Fault(lambda: Model(planted.CachesInTraining()), "attention", trial="training"),
    "the last mask kept while shapes are the same": Fault(
        lambda: Model(planted.KeepsTheLastMask()), "attention", trial="training"
    ),
    "the boundaries of another row": Fault(attention(planted.later_row), "attention"),
    "no boundaries at all": Fault(lambda: planted.DropsIds(Attention()), "kwargs_dropped", "every_document"),
    "ids lost in the second layer": Fault(
        lambda: planted.LosesIdsInSecondLayer(Attention(), Attention()), "attention", where="layers.1 (Attention)"
    ),
    "one document that reads one other": Fault(attention(planted.only_third_reads_first), "attention", "last_document"),
    "documents joined from the fourth on": Fault(attention(planted.joined_from_fourth), "attention", trial="many"),
    "a leak past the first 128 tokens": Fault(attention(planted.past_many_tokens), "attention", trial="many"),
    "a leak into documents of more than 128 tokens": Fault(
        attention(planted.long_ones_see_all_before), "attention", trial="many"
    ),
    "no mask where nothing is padding": Fault(
        attention(planted.unmasked_where(nothing_is_padding)), "attention", "every_document", trial="full"
    ),
    "no mask for a single row": Fault(
        attention(planted.unmasked_where(lambda ids: len(ids) == 1)), "attention", trial="full"
    ),
    "no mask where rows have whole blocks": Fault(
        attention(planted.unmasked_where(lambda ids: ids.shape[1] % 64 == 0)), "attention", trial="full"
    ),
    "no mask for rows with whole blocks": Fault(
        attention(planted.unmasked_where(lambda ids: len(ids) > 1 and ids.shape[1] % 128 == 0)),
        "attention",
        trial="many",
    ),
    "later documents seen": Fault(attention(planted.all_seen_if_packed), "causality", "backward"),
    "causality lost": Fault(attention(planted.not_causal_if_packed), "causality", verdict="differs"),
    "padding seen": Fault(attention(planted.padding_seen), "padding"),
    "padding before a document seen": Fault(attention(planted.first_padding_seen), "padding", trial="gaps"),
    "a leak in training mode": Fault(lambda: Model(planted.LeaksInTraining()), "attention", trial="training"),
    "no mask in training where nothing is padding": Fault(
        in_training(planted.unmasked_where(nothing_is_padding)), "attention", trial="training"
    ),
    "documents joined in training from the sixty-fifth on": Fault(
        in_training(lambda ids: block_causal(planted.ranks_of(ids).clamp(max=65))), "attention", trial="training"
    ),
    "statistics of the batch in training": Fault(
        lambda: Model(Attention(), planted.BatchNorm()), "mixing", trial="training"
    ),
    "rows joined": Fault(lambda: Model(planted.JoinsRows()), "attention", "rows"),
    "keys shared between rows": Fault(lambda: Model(planted.SharesKeys()), "attention", "rows"),
    "keys pooled over the row": Fault(lambda: Model(planted.PoolsKeys()), "attention"),
    "a convolution not reset": Fault(
        lambda: Model(Attention(), planted.Conv1dLayer()), "convolution", where="layers.1.conv (Conv1d)"
    ),
    "a convolution of another name between layers of attention": Fault(
        lambda: Model(Attention(), planted.Blends(reset=False), Attention()), "convolution", where="layers.1 (Blends)"
    ),
    "a convolution by Fourier transforms": Fault(
        lambda: Model(Attention(), planted.BlendsByFourier()), "convolution", where="layers.1 (BlendsByFourier)"
    ),
    "attention made of products": Fault(
        lambda: Model(Attention(), planted.AttentionOfParts()), "attention", where="layers.1.scores (Multiplies)"
    ),
    "attention without a softmax": Fault(
        lambda: Model(planted.WeighsPairs(causal)), "kwargs_dropped", mechanism="attention"
    ),
    "tokens shifted as they are embedded": Fault(
        lambda: planted.PairsInEmbedding(Attention()), "token_shift", where="embed (EmbedsPairs)"
    ),
    "positions counted over the row by its tokens": Fault(
        lambda: planted.CountsPlacesByTokens(Attention()), "mixing", where="embed (CountsByTokens)"
    ),
    "a convolution reset one token late": Fault(lambda: Model(Convolution(late=1)), "convolution"),
    "a convolution reset, the state not": Fault(
        lambda: Model(ConvolvesAndRecurs(conv=True, state=False)), "recurrence", where="layers.0.state (Recurrence)"
    ),
    "the state reset, a convolution not": Fault(
        lambda: Model(ConvolvesAndRecurs(conv=False, state=True)), "convolution", where="layers.0.conv (Convolution)"
    ),
    "a state never reset": Fault(
        lambda: Model(Recurrence(reset=False)), "kwargs_dropped", "every_document", mechanism="recurrence"
    ),
    "a state reset one token late": Fault(lambda: Model(Recurrence(late=1)), "recurrence"),
    "a state not reset for the last": Fault(lambda: Model(Recurrence(skip_last=True)), "recurrence", "last_document"),
    "a token shift across documents": Fault(lambda: Model(ShiftsTokens(), Attention()), "token_shift"),
    "a leak behind a gate of zeros": Fault(lambda: Model(planted.GatedLeak()), "recurrence"),
    "statistics of the row": Fault(lambda: Model(Attention(), planted.RowStatistics()), "mixing", "backward"),
    "the mean of the row as a feature": Fault(lambda: planted.AddsRowFeature(Attention()), "mixing", "backward"),
    "room for experts shared by a row": Fault(lambda: Model(Attention(), planted.ExpertRouter()), "router"),
    "room for experts shared by a module of another name": Fault(
        lambda: Model(Attention(), planted.SharesRoom()), "router"
    ),
    "padding in a loss of the router": Fault(planted.BalancesExperts, "router"),
    "padding in a loss": Fault(lambda: planted.BalancesPadding(Attention()), "auxiliary_loss"),
    "a leak in a second prediction": Fault(
        lambda: planted.PredictsTwice(Attention(), leaks="later"), "token_shift", "first_token"
    ),
    "a leak in a value": Fault(lambda: planted.PredictsTwice(Attention(), leaks="value"), "token_shift", "first_token"),
    "a document before in the gradient of a weight": Fault(
        lambda: Model(Attention(), planted.ScalesWithWrongGradient()),
        "weight_gradient",
        where="layers.1.weight",
        verdict="differs",
    ),
    "chunks counted from the row": Fault(
        lambda: Model(planted.ChunksRow()), "window", trial="shape", verdict="differs"
    ),
    "positions that do not restart": Fault(
        lambda: Model(LearnedPositions(restart=False), Attention()), "positions", verdict="differs"
    ),
    "positions that restart at one": Fault(
        lambda: Model(LearnedPositions(off=1), Attention()), "positions", verdict="differs"
    ),
    "positions that begin elsewhere when packed": Fault(
        lambda: planted.CountsOtherwiseWhenPacked(Attention(), first=2), "unexplained", verdict="differs"
    ),
    "a first token that is hidden when packed": Fault(
        attention(planted.first_hidden_if_packed), "unexplained", verdict="differs"
    ),
    "a boundary one token late in logits around a great number": Fault(
        lambda: planted.Sharp(Attention(planted.shifted_ids(1))), "attention", "first_token"
    ),
    "a weak leak in logits around a great number": Fault(
        lambda: planted.Sharp(Attention(), planted.LeaksALittle()), "recurrence"
    ),
    "positions that do not restart in logits around a great number": Fault(
        lambda: planted.Sharp(LearnedPositions(restart=False), Attention()), "positions", verdict="differs"
    ),
    "boundaries lost past a window": Fault(lambda: Model(planted.WindowLost(500)), "attention", trial="long"),
    "joined documents kept apart": Fault(
        lambda: planted.ReadsStructure(Attention()), "joining", trial="xdoc", verdict="differs"
    ),
    "positions that restart in joined documents": Fault(
        lambda: planted.RestartsByStructure(Attention()), "joining", trial="xdoc", verdict="differs"
    ),
    "scaled by the longest": Fault(lambda: Model(planted.ScalesByLongest(), Attention()), "length", verdict="differs"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found_and_named(fault: Fault) -> None:
    report = audit_isolation(fault.build())
    path = report.path
    assert (path.verdict, path.kind, path.trial) == (fault.verdict, fault.kind, fault.trial), path.message
    assert fault.pattern in (None, path.pattern), path.message
    assert fault.where in (None, path.where)
    assert fault.mechanism in (None, path.mechanism)
    assert not report.is_clean


@pytest.mark.parametrize("fill", [math.inf, math.nan])
def test_logits_that_are_no_numbers_prove_nothing(fill: float) -> None:
    report = audit_isolation(FillsVocabulary(Attention(), fill=fill))
    assert (report.verdict, report.kind) == ("inconclusive", "not_finite")


def test_the_output_that_leaks_is_named() -> None:
    report = audit_isolation(planted.PredictsTwice(Attention(), leaks="later"))
    assert report.path.message.startswith("In later, output 0: Document ")


class DrawsItself(planted.Mixer):
    """Scales by what `draw` gives, in training mode or always."""

    def __init__(self, draw: Callable[[], float], always: bool = False) -> None:
        super().__init__()
        self.draw, self.always = draw, always

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        return states * (self.draw() if self.training or self.always else 1.0)


class AddsNoise(planted.Mixer):
    """Adds noise in evaluation mode, too."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        return torch.randn_like(states)


OWN_GENERATOR = torch.Generator()


@pytest.mark.parametrize(
    ("layer", "trial"),
    [
        (DrawsItself(random.random), "training"),
        (DrawsItself(np.random.random), "training"),
        (DrawsItself(lambda: float(torch.rand((), generator=OWN_GENERATOR))), "training"),
        (DrawsItself(random.random, always=True), "plain"),
        (AddsNoise(), "plain"),
    ],
    ids=["random", "numpy", "a generator of its own", "in evaluation", "noise in evaluation"],
)
def test_a_model_that_answers_otherwise_each_time_is_not_accused(layer: nn.Module, trial: Trial) -> None:
    report = audit_isolation(Model(Attention(), layer))
    assert (report.verdict, report.kind, report.path.trial) == ("inconclusive", "not_deterministic", trial)
    assert "torch.rand" in report.path.message


def test_a_state_kept_from_call_to_call_is_no_random_number() -> None:
    report = audit_isolation(Model(Attention(), planted.RemembersTheLastCall()))
    assert report.verdict == "leak"


HOLES = torch.tensor([[1, 1, 1, 0, 1, 1, 2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 1, 1, 2, 2, 2]])


def test_documents_that_all_have_holes_are_examined() -> None:
    ids = torch.tensor([[1, 1, 1, 0, 1, 1, 2, 2, 0, 0, 2, 2]])
    batch = {"input_ids": torch.arange(ids.numel()).view_as(ids), "_packed_seq_ids": ids}
    assert audit_isolation(Model(Attention()), batch).is_clean
    assert audit_isolation(Model(Recurrence(reset=False)), batch).verdict == "leak"


def test_what_shows_with_holes_alone_is_told_and_is_a_leak_where_there_are_some() -> None:
    model = Model(Recurrence(by_positions=True))
    report = audit_isolation(model)
    assert (report.verdict, report.path.trial) == ("clean", "plain")
    assert "Not so with holes in documents: Padding reaches documents" in report.path.message
    tokens = torch.arange(HOLES.numel()).view_as(HOLES)
    found = audit_isolation(model, {"input_ids": tokens, "_packed_seq_ids": HOLES})
    assert (found.verdict, found.kind) == ("leak", "padding")
    whole = {"input_ids": tokens, "_packed_seq_ids": HOLES.clamp(min=1)}
    assert audit_isolation(model, whole).is_clean


def bidirectional_prefix(ids: Tensor) -> Tensor:
    return same(ids) & (causal(ids) | (planted.positions_of(ids) < 3)[:, None, :])


class DocumentNorm(planted.Mixer):
    """Normalises by the mean of what a document has said so far."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        seen = block_causal(ids).to(states)
        return states - seen @ states / seen.sum(dim=2, keepdim=True).clamp(min=1)


class WithoutPadding(Model):
    """Cannot take padding."""

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        if _packed_seq_ids is not None and bool((_packed_seq_ids == 0).any()):
            raise ValueError("rows must be full")
        return super().forward(input_ids, _packed_seq_ids)


class RequiresIds(Model):
    """Cannot do without ids."""

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor) -> Tensor:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(input_ids, _packed_seq_ids)


class RoundsByKernel(Model):
    """Rounds otherwise where a graph for gradients is kept, as where that takes another kernel."""

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        return super().states(input_ids, ids) * (1.001 if torch.is_grad_enabled() else 1.0)


class ReturnsObject(Model):
    """Returns what is neither a tensor nor a tuple."""

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> object:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return SimpleNamespace(extra=1, logits=super().forward(input_ids, _packed_seq_ids))


class ReturnsFlat(Model):
    """Returns the tokens of all rows on one axis, with a loss that leaves padding out."""

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> object:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        logits = super().forward(input_ids, _packed_seq_ids)
        kept = torch.ones_like(input_ids, dtype=torch.bool) if _packed_seq_ids is None else _packed_seq_ids > 0
        return OrderedDict[str, Tensor](loss=logits[kept].square().mean(), scores=logits.flatten(0, 1))


class FillsVocabulary(Model):
    """Has more logits than tokens; those beyond can never be chosen."""

    def __init__(self, *layers: nn.Module, fill: float) -> None:
        super().__init__(*layers)
        self.fill = fill

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        return nn.functional.pad(super().forward(input_ids, _packed_seq_ids), (0, 8), value=self.fill)


class LooksUpItself(Model):
    """Has a table in place of an embedding, tied to its head."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        del self.embed
        self.table = nn.Parameter(self.head.weight.detach().clone())
        self.head.weight = self.table

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states = self.table[input_ids]
        for layer in self.layers:
            states = layer(states, ids)
        return states


class EmbedsBags(Model):
    """Embeds each token and the one before it in its document as a bag."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        del self.embed
        self.bag = nn.EmbeddingBag(planted.VOCABULARY, planted.WIDTH, mode="sum")

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        before = torch.where(planted.positions_of(ids) > 0, input_ids.roll(1, dims=1), input_ids)
        states: Tensor = self.bag(torch.stack([input_ids, before], dim=-1).flatten(0, 1)).view(*input_ids.shape, -1)
        for layer in self.layers:
            states = layer(states, ids)
        return states


CLEAN: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Model(Attention(), Attention()),
    "a window": lambda: Model(Attention(window=3), Attention()),
    "a convolution and a state": lambda: Model(ConvolvesAndRecurs(conv=True, state=True)),
    "a token shift inside documents": lambda: Model(ShiftsTokens(reset=True), Attention()),
    "a norm over each document": lambda: Model(DocumentNorm(), Attention()),
    "experts without capacity": lambda: Model(Attention(), planted.ExpertRouter(capacity=False)),
    "learned positions": lambda: Model(LearnedPositions(), Attention()),
    "a bidirectional prefix": lambda: Model(Attention(bidirectional_prefix)),
    "an encoder": lambda: Model(Attention(same)),
    "masks kept by ids in training": lambda: Model(planted.CachesInTraining(by_ids=True)),
    "positions of its own": lambda: planted.CountsOtherwiseWhenPacked(Attention(), first=0),
    "logits around a great number": lambda: planted.Sharp(Attention(), Attention(window=3)),
    "states around a great number": lambda: planted.SharpThroughout(Attention(), Attention(window=3)),
    "prompts of its own": lambda: planted.PutsPromptsBefore(Attention()),
    "dropout": lambda: Model(Attention(), DropsOut()),
    "rows of whole blocks": lambda: planted.TakesWholeBlocks(Attention()),
    "no padding": lambda: WithoutPadding(Attention()),
    "ids required": lambda: RequiresIds(Attention()),
    "other kernels with a graph": lambda: RoundsByKernel(Attention()),
    "an object returned": lambda: ReturnsObject(Attention()),
    "flat logits and a loss": lambda: ReturnsFlat(Attention()),
    "several predictions": lambda: planted.PredictsTwice(Attention()),
    "a vocabulary filled with -inf": lambda: FillsVocabulary(Attention(), fill=-math.inf),
    "a vocabulary filled with the least number": lambda: FillsVocabulary(
        Attention(), fill=torch.finfo(torch.float32).min
    ),
    "tied tables": lambda: LooksUpItself(Attention()),
    "bags of tokens": lambda: EmbedsBags(Attention()),
}


class DropsOut(planted.Mixer):
    """Drops at random, in training mode."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        return nn.functional.dropout(states, 0.5, self.training)


@pytest.mark.parametrize("build", CLEAN.values(), ids=CLEAN)
def test_an_unusual_model_is_not_accused(build: Callable[[], nn.Module]) -> None:
    report = audit_isolation(build())
    assert (report.verdict, report.kind) == ("clean", None), report.path.message
    report.raise_if_not_clean()
