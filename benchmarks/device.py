"""A device that is none: tensors lie on the CPU and claim otherwise, and each launch and each host read is counted.

A GPU waits at a host read, and pays for each launch. Both are counted here as they would happen there, for code that
takes another way on the CPU as well.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.records import Effort, Reading, Sides, compare

_NAME: Final = "pretended"

_READS: Final = {
    "_local_scalar_dense",
    "masked_select",
    "nonzero",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "bincount",
    "repeat_interleave",
}
"""Operators that wait for the device, because they give a number to Python or a shape that depends on values."""

_MASKS: Final = (torch.bool, torch.uint8)

_COPIES: Final = {"_to_copy", "copy_"}
"""Operators that take tensors of two devices."""

_INDEXING: Final = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operators that take indices from the host as well."""

_NO_LAUNCHES: Final = {"detach", "lift_fresh", "unbind", "split", "_unsafe_view", "_local_scalar_dense"}
"""Operators that start no kernel, though their schema does not call them views."""


@cache
def device() -> torch.device:
    """Make torch know the device."""
    setup = getattr(import_module("torch.utils.backend_registration"), "_setup_privateuseone_for_python_backend")  # noqa: B009
    setup(_NAME)
    return torch.device(_NAME, 0)


class FarTensor(Tensor):
    """A tensor that claims to lie on the device; `far` makes it."""

    near: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leave the type of a result to `Counter`."""
        with DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch leaves the hook without types
        """Refuse what no counter sees."""
        raise RuntimeError(f"{func} was called on the pretended device outside of a Counter")


def far(near: Tensor) -> FarTensor:
    """Wrap a CPU tensor."""
    wrap = FarTensor._make_wrapper_subclass  # noqa: SLF001 - torch's own hook for such tensors
    tensor = wrap(FarTensor, near.shape, strides=near.stride(), dtype=near.dtype, device=device())
    tensor.near = near
    return tensor


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the hook without types
    """Runs what happens on the device, and counts.

    Attributes:
        reads: times that the host waited for a value.
        launches: kernels and copies started on the device.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]
        self.reads = 0
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator on the CPU, where its far arguments really lie.

        Raises:
            RuntimeError: its tensors lie on two devices, which a real one does not take either.
        """
        if _mixes(func.overloadpacket.__name__, args, kwargs):
            raise RuntimeError(f"{func} was called with tensors on the pretended device and on the host")
        found: list[FarTensor] = []

        def bring(value: object) -> object:
            if isinstance(value, FarTensor):
                found.append(value)
                return value.near
            return value

        near_args = tree_map(bring, args)
        near_kwargs = tree_map(bring, dict(kwargs or {}))
        target = near_kwargs.get("device")
        stays = bool(found) if target is None else torch.device(target).type == _NAME
        if target is not None:
            near_kwargs["device"] = torch.device("cpu")
        self._count(func, near_args, near_kwargs, from_far=bool(found), to_far=stays)
        result = func(*near_args, **near_kwargs)
        return tree_map(_send, result) if stays else result

    def _count(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, from_far: bool, to_far: bool
    ) -> None:
        name = func.overloadpacket.__name__
        if not from_far and not to_far:
            return
        by_mask = name == "index" and any(getattr(index, "dtype", None) in _MASKS for index in args[1])
        unknown_shape = name in _READS and kwargs.get("output_size") is None
        if by_mask or unknown_shape or not to_far:
            self.reads += 1
        if not func.is_view and name not in _NO_LAUNCHES:
            self.launches += 1


class _ThroughTheHost(TorchFunctionMode):
    """Spells out two things that torch does below the reach of a dispatch mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Build tensors from Python numbers on the host and copy them; read lists by a copy to the host."""
        given = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and given.get("device") is not None:
            target = given.pop("device")
            return func(*args, **given).to(target)
        if func is Tensor.new_tensor:
            source, data, *_ = args
            return torch.tensor(data, dtype=given.get("dtype", source.dtype)).to(given.get("device", source.device))
        if func is Tensor.tolist:  # pyright: ignore[reportUnknownMemberType]
            return args[0].cpu().tolist()
        return func(*args, **given)


@contextmanager
def counted() -> Generator[Counter]:
    """Count what happens on the device inside the block."""
    with _ThroughTheHost(), Counter() as counter:
        yield counter


def count(call: Callable[[Tensor], object], argument: Tensor) -> Counter:
    """Count what a function of one tensor does on the device."""
    argument = far(argument)
    with counted() as counter:
        call(argument)
    return counter


def host_reads(sides: Sides, _effort: Effort) -> Reading:
    """Read how often the host waits, of sides whose calls give a `Counter`."""
    return _counted(sides, "reads")


def launches(sides: Sides, _effort: Effort) -> Reading:
    """Read how many kernels and copies are started, of sides whose calls give a `Counter`."""
    return _counted(sides, "launches")


def _mixes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    if name in _COPIES:
        return False
    if name in _INDEXING:
        args = [args[0], [index for index in args[1] if isinstance(index, FarTensor)], *args[2:]]
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs or {}))) if isinstance(leaf, Tensor)]
    far = [isinstance(tensor, FarTensor) for tensor in tensors if isinstance(tensor, FarTensor) or tensor.ndim]
    return any(far) and not all(far)


def _send(value: object) -> object:
    return far(value) if isinstance(value, Tensor) else value


def _counted(sides: Sides, what: str) -> Reading:
    ours, other = (float(getattr(call(), what)) for call in (sides.ours, sides.other))
    return compare(ours, other, what)
