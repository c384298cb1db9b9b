"""Two processes that train one model: each audits its own batch, or is told why it cannot, and training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor, nn

from neatpack.contracts.errors import ModelError
from neatpack.kernels_bridge import audit_isolation, watch_packing
from tests.audit import planted
from tests.audit.planted import Attention, Model
from tests.audit.test_isolation import differences_between, watched
from tests.kernels_bridge.processes import run_in_processes
from tests.kernels_bridge.test_wrappers import ddp, fsdp1
from tests.kernels_bridge.untyped import backward, fully_shard

IDS: Final = (
    torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 2, 2, 2]]),
    torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [1, 1, 1, 1, 1, 1, 2, 2]]),
)
TOKENS: Final = torch.arange(16).view(2, 8)


def batch_of(rank: int) -> dict[str, Tensor]:
    return {"input_ids": TOKENS, "_packed_seq_ids": IDS[rank]}


def step(model: nn.Module, rank: int) -> None:
    backward(model(**batch_of(rank)).square().mean())


def check_data_parallel(rank: int) -> None:
    for mask, verdict in ((planted.block_causal, "clean"), (planted.shifted_ids(1), "leak")):
        inner = Model(Attention(mask))
        model = ddp(inner)
        step(model, rank)
        before = watched(inner)
        assert audit_isolation(model, batch_of(rank)).verdict == verdict
        assert audit_isolation(model).verdict == verdict
        assert differences_between(before, watched(inner)) == []
        with watch_packing(model, every=1, on_problem=lambda _error: None):
            step(model, rank)


def check_sharded(rank: int) -> None:
    model = fully_shard(Model(Attention(planted.shifted_ids(1)), Attention()))
    for wrapped in (model, fsdp1(Model(Attention()))):
        with pytest.raises(ModelError, match="is sharded over processes"):
            audit_isolation(wrapped, batch_of(rank))
    with watch_packing(model, every=1) as watch:
        for _ in range(2):
            step(model, rank)
    assert [check.changed for check in watch.checks] == [None, None]


def check_all(rank: int) -> None:
    check_data_parallel(rank)
    check_sharded(rank)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:torch.*")
def test_ranks_audit_what_they_are_given(tmp_path: Path) -> None:
    run_in_processes(2, tmp_path, check_all)
