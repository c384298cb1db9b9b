"""`torch_varlen`: any Hugging Face model over torch's own varlen kernel, `torch.nn.attention.varlen.varlen_attn`.

The kernel takes physical offsets, causality as a window, and neither softcap, sinks, dropout nor a mask. It runs on
CUDA devices, in float16 and bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final, Protocol, cast

import torch
from torch import Tensor, nn

from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.contracts.errors import DependencyError, KernelInputError, ModelError, Problem
from neatpack.kernels_bridge.calls import note_call
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.hf_attention import missing_boundaries
from neatpack.kernels_bridge.hf_models import HFConsumer
from neatpack.kernels_bridge.models import text_config
from neatpack.kernels_bridge.signatures import require_keywords

KEYWORDS: Final = (
    "query",
    "key",
    "value",
    "cu_seq_q",
    "cu_seq_k",
    "max_q",
    "max_k",
    "scale",
    "window_size",
    "enable_gqa",
)
"""What it is called with, all by name."""

_MODULE: Final = "torch.nn.attention.varlen"
_DEVICES: Final = ("cuda",)
_DTYPES: Final = (torch.float16, torch.bfloat16)
_TESTED: Final = "2.13.0"
_CAUSAL: Final = 0
"""How many later keys a query sees; -1 is no limit."""
_DROPOUTS: Final = ("attention_dropout", "attn_pdrop")
_OTHER_CONSUMERS: Final = "Use the consumer 'block_causal', or 'reference'."


class VarlenAttn(Protocol):
    """`varlen_attn` as it is called here."""

    def __call__(
        self,
        *,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        scale: float | None,
        window_size: tuple[int, int],
        enable_gqa: bool,
    ) -> Tensor:
        """Attend within segments: `[tokens, heads, head_dim]` to the same."""
        ...


def load_varlen_attn() -> VarlenAttn:
    """Find torch's varlen kernel, and check that it takes what it is called with.

    Raises:
        DependencyError: this torch has none, or one that lacks a keyword; the version is named.
    """
    try:
        function: object = import_module(_MODULE).varlen_attn
    except (ImportError, AttributeError) as error:
        remedy = f"Install torch>={_TESTED}."
        problem = Problem("torch", f"has no {_MODULE}.varlen_attn", "missing", value=torch.__version__, remedy=remedy)
        raise DependencyError(problem) from error
    require_keywords(function, KEYWORDS, "torch", torch.__version__, _TESTED)
    return cast("VarlenAttn", function)


def attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **_options: object,
) -> tuple[Tensor, None]:
    """Attend as Transformers' attention functions do: states `[batch, heads, sequence, head_dim]`.

    Raises:
        BoundariesMissingError: the layer did not pass the offsets on.
        ModelError: the layer asks for something that the kernel cannot do.
        KernelInputError: the states are not what the kernel takes.
        DependencyError: this torch has no such kernel.
    """
    del implementation
    if cu_seq_lens_q is None or cu_seq_lens_k is None or max_length_q is None or max_length_k is None:
        raise missing_boundaries(module, "cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    asked = {
        "a mask or a bias of its own": attention_mask is not None or position_bias is not None,
        "a softcap": bool(softcap),
        "sinks": s_aux is not None,
        "dropout": bool(dropout),
        "attention that is not causal": not causal,
    }
    _require_nothing_else(module, asked)
    _check_states(query, key, value)
    note_call(cu_seq_lens_q)
    batch, heads, sequence, _ = query.shape
    output = load_varlen_attn()(
        query=_tokens_first(query),
        key=_tokens_first(key),
        value=_tokens_first(value),
        cu_seq_q=cu_seq_lens_q,
        cu_seq_k=cu_seq_lens_k,
        max_q=max_length_q,
        max_k=max_length_k,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, _CAUSAL),
        enable_gqa=key.shape[1] != heads,
    )
    return output.view(batch, sequence, heads, -1), None


def _require_nothing_else(module: nn.Module, asked: Mapping[str, bool]) -> None:
    for what, is_asked in asked.items():
        if is_asked:
            message = f"{type(module).__name__} asks for {what}, which torch's varlen_attn cannot do"
            raise ModelError(Problem("attention", message, "unsupported", remedy=_OTHER_CONSUMERS))


def _check_states(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.device.type not in _DEVICES:
        remedy = "Move model and batch to the GPU."
        message = "torch's varlen_attn runs on CUDA devices"
        raise KernelInputError(Problem("query", message, "device", value=query.device, remedy=remedy))
    if query.dtype not in _DTYPES or len({query.dtype, key.dtype, value.dtype}) > 1:
        remedy = "Cast the model to bfloat16, or run it under autocast."
        message = "query, key and value must be of one dtype, float16 or bfloat16"
        dtypes = (query.dtype, key.dtype, value.dtype)
        raise KernelInputError(Problem("query", message, "dtype", value=dtypes, remedy=remedy))
    if len({query.shape[-1], key.shape[-1], value.shape[-1]}) > 1 or query.shape[-1] % 8 or query.shape[-1] > 256:
        message = "head sizes must be equal, and a multiple of 8 up to 256"
        sizes = (query.shape[-1], key.shape[-1], value.shape[-1])
        raise KernelInputError(Problem("query", message, "shape", value=sizes, remedy=_OTHER_CONSUMERS))


def _tokens_first(states: Tensor) -> Tensor:
    return states.transpose(1, 2).flatten(0, 1)


def _arguments(_model: nn.Module, call: PackedCall) -> Mapping[str, object]:
    """Give offsets under the names that Transformers' layers pass on."""
    return {**flash_varlen_kwargs(call.segments)}


def _reason_against(model: nn.Module) -> str | None:
    try:
        load_varlen_attn()
    except DependencyError as error:
        return str(error)
    devices = {weight.device.type for weight in model.parameters() if not weight.is_meta}
    if devices and devices.isdisjoint(_DEVICES):
        return f"its weights lie on {', '.join(sorted(devices))}, and varlen_attn runs on CUDA: move the model first"
    config = text_config(model)
    if getattr(config, "attn_logit_softcapping", None):
        return "it bounds its scores by a softcap, which varlen_attn cannot do"
    if any(name.rpartition(".")[2] == "sinks" for name, _ in model.named_parameters()):
        return "its heads have sinks, which varlen_attn cannot take"
    dropout = next((name for name in _DROPOUTS if getattr(config, name, 0)), None)
    return None if dropout is None else f"its config sets {dropout}, and varlen_attn drops no weights: set it to 0"


CONSUMER: Final = HFConsumer("torch_varlen", "document_ids", attend, _arguments, _reason_against, takes_holes=False)
