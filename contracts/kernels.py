"""Protocols of the bridge: a varlen kernel, and a consumer that binds models to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

from neatpack.contracts.capabilities import PackingCapabilities

QKVT = TypeVar("QKVT")
CallT_contra = TypeVar("CallT_contra", contravariant=True)
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
    ) -> QKVT | tuple[QKVT | None, ...]:
        """Attend within documents; the output has the shape of `q`."""
        ...


@dataclass(frozen=True)
class Accepted:
    """The consumer takes the model, and would ask the loader for `capabilities`.

    Attributes:
        capabilities: what the loader has to emit.
        evidence: on what grounds documents are said to stay apart: what was measured, and on which versions.
        verified: False where nothing was measured on the installed versions, so that only a call can tell; `evidence`
            says what is missing.
    """

    capabilities: PackingCapabilities
    evidence: str = ""
    verified: bool = True


@dataclass(frozen=True)
class Rejected:
    """The consumer does not take the model, and says why and what would change that."""

    reason: str


Decision: TypeAlias = Accepted | Rejected
"""Selection is data: it can be printed, compared and tested."""

ConsumerName = Literal[
    "native_fa4",
    "thd",
    "declared",
    "hf_flash",
    "flex",
    "recurrent",
    "block_causal",
    "torch_varlen",
    "reference",
    "per_document",
]
"""The consumers that neatpack itself registers, in order of preference."""

CONSUMER_NAMES: Final[tuple[ConsumerName, ...]] = get_args(ConsumerName)

PREFERENCE: Final[Mapping[ConsumerName, str]] = {
    "native_fa4": "the author says that the layers call this kernel",
    "thd": "the author says that the layers take lengths",
    "declared": "the author says what the model takes",
    "hf_flash": "the flash kernel that the model was built with",
    "flex": "the FlexAttention that the model was built with",
    "recurrent": "the kernels of its convolutions and recurrent layers",
    "block_causal": "the dense attention that the model was built with",
    "torch_varlen": "torch's own kernel, in place of what the model was built with: by name, or for want of the above",
    "reference": "runs anywhere, slowly: when nothing else takes the model",
    "per_document": "any model, each document in a row of its own: when nothing better takes it, others' included",
}
"""Why each of them stands where it does."""

LAST_RESORT: Final[ConsumerName] = "per_document"
"""What is taken only where no other consumer takes a model, whoever registered it."""


class Attachment(Protocol):
    """What a consumer set up for one model beside the hook: an attention function, say. It can be pickled.

    While it is paused, the model computes as if nothing had been attached.
    """

    @property
    def counts_calls(self) -> bool:
        """Whether a forward that never reached the attention function is an error."""
        ...

    def pause(self) -> None:
        """Let the model compute as it did before; may be called twice."""
        ...

    def resume(self) -> None:
        """End `pause`; may be called twice."""
        ...

    def detach(self) -> None:
        """Take back everything; may be called twice."""
        ...


class AttentionConsumer(Protocol[ModelT_contra, CallT_contra]):
    """A way to run attention over packed rows: which models it takes, how one is bound, and what its call is."""

    @property
    def name(self) -> str:
        """The word by which it is registered, which becomes part of an attention function's name."""
        ...

    def decide(self, model: ModelT_contra, attn_implementation: str) -> Decision:
        """Say whether this consumer takes `model`, which runs with `attn_implementation`. Nothing is changed."""
        ...

    def attach(self, model: ModelT_contra) -> Attachment:
        """Set up what the model's attention needs, or raise with nothing changed."""
        ...

    def derive(self, model: ModelT_contra, call: CallT_contra) -> Mapping[str, object]:
        """Make the arguments that replace or join those of one forward call, from its document ids."""
        ...


@runtime_checkable
class RestoringConsumer(Protocol[ModelT_contra, CallT_contra]):
    """A consumer whose calls have another layout than packed rows, so that their output has to be brought back."""

    def restore(self, model: ModelT_contra, call: CallT_contra, output: object) -> object:
        """Make the output of packed rows of what the forward returned for what `derive` made of the same call."""
        ...
