"""Counts what waits for a device. The tests have none: the two doors to the host are counted, and torch is watched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import neatpack.adapters.host_arrays

WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique_consecutive",
    "_unique2",
    "unique_dim",
    "equal",
    "is_nonzero",
}
"""Operators whose result has a shape or a value that the host must learn first."""


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]  # torch leaves the hook without types
    """Counts calls of `read_on_host` and `read_together` in `reads`, and names waiting operators in `operators`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]  # pyright: ignore[reportUnknownMemberType]
        self.reads = 0
        self.reading = False
        self.operators: list[str] = []
        self.launches: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        boolean_index = name == "index" and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in WAITING or boolean_index:
            self.operators.append(name)
        if not func.is_view:
            self.launches.append(name)
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return self.reads + len(self.operators)


@contextmanager
def host_reads(monkeypatch: pytest.MonkeyPatch) -> Generator[HostReads]:
    """Count what waits for a device inside the block."""
    mode = HostReads()

    def counted(read: Callable[..., object]) -> Callable[..., object]:
        def counting(*tensors: torch.Tensor | str, **field: str) -> object:
            outermost, mode.reading = not mode.reading, True
            mode.reads += outermost
            try:
                return read(*tensors, **field)
            finally:
                mode.reading = not outermost

        return counting

    doors = (neatpack.adapters.host_arrays.read_on_host, neatpack.adapters.host_arrays.read_together)
    with monkeypatch.context() as patch, mode:
        for name, module in list(sys.modules.items()):
            for door in doors:
                if name.startswith("neatpack.adapters") and hasattr(module, door.__name__):
                    patch.setattr(module, door.__name__, counted(door))
        yield mode
