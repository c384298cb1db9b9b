"""The reference where Transformers looks for a flash kernel; its dense function is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from neatpack.kernels_bridge import varlen_attention


def replace_flash_kernel(
    calls: list[Mapping[str, object]], setting: Callable[[object, str, object], None] = setattr
) -> None:
    """Put the stand-in into Transformers.

    Args:
        calls: what each call gives about boundaries is added to it.
        setting: how to set an attribute; that of a monkeypatch takes it back.
    """
    import transformers.modeling_flash_attention_utils as flash

    def varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
    ) -> Tensor:
        calls.append({"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q})
        left, right = (None if limit < 0 else limit for limit in window_size)
        return varlen_attention(
            q,
            k,
            v,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=(left, right),
            softcap=softcap,
        )

    def dense(*_args: object, **_options: object) -> None:
        raise AssertionError("the dense flash function was called: boundaries were lost")

    def load(implementation: str, *_args: object, **_options: object) -> tuple[object, ...]:
        assert implementation == "flash_attention_2"
        utils = cast("Any", flash)
        return dense, varlen, None, utils._pad_input, utils._unpad_input

    setting(flash, "_lazy_imports", load)
    setting(flash, "_loaded_implementation", None)
