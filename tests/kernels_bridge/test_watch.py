"""The watch for training: it sees what the model is called with, finds what is wrong in it, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neatpack.adapters.collation import collate_documents
from neatpack.adapters.neat_metadata import build_packed_sequence_metadata
from neatpack.adapters.planning import plan_rows
from neatpack.adapters.yielding import apply_packing_contract
from neatpack.contracts.batch import LabelShift, TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError, IsolationError, PackingError
from neatpack.kernels_bridge import (
    PackingWatch,
    audit_isolation,
    check_training_batch,
    configure_packing,
    get_binding,
    get_model_attn_implementation,
    watch_packing,
)
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from tests.adapters.properties import listed
from tests.audit import planted
from tests.audit.planted import Attention, Model
from tests.kernels_bridge.untyped import backward, different

IDS = torch.tensor([[4, 4, 4, 7, 7, 7, 7, 0], [2, 2, 2, 2, 2, 5, 5, 5]])
TOKENS = torch.arange(16).view(2, 8)
LABELS = torch.tensor([[0, 1, 2, -100, 4, 5, 6, -100], [8, 9, 10, 11, 12, -100, 14, 15]])
BATCH: Mapping[str, object] = {"input_ids": TOKENS, "_packed_seq_ids": IDS, "labels": LABELS}


def _pre_hooks(model: nn.Module) -> dict[int, object]:
    return dict(vars(model)["_forward_pre_hooks"])  # torch has no public way to list them


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 4)

    def forward(self, input_ids: Tensor, document_ids: Tensor) -> Tensor:
        del document_ids
        logits: Tensor = self.embed(input_ids)
        return logits


def model_for(mask: planted.Mask = planted.block_causal) -> nn.Module:
    return Model(Attention(mask)).train()


def test_a_right_batch_of_a_clean_model_passes() -> None:
    check = check_training_batch(model_for(), BATCH)
    assert (check.documents, check.checked_labels, check.changed, check.moved) == (4, True, 0, 0.0)


@pytest.mark.parametrize("turn", range(4))
def test_documents_are_changed_by_turns(turn: int) -> None:
    def only_from(document: int) -> planted.Mask:
        def mask(ids: Tensor) -> Tensor:
            row_ids = different((IDS[0], IDS[1])[document // 2])
            source = int(row_ids[row_ids > 0][document % 2])
            return planted.block_causal(ids) | (ids[:, None, :] == source)

        return mask

    assert check_training_batch(model_for(), BATCH, turn=turn).changed == turn
    with pytest.raises(IsolationError, match="moves when tokens of document"):
        check_training_batch(model_for(only_from(turn)), BATCH, turn=turn)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"_packed_seq_ids": IDS.roll(3, dims=1)}, DocumentIdsError, "row 0"),
        ({"_packed_seq_ids": None}, BatchError, "nothing in it says where documents end"),
        ({"position_ids": torch.zeros(2, 8, dtype=torch.int64)}, EncodingError, "restarts inside a document"),
        ({"position_ids": torch.arange(8)[None]}, EncodingError, "does not restart"),
        ({"document_ids": IDS.clamp(max=4)}, EncodingError, "document"),
        ({"labels": TOKENS}, EncodingError, r"labels\[row 0, position 3\] = 3: is a target across a boundary"),
        ({"labels": LABELS.masked_fill(IDS == 0, 7)}, EncodingError, r"labels\[row 0, position 7\]"),
    ],
)
def test_what_is_wrong_in_a_batch_is_named(
    changes: Mapping[str, object], error: type[PackingError], words: str
) -> None:
    with pytest.raises(error, match=words):
        check_training_batch(model_for(), {**BATCH, **changes})


def test_positions_may_run_on_where_the_model_declares_it() -> None:
    model = model_for()
    model.position_policy = "sequence"  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
    check_training_batch(model, {**BATCH, "position_ids": torch.arange(8)[None]})


@pytest.mark.parametrize(("shift", "right"), [("model", LABELS), ("stream", TOKENS + 1), ("document", TOKENS + 1)])
def test_labels_are_looked_at_as_they_were_shifted(shift: LabelShift, right: Tensor) -> None:
    right = right.masked_fill(IDS == 0, -100)
    if shift == "stream":
        right = right.masked_fill(torch.tensor([[0, 0, 1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0, 0, 1]]) == 1, -100)
    assert check_training_batch(model_for(), {**BATCH, "labels": right}, label_shift=shift).checked_labels
    if shift == "stream":
        with pytest.raises(EncodingError, match=r"row 0, position 2\]"):
            check_training_batch(
                model_for(), {**BATCH, "labels": (TOKENS + 1).masked_fill(IDS == 0, -100)}, label_shift="stream"
            )


@pytest.mark.parametrize(
    ("ids", "attention", "labels"),
    [
        pytest.param([[1, 1, 0, 2, 2, 0]], [[1, 1, 0, 1, 1, 0]], [[1, 2, -100, 4, 5, -100]], id="before padding"),
        pytest.param([[1, 1, 2, 2, 2, 0]], [[1, 1, 0, 1, 1, 0]], [[1, 2, -100, 4, 5, -100]], id="before a hole"),
    ],
)
def test_last_targets_of_joined_documents_are_those_of_the_last_step(
    ids: list[list[int]], attention: list[list[int]], labels: list[list[int]]
) -> None:
    """The contract drops the ids as packed, which alone tell of a hole to which document it belongs."""
    packed = torch.tensor(ids)
    batch = {"input_ids": torch.arange(6)[None], "labels": torch.arange(1, 7)[None], "document_ids": packed}
    joined = cast("TrainingBatch[Tensor]", {**batch, "attention_document_ids": torch.tensor(attention)})
    yielded: Any = apply_packing_contract(joined, PackingCapabilities("document_ids"), label_shift="document")
    assert torch.equal(yielded["labels"], torch.tensor(labels))
    yielded["labels"] = yielded["labels"].repeat(2, 1).t().contiguous().t()[:1]  # in no order of memory
    assert check_training_batch(model_for(), yielded, label_shift="document").checked_labels
    with pytest.raises(EncodingError, match=r"labels\[row 0, position 2\] = 7: is a target across a boundary"):
        check_training_batch(model_for(), {**yielded, "labels": torch.full((1, 6), 7)}, label_shift="document")


def test_the_cost_is_bounded_by_places() -> None:
    seen: list[tuple[int, ...]] = []
    model = model_for()
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    ids = torch.arange(1, 41).repeat_interleave(5)[None].expand(3, -1)
    tokens = torch.arange(600).view(3, 200) % 60
    check = check_training_batch(model, {"input_ids": tokens, "_packed_seq_ids": ids}, most_places=32)
    assert check.changed == 0
    check_training_batch(model, {"input_ids": tokens, "_packed_seq_ids": ids}, most_places=2)
    assert seen == [(1, 32), (1, 32), (1, 2), (1, 2)]
    with pytest.raises(EncodingError, match="most_places"):
        check_training_batch(model, {"input_ids": tokens, "_packed_seq_ids": ids}, most_places=1)


@pytest.mark.parametrize(
    ("lengths", "turn"), [((64,) * 8, 7), ((64,) * 8, 3), ((200, 10), 0), ((200, 10), 1), ((10, 200), 0)]
)
def test_whatever_document_is_changed_the_places_hold_another(lengths: tuple[int, ...], turn: int) -> None:
    ids = torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths))[None]
    batch = {"input_ids": torch.arange(ids.shape[1])[None] % 60, "_packed_seq_ids": ids}
    assert check_training_batch(model_for(), batch, most_places=32, turn=turn).changed == turn

    def to_another(ids: Tensor) -> Tensor:
        return planted.block_causal(ids) | (ids[:, :, None] != ids[:, None, :])

    with pytest.raises(IsolationError, match=f"document {1 + (turn + 1 if turn == 0 else turn - 1)} moves|moves"):
        check_training_batch(model_for(to_another), batch, most_places=32, turn=turn)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=2, max_size=6), st.integers(2, 40), st.data())
def test_cuts_hold_both_sides_of_a_boundary(pieces: list[tuple[int, int]], places: int, data: st.DataObject) -> None:
    ids = [number for number, (length, gap) in enumerate(pieces, 1) for number in [number] * length + [0] * gap]
    seen: list[Tensor] = []
    model = Embedded().train()
    model.register_forward_pre_hook(lambda _module, _args, words: seen.append(words["input_ids"]), with_kwargs=True)
    turn = data.draw(st.integers(0, 20))
    check = check_training_batch(
        model,
        {"input_ids": torch.arange(len(ids))[None], "document_ids": torch.tensor([ids])},
        most_places=places,
        turn=turn,
    )
    if check.changed is None:
        gaps = [gap for _, gap in pieces[:-1]]
        assert min(gaps) + 2 > min(places, len(ids))
        return
    before, after = seen
    assert before.shape == (1, min(places, len(ids)))
    kept: set[int] = {ids[place] for place in listed(before[0]) if ids[place]}
    changed: set[int] = {ids[place] for place in listed(before[before != after])}
    assert changed == {check.changed + 1}
    assert len(kept) > 1


def test_logits_that_are_no_numbers_are_told() -> None:
    class Diverged(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.inner, self.value = model_for(), value

        def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor) -> Tensor:
            logits: Tensor = self.inner(input_ids, _packed_seq_ids=_packed_seq_ids)
            return torch.cat([logits, torch.full_like(logits, self.value)], dim=2)

    assert check_training_batch(Diverged(float("-inf")).train(), BATCH).moved == 0.0
    with pytest.raises(IsolationError, match="no numbers"):
        check_training_batch(Diverged(float("nan")).train(), BATCH)


def test_infinite_places_of_the_vocabulary_hide_no_leak() -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model_for(planted.causal)

        def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor) -> Tensor:
            logits: Tensor = self.inner(input_ids, _packed_seq_ids=_packed_seq_ids)
            return torch.cat([logits, torch.full_like(logits, float("-inf"))], dim=2)

    with pytest.raises(IsolationError, match="document 7 moves when tokens of document 4 change"):
        check_training_batch(Filled().train(), BATCH)


class Taking(nn.Module):
    """Takes whatever else it is called with, and looks at none of it."""

    def __init__(self, mask: planted.Mask = planted.block_causal) -> None:
        super().__init__()
        self.inner = model_for(mask)

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor, **_rest: object) -> Tensor:
        logits: Tensor = self.inner(input_ids, _packed_seq_ids=_packed_seq_ids)
        return logits


def loaded(*lengths: int) -> dict[str, Any]:
    """Collate documents as a loader does, with every entry that comes out."""
    documents = [torch.arange(1, 1 + length) for length in lengths]
    return {**collate_documents(documents, plan_rows(lengths, 12), contract=PackingCapabilities("document_ids"))}


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8).filter(lambda lengths: sum(sorted(lengths)[:2]) <= 12))
def test_whole_batches_of_a_loader_are_tried(lengths: list[int]) -> None:
    batch = loaded(*lengths)
    alone = batch["document_keys"].shape[1] == 1  # no row holds two documents
    for rest in ({}, {"weights": torch.rand(len(batch["input_ids"]))}, {"names": ["a"] * len(batch["input_ids"])}):
        check = check_training_batch(Taking().train(), {**batch, **rest})
        assert (check.changed is None, bool(check.untried)) == (alone, alone)
    if not alone:
        with pytest.raises(IsolationError, match="moves when tokens of document"):
            check_training_batch(Taking(planted.causal).train(), batch)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ({"pixel_values": torch.zeros(2, 3)}, r"pixel_values = \(2, 3\): cannot be cut to one row"),
        ({"weights": torch.zeros(3)}, r"weights = \(3,\): cannot be cut to one row"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(2, 12, 4)}, "no input_ids"),
        ({"_packed_seq_ids": torch.ones(2, 12, dtype=torch.int64), "position_ids": None}, "no row holds two documents"),
    ],
)
def test_why_no_document_was_changed_is_told(rest: Mapping[str, object], words: str) -> None:
    batch = {name: loaded(5, 5, 5, 5)[name] for name in ("input_ids", "_packed_seq_ids", "position_ids")}
    check = check_training_batch(Taking().train(), {**batch, **rest})
    assert check.changed is None
    assert re.search(words, check.untried)
    assert check_training_batch(Taking().train(), batch).untried == ""


class Recording(Taking):
    """Hands on what it is called with: a check leaves nothing that a model keeps of its calls."""

    def __init__(self, keep: Callable[[Tensor, dict[str, object]], None]) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor, **rest: object) -> Tensor:
        self.keep(input_ids, rest)
        return super().forward(input_ids, _packed_seq_ids)


def test_what_goes_with_a_row_is_cut_as_its_tokens_are() -> None:
    batch = loaded(4, 4, 4, 4, 4, 4)
    tokens = torch.arange(24).view(2, 12)
    beside = {
        "tables": torch.stack([tokens + 100, tokens + 200, tokens + 300]),
        "weights": torch.tensor([7.0, 8.0]),
        "document_keys": batch["document_keys"],
        "position_ids": torch.arange(12)[None] % 4,  # Rows alike share one.
    }
    given = {"input_ids": tokens, "_packed_seq_ids": batch["_packed_seq_ids"], **beside}
    compared: list[int] = []

    def compare(own: Tensor, rest: dict[str, object]) -> None:
        row = int(own[0, 0]) // 12
        if listed(own)[0] != list(range(int(own[0, 0]), int(own[0, 0]) + own.shape[1])):
            return  # Some of these tokens were changed.
        tables, weights, keys, positions = (rest[name] for name in beside)
        assert torch.equal(cast("Tensor", tables), torch.stack([own + 100, own + 200, own + 300]))
        assert torch.equal(cast("Tensor", weights), beside["weights"][row : row + 1])
        assert torch.equal(cast("Tensor", keys), beside["document_keys"][row : row + 1])
        assert torch.equal(cast("Tensor", positions), own % 4)
        compared.append(row)

    for turn in range(4):
        assert check_training_batch(Recording(compare).train(), given, turn=turn, most_places=8).untried == ""
    assert set(compared) == {0, 1}


def test_metadata_alone_is_not_cut() -> None:
    check = check_training_batch(Taking(), {"input_ids": TOKENS, **build_packed_sequence_metadata(IDS)})
    assert (check.changed, check.untried) == (None, "what says where documents end cannot be cut to one row")


def test_a_binding_that_takes_ids_is_not_tried_without_them() -> None:
    model = build_tiny_model("llama").train()
    configure_packing(get_model_attn_implementation(model), model)
    check = check_training_batch(model, {"input_ids": TOKENS, "document_ids": IDS})
    assert (check.changed, check.untried) == (None, "the model is bound, and no _packed_seq_ids go to it")


@pytest.mark.parametrize("batch", [None, [1], (TOKENS, IDS)])
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    with pytest.raises(BatchError, match="batch = "):
        check_training_batch(model_for(), batch)


def test_what_is_no_function_is_refused_before_training() -> None:
    with pytest.raises(EncodingError, match="on_problem = str: must be callable"):
        watch_packing(model_for(), on_problem=cast("Any", "print"))


def test_a_forward_of_any_keywords_is_given_no_other_than_it_was() -> None:
    class Wrapper(nn.Module):
        packed_mask_type: Literal["document_ids"] = "document_ids"

        def __init__(self) -> None:
            super().__init__()
            self.inner = model_for()

        def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None, **words: Any) -> Tensor:
            logits: Tensor = self.inner(input_ids, _packed_seq_ids=_packed_seq_ids, **words)
            return logits

    model = Wrapper().train()
    with watch_packing(model, every=1):
        model(TOKENS, _packed_seq_ids=IDS)
    assert audit_isolation(model, layers=False).is_clean


def _train(model: nn.Module, steps: int, around: Callable[[nn.Module], PackingWatch] | None = None) -> list[Tensor]:
    """Train with dropout for some steps, and give losses, parameters, buffers and the random state."""
    torch.default_generator.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = None if around is None else around(model)
    losses: list[Tensor] = []
    for _ in range(steps):
        logits = model(TOKENS, _packed_seq_ids=IDS)
        loss = nn.functional.dropout(logits, 0.1).square().mean()
        optimizer.zero_grad()
        backward(loss)
        cast("Any", optimizer).step()
        losses.append(loss.detach())
    if watch is not None:
        watch.remove()
    state = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
    return [*losses, *state, torch.random.get_rng_state()]


def test_training_goes_on_as_if_nothing_were_watched() -> None:
    def build() -> nn.Module:
        torch.default_generator.manual_seed(1)
        return Model(Attention(), planted.Recurrence(), planted.BatchNorm()).train()

    alone = _train(build(), 4)
    watched = _train(build(), 4, lambda model: watch_packing(model, every=1, on_problem=lambda _error: None))
    assert all(map(torch.equal, alone, watched))


def test_a_watch_checks_every_so_many_training_forwards_and_goes() -> None:
    model = model_for()
    hooks = _pre_hooks(model)
    with watch_packing(model, every=3) as watch:
        for _ in range(7):
            model(TOKENS, _packed_seq_ids=IDS)
        assert [check.changed for check in watch.checks] == [0, 1, 2]
        model.eval()
        model(TOKENS)
        assert len(watch.checks) == 3
        assert 0 < watch.share < 1
        assert watch.seconds > 0
    assert _pre_hooks(model) == hooks
    model.train()(TOKENS)


def test_a_watch_sees_ids_before_a_binding_takes_them_and_leaks_stop_training() -> None:
    model = build_tiny_model("llama").train()
    configure_packing(get_model_attn_implementation(model), model)
    arguments = {"input_ids": TOKENS, "_packed_seq_ids": IDS, "labels": LABELS}
    with watch_packing(model, every=1) as watch:
        model(**arguments)
        assert [check.changed for check in watch.checks] == [0]
        with pytest.raises(EncodingError, match="labels"):
            model(**{**arguments, "labels": TOKENS})
    leaking = model_for(planted.shifted_ids(1))
    found: list[PackingError] = []
    with watch_packing(leaking, every=1, on_problem=found.append) as watch:
        leaking(TOKENS, _packed_seq_ids=IDS)
        leaking(TOKENS, _packed_seq_ids=IDS)
    # The first document of the row reaches the second, and that one reaches none.
    assert [type(error) for error in found] == [IsolationError]
    assert (watch.problems, len(watch.checks)) == (1, 1)
    assert "document 7 moves when tokens of document 4 change" in str(found[0])


class Sums(nn.Module):
    """Knows of no documents."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 8)

    def forward(self, input_ids: Tensor) -> Tensor:
        states: Tensor = self.embed(input_ids)
        return states.cumsum(dim=1)


