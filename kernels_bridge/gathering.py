"""Running a varlen kernel over the kept tokens of a batch alone: gather, call, and scatter into zeros."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def attend_gathered(
    kernel: Callable[[Tensor, Tensor, Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    token_indices: Tensor,
    sinks: Tensor | None = None,
) -> Tensor:
    """Give a kernel the kept tokens as one stream, and put its outputs back where they belong.

    Where there is no kept token, the kernel is not called, and every input still gets a gradient, of zeros.

    Args:
        kernel: attends over `[tokens, heads, head_dim]`.
        query: `[batch, sequence, heads, head_dim]`.
        key: `[batch, sequence, key_heads, head_dim]`.
        value: `[batch, sequence, key_heads, value_dim]`.
        token_indices: int64 `[tokens]`, into the flattened `batch * sequence`.
        sinks: what the kernel reads beside these, if anything.

    Returns:
        `[batch, sequence, heads, value_dim]`, 0 at padding and holes.

    Example:
        >>> import torch
        >>> states = torch.ones(1, 3, 1, 2)
        >>> attend_gathered(lambda q, k, v: v * 2, states, states, states, torch.tensor([0, 2]))[0, :, 0, 0]
        tensor([2., 0., 2.])
    """
    parts = [states.flatten(0, 1).index_select(0, token_indices) for states in (query, key, value)]
    batch, sequence, heads = query.shape[:3]
    if len(token_indices):
        output = kernel(*parts)
    else:
        nothing = sum((part.sum() for part in parts), sinks[:0].sum() if sinks is not None else 0.0)
        output = nothing + query.new_zeros(0, heads, value.shape[-1])
    places = output.new_zeros(batch * sequence, heads, value.shape[-1])
    return places.index_copy(0, token_indices, output).view(batch, sequence, heads, -1)
