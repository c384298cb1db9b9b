"""Calls that torch leaves partly untyped."""

from __future__ import annotations

from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh


def backward(value: Tensor) -> None:
    cast("Any", value).backward()


def ints(values: Tensor) -> list[int]:
    return cast("list[int]", cast("Any", values).tolist())


def different(values: Tensor) -> Tensor:
    return cast("Tensor", cast("Any", values).unique())


def fully_shard(model: nn.Module) -> nn.Module:
    """Shard each layer, and the model, by FSDP 2 over all processes."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*cast("Any", model).layers, model):
        cast("Any", fsdp).fully_shard(part, mesh=mesh)
    return model
