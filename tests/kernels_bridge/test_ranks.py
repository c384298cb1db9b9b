"""Two processes: what fails on one raises on both, in the same class, and names the rank."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Final, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from neatpack.adapters import check_agreement
from neatpack.contracts import CapabilitiesError, DocumentIdsError, EncodingError, ModelError, PackingError
from neatpack.kernels_bridge import configure_packing, get_binding, raising_together
from tests.kernels_bridge.processes import run_in_processes
from tests.kernels_bridge.stages import Ids, Mask, Stage
from tests.kernels_bridge.untyped import backward, ints

IDS: Final = torch.tensor([[1, 1, 2, 2, 2, 0]])
COMES_BACK: Final = torch.tensor([[1, 2, 1, 1, 1, 0]])
TOKENS: Final = torch.arange(6)[None]


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def bound(stage: Stage, group: dist.ProcessGroup | None) -> Stage:
    configure_packing("sdpa", stage, agree_across=group)
    return stage


def check_a_step(rank: int) -> None:
    """Bad ids on rank 1 alone: nobody starts to wait for its gradients, and the next step works."""
    model = bound(Ids(0), world())
    wrapped = nn.parallel.DistributedDataParallel(model)
    backward(wrapped(TOKENS, _packed_seq_ids=IDS).sum())
    with pytest.raises(DocumentIdsError, match="comes back") as caught:
        wrapped(TOKENS, _packed_seq_ids=COMES_BACK if rank == 1 else IDS)
    (problem,) = caught.value.problems
    assert (problem.field, problem.row, problem.position) == ("_packed_seq_ids", 0, 2)
    assert ("on rank 1" in problem.message) == (rank == 0)
    backward(wrapped(TOKENS, _packed_seq_ids=IDS).sum())


def check_both_fail(rank: int) -> None:
    model = bound(Ids(0), world())
    with pytest.raises(DocumentIdsError if rank == 0 else EncodingError) as caught:
        model(TOKENS, _packed_seq_ids=COMES_BACK if rank == 0 else ints(IDS))
    assert len(caught.value.problems) == 1


def check_one_rank_alone(rank: int) -> None:
    """In eval mode a rank may run alone; so may a copy, and whoever asked for no agreement."""
    model = bound(Ids(0), world())
    copies = [copy.deepcopy(model), cast("Stage", pickle.loads(pickle.dumps(model))), bound(Ids(0), None)]  # noqa: S301  # pickled here
    if rank == 0:
        for alone in (model.eval(), *copies):
            alone(TOKENS, _packed_seq_ids=IDS)
            with pytest.raises(DocumentIdsError):
                alone(TOKENS, _packed_seq_ids=COMES_BACK)


def check_configuring(rank: int) -> None:
    model: nn.Module = Ids(0) if rank == 0 else nn.Linear(2, 2)
    with pytest.raises(ModelError, match="no consumer takes Linear") as caught:
        configure_packing("sdpa", model, agree_across=world())
    assert ("on rank 1" in str(caught.value)) == (rank == 0)
    assert get_binding(model) is None
    stage: nn.Module = Ids(0) if rank == 0 else Mask(0)
    with pytest.raises(CapabilitiesError, match=r"rank 1 .* chose declared.*block_causal.*rank 0.*document_ids"):
        configure_packing("sdpa", stage, agree_across=world())
    assert get_binding(stage) is None


def check_replacing(_rank: int) -> None:
    model = bound(Ids(0), None)
    alone = get_binding(model)
    assert get_binding(bound(model, world())) is not alone
    together = get_binding(model)
    assert together is not None
    assert together.agree_across is world()
    assert get_binding(bound(model, world())) is together


def check_blocks(rank: int) -> None:
    with raising_together(world()):
        check_agreement(IDS, {})
    with pytest.raises(EncodingError, match="restarts inside a document") as caught, raising_together(world()):
        check_agreement(IDS, {"position_ids": torch.zeros_like(IDS)} if rank == 0 else {})
    assert ("on rank 0" in str(caught.value)) == (rank == 1)
    with pytest.raises(KeyError if rank == 0 else PackingError, match="lost") as other, raising_together(world()):
        _ = {"lost" if rank else "found": 1}["lost"]
    says = "rank 0: raised KeyError: 'lost'. Read that rank's own error, in the output of its process."
    assert rank == 0 or str(other.value) == says


CHECKS: Final = (
    check_a_step,
    check_both_fail,
    check_one_rank_alone,
    check_configuring,
    check_replacing,
    check_blocks,
)


def check_all(rank: int) -> None:
    for check in CHECKS:
        check(rank)


@pytest.mark.slow
def test_ranks_fail_together(tmp_path: Path) -> None:
    run_in_processes(2, tmp_path, check_all)


@pytest.mark.gpu
def test_ranks_agree_over_nccl(tmp_path: Path) -> None:
    """The number travels on the GPU, where the group has no backend for the CPU."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        with raising_together(world()):
            pass
        with pytest.raises(EncodingError, match="restarts inside a document"), raising_together(world()):
            check_agreement(IDS, {"position_ids": torch.zeros_like(IDS)})
    finally:
        dist.destroy_process_group()
