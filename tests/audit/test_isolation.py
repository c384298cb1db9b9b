"""`audit_isolation` leaves a model as it was, bit for bit, also when interrupted; and it audits what it is given."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters.collation import collate_documents
from neatpack.adapters.document_ids import document_ids_from_lengths
from neatpack.adapters.planning import plan_rows
from neatpack.adapters.training_batch import adapt_model_inputs
from neatpack.adapters.yielding import apply_packing_contract
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BatchError, IsolationError, ModelTypeError
from neatpack.kernels_bridge import audit_isolation, configure_packing, get_binding, get_model_attn_implementation
from neatpack.kernels_bridge.audit import borrowing, isolation, random_state, state
from neatpack.kernels_bridge.audit.remedies import GIVE_A_BATCH
from neatpack.kernels_bridge.audit.report import Configured, PathReport
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from tests.audit import planted
from tests.audit.planted import Attention, Model

IDS = torch.tensor([[3, 3, 3, 3, 7, 7, 7, 7, 7, 0, 0], [2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]])
TOKENS = torch.arange(22).view(2, 11)
BATCH: Mapping[str, object] = {"input_ids": TOKENS, "_packed_seq_ids": IDS, "labels": TOKENS}


class Busy(Model):
    """Keeps counts, statistics and caches, draws numbers, and stops where it is told to."""

    counts: Tensor

    def __init__(self, stops_at: int = 10_000, error: type[BaseException] = KeyboardInterrupt) -> None:
        super().__init__(Attention(), planted.Caches(), planted.GatedLeak())
        self.register_buffer("counts", torch.zeros(2))
        self.norm = nn.BatchNorm1d(planted.WIDTH)
        self.seen: list[int] = [1]
        self.kept: Tensor | None = None
        self.config = SimpleNamespace(use_cache=True, seen=[0])
        self.stops_at, self.error, self.done = stops_at, error, 0
        self.eval()
        self.layers[0].train()
        self.norm.train()

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        self.done += 1
        self.counts += 1
        self.seen.append(self.done)
        self.kept = torch.rand(2)
        self.config.use_cache, self.config.late = False, self.done
        self.config.seen.append(self.done)
        self.late = random.random() + np.random.rand()  # noqa: S311
        if self.done >= self.stops_at:
            raise self.error
        self.norm(torch.randn(4, planted.WIDTH))
        return super().states(input_ids, ids)


def watched(model: nn.Module) -> dict[str, object]:
    """Everything that can be seen of a model and of the random states, values copied."""
    found: dict[str, object] = {"binding": get_binding(model)}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[name] = (id(tensor), tensor.detach().clone(), tensor.requires_grad)
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        found[f"{name}.grad"] = None if grad is None else (id(grad), grad.clone())
    for name, module in cast("Iterable[tuple[str, nn.Module]]", model.named_modules()):
        hooks = {key: dict(value) for key, value in vars(module).items() if key.endswith("hooks")}
        found[f"{name}.hooks"] = hooks
        found[f"{name}.training"] = module.training
        plain = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        found[f"{name}.attributes"] = copy.deepcopy({k: v for k, v in plain.items() if not callable(v)})
    states = (torch.random.get_rng_state(), random.getstate(), np.random.get_state())
    return {**found, "random": states, "threads": torch.get_num_threads(), "grad": torch.is_grad_enabled()}


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(cast("npt.ArrayLike", one), cast("npt.ArrayLike", other)))
    if isinstance(one, dict) and isinstance(other, dict):
        entries, others = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return list(entries) == list(others) and all(_same(value, others[name]) for name, value in entries.items())
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        parts, rest = cast("Sequence[object]", one), cast("Sequence[object]", other)
        return len(parts) == len(rest) and all(map(_same, parts, rest))
    return bool(one == other)


def differences_between(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [name for name in {**before, **after} if not _same(before.get(name), after.get(name))]


def _with_gradients(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    return model


def test_what_is_watched_would_show_a_change() -> None:
    model = Busy()
    before = watched(model)
    model(TOKENS, IDS)
    changed = differences_between(before, watched(model))
    assert {"counts", "norm.running_mean", ".attributes", "layers.1.attributes", "random"} <= set(changed)


@pytest.mark.parametrize("batch", [None, BATCH], ids=["own documents", "a batch"])
def test_a_model_is_as_it_was(batch: Mapping[str, object] | None) -> None:
    model = _with_gradients(Busy())
    before = watched(model)
    report = audit_isolation(model, batch)
    assert report.verdict == "leak", report.path.message  # of the cache, or behind the gate of zeros
    assert differences_between(before, watched(model)) == []


@pytest.mark.parametrize("stops_at", [1, 2, 5, 9, 17])
@pytest.mark.parametrize("batch", [None, BATCH], ids=["own documents", "a batch"])
def test_a_model_is_as_it_was_after_an_interruption(batch: Mapping[str, object] | None, stops_at: int) -> None:
    model = _with_gradients(Busy(stops_at))
    before = watched(model)
    with pytest.raises(KeyboardInterrupt):
        audit_isolation(model, batch)
    assert differences_between(before, watched(model)) == []


class InterruptsAt:
    """Interrupts the process as the Nth function that borrows or gives back is called or returns."""

    modules: ClassVar[frozenset[str]] = frozenset(
        cast("str", module.__file__) for module in (borrowing, random_state, state)
    )

    def __init__(self, nth: int = -1) -> None:
        self.nth, self.names = nth, list[str]()

    def __call__(self, frame: FrameType, event: str, arg: object) -> InterruptsAt | None:
        del arg
        if event not in ("call", "return"):
            return self
        if frame.f_code.co_filename not in self.modules or frame.f_code.co_name == "undo_by":
            return None
        self.names.append(frame.f_code.co_name)
        if len(self.names) == self.nth:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self


def _interrupted(audited: Callable[[], object], nth: int = -1) -> list[str]:
    """Interrupt an audit, and give the names of the functions up to there."""
    interrupts, before = InterruptsAt(nth), sys.gettrace()
    sys.settrace(interrupts)
    try:
        audited()
    except KeyboardInterrupt:
        assert nth > 0
    finally:
        sys.settrace(before)
    return interrupts.names


def test_a_model_is_as_it_was_wherever_borrowing_or_giving_back_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def called_once(auditor: isolation._Auditor, batch: Mapping[str, Tensor], _: object) -> object:  # pyright: ignore[reportPrivateUsage]
        auditor.model(batch["input_ids"], batch["_packed_seq_ids"])
        return Configured(), PathReport("clean")

    monkeypatch.setattr(isolation._Auditor, "on", called_once)  # pyright: ignore[reportPrivateUsage]
    model = _with_gradients(Busy())
    before = watched(model)

    def audit() -> object:
        return audit_isolation(model, BATCH)

    names = _interrupted(audit)
    told = [nth for nth, name in enumerate(names, 1) if name in ("__exit__", "give_back", "borrow_generators")]
    assert len(told) > 6
    for nth in [*told, *range(1, len(names), len(names) // 40)]:
        _interrupted(audit, nth)
        assert differences_between(before, watched(model)) == [], (nth, names[nth - 1])


@pytest.mark.parametrize("at", [1, 6, 12, 17])
def test_a_model_is_as_it_was_after_an_interruption_while_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    give_back, calls = state.set_back, count(1)

    def interrupted(entries: dict[object, object], before: dict[object, object]) -> None:
        if before and next(calls) == at:
            entries.clear()
            raise KeyboardInterrupt
        give_back(entries, before)

    model = _with_gradients(Busy())
    before = watched(model)
    monkeypatch.setattr(state, "set_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audit_isolation(model, BATCH)
    assert next(calls) > at
    assert differences_between(before, watched(model)) == []


def test_a_model_that_fails_is_reported_and_as_it_was() -> None:
    model = Busy(1, RuntimeError)
    before = watched(model)
    report = audit_isolation(model, BATCH)
    assert report.verdict == "error"
    assert differences_between(before, watched(model)) == []


def test_a_binding_stays_and_one_that_was_not_there_is_gone() -> None:
    model = build_tiny_model("llama")
    assert audit_isolation(model).is_clean
    assert get_binding(model) is None
    configure_packing(get_model_attn_implementation(model), model)
    binding = get_binding(model)
    before = watched(model)
    report = audit_isolation(model, {"input_ids": TOKENS, "_packed_seq_ids": IDS})
    assert report.is_clean, report.path.message
    assert report.model.configured.consumer == "block_causal"
    assert report.path.calls == 2
    assert get_binding(model) is binding is not None
    assert differences_between(before, watched(model)) == []


def compiled(model: nn.Module) -> nn.Module:
    wrapped = torch.compile(model, backend="eager")  # pyright: ignore[reportUnknownMemberType]
    assert isinstance(wrapped, nn.Module)
    return wrapped


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {"compiled": compiled, "data parallel": nn.DataParallel}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrapped_models_are_audited_inside(wrap: Callable[[nn.Module], nn.Module]) -> None:
    assert audit_isolation(wrap(Model(Attention())), BATCH).is_clean
    assert audit_isolation(wrap(Model(Attention(planted.shifted_ids(1)))), BATCH).verdict == "leak"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_are_audited_in_their_own_dtype(dtype: torch.dtype) -> None:
    clean = audit_isolation(Model(Attention(), planted.Convolution()).to(dtype))
    assert clean.is_clean, clean.path.message
    assert clean.environment.dtype == str(dtype).removeprefix("torch.")
    assert audit_isolation(Model(Attention(), planted.Convolution(reset=False)).to(dtype)).verdict == "leak"


def test_audits_and_proofs_do_not_follow_the_default_device() -> None:
    model = build_tiny_model("llama")
    with torch.device("meta"):
        configure_packing(get_model_attn_implementation(model), model, verify=True)
        report = audit_isolation(model)
    assert report.is_clean, report.path.message


def test_batches_of_a_loop_are_given_as_they_are() -> None:
    class TakesMask(Model):
        """Takes what Transformers' models do."""

        def forward(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor
        ) -> tuple[Tensor, Tensor]:
            states = self.embed(input_ids) + position_ids[..., None] / 10
            attention = self.layers[0]
            assert isinstance(attention, Attention)
            logits: Tensor = self.head(attention.attend(states, attention_mask[:, 0]))
            return logits.mean() * 0, logits

    visible = planted.block_causal(IDS)[:, None]
    batch = {
        "input_ids": TOKENS,
        "attention_mask": visible,
        "position_ids": planted.positions_of(IDS),
        "document_ids": IDS,
    }
    assert audit_isolation(TakesMask(Attention()), batch).is_clean
    wrong = {**batch, "position_ids": torch.arange(11).expand_as(IDS)}
    report = audit_isolation(TakesMask(Attention()), wrong)
    assert (report.verdict, report.kind) == ("differs", "positions")
    everything = {**batch, "attention_mask": planted.causal(IDS)[:, None]}
    assert audit_isolation(TakesMask(Attention()), everything).verdict == "leak"


