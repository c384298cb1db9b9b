"""What kernels are called with beside their tensors: offsets under their names, a window, and the width of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from torch import Tensor

from neatpack.adapters.arguments import INT32_MAX, INT64_MAX, require_count, require_flag, require_instance
from neatpack.adapters.visibility import require_window
from neatpack.contracts.encodings import (
    GatheredFlat,
    PhysicalFlat,
    VarlenKernelKwargs,
    parse_gathered_flat,
    parse_physical_flat,
)
from neatpack.contracts.errors import EncodingError, Problem

_SIZES_REMEDY: Final = "Give tensor.shape and tensor.stride()."


def varlen_kernel_kwargs(flat: GatheredFlat[Tensor] | PhysicalFlat[Tensor]) -> VarlenKernelKwargs[Tensor]:
    """Give gathered or physical offsets under the names of `flash_attn_varlen_func`, as flash-attn spells them.

    Args:
        flat: offsets of the stream that the kernel is given: of kept tokens after a gather, or of the flattened rows.

    Raises:
        EncodingError: they are neither, or not int32 with a Python int beside them.

    Example:
        >>> import torch
        >>> from neatpack.adapters.gathered import gathered_flat
        >>> kwargs = varlen_kernel_kwargs(gathered_flat(torch.tensor([[1, 1, 2, 0]])))
        >>> kwargs["cu_seqlens_q"], kwargs["max_seqlen_k"]
        (tensor([0, 2, 3], dtype=torch.int32), 2)
    """
    require_instance(flat, (GatheredFlat, PhysicalFlat), "flat", "Call gathered_flat(...) or physical_offsets(...).")
    (parse_gathered_flat if isinstance(flat, GatheredFlat) else parse_physical_flat)(flat)
    return {
        "cu_seqlens_q": flat.cu_seqlens,
        "cu_seqlens_k": flat.cu_seqlens,
        "max_seqlen_q": flat.max_seqlen,
        "max_seqlen_k": flat.max_seqlen,
    }


def window_size(window: int | None, *, causal: bool = True) -> tuple[int | None, int | None]:
    """Give a window as flash attention takes it: how many keys are seen before, and how many after, a query's own.

    Models count the query itself with its window, kernels do not. None is no limit, as FlashAttention-4 and
    `varlen_attention` take it; FlashAttention-2 and -3 write -1 there.

    Args:
        window: how many places a query sees, its own included; None for no limit.
        causal: whether a query sees no key that comes after it.

    Raises:
        EncodingError: the window is not a positive int, or `causal` no bool.

    Example:
        >>> window_size(128), window_size(128, causal=False), window_size(None)
        ((127, 0), (127, 127), (None, 0))
    """
    window = require_window(window)
    require_flag(causal, "causal")
    before = None if window is None else window - 1
    return before, 0 if causal else before


def farthest_element(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Count how many elements of memory lie before the last one of a tensor; 0 where it has none.

    Args:
        shape: sizes of a tensor.
        strides: elements from one entry to the next, for each dimension.

    Raises:
        EncodingError: a size or stride is no count, or there are not as many of one as of the other.

    Example:
        >>> farthest_element((2, 8), (8, 1)), farthest_element((2, 8), (16, 1))
        (15, 23)
    """
    sizes, steps = (_counts(value, field) for value, field in ((shape, "shape"), (strides, "strides")))
    if len(sizes) != len(steps):
        message = f"must have {len(sizes)} entries, one per dimension"
        raise EncodingError(Problem("strides", message, "shape", value=tuple(steps), remedy=_SIZES_REMEDY))
    return 0 if 0 in sizes else sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))


def needs_int64_indices(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether a kernel that counts elements in 32 bits would go wrong: the farthest one is past int32.

    Long packed streams reach it: 225 305 tokens of 9 728 elements do.

    Args:
        shape: as `farthest_element`.
        strides: as `farthest_element`.

    Raises:
        EncodingError: as `farthest_element`.

    Example:
        >>> needs_int64_indices((225305, 9728), (9728, 1)), needs_int64_indices((46340, 46340), (46340, 1))
        (True, False)
    """
    return farthest_element(shape, strides) > INT32_MAX


def _counts(values: object, field: str) -> list[int]:
    require_instance(values, Sequence, field, _SIZES_REMEDY)
    return [require_count(value, field, _SIZES_REMEDY, most=INT64_MAX) for value in cast("Sequence[object]", values)]
