"""FlashAttention-4, `flash_attn.cute.flash_attn_varlen_func`: finding it, and what it takes on which GPU.

The package is read at 4.0.0b36. It checks its inputs by `assert`, deep inside and not under `python -O`; what it would
refuse there is refused here before the call, by name. FlashAttention 2 shares the import name `flash_attn`, so the
distribution decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from typing import Final, Protocol, cast

import torch
from torch import Tensor

from neatpack.contracts.errors import DependencyError, KernelInputError, Problem
from neatpack.kernels_bridge.signatures import require_keywords

DISTRIBUTION: Final = "flash-attn-4"
KEYWORDS: Final = (
    "q",
    "k",
    "v",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "max_seqlen_q",
    "max_seqlen_k",
    "softmax_scale",
    "causal",
    "window_size",
    "learnable_sink",
    "softcap",
)
"""What it is called with, all by name: its positional order is not that of FlashAttention 2."""

_READ: Final = "4.0.0b36"
_MODULE: Final = "flash_attn.cute"
_FUNCTION: Final = "flash_attn_varlen_func"
_DTYPES: Final = (torch.float16, torch.bfloat16)
_SINK_DTYPES: Final = (*_DTYPES, torch.float32)
_ALIGNMENT: Final = 8
"""Head sizes are multiples of 16 bytes, in a dtype of two."""

_FORWARD: Final = (8, 9, 10, 11, 12)
_BACKWARD: Final = (9, 10, 11, 12)
_SINK_BACKWARD: Final = (9, 10, 11)
_BLACKWELL: Final = (10, 11)
_LARGE: Final = (256, 256)
"""Head sizes for which Blackwell has a backward of its own, without windows, sinks and softcap."""


class FA4Function(Protocol):
    """`flash_attn_varlen_func` as it is called here; the log-sum-exp is None where no gradient is needed."""

    def __call__(
        self,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None,
        causal: bool,
        window_size: tuple[int | None, int | None],
        learnable_sink: Tensor | None,
        softcap: float,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within documents: `[tokens, heads, head_dim]` to the output and the log-sum-exp."""
        ...


@dataclass(frozen=True)
class FA4Use:
    """What one call asks of a GPU beside attention.

    Attributes:
        head_dim: of queries and keys.
        value_dim: of values.
        backward: whether a gradient is needed.
        window: whether attention is windowed.
        sinks: whether each head has a sink.
        softcap: whether scores are bounded.
    """

    head_dim: int
    value_dim: int
    backward: bool = False
    window: bool = False
    sinks: bool = False
    softcap: bool = False


@cache
def load_fa4() -> FA4Function:
    """Import FlashAttention-4, and check that it takes what it is called with.

    Raises:
        DependencyError: the distribution `flash-attn-4` is not installed, cannot be imported, or its function lacks
            a keyword; the version is named.
    """
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        remedy = f"Install it, as `pip install --pre {DISTRIBUTION}`; flash-attn is another package."
        raise DependencyError(Problem(DISTRIBUTION, "is not installed", "missing", remedy=remedy)) from error
    try:
        function: object = getattr(import_module(_MODULE), _FUNCTION)
    except (ImportError, AttributeError, OSError) as error:
        message = f"gives no {_MODULE}.{_FUNCTION}: {type(error).__name__}: {error}"
        remedy = "Repair that installation; FlashAttention 2 shares its import name."
        raise DependencyError(Problem(DISTRIBUTION, message, "missing", value=version, remedy=remedy)) from error
    require_keywords(function, KEYWORDS, DISTRIBUTION, version, tested=_READ)
    return cast("FA4Function", function)


def device_capability(device: torch.device) -> tuple[int, int]:
    """Tell the CUDA compute capability of a device.

    Raises:
        KernelInputError: it is no CUDA device.
    """
    if device.type != "cuda":
        remedy = "Move model and batch to the GPU, or build the model with another attention."
        problem = Problem("query", "FlashAttention-4 runs on CUDA devices", "device", value=device, remedy=remedy)
        raise KernelInputError(problem)
    return torch.cuda.get_device_capability(device)


def use_problems(capability: tuple[int, int], use: FA4Use) -> list[Problem]:
    """List what a GPU of a compute capability could not do of one call.

    Example:
        >>> use_problems((9, 0), FA4Use(256, 256, backward=True, window=True))
        []
        >>> [problem.field for problem in use_problems((10, 0), FA4Use(256, 256, backward=True, window=True))]
        ['sliding_window']
    """
    return [
        Problem(field, message, "unsupported", value=value, remedy="Build the model with another attention.")
        for field, message, value in _objections(capability, use)
    ]