@pytest.mark.parametrize(("mask", "verdict"), [(planted.block_causal, "clean"), (planted.shifted_ids(1), "leak")])
def test_documents_that_a_model_does_not_take_alone_are_not_compared(mask: planted.Mask, verdict: str) -> None:
    ids = document_ids_from_lengths(((20, 30), (40, 24)), 64)
    batch = {"input_ids": torch.arange(128).view(2, 64) % planted.VOCABULARY, "_packed_seq_ids": ids}
    path = audit_isolation(planted.TakesWholeBlocks(Attention(mask)), batch).path
    assert path.verdict == verdict, path.message
    assert "each document alone: declined (ValueError)" in path.untried
    assert "alone" not in path.message


def test_a_model_that_fails_on_documents_of_the_audit_is_told_to_give_its_own() -> None:
    model = planted.NeedsLabels(Attention())
    failed = audit_isolation(model)
    assert (failed.verdict, failed.path.remedy) == ("error", GIVE_A_BATCH)
    assert "TypeError" in failed.path.message
    assert "labels" in failed.path.message
    with pytest.raises(IsolationError, match=r"'labels'.*--batch FILE"):
        failed.raise_if_not_clean()
    leaking = planted.NeedsLabels(Attention(planted.shifted_ids(1)))
    labelled = {**BATCH, "labels": TOKENS.where(IDS > 0, -100)}
    assert audit_isolation(model, labelled).is_clean
    assert audit_isolation(leaking, labelled).verdict == "leak"


