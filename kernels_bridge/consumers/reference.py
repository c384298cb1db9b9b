"""`reference`: any Hugging Face model over `varlen_attention`, in plain torch. The oracle, and what runs anywhere.

It attends over kept tokens alone, so holes are served, and outputs at padding are zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from torch import Tensor, nn

from neatpack.adapters.gathered import gathered_flat
from neatpack.contracts.errors import ModelError, Problem
from neatpack.kernels_bridge.calls import note_call
from neatpack.kernels_bridge.compiling import eagerly
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.gathering import attend_gathered
from neatpack.kernels_bridge.hf_attention import missing_boundaries
from neatpack.kernels_bridge.hf_models import HFConsumer
from neatpack.kernels_bridge.reference import varlen_attention


@eagerly
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
    packed_token_indices: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_options: object,
) -> tuple[Tensor, None]:
    """Attend as Transformers' attention functions do: states `[batch, heads, sequence, head_dim]`.

    Raises:
        BoundariesMissingError: the layer did not pass indices and offsets on.
        ModelError: the layer adds a mask or a bias of its own, which a varlen kernel cannot take.
        KernelInputError: the offsets do not fit the states.
    """
    del implementation
    if packed_token_indices is None or cu_seq_lens_q is None or max_length_q is None:
        raise missing_boundaries(module, "packed_token_indices, cu_seq_lens_q, max_length_q")
    if attention_mask is not None or position_bias is not None:
        remedy = "Use the consumer 'block_causal'."
        message = f"{type(module).__name__} adds a mask or a bias of its own, which varlen attention cannot take"
        raise ModelError(Problem("attention_mask", message, "unsupported", remedy=remedy))
    note_call(cu_seq_lens_q)
    window = None if sliding_window is None else sliding_window - 1
    kernel = partial(
        varlen_attention,
        cu_seqlens_q=cu_seq_lens_q,
        cu_seqlens_k=cu_seq_lens_q,
        max_seqlen_q=max_length_q,
        max_seqlen_k=max_length_q,
        softmax_scale=scaling,
        causal=bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal,
        window_size=(window, window),
        softcap=softcap or 0.0,
        sinks=s_aux,
        dropout_p=dropout,
    )
    query, key, value = (states.transpose(1, 2).to(query.dtype) for states in (query, key, value))
    return attend_gathered(kernel, query, key, value, packed_token_indices, s_aux), None


def _arguments(_model: nn.Module, call: PackedCall) -> Mapping[str, object]:
    """Give kept tokens and their offsets, under the names that Transformers' layers pass on."""
    flat = gathered_flat(call.segments)
    return {
        "packed_token_indices": flat.token_indices,
        "cu_seq_lens_q": flat.cu_seqlens,
        "max_length_q": flat.max_seqlen,
    }


CONSUMER: Final = HFConsumer("reference", "document_ids", attend, _arguments)
