"""The reference varlen attention: plain torch on any device and dtype, differentiable, written to be read.

It is the oracle for every kernel, and what runs where there is none. Documents are taken one after the other, so
memory grows with the square of the longest document and not with the number of documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, cast

import torch
from torch import Tensor
from typing_extensions import TypeIs

from neatpack.adapters.visibility import fill_visible
from neatpack.contracts.errors import KernelInputError, Problem

Window = tuple[int | None, int | None]
"""How many earlier and later keys a query sees beside the one at its own position; None is no limit."""

NO_WINDOW: Final[Window] = (None, None)

_LIKE_THIS: Final = "Pass int32 offsets such as [0, 2, 5], for documents of 2 and 3 tokens."


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attend within documents that lie end to end, as FlashAttention's varlen functions do.

    Where a document has fewer queries than keys, its last query stands at its last key. A query that sees no key
    gives zeros. Scores are computed in float32, or float64 where the inputs are.

    Args:
        query: floating `[tokens, heads, head_dim]`.
        key: `[key_tokens, key_heads, head_dim]`; each key head serves `heads / key_heads` consecutive query heads.
        value: `[key_tokens, key_heads, value_dim]`.
        cu_seqlens_q: int32 `[documents + 1]`, the offset in `query` at which each document starts, then `tokens`.
        cu_seqlens_k: int32 `[documents + 1]`, the same for `key` and `value`.
        max_seqlen_q: the longest document's number of queries, or any greater number.
        max_seqlen_k: the longest document's number of keys, or any greater number.
        softmax_scale: factor of the scores; `head_dim ** -0.5` where None.
        causal: whether a query sees no later key.
        window_size: number of keys seen (before, after) the query's own position; None is no limit.
        softcap: scores are bounded to `softcap * tanh(score / softcap)`; 0 leaves them as they are.
        sinks: floating `[heads]`, the score of a further key with a value of zeros; None for none.
        dropout_p: probability with which a weight is dropped.

    Returns:
        `[tokens, heads, value_dim]`, in the dtype of `query`.

    Raises:
        KernelInputError: an argument is of another type, or shapes, dtypes, devices or offsets do not fit together;
            the field and position are named.

    Example:
        >>> tokens = torch.randn(5, 2, 4)
        >>> offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
        >>> out = varlen_attention(
        ...     tokens, tokens, tokens, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=3, max_seqlen_k=3
        ... )
        >>> bool((out[0] == tokens[0]).all() and (out[2] == tokens[2]).all())  # the first token sees itself alone
        True
    """
    _require_tensors(query=query, key=key, value=value, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if sinks is not None:
        _require_tensors(sinks=sinks)
    _check_states(query, key, value, sinks)
    _check_numbers(softmax_scale, softcap, dropout_p)
    _check_reach(causal, window_size)
    starts_q = _read_offsets("cu_seqlens_q", cu_seqlens_q, query, "max_seqlen_q", max_seqlen_q)
    starts_k = _read_offsets("cu_seqlens_k", cu_seqlens_k, key, "max_seqlen_k", max_seqlen_k)
    if len(starts_q) != len(starts_k):
        message = f"has {len(starts_k)} entries, but cu_seqlens_q has {len(starts_q)}"
        raise KernelInputError(Problem("cu_seqlens_k", message, "shape", remedy="Give both one entry per document."))
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    outputs = [
        _attend(
            query[first_q:last_q],
            key[first_k:last_k],
            value[first_k:last_k],
            visible=_visible(last_q - first_q, last_k - first_k, causal, window_size, query.device),
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            dropout_p=dropout_p,
        )
        for (first_q, last_q), (first_k, last_k) in zip(pairwise(starts_q), pairwise(starts_k), strict=True)
    ]
    # The empty slice keeps the result differentiable where there is no document.
    empty = query[:0, :, :1].expand(0, query.shape[1], value.shape[-1])
    return torch.cat([empty, *outputs]) if outputs else empty


def _visible(queries: int, keys: int, causal: bool, window: Window, device: torch.device) -> Tensor:
    """Who sees whom inside one document: bool `[queries, keys]`."""
    left, right = window
    if causal:
        side = max(queries, keys)
        square = torch.empty(side, side, dtype=torch.bool, device=device)
        fill_visible(square, None if left is None else left + 1)
        return square[side - queries :, side - keys :]
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None]
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if left is not None:
        visible &= query - key <= left
    if right is not None:
        visible &= key - query <= right
    return visible


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    visible: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Attention of one document: `[queries, heads, head_dim]` to `[queries, heads, value_dim]`."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // key.shape[1]
    key, value = (states.to(dtype).repeat_interleave(groups, dim=1) for states in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.to(dtype), key) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, torch.finfo(dtype).min)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(dtype)[:, None, None].expand(-1, len(query), 1)], dim=-1)
    weights = scores.softmax(-1)[..., : len(key)].masked_fill(~visible, 0.0)
    weights = torch.nn.functional.dropout(weights, dropout_p)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


