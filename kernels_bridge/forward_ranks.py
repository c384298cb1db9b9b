"""The ranks that run a model's forward together, as the wrappers around it and in it have it.

DistributedDataParallel and FSDP exchange tensors around every forward. A check that exchanges one number more there
cannot leave a rank waiting that would not have waited anyway.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import nn

from neatpack.contracts.declarations import unwrap
from neatpack.kernels_bridge.ranks import raising_at_next_agreement, raising_together

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Agreement: TypeAlias = "ProcessGroup | Literal['wrappers'] | None"
"""Which ranks raise together: those of a group, those that the model's wrappers make run together, or none."""

WRAPPERS: Final = "wrappers"
_FSDP_CLASSES: Final = ("FSDPModule", "FullyShardedDataParallel")
_GROUPS_OF_FSDP1: Final = ("process_group", "_inter_node_pg")
_GROUPS_OF_FSDP2: Final = ("shard_process_group", "replicate_process_group")


def agreeing(model: nn.Module, across: Agreement) -> AbstractContextManager[None]:
    """Let the checks of a forward that fail on one rank raise on all that run it together.

    Args:
        model: the module whose forward begins.
        across: the ranks. Those of the wrappers are looked for in every forward, since wrappers come and go.
    """
    if across is None or not model.training:
        return nullcontext()
    if across != WRAPPERS:
        return raising_together(across)
    if not dist.is_available() or not dist.is_initialized():
        return nullcontext()
    wrapper = _running_ddp()
    if wrapper is None or unwrap(wrapper) is not model:
        return raising_together(*_sharding_groups(model))
    if not torch.is_grad_enabled() or _allows_uneven_inputs(wrapper):
        return nullcontext()
    group: ProcessGroup = cast("Any", wrapper).process_group
    if not wrapper.require_backward_grad_sync:  # inside of no_sync ranks need not run equally many forwards
        return raising_at_next_agreement(group)
    return raising_together(group)


def sharded_parts(model: nn.Module) -> Iterator[nn.Module]:
    """List the modules, the model itself among them, that FSDP 1 or 2 has sharded or wrapped."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        kinds = tuple(getattr(fsdp, name) for name in _FSDP_CLASSES if hasattr(fsdp, name))
        yield from (part for part in model.modules() if isinstance(part, kinds))


def is_sharded(model: nn.Module) -> bool:
    """Whether some part is wrapped or turned into FSDP's, or some weight is a DTensor: ranks then have to call the
    model in step.

    Example:
        >>> is_sharded(nn.Linear(2, 2))
        False
    """
    tensors = chain(model.parameters(), model.buffers())
    return any(sharded_parts(model)) or any(
        type(tensor).__module__.startswith("torch.distributed") for tensor in tensors
    )


def _sharding_groups(model: nn.Module) -> tuple[ProcessGroup, ...]:
    """Give the groups over which FSDP shards a model and replicates the shards; none where it does not."""
    groups = map(_groups_of, chain(_running_fsdp1(model), sharded_parts(model)))
    return next((found for found in groups if found), ())


def _running_fsdp1(model: nn.Module) -> Iterator[nn.Module]:
    """Find the FSDP 1 wrapper of a model whose forward is running: no module knows what it is wrapped in."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    code: CodeType | None = None if fsdp is None else fsdp.FullyShardedDataParallel.forward.__code__
    frame = None if code is None else inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and unwrap(frame.f_locals["self"]) is model:
            yield frame.f_locals["self"]
        frame = frame.f_back


# What follows reads what torch keeps for itself. Where a release of torch keeps it elsewhere, nothing is found.


def _running_ddp() -> nn.parallel.DistributedDataParallel | None:
    """Give the wrapper whose forward is running, as torch.compile asks for it."""
    active: Any = getattr(nn.parallel.DistributedDataParallel, "_get_active_ddp_module", None)
    return None if active is None else cast("nn.parallel.DistributedDataParallel | None", active())


def _allows_uneven_inputs(wrapper: nn.parallel.DistributedDataParallel) -> bool:
    """Whether the wrapper is inside of `join`, where ranks whose inputs ran out call no forward."""
    return bool(getattr(getattr(wrapper, "_join_config", None), "enable", False))


def _groups_of(part: nn.Module) -> tuple[ProcessGroup, ...]:
    """Give the groups of a module of FSDP: two where shards are replicated."""
    get_state: Any = getattr(part, "_get_fsdp_state", None)
    holders: list[Any] = [part] if get_state is None else _meshes(get_state())
    names = _GROUPS_OF_FSDP1 if get_state is None else _GROUPS_OF_FSDP2
    found = (cast("ProcessGroup | None", getattr(holder, name, None)) for holder in holders for name in names)
    return tuple(dict.fromkeys(group for group in found if group is not None))


def _meshes(state: object) -> list[Any]:
    """Give what FSDP 2 knows of the mesh of each group of parameters; earlier releases of torch have one group."""
    groups: list[Any] = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    return [getattr(group, "mesh_info", None) for group in groups]
