"""A reference kernel that counts its calls and keeps what it was given, bound where Transformers looks for kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Final, cast

import torch
from torch import Tensor, nn

from neatpack.contracts.errors import ModelError, Problem
from neatpack.kernels_bridge.reference import varlen_attention

NAME: Final = "neatpack|witness"
"""What the kernel is called in Transformers' registries while it is bound. A name with `flash` or `/` in it would be
looked up elsewhere."""

Registry = MutableMapping[str, Callable[..., object]]


class Witness:
    """An attention function as Transformers calls them. It attends within the boundaries that it is given, and
    without any, causally within each row, as a flash kernel does."""

    def __init__(self) -> None:
        self.boundaries: list[Tensor | None] = []

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        """Attend.

        Args:
            module: the attention layer that calls.
            query: floating `[batch, heads, sequence, head_dim]`; `key` and `value` likewise, with fewer heads.
            attention_mask: None. A flash kernel has no place for a mask or a bias of pairs of tokens.
            cu_seq_lens_q: int32 `[segments + 1]`, physical and flat, or None; likewise `cu_seq_lens_k`.
            max_length_q: the longest segment, or None; likewise `max_length_k`.
            position_bias: None, as the mask.

        Returns:
            floating `[batch, sequence, heads, head_dim]`, and no attention weights.

        Raises:
            ModelError: the layer gives a mask, or a bias.
        """
        for name, by_pair in (("attention_mask", attention_mask), ("position_bias", position_bias)):
            if by_pair is not None:
                message = f"is given to attention by {type(module).__name__}, and flash attention has no place for it"
                remedy = "Give boundaries as masks to eager or sdpa attention, or one document a row."
                raise ModelError(Problem(name, message, "unsupported", value=tuple(by_pair.shape), remedy=remedy))
        causal = bool(getattr(module, "is_causal", True))
        reach = None if sliding_window is None else sliding_window - 1
        complete = None not in (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        self.boundaries.append(cu_seq_lens_q if complete else None)
        batch, _heads, sequence, _dim = query.shape
        offsets_q = cu_seq_lens_q if complete else _row_offsets(batch, sequence, query.device)
        offsets_k = cu_seq_lens_k if complete else _row_offsets(batch, key.shape[2], query.device)
        output = varlen_attention(
            _flat(query),
            _flat(key),
            _flat(value),
            cu_seqlens_q=cast("Tensor", offsets_q),
            cu_seqlens_k=cast("Tensor", offsets_k),
            max_seqlen_q=cast("int", max_length_q) if complete else sequence,
            max_seqlen_k=cast("int", max_length_k) if complete else key.shape[2],
            softmax_scale=scaling,
            causal=causal,
            window_size=(reach, None if causal else reach),
            softcap=softcap or 0.0,
            sinks=s_aux,
        )
        return output.reshape(batch, sequence, *output.shape[1:]), None


@contextmanager
def registered(function: Callable[..., object], registries: list[Registry]) -> Generator[None, None, None]:
    """Set `function` under `NAME` in each registry, and delete it again."""
    for registry in registries:
        registry[NAME] = function
    try:
        yield
    finally:
        for registry in registries:
            del registry[NAME]


def attention_registries(classes: Iterable[type[nn.Module]]) -> list[Registry]:
    """List the registries in which modules of these classes look for their attention function.

    One is shared by all families of Transformers; a family that overrides some function has one of its own.
    """
    shared = cast("Registry", import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS)
    files = [sys.modules[module_class.__module__] for module_class in classes]
    found = [shared, *(cast("Registry", getattr(file, "ALL_ATTENTION_FUNCTIONS", shared)) for file in files)]
    return list({id(registry): registry for registry in found}.values())


def _flat(states: Tensor) -> Tensor:
    """`[batch, heads, sequence, head_dim]` to `[batch * sequence, heads, head_dim]`."""
    return states.transpose(1, 2).flatten(0, 1)


def _row_offsets(batch: int, sequence: int, device: torch.device) -> Tensor:
    return torch.arange(0, batch * sequence + 1, sequence, dtype=torch.int32, device=device)
