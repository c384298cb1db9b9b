"""A check that fails on one rank raises on all of them, so that none waits for it in a collective."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor

from neatpack.contracts.errors import PackingError, Problem

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_Failure: TypeAlias = tuple[type[PackingError], tuple[Problem, ...]]


_ALL_WELL: Final = 0
_FAILED: Final = 1
_FAILED_BEFORE: Final = 2
"""What ranks tell one another. From here on it is that, and the number of a rank that raised in an earlier block and is
not there to say more."""

_READ_ITS_ERROR: Final = "Read that rank's own error, in the output of its process."


@contextmanager
def raising_together(*groups: ProcessGroup | None) -> Generator[None, None, None]:
    """If the `with` block raises on one rank of a process group, let it raise on all of them.

    Every rank has to come to the end of the block, with an error or without. It costs one all-reduce of a single
    number, which the host waits for; only after a failure is more exchanged. The number goes over the CPU where the
    group has a backend for that.

    Args:
        groups: the ranks that agree; several are those of the axes of a mesh. Where None, nothing is exchanged.

    Raises:
        PackingError: another rank failed. The error has the class of that rank's, where it is one of neatpack's, and
            names the rank.

    Example:
        >>> with raising_together(None):
        ...     pass
    """
    members = [group for group in groups if group is not None]
    if not members:
        yield
        return
    try:
        yield
    except Exception as error:
        _exchange(members, error)
        raise
    failures = _exchange(members, None)
    if failures:
        raise failures[0][0](*(problem for _, problems in failures for problem in problems))


@contextmanager
def raising_at_next_agreement(group: ProcessGroup) -> Generator[None, None, None]:
    """If the `with` block raises here, let the other ranks raise at the end of their next `raising_together`.

    Nobody waits for anybody: ranks may run different numbers of such blocks between those that they run together.
    """
    try:
        yield
    except Exception:
        number = _number([group], _FAILED_BEFORE + dist.get_rank())
        dist.all_reduce(number, dist.ReduceOp.MAX, group, async_op=True)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        raise


def gather(group: ProcessGroup, value: object) -> list[object]:
    """Collect one picklable object of every rank, in the order of ranks."""
    values: list[object] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    return values


def _exchange(groups: Sequence[ProcessGroup], error: Exception | None) -> Sequence[_Failure]:
    """Tell the other ranks whether this one failed, and learn which did."""
    number = _number(groups, _ALL_WELL if error is None else _FAILED)
    for group in groups:
        dist.all_reduce(number, dist.ReduceOp.MAX, group)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    greatest = int(number.item())
    if greatest == _ALL_WELL:
        return ()
    if greatest >= _FAILED_BEFORE:
        rank = f"rank {greatest - _FAILED_BEFORE}"
        message = "failed in an earlier forward of this step"
        return [(PackingError, (Problem(rank, message, "unsupported", remedy=_READ_ITS_ERROR),))]
    told = [] if error is None else [_as_failure(error)]
    for group in groups:
        told = [failure for others in gather(group, told) for failure in cast("list[_Failure]", others)]
    return list(dict.fromkeys(told))


def _number(groups: Sequence[ProcessGroup], value: int) -> Tensor:
    """Put a number where the groups can exchange it."""
    backends = [dist.get_backend_config(group) for group in groups]  # such as "cpu:gloo,cuda:nccl"
    device = "cpu" if all("cpu:" in each for each in backends) else backends[0].partition(":")[0]
    return torch.tensor(value, dtype=torch.int32, device=device)


def _as_failure(error: Exception) -> _Failure:
    """Put an error into a form that can be pickled, with the rank in its words."""
    rank = f"rank {dist.get_rank()}"
    if not isinstance(error, PackingError):
        message = f"raised {type(error).__name__}: {error}"
        return PackingError, (Problem(rank, message, "unsupported", remedy=_READ_ITS_ERROR),)
    problems = (
        replace(
            problem,
            message=f"{problem.message} (on {rank})",
            value=None if problem.value is None else str(problem.value),
        )
        for problem in error.problems
    )
    return type(error), tuple(problems)
