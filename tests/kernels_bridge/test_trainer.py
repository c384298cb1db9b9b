"""The watch as a callback of Transformers' own `Trainer`, which trains a tiny model for some steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.contracts.errors import EncodingError, IsolationError, PackingError
from neatpack.kernels_bridge import configure_packing, get_model_attn_implementation
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model

pytest.importorskip("accelerate", reason="Transformers' Trainer needs it")

if TYPE_CHECKING:
    from neatpack.kernels_bridge.hf_trainer import PackingWatchCallback

IDS = torch.tensor([4, 4, 4, 7, 7, 7, 7, 0])
STEPS = 6
MICROBATCHES = 2

Rows = Sequence[dict[str, Tensor]]


def rows(*, right: int = STEPS * MICROBATCHES) -> Rows:
    """A row for each microbatch, two documents in each; after some that are right, targets cross the boundary."""
    without_target = torch.tensor([True, False, False, True, False, False, False, True])
    tokens = [torch.arange(8) + row for row in range(STEPS * MICROBATCHES)]
    return [
        {"input_ids": one, "_packed_seq_ids": IDS, "labels": one.masked_fill(without_target & (row < right), -100)}
        for row, one in enumerate(tokens)
    ]


def hooks(model: nn.Module) -> list[object]:
    return list(vars(model)["_forward_pre_hooks"].values())  # torch has no public way to list them


def model_for(*, configured: bool = True) -> nn.Module:
    model = build_tiny_model("llama")
    if configured:
        configure_packing(get_model_attn_implementation(model), model)
    return model


def watching(every: int, on_problem: Callable[[PackingError], None] | None = None) -> PackingWatchCallback:
    from neatpack.kernels_bridge.hf_trainer import PackingWatchCallback

    return PackingWatchCallback(every, on_problem=on_problem)


def train(model: nn.Module, folder: Path, data: Rows, *callbacks: object) -> list[Tensor]:
    """Train for some optimizer steps, and give the loss and the parameters."""
    from transformers import Trainer, TrainingArguments

    arguments = cast("Any", TrainingArguments)(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=MICROBATCHES,
        use_cpu=True,
        remove_unused_columns=False,  # else it takes away what the forward does not name: _packed_seq_ids
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = cast("Any", Trainer)(model, arguments, train_dataset=data, callbacks=list(callbacks))
    return [torch.tensor(trainer.train().training_loss), *(one.detach() for one in model.parameters())]


def test_a_right_run_is_checked_every_so_many_steps_and_goes_as_without_a_watch(tmp_path: Path) -> None:
    model, callback = model_for(), watching(every=2)
    before = hooks(model)
    watched = train(model, tmp_path, rows(), callback)
    assert callback.watch is not None
    assert [check.changed for check in callback.watch.checks] == [0, 1, 0]
    assert callback.watch.problems == 0
    assert hooks(model) == before
    alone = train(model_for(), tmp_path, rows())
    assert all(map(torch.equal, watched, alone))


def test_a_model_that_leaks_stops_the_run(tmp_path: Path) -> None:
    model, callback = model_for(configured=False), watching(every=2)
    with pytest.raises(IsolationError, match="moves when tokens of document"):
        train(model, tmp_path, rows(), callback)
    assert hooks(model) == []


def test_targets_across_a_boundary_are_told_and_training_goes_on(tmp_path: Path) -> None:
    found: list[PackingError] = []
    callback = watching(every=1, on_problem=found.append)
    train(model_for(), tmp_path, rows(right=0), callback)
    assert [type(error) for error in found] == [EncodingError] * STEPS
    assert "is a target across a boundary" in str(found[0])
