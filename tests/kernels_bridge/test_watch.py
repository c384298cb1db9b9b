"""The watch for training: it sees what the model is called with, finds what is wrong in it, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.contracts.batch import LabelShift
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError, IsolationError, PackingError
from neatpack.kernels_bridge import (
    PackingWatch,
    check_training_batch,
    configure_packing,
    get_model_attn_implementation,
    watch_packing,
)
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from tests.audit import planted
from tests.audit.planted import Attention, Model
from tests.kernels_bridge.untyped import backward, different

IDS = torch.tensor([[4, 4, 4, 7, 7, 7, 7, 0], [2, 2, 2, 2, 2, 5, 5, 5]])
TOKENS = torch.arange(16).view(2, 8)
LABELS = torch.tensor([[0, 1, 2, -100, 4, 5, 6, -100], [8, 9, 10, 11, 12, -100, 14, 15]])
BATCH: Mapping[str, object] = {"input_ids": TOKENS, "_packed_seq_ids": IDS, "labels": LABELS}


def _pre_hooks(model: nn.Module) -> dict[int, object]:
    return dict(vars(model)["_forward_pre_hooks"])  # torch has no public way to list them


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
    assert check_training_batch(model, {"input_ids": tokens, "_packed_seq_ids": ids}, most_places=7).changed is None
    assert seen == [(1, 30), (1, 30)]


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