def test_what_a_consumer_calls_is_no_forward_of_training() -> None:
    model = Sums().train()
    configure_packing("sdpa", model, consumer="per_document")
    with watch_packing(model, every=2) as watch:
        for _ in range(4):
            model(TOKENS, _packed_seq_ids=IDS)
    assert [(check.documents, check.changed) for check in watch.checks] == [(4, 0), (4, 1)]


def test_a_forward_of_a_suspended_binding_is_not_watched() -> None:
    model = build_tiny_model("llama").train()
    configure_packing(get_model_attn_implementation(model), model)
    binding = get_binding(model)
    assert binding is not None
    with watch_packing(model, every=2) as watch:
        for _ in range(2):
            with binding.suspended():
                model(TOKENS)
            model(TOKENS, _packed_seq_ids=IDS)
    assert len(watch.checks) == 1


def test_an_armed_watch_checks_the_next_forward_alone() -> None:
    model = model_for()
    with watch_packing(model, every=0) as watch:
        model(TOKENS, _packed_seq_ids=IDS)
        assert watch.checks == []
        watch.arm()
        model(TOKENS, _packed_seq_ids=IDS)
        model(TOKENS, _packed_seq_ids=IDS)
        assert len(watch.checks) == 1


@pytest.mark.parametrize(("name", "value"), [("every", -1), ("every", 1.5), ("most_places", True)])
def test_numbers_that_are_none_are_refused(name: str, value: object) -> None:
    with pytest.raises(EncodingError, match=name):
        cast("Any", watch_packing)(model_for(), **{name: value})