def test_raising_says_what_was_found_and_where() -> None:
    report = audit_isolation(Model(Attention(), planted.Conv1dLayer()))
    with pytest.raises(IsolationError, match=r"leak \(convolution\): .*They mix in layers.1.conv \(Conv1d\)"):
        report.raise_if_not_clean()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({}, "input_ids: must be the tokens"),
        ({"input_ids": TOKENS.float(), "document_ids": IDS}, "input_ids: must be the tokens"),
        ({"input_ids": TOKENS}, "nothing in it says where documents end"),
        ({"input_ids": TOKENS, "document_ids": IDS[:, :4]}, "like input_ids"),
        ({"input_ids": TOKENS, "document_ids": torch.ones_like(IDS)[:1].expand(1, 11)}, "like input_ids"),
        ({"input_ids": TOKENS[:1], "document_ids": torch.ones(1, 11, dtype=torch.int64)}, "fewer than two documents"),
    ],
)
def test_batches_that_prove_nothing_are_refused(batch: Mapping[str, object], words: str) -> None:
    with pytest.raises(BatchError, match=words):
        audit_isolation(Model(Attention()), batch)


def test_only_modules_are_audited() -> None:
    with pytest.raises(ModelTypeError, match="must be a torch"):
        audit_isolation("model")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_gradient_decides(dtype: torch.dtype) -> None:
    model = build_tiny_model("llama").to("cuda", dtype)
    configure_packing(get_model_attn_implementation(model), model)
    batch = {"input_ids": TOKENS.cuda(), "_packed_seq_ids": IDS.cuda()}
    before, drawn = watched(model), torch.cuda.get_rng_state()
    for given in (None, batch):
        report = audit_isolation(model, given)
        assert (report.verdict, report.path.gradient) == ("clean", 0.0), report.path.message
        assert report.environment.device.startswith("cuda")
    assert differences_between(before, watched(model)) == []
    assert torch.equal(torch.cuda.get_rng_state(), drawn)
    binding = get_binding(model)
    assert binding is not None
    binding.remove()
    padding_alone = {**batch, "attention_mask": (IDS > 0).long().cuda()}
    leaking = audit_isolation(model, padding_alone)
    assert leaking.verdict == "leak"
    assert leaking.path.gradient is not None
    assert leaking.path.gradient > 0


