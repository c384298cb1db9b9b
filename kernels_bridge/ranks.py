"""A check that fails on one rank raises on all of them, so that none waits for it in a collective."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
import torch.distributed as dist

from neatpack.contracts.errors import PackingError, Problem

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_Failure: TypeAlias = tuple[type[PackingError], tuple[Problem, ...]]


@contextmanager
def raising_together(group: ProcessGroup | None) -> Generator[None, None, None]:
    """If the `with` block raises on one rank of a process group, let it raise on all of them.

    Every rank has to come to the end of the block, with an error or without. It costs one all-reduce of a single
    number, which the host waits for; only after a failure is more exchanged.

    Args:
        group: the ranks that agree; where None, nothing is exchanged.

    Raises:
        PackingError: another rank failed. The error has the class of that rank's, where it is one of neatpack's, and
            names the rank.

    Example:
        >>> with raising_together(None):
        ...     pass
    """
    if group is None:
        yield
        return
    try:
        yield
    except Exception as error:
        _exchange(group, error)
        raise
    failures = _exchange(group, None)
    if failures:
        raise failures[0][0](*(problem for _, problems in failures for problem in problems))


def gather(group: ProcessGroup, value: object) -> list[object]:
    """Collect one picklable object of every rank, in the order of ranks."""
    values: list[object] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    return values


def _exchange(group: ProcessGroup, error: Exception | None) -> Sequence[_Failure]:
    """Tell the other ranks whether this one failed, and learn which did."""
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else None
    failed = torch.tensor(int(error is not None), dtype=torch.int32, device=device)
    dist.all_reduce(failed, dist.ReduceOp.MAX, group)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    if not failed.item():
        return ()
    told = gather(group, None if error is None else _as_failure(error))
    return [cast("_Failure", failure) for failure in told if failure is not None]


def _as_failure(error: Exception) -> _Failure:
    """Put an error into a form that can be pickled, with the rank in its words."""
    rank = f"rank {dist.get_rank()}"
    if not isinstance(error, PackingError):
        return PackingError, (Problem(rank, f"raised {type(error).__name__}: {error}", "unsupported"),)
    problems = (
        replace(
            problem,
            message=f"{problem.message} (on {rank})",
            value=None if problem.value is None else str(problem.value),
        )
        for problem in error.problems
    )
    return type(error), tuple(problems)
