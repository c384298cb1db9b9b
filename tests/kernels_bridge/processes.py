"""Running a function in several processes that form a gloo group."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE: Final = timedelta(seconds=60)
"""How long a process waits for another before it raises: what would hang fails."""

_SLOW_IMPORTS: Final = (
    "torch.distributed.pipelining",
    "transformers.models.llama.modeling_llama",
    "neatpack.kernels_bridge",
)
"""Imported once for all processes."""


def run_in_processes(count: int, folder: Path, function: Callable[..., None], *arguments: object) -> None:
    """Call `function(rank, *arguments)` in `count` processes; an error in one of them is raised here.

    Args:
        count: number of processes.
        folder: an empty folder, where the processes find one another.
        function: importable by name.
        arguments: what else to pass.
    """
    multiprocessing.set_forkserver_preload(list(_SLOW_IMPORTS))
    start: Callable[..., object] = cast("Any", mp).start_processes
    start(_run, (count, str(folder / "meeting"), function, arguments), nprocs=count, start_method="forkserver")


def _run(rank: int, count: int, meeting: str, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=PATIENCE)
    try:
        function(rank, *arguments)
    finally:
        dist.destroy_process_group()
