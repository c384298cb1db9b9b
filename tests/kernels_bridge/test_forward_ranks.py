"""Two processes that asked for nothing: what the checks of a step refuse on one rank raises on both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh

from neatpack.contracts import ConsumerError, DocumentIdsError, PackingError
from neatpack.kernels_bridge import configure_packing
from neatpack.kernels_bridge.forward_ranks import Agreement
from tests.kernels_bridge.processes import run_in_processes
from tests.kernels_bridge.stages import Flat, real_loss
from tests.kernels_bridge.test_wrappers import (
    Model,
    checkpointed,
    compiled,
    ddp,
    fsdp1,
    fsdp2,
    layer_checkpointed,
)
from tests.kernels_bridge.untyped import backward

IDS: Final = torch.tensor([[1, 1, 2, 2, 2, 0]])
COMES_BACK: Final = torch.tensor([[1, 2, 1, 1, 1, 0]])
TOKENS: Final = torch.arange(6)[None]

Wrap = Callable[[nn.Module], nn.Module]


def fsdp2_layer(model: nn.Module) -> nn.Module:
    cast("Any", fsdp).fully_shard(model.module, mesh=init_device_mesh("cpu", (2,)))
    return model


def fsdp2_replicated(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    cast("Any", fsdp).fully_shard(model, mesh=mesh)
    return model


def fsdp1_layer(model: nn.Module) -> nn.Module:
    cast("Any", model).module = fsdp1(cast("nn.Module", model.module))
    return model


def fsdp1_replicated(model: nn.Module) -> nn.Module:
    alone, _ = cast("Any", dist).new_subgroups(1)
    strategy = fsdp.ShardingStrategy.HYBRID_SHARD
    wrap = cast("Any", fsdp).FullyShardedDataParallel
    return cast(
        "nn.Module",
        wrap(model, device_id=torch.device("cpu"), process_group=(alone, dist.group.WORLD), sharding_strategy=strategy),
    )


WRAPPERS: Final[dict[str, Wrap]] = {
    "ddp": ddp,
    "fsdp1": fsdp1,
    "fsdp1 of a layer": fsdp1_layer,
    "fsdp1, shards replicated": fsdp1_replicated,
    "fsdp2": fsdp2,
    "fsdp2 of a layer": fsdp2_layer,
    "fsdp2, shards replicated": fsdp2_replicated,
    "ddp of compile": lambda model: ddp(compiled(model)),
    "compile of ddp": lambda model: compiled(ddp(model)),
    "ddp of checkpoint": lambda model: ddp(checkpointed(model)),
    "checkpoint of fsdp1": lambda model: checkpointed(fsdp1(model)),
    "checkpoint of fsdp2": lambda model: checkpointed(fsdp2(model)),
    "fsdp1 of checkpointed layer": lambda model: fsdp1(layer_checkpointed(model)),
}


def bound(model: nn.Module, agree_across: Agreement = "wrappers") -> nn.Module:
    configure_packing("flash_attention_2", model, agree_across=agree_across)
    return model


def step(wrapped: nn.Module, ids: Tensor = IDS) -> None:
    output = cast("Tensor", wrapped(TOKENS, _packed_seq_ids=ids))
    kept = ids > 0
    torch.testing.assert_close(output[kept], Flat(0).alone(TOKENS, ids)[kept])
    backward(real_loss(output, ids))


def check_wrapper(rank: int, name: str, wrap_first: bool) -> None:
    wrap = WRAPPERS[name]
    wrapped = bound(wrap(Model())) if wrap_first else wrap(bound(Model()))
    step(wrapped)
    for failing in (0, 1):
        with pytest.raises(DocumentIdsError, match="comes back") as caught:
            wrapped(TOKENS, _packed_seq_ids=COMES_BACK if rank == failing else IDS)
        assert (f"on rank {failing}" in str(caught.value)) == (rank != failing), name
        wrapped.zero_grad()
        step(wrapped)


def check_accumulation(rank: int) -> None:
    """Inside of no_sync no rank waits for another: the one that fails raises at once, the others with the last."""
    wrapped = cast("nn.parallel.DistributedDataParallel", ddp(bound(Model())))
    with wrapped.no_sync():
        for _ in range(1 + rank):
            step(wrapped)
    step(wrapped)
    if rank == 1:
        with wrapped.no_sync(), pytest.raises(DocumentIdsError, match="comes back"):
            wrapped(TOKENS, _packed_seq_ids=COMES_BACK)
    else:
        with wrapped.no_sync():
            step(wrapped)
            step(wrapped)
        with pytest.raises(PackingError, match=r"^rank 1: failed in an earlier forward"):
            wrapped(TOKENS, _packed_seq_ids=IDS)
    wrapped.zero_grad()
    step(wrapped)


def check_uneven_inputs(rank: int) -> None:
    """Inside of join a rank whose inputs ran out calls no forward."""
    wrapped = cast("nn.parallel.DistributedDataParallel", ddp(bound(Model())))
    with cast("Any", wrapped).join():
        for _ in range(1 + 2 * rank):
            step(wrapped)


def check_one_rank_alone(rank: int) -> None:
    """Whatever does not run on all ranks raises on its own, at once."""
    model, silent = Model(), Model()
    wrapped, replicated = ddp(bound(model)), ddp(bound(silent, None))
    alone = [model, bound(Model()), copy.deepcopy(model)]
    if rank == 0:
        for each in (*alone, replicated, copy.deepcopy(replicated)):
            with pytest.raises(DocumentIdsError):
                each(TOKENS, _packed_seq_ids=COMES_BACK)
        with pytest.raises(DocumentIdsError), torch.no_grad():
            wrapped(TOKENS, _packed_seq_ids=COMES_BACK)
        with pytest.raises(DocumentIdsError):
            wrapped.eval()(TOKENS, _packed_seq_ids=COMES_BACK)


class Distilling(nn.Module):
    """Calls a bound model of its own on one rank alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.teacher = [bound(Model())]

    def forward(self, rank: int) -> Tensor:
        if rank == 0:
            self.teacher[0](TOKENS, _packed_seq_ids=IDS)
        return self.weight * 1


def check_a_model_inside_of_another(rank: int) -> None:
    backward(cast("Tensor", ddp(Distilling())(rank)))


def check_no_group() -> None:
    for wrong in ("all", init_device_mesh("cpu", (2,))):
        with pytest.raises(ConsumerError, match=r"agree_across.*must be a process group, \"wrappers\" or None"):
            bound(Model(), cast("Any", wrong))


def check_all(rank: int) -> None:
    for name, wrap_first in product(WRAPPERS, (True, False)):
        check_wrapper(rank, name, wrap_first)
    check_accumulation(rank)
    check_uneven_inputs(rank)
    check_one_rank_alone(rank)
    check_a_model_inside_of_another(rank)
    check_no_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:torch.*")
def test_ranks_that_run_together_fail_together(tmp_path: Path) -> None:
    run_in_processes(2, tmp_path, check_all)