def _require_tensors(**arguments: object) -> None:
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            remedy = "Pass a tensor, as `torch.as_tensor(x)` makes one of a list or an array."
            problem = Problem(name, "must be a torch.Tensor", "type", value=type(value).__name__, remedy=remedy)
            raise KernelInputError(problem)


def _check_states(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> None:
    problems: list[Problem] = []
    for name, states in (("query", query), ("key", key), ("value", value)):
        if states.ndim != 3:
            message = "must be [tokens, heads, head_dim]"
            remedy = f"Of [batch, sequence, heads, head_dim], pass `{name}.flatten(0, 1)`."
            raise KernelInputError(Problem(name, message, "rank", value=tuple(states.shape), remedy=remedy))
        if not states.is_floating_point() or states.dtype != query.dtype:
            message = f"must be floating point, and all three of one dtype; query is {query.dtype}"
            remedy = "Cast query, key and value to one of them, such as torch.float32."
            problems.append(Problem(name, message, "dtype", value=states.dtype, remedy=remedy))
        if states.device != query.device:
            message = f"is on another device than query, which is on {query.device}"
            remedy = f"Move it: {name}.to(...)."
            problems.append(Problem(name, message, "device", value=states.device, remedy=remedy))
    if query.shape[2] != key.shape[2]:
        message = f"must have the head_dim of query, {query.shape[2]}"
        remedy = "Project both to one head_dim; that of value may be another."
        problems.append(Problem("key", message, "shape", value=tuple(key.shape), remedy=remedy))
    if key.shape[1] == 0 or query.shape[1] % key.shape[1] != 0:
        message = f"must have a number of heads that divides the {query.shape[1]} of query"
        remedy = "Give one head of key to each head of query, or to each group of equally many."
        problems.append(Problem("key", message, "shape", value=tuple(key.shape), remedy=remedy))
    if key.shape[:2] != value.shape[:2]:
        message = f"must have the tokens and heads of key, {tuple(key.shape[:2])}"
        remedy = "Project key and value of the same tokens to equally many heads."
        problems.append(Problem("value", message, "shape", value=tuple(value.shape), remedy=remedy))
    if sinks is not None and (tuple(sinks.shape) != (query.shape[1],) or sinks.device != query.device):
        message = f"must be [heads] = [{query.shape[1]}], on {query.device}"
        remedy = "Pass one number for each head of query, or None for no sinks."
        problems.append(
            Problem("sinks", message, "shape", value=(tuple(sinks.shape), str(sinks.device)), remedy=remedy)
        )
    if problems:
        raise KernelInputError(*problems)


def _check_numbers(softmax_scale: object, softcap: object, dropout_p: object) -> None:
    if softmax_scale is not None and not _is_finite(softmax_scale):
        remedy = "Pass None for head_dim ** -0.5."
        message = "must be a finite number or None"
        raise KernelInputError(Problem("softmax_scale", message, "value", value=repr(softmax_scale), remedy=remedy))
    if not _is_finite(softcap) or softcap < 0:
        remedy = "Pass 0.0 for none."
        message = "must be 0 (none) or a positive number"
        raise KernelInputError(Problem("softcap", message, "value", value=repr(softcap), remedy=remedy))
    if not _is_finite(dropout_p) or not 0 <= dropout_p <= 1:
        remedy = "Pass a number from 0 to 1."
        raise KernelInputError(
            Problem("dropout_p", "must be a probability", "value", value=repr(dropout_p), remedy=remedy)
        )


def _check_reach(causal: object, window: object) -> None:
    if not isinstance(causal, bool):
        remedy = "Pass True or False."
        raise KernelInputError(Problem("causal", "must be a bool", "type", value=repr(causal), remedy=remedy))
    shown = repr(window)
    limits = cast("Sequence[object]", window) if isinstance(window, (tuple, list)) else ()
    if len(limits) != 2:
        message = "must be two numbers of keys, (before, after)"
        remedy = "Pass (None, None) for no window."
        raise KernelInputError(Problem("window_size", message, "type", value=shown, remedy=remedy))
    for position, limit in enumerate(limits):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            message = "counts the keys seen before or after the query's own: an int that is not negative"
            remedy = "Pass None for no limit."
            raise KernelInputError(
                Problem("window_size", message, "value", position=position, value=repr(limit), remedy=remedy)
            )


def _is_finite(number: object) -> TypeIs[int | float]:
    return isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)


