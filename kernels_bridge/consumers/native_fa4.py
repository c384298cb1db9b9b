"""`native_fa4`: custom models whose layers call FlashAttention-4 themselves, over gathered tokens.

Their forward names NEAT metadata; it gets it as one stream, once per forward. `native_fa4_attention` is the call
for their layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import KernelInputError, Problem
from neatpack.contracts.kernels import Accepted, Attachment, Decision, Rejected
from neatpack.kernels_bridge.attachments import NothingAttached
from neatpack.kernels_bridge.calls import note_call
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.fa4 import (
    FA4Use,
    device_capability,
    load_fa4,
    offset_problems,
    state_problems,
    use_problems,
)
from neatpack.kernels_bridge.gathering import attend_gathered
from neatpack.kernels_bridge.models import NATIVE_FA4, declared_flag
from neatpack.kernels_bridge.neat_metadata import NEEDED
from neatpack.kernels_bridge.own_models import own_arguments, reason_unnamed


class NativeFA4Consumer:
    """Takes models that declare `uses_native_fa4` and run with "fa4"."""

    name: Final = "native_fa4"

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        """Accept a model that calls FlashAttention-4 itself and names the metadata for it. No mask is needed."""
        if attn_implementation != NATIVE_FA4:
            return Rejected(f"it runs with {attn_implementation!r}, and not with {NATIVE_FA4!r}")
        if not declared_flag(model, "uses_native_fa4"):
            return Rejected("it does not declare `uses_native_fa4: bool = True`")
        reason = reason_unnamed(model, NEEDED)
        if reason is not None:
            return Rejected(reason)
        evidence = "the model declares it, and its forward names the metadata"
        return Accepted(PackingCapabilities("document_ids", True, True), evidence)

    def attach(self, model: nn.Module) -> Attachment:
        """Set up nothing: the model's own layers call the kernel."""
        del model
        return NothingAttached()

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        """Give flat NEAT metadata, and of ids and positions what the forward names."""
        return own_arguments(model, call)


CONSUMER: Final = NativeFA4Consumer()


def native_fa4_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    packed_token_indices: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    softmax_scale: float | None = None,
    sliding_window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Attend causally within documents by FlashAttention-4: gather kept tokens, call it, scatter into zeros.

    Args:
        query: float16 or bfloat16 on a CUDA device, `[batch, sequence, heads, head_dim]`.
        key: `[batch, sequence, key_heads, head_dim]`; each key head serves `heads / key_heads` query heads.
        value: `[batch, sequence, key_heads, value_dim]`.
        packed_token_indices: int64 `[tokens]`, as a bound model's forward gets them.
        cu_seqlens: int32 `[documents + 1]`, gathered, likewise.
        max_seqlen: tokens of the longest document, or more.
        softmax_scale: factor of the scores; `head_dim ** -0.5` where None.
        sliding_window: how many kept tokens a token sees, itself included; None for all before it.
        sinks: `[heads]`, the score of a further key with a value of zeros; None for none.
        softcap: scores are bounded to `softcap * tanh(score / softcap)`; 0 for none.

    Returns:
        `[batch, sequence, heads, value_dim]`, 0 at padding and holes.

    Raises:
        KernelInputError: shapes, dtypes, devices or metadata do not fit together, or this GPU has no such kernel.
        DependencyError: FlashAttention-4 is missing, or of a version that takes other arguments.

    Example:
        >>> states = torch.zeros(1, 4, 2, 8)
        >>> indices, offsets = torch.arange(4), torch.tensor([0, 4], dtype=torch.int32)
        >>> native_fa4_attention(
        ...     states, states, states, packed_token_indices=indices, cu_seqlens=offsets, max_seqlen=4
        ... )  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.KernelInputError: query = ...: query, key and value must be of one dtype, ...
    """
    _check_form(query, key, value, packed_token_indices)
    problems = state_problems(query, key, value, sinks) + offset_problems(cu_seqlens, max_seqlen, query)
    problems += _option_problems(sliding_window, softcap)
    if problems:
        raise KernelInputError(*problems)
    inputs = (query, key, value, *(() if sinks is None else (sinks,)))
    use = FA4Use(
        query.shape[-1],
        value.shape[-1],
        backward=torch.is_grad_enabled() and any(states.requires_grad for states in inputs),
        window=sliding_window is not None,
        sinks=sinks is not None,
        softcap=softcap != 0,
    )
    problems = use_problems(device_capability(query.device), use)
    if problems:
        raise KernelInputError(*problems)
    function = load_fa4()
    note_call(cu_seqlens)

    def kernel(gathered_query: Tensor, gathered_key: Tensor, gathered_value: Tensor) -> Tensor:
        output, _ = function(
            q=gathered_query,
            k=gathered_key,
            v=gathered_value,
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_k=cu_seqlens,
            max_seqlen_q=max_seqlen,
            max_seqlen_k=max_seqlen,
            softmax_scale=softmax_scale,
            causal=True,
            window_size=(None, None) if sliding_window is None else (sliding_window - 1, 0),
            learnable_sink=sinks,
            softcap=softcap,
        )
        return output

    return attend_gathered(kernel, query, key, value, packed_token_indices, sinks)


def _check_form(query: Tensor, key: Tensor, value: Tensor, token_indices: Tensor) -> None:
    """Refuse what the further checks could not read."""
    for name, states in (("query", query), ("key", key), ("value", value)):
        if states.ndim != 4:
            message = "must be [batch, sequence, heads, head_dim]"
            remedy = "Leave rows apart: the tokens of documents are gathered here."
            raise KernelInputError(Problem(name, message, "rank", value=tuple(states.shape), remedy=remedy))
        if states.shape[:2] != query.shape[:2]:
            message = f"must have the batch and sequence of query, {tuple(query.shape[:2])}"
            remedy = "Pass all three for the same tokens, heads behind the sequence."
            raise KernelInputError(Problem(name, message, "shape", value=tuple(states.shape), remedy=remedy))
    if token_indices.ndim != 1 or token_indices.dtype != torch.int64 or token_indices.device != query.device:
        message = f"must be int64 [tokens], in one stream, on {query.device}"
        remedy = "Call the bound model itself: its binding flattens metadata at entry."
        found = (tuple(token_indices.shape), token_indices.dtype, str(token_indices.device))
        raise KernelInputError(Problem("packed_token_indices", message, "shape", value=found, remedy=remedy))


def _option_problems(window: object, softcap: object) -> list[Problem]:
    problems: list[Problem] = []
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        message = "must count the tokens that a token sees, itself included: a positive int"
        remedy = "Pass None for all."
        problems.append(Problem("sliding_window", message, "value", value=repr(window), remedy=remedy))
    if isinstance(softcap, bool) or not isinstance(softcap, (int, float)) or not 0 <= softcap < float("inf"):
        message = "must be 0 (none) or a positive number"
        problems.append(Problem("softcap", message, "value", value=repr(softcap), remedy="Pass 0.0 for none."))
    return problems