def _objections(capability: tuple[int, int], use: FA4Use) -> Iterator[tuple[str, str, object]]:
    major = capability[0]
    here = f"compute capability {capability[0]}.{capability[1]}"
    supported = _BACKWARD if use.backward else _FORWARD
    if major not in supported:
        kind = "backward" if use.backward else "forward"
        yield "query", f"FlashAttention-4 has no {kind} for {here}", None
    yield from _size_objections(major, here, use)
    if not use.backward:
        return
    if use.sinks and major not in _SINK_BACKWARD:
        yield "sinks", f"have no backward for {here}", None
    if major in _BLACKWELL and (use.head_dim, use.value_dim) == _LARGE:
        for field, asked in (("sliding_window", use.window), ("sinks", use.sinks), ("softcap", use.softcap)):
            if asked:
                yield field, f"has no backward for heads of {use.head_dim} on {here}", None


def _size_objections(major: int, here: str, use: FA4Use) -> Iterator[tuple[str, str, object]]:
    sizes = (use.head_dim, use.value_dim)
    if any(size % _ALIGNMENT or size <= 0 for size in sizes):
        yield "query", f"head sizes must be multiples of {_ALIGNMENT}", sizes
    elif major == 9 and max(sizes) > 256:
        yield "query", f"head sizes must be 8 to 256 on {here}", sizes
    elif major in _BLACKWELL and max(sizes) > 128 and sizes not in ((192, 128), _LARGE):
        yield "query", f"head sizes must be 8 to 128, (192, 128) or (256, 256) on {here}", sizes


def state_problems(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> list[Problem]:
    """List what is wrong with states `[..., heads, head_dim]` and sinks `[heads]` on any GPU."""
    problems: list[Problem] = []
    heads = query.shape[-2]
    if query.dtype not in _DTYPES or len({query.dtype, key.dtype, value.dtype}) > 1:
        message = "query, key and value must be of one dtype, float16 or bfloat16"
        remedy = "Cast the model, or run it under autocast."
        dtypes = (query.dtype, key.dtype, value.dtype)
        problems.append(Problem("query", message, "dtype", value=dtypes, remedy=remedy))
    for name, states in (("key", key), ("value", value)):
        if states.device != query.device:
            message = f"must lie where query lies, on {query.device}"
            remedy = f"Move it: {name}.to(...)."
            problems.append(Problem(name, message, "device", value=states.device, remedy=remedy))
    if query.shape[-1] != key.shape[-1]:
        message = f"must have the head size of query, {query.shape[-1]}"
        remedy = "Project both to one head size; that of value may be another."
        problems.append(Problem("key", message, "shape", value=tuple(key.shape), remedy=remedy))
    if key.shape[-2] != value.shape[-2] or key.shape[-2] == 0 or heads % max(key.shape[-2], 1):
        message = f"key and value must have one number of heads, which divides the {heads} of query"
        remedy = "Give one head of both to each head of query, or to each group of equally many."
        shapes = (tuple(key.shape), tuple(value.shape))
        problems.append(Problem("key", message, "shape", value=shapes, remedy=remedy))
    if sinks is not None:
        problems += _sink_problems(sinks, query)
    return problems


def _sink_problems(sinks: Tensor, query: Tensor) -> list[Problem]:
    heads = query.shape[-2]
    if tuple(sinks.shape) == (heads,) and sinks.dtype in _SINK_DTYPES and sinks.device == query.device:
        return []
    message = f"must be [heads] = [{heads}], floating point, on {query.device}"
    found = (tuple(sinks.shape), sinks.dtype, str(sinks.device))
    remedy = "Pass one float32 number for each head of query, or None for no sinks."
    return [Problem("sinks", message, "shape", value=found, remedy=remedy)]


def offset_problems(cu_seqlens: Tensor, max_seqlen: object, query: Tensor) -> list[Problem]:
    """List what is wrong with gathered offsets and the bound of their documents, without reading the device."""
    problems: list[Problem] = []
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0:
        remedy = "Call the bound model itself: its binding flattens metadata at entry."
        message = "must be [documents + 1], in one stream"
        problems.append(Problem("cu_seqlens", message, "rank", value=tuple(cu_seqlens.shape), remedy=remedy))
    if cu_seqlens.dtype != torch.int32:
        remedy = "Pass `cu_seqlens.to(torch.int32)`."
        problems.append(Problem("cu_seqlens", "must be int32", "dtype", value=cu_seqlens.dtype, remedy=remedy))
    if not cu_seqlens.is_contiguous():
        remedy = "Pass `cu_seqlens.contiguous()`."
        message = "must be contiguous"
        problems.append(Problem("cu_seqlens", message, "value", value=cu_seqlens.stride(), remedy=remedy))
    if cu_seqlens.device != query.device:
        message = f"must lie where query lies, on {query.device}"
        remedy = "Move it: cu_seqlens.to(...)."
        problems.append(Problem("cu_seqlens", message, "device", value=cu_seqlens.device, remedy=remedy))
    if isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int) or max_seqlen < 0:
        remedy = "Pass an int: a tensor makes the kernel wait for the device."
        message = "must be a Python int, the tokens of the longest document"
        problems.append(Problem("max_seqlen", message, "type", value=repr(max_seqlen), remedy=remedy))
    return problems