def _read_offsets(field: str, offsets: Tensor, states: Tensor, longest_field: str, longest: int) -> list[int]:
    """Check offsets against the tokens they cut, and read them to the host."""
    if offsets.ndim != 1 or len(offsets) == 0:
        message = "must be [documents + 1], a first 0 and then the end of each document"
        raise KernelInputError(Problem(field, message, "rank", value=tuple(offsets.shape), remedy=_LIKE_THIS))
    if offsets.dtype != torch.int32:
        remedy = f"Pass `{field}.to(torch.int32)`: kernels read 4 bytes per offset."
        raise KernelInputError(Problem(field, "must be int32", "dtype", value=offsets.dtype, remedy=remedy))
    if offsets.device != states.device or offsets.is_meta:
        message = f"must be on the device of the tokens, {states.device}, and hold values"
        remedy = f"Move it, or make it there: {field}.to(...)."
        raise KernelInputError(Problem(field, message, "device", value=offsets.device, remedy=remedy))
    values = cast("list[int]", offsets.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch types no elements
    if values[0] != 0:
        problem = Problem(field, "must start at 0", "value", position=0, value=values[0], remedy=_LIKE_THIS)
        raise KernelInputError(problem)
    for position, (start, end) in enumerate(pairwise(values), start=1):
        if end < start:
            message = f"offsets must not decrease, and the one before is {start}"
            problem = Problem(field, message, "value", position=position, value=end, remedy=_LIKE_THIS)
            raise KernelInputError(problem)
    if values[-1] != len(states):
        message = f"must end at the number of tokens, {len(states)}"
        remedy = "Offsets cover every token of the stream, padding included."
        raise KernelInputError(
            Problem(field, message, "value", position=len(values) - 1, value=values[-1], remedy=remedy)
        )
    _check_longest(longest_field, longest, max((end - start for start, end in pairwise(values)), default=0))
    return values


def _check_longest(field: str, longest: object, needed: int) -> None:
    if isinstance(longest, bool) or not isinstance(longest, int):
        remedy = "Pass an int, as `int(x)`: a tensor makes kernels wait for the device."
        problem = Problem(field, "must be a Python int", "type", value=type(longest).__name__, remedy=remedy)
        raise KernelInputError(problem)
    if longest < needed:
        message = f"is less than the longest document, {needed} tokens"
        raise KernelInputError(Problem(field, message, "value", value=longest, remedy=f"Pass {needed} or more."))
