"""Pipelines cut a batch along its rows; every form is derived from the microbatch's own ids, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor
from torch.distributed import fsdp, pipelining
from torch.distributed.device_mesh import init_device_mesh

from neatpack.kernels_bridge import configure_packing, consumer_names, get_binding
from tests.kernels_bridge.flash_stand_in import replace_flash_kernel
from tests.kernels_bridge.flex_stand_in import replace_flex_kernel
from tests.kernels_bridge.packed import gradients
from tests.kernels_bridge.processes import run_in_processes
from tests.kernels_bridge.stages import FORMS, VOCABULARY, WIDTH, real_loss
from tests.kernels_bridge.untyped import backward

# Four microbatches of two rows: unequal numbers of documents, gaps in their ids, one of nothing but padding.
IDS: Final = torch.tensor(
    [
        [1, 1, 2, 2, 2, 0],
        [3, 3, 3, 3, 5, 5],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 2, 3, 4, 5, 6],
        [7, 7, 7, 7, 7, 7],
        [4, 4, 4, 0, 0, 0],
        [9, 0, 0, 0, 0, 0],
    ]
)
TOKENS: Final = torch.randint(0, VOCABULARY, IDS.shape, generator=torch.Generator().manual_seed(0))
MICROBATCHES: Final = 4
STEPS: Final = 2
SCHEDULES: Final = ("ScheduleGPipe", "Schedule1F1B")


def expected(form: str, count: int) -> tuple[float, list[dict[str, Tensor]]]:
    """Give the loss and the gradients of each stage, computed in one process on the whole batch."""
    stages = [FORMS[form][0](index) for index in range(count)]
    states = TOKENS
    for stage in stages:
        states = stage.alone(states, IDS)
    loss = real_loss(states, IDS)
    backward(loss)
    return float(loss.detach()), [gradients(stage) for stage in stages]


def check_stage(rank: int, count: int, form: str, schedule_name: str, static: bool) -> None:
    """Run some steps of a schedule as one rank, and compare its loss and gradients with those of one process."""
    stage_class, attention = FORMS[form]
    module = stage_class(rank)
    configure_packing(attention, module)
    binding = get_binding(module)
    assert binding is not None
    assert binding.consumer == (form if form in consumer_names() else "declared" if form != "native" else "native_fa4")
    firings = Counter[str]()
    module.register_forward_pre_hook(lambda _module, _args: firings.update(["firing"]))
    rows = len(IDS) // MICROBATCHES
    states = torch.zeros(rows, IDS.shape[1], WIDTH, requires_grad=rank > 0)
    inputs = torch.zeros(rows, IDS.shape[1], dtype=torch.int64) if rank == 0 else states
    declared = {"input_args": (inputs,), "output_args": (states.detach().requires_grad_(),)} if static else {}
    stage: Any = cast("Any", pipelining).PipelineStage(module, rank, count, torch.device("cpu"), **declared)
    schedule: Any = getattr(pipelining, schedule_name)(stage, MICROBATCHES, loss_fn=real_loss, scale_grads=False)
    loss, by_stage = expected(form, count)
    for step in range(STEPS):
        module.zero_grad()
        firings.clear()
        losses: list[Tensor] = []
        tokens = (TOKENS,) if rank == 0 else ()
        target = {"target": IDS, "losses": losses} if rank == count - 1 else {}
        schedule.step(*tokens, **target, _packed_seq_ids=IDS)
        assert firings["firing"] == MICROBATCHES + (step == 0 and not static)
        if losses:
            assert float(torch.stack(losses).sum().detach()) == pytest.approx(loss, rel=1e-5)
        for name, gradient in gradients(module).items():
            torch.testing.assert_close(gradient, by_stage[rank][name], rtol=1e-4, atol=1e-5, msg=f"{form}: {name}")


def check_sharded_stages() -> None:
    """Two stages, each sharded over two ranks, whose checks agree among these alone."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "shard"))
    index, shard = mesh.get_coordinate() or [0, 0]
    module = FORMS["flat"][0](index)
    configure_packing(FORMS["flat"][1], module)
    cast("Any", fsdp).fully_shard(module, mesh=mesh["shard"], reshard_after_forward=False)
    group = mesh["stage"].get_group()
    stage: Any = cast("Any", pipelining).PipelineStage(module, index, 2, torch.device("cpu"), group=group)
    schedule: Any = pipelining.Schedule1F1B(stage, MICROBATCHES, loss_fn=real_loss, scale_grads=False)
    losses: list[Tensor] = []
    ids, tokens = IDS.roll(2 * shard, 0), TOKENS.roll(2 * shard, 0)
    inputs = (tokens,) if index == 0 else ()
    target = {"target": ids, "losses": losses} if index == 1 else {}
    schedule.step(*inputs, **target, _packed_seq_ids=ids)
    if losses:
        assert float(torch.stack(losses).sum().detach()) == pytest.approx(expected("flat", 2)[0], rel=1e-5)


def check_stages(rank: int, count: int) -> None:
    replace_flash_kernel([])
    replace_flex_kernel([])
    for form, schedule, static in product(FORMS, SCHEDULES, (False, True)):
        check_stage(rank, count, form, schedule, static)
    if count == 4:
        check_sharded_stages()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_a_pipeline_equals_one_process(count: int, tmp_path: Path) -> None:
    run_in_processes(count, tmp_path, check_stages, count)
