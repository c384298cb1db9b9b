"""Protocols of the bridge: a varlen kernel, and a consumer that binds models to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, Union

from typing_extensions import TypeAlias

from neatpack.contracts.capabilities import PackingCapabilities

QKVT = TypeVar("QKVT")
ModelT_contra = TypeVar("ModelT_contra", contravariant=True)


class VarlenAttention(Protocol[QKVT]):
    """A causal attention kernel over documents laid end to end: FlashAttention 2, 3, 4 and `varlen_attention`.

    `q`, `k`, `v` are `[tokens, heads, head_dim]`; `cu_seqlens_q` and `cu_seqlens_k` are int32 `[documents + 1]`.
    All but q, k and v go by keyword: the positional orders of the kernels differ. Some return the log-sum-exp as
    well, in a tuple.
    """

    def __call__(
        self,
        q: QKVT,
        k: QKVT,
        v: QKVT,
        /,
        *,
        cu_seqlens_q: QKVT,
        cu_seqlens_k: QKVT,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = ...,
        causal: bool = ...,
    ) -> QKVT | tuple[QKVT | None, ...]: ...


@dataclass(frozen=True)
class Accepted:
    """The consumer takes the model, and would ask the loader for `capabilities`."""

    capabilities: PackingCapabilities


@dataclass(frozen=True)
class Rejected:
    """The consumer does not take the model, and says why and what would change that."""

    reason: str


Decision: TypeAlias = Union[Accepted, Rejected]
"""Selection is data: it can be printed, compared and tested."""

ConsumerName = Literal["reference", "hf_flash", "block_causal"]
"""The consumers that neatpack itself registers."""


class AttentionConsumer(Protocol[ModelT_contra]):
    """A way to run attention over packed rows, and how a model is bound to it."""

    @property
    def name(self) -> str: ...

    def decide(self, model: ModelT_contra) -> Decision:
        """Say whether this consumer takes `model`, without changing anything."""
        ...
