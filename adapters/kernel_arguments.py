"""What kernels are called with beside their tensors: offsets under the names that each reads, a window, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from torch import Tensor

from neatpack.adapters.arguments import (
    INT32_MAX,
    INT64_MAX,
    require_count,
    require_flag,
    require_instance,
    require_readable,
)
from neatpack.adapters.offsets import read_offsets
from neatpack.adapters.thd import require_thd_flat
from neatpack.adapters.visibility import require_window
from neatpack.contracts.encodings import (
    FLAKwargs,
    GatheredFlat,
    GatheredStates,
    PackedSeqParamsKwargs,
    PhysicalFlat,
    PhysicalStates,
    THDFlat,
    TransformerEngineKwargs,
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


def transformer_engine_kwargs(flat: THDFlat[Tensor]) -> TransformerEngineKwargs[Tensor]:
    """Give the arguments by which Transformer Engine's attention learns the documents of a flattened batch.

    Args:
        flat: offsets, real and padded.

    Raises:
        EncodingError: the offsets are no `THDFlat`.

    Example:
        >>> import torch
        >>> from neatpack.adapters.thd import thd_flat
        >>> kwargs = transformer_engine_kwargs(thd_flat(torch.tensor([[1, 1, 2, 2, 3]])))
        >>> kwargs["cu_seqlens_q_padded"].tolist(), kwargs["max_seqlen_q"], kwargs["pad_between_seqs"]
        ([0, 2, 4, 5], 2, False)
    """
    require_thd_flat(flat)
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": flat.cu_seqlens,
        "cu_seqlens_kv": flat.cu_seqlens,
        "cu_seqlens_q_padded": flat.cu_seqlens_padded,
        "cu_seqlens_kv_padded": flat.cu_seqlens_padded,
        "max_seqlen_q": flat.max_seqlen,
        "max_seqlen_kv": flat.max_seqlen,
        "pad_between_seqs": flat.pad_between_seqs,
    }


def packed_seq_params_kwargs(flat: THDFlat[Tensor]) -> PackedSeqParamsKwargs[Tensor]:
    """Give the arguments of Megatron's `PackedSeqParams`; its recurrent layers number documents by `total_tokens`.

    Args:
        flat: offsets, real and padded.

    Raises:
        EncodingError: the offsets are no `THDFlat`.

    Example:
        >>> import torch
        >>> from neatpack.adapters.thd import thd_flat
        >>> packed_seq_params_kwargs(thd_flat(torch.tensor([[1, 1, 2, 0]])))["total_tokens"]
        4
    """
    return {**transformer_engine_kwargs(flat), "total_tokens": flat.total_tokens}


def fla_kwargs(states: GatheredStates[Tensor] | PhysicalStates[Tensor], *, rows: int = 1) -> FLAKwargs[Tensor]:
    """Give offsets under the names that flash-linear-attention reads. Its input is one row: `[1, tokens, ...]`.

    Args:
        states: offsets of the stream. None repeats, since that library miscounts documents of no token. Only their
            copy on the host is read.
        rows: first dimension of what the layer is given. With more than one row the gradient of a convolution's
            weights would be wrong, without an error.

    Raises:
        EncodingError: the states are neither kind, their offsets do not rise from 0 or their copies are of different
            kinds, or there is another number of rows than one.

    Example:
        >>> import torch
        >>> from neatpack.adapters.recurrent import gathered_states
        >>> fla_kwargs(gathered_states(torch.tensor([[1, 1, 2, 0]])))
        {'cu_seqlens': tensor([0, 2, 3]), 'cu_seqlens_cpu': tensor([0, 2, 3])}
    """
    remedy = "Call gathered_states(document_ids) or physical_states(document_ids)."
    require_instance(states, (GatheredStates, PhysicalStates), "states", remedy)
    require_count(rows, "rows", "Flatten the rows into one, [1, tokens, ...].", least=1, most=1)
    _require_rising(states)
    return {"cu_seqlens": states.cu_seqlens, "cu_seqlens_cpu": states.cu_seqlens_cpu}


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


def _require_rising(states: GatheredStates[Tensor] | PhysicalStates[Tensor]) -> None:
    """Raise unless every segment has a token, by the copy on the host, and the other copy is of its kind."""
    on_host, on_device = states.cu_seqlens_cpu, states.cu_seqlens
    require_readable(cu_seqlens=on_device, cu_seqlens_cpu=on_host)
    kind, expected = (on_device.dtype, tuple(on_device.shape)), (on_host.dtype, tuple(on_host.shape))
    if kind != expected:
        message = f"must have the dtype and shape of cu_seqlens_cpu, {expected}"
        remedy = "Make both of the same ids: gathered_states(document_ids)."
        raise EncodingError(Problem("cu_seqlens", message, "disagreement", value=kind, remedy=remedy))
    if not on_host.is_cpu:
        remedy = "Give a copy: cu_seqlens.cpu()."
        message = "must lie on the host"
        raise EncodingError(Problem("cu_seqlens_cpu", message, "device", value=on_host.device, remedy=remedy))
    offsets = read_offsets(on_host, "cu_seqlens_cpu")
    repeated = np.flatnonzero(np.diff(offsets) == 0) + 1
    if repeated.size:
        position = int(repeated[0])
        message, remedy = "repeats: a document of no token", "Leave such documents out."
        value = int(offsets[position])
        raise EncodingError(Problem("cu_seqlens_cpu", message, "value", position=position, value=value, remedy=remedy))


def _counts(values: object, field: str) -> list[int]:
    require_instance(values, Sequence, field, _SIZES_REMEDY)
    return [require_count(value, field, _SIZES_REMEDY, most=INT64_MAX) for value in cast("Sequence[object]", values)]