class Counts(Model):
    """Counts its calls where no audit puts them back."""

    calls: ClassVar[int] = 0

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        Counts.calls += 1
        return super().states(input_ids, ids)


def test_the_page_says_how_often_a_model_is_called() -> None:
    ids = document_ids_from_lengths(((6, 1, 9), (12, 4)), 19)
    batch = {"input_ids": torch.arange(ids.numel()).view_as(ids) % planted.VOCABULARY, "_packed_seq_ids": ids}
    counted: list[int] = []
    for given in (None, batch):
        Counts.calls = 0
        assert audit_isolation(Counts(Attention()), given).is_clean
        counted.append(Counts.calls)
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    without, with_batch = counted
    assert f"is called {without} times; with a batch of five documents in two rows, {with_batch} times" in page


def excluding(place: int, *, return_document_ids: bool) -> dict[str, object]:
    """Yield a row of two documents, of 4 and 6 tokens, of which one token is excluded from attention."""
    documents = [torch.arange(1, 5), torch.arange(5, 11)]
    batch = collate_documents(documents, plan_rows([4, 6], 12))
    eligible = (torch.arange(12) != place)[None]
    contract = PackingCapabilities("document_ids", return_document_ids=return_document_ids)
    return {**apply_packing_contract(adapt_model_inputs(batch, eligible), contract)}


@pytest.mark.parametrize("place", [0, 3, 4, 9])
@pytest.mark.parametrize("kept", ["padding_mask", "document_ids", "document_ids, no positions"])
def test_documents_without_their_first_token_are_clean(place: int, kept: str) -> None:
    model = build_tiny_model("gpt2", "sdpa")  # positions are learned, and not distances
    configure_packing("sdpa", model)
    given = excluding(place, return_document_ids=kept != "padding_mask")
    if kept != "padding_mask":
        given.pop("padding_mask")
    if kept.endswith("no positions"):
        given.pop("position_ids")
    report = audit_isolation(model, given)
    assert report.is_clean, report.path.message
    # One of the two is compared with itself alone all the same.
    assert report.path.message == "Every document answers as it does alone."


@pytest.mark.parametrize("place", [0, 4])
def test_the_other_documents_are_compared_with_themselves_alone(place: int) -> None:
    given = excluding(place, return_document_ids=True)
    positions = cast("Tensor", given["position_ids"]).clone()
    other = slice(4, 10) if place == 0 else slice(0, 4)
    positions[:, other] += 2
    report = audit_isolation(build_tiny_model("gpt2", "sdpa"), {**given, "position_ids": positions})
    assert report.verdict != "clean"


def test_a_bound_model_that_cannot_do_without_other_ids_is_asked_alone() -> None:
    class TakesStructuralIds(Model):
        def forward(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            self, input_ids: Tensor, document_ids: Tensor, _packed_seq_ids: Tensor | None = None
        ) -> Tensor:
            assert document_ids.shape == input_ids.shape
            return super().forward(input_ids, _packed_seq_ids)

    model = TakesStructuralIds(Attention())
    configure_packing("sdpa", model)
    ids = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0]])
    given = {"input_ids": torch.arange(8)[None], "_packed_seq_ids": ids, "document_ids": ids}
    assert audit_isolation(model, given).path.message == "Every document answers as it does alone."


@pytest.mark.parametrize("consumer", ["reference", "block_causal"])
def test_a_bound_model_is_given_holes(consumer: str) -> None:
    model = build_tiny_model("llama", "sdpa")
    configure_packing("sdpa", model, consumer=consumer)
    ids = torch.tensor([[1, 1, 1, 0, 1, 1, 2, 2, 2, 0]])
    report = audit_isolation(model, {"input_ids": torch.arange(10)[None], "_packed_seq_ids": ids})
    assert report.is_clean, report.path.message
    assert report.path.boundaries_seen
    own = audit_isolation(model)
    assert own.is_clean, own.path.message
    assert not [told for told in own.path.untried if told.startswith("holes")]
