"""Pipeline stages of a few lines, one class per form in which boundaries are declared, and what each equals alone."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from neatpack.adapters import flatten_packed_sequence_metadata
from neatpack.kernels_bridge import varlen_attention
from tests.kernels_bridge.untyped import ints

HEADS: Final = 2
WIDTH: Final = 8
VOCABULARY: Final = 11

QKV: TypeAlias = "tuple[Tensor, Tensor, Tensor]"


class Stage(nn.Module):
    """One attention layer: the first stage embeds tokens before it."""

    def __init__(self, index: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(index)
        self.embed = nn.Parameter(torch.randn(VOCABULARY, WIDTH, generator=generator)) if index == 0 else None
        self.qkv = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH, generator=generator) * 0.3)

    def alone(self, inputs: Tensor, ids: Tensor) -> Tensor:
        """Answer in one process, with a mask that shares no code with the bindings."""
        states, qkv = self.enter(inputs)
        return states + dense(qkv, visible(ids))

    def enter(self, inputs: Tensor) -> tuple[Tensor, QKV]:
        """Give the states, and queries, keys and values `[batch, sequence, heads, head_dim]`."""
        states = inputs if self.embed is None else self.embed[inputs]
        heads = (*states.shape[:2], HEADS, WIDTH // HEADS)
        query, key, value = (part.reshape(heads) for part in (states @ self.qkv).chunk(3, dim=-1))
        return states, (query, key, value)

    def varlen(self, qkv: QKV, offsets: Tensor, longest: int, indices: Tensor | None = None) -> Tensor:
        """Attend in one stream: that of all places, or of the kept ones, with zeros at the others."""
        rows, length = qkv[0].shape[:2]
        streams = [part.flatten(0, 1) if indices is None else part.flatten(0, 1)[indices] for part in qkv]
        output = varlen_attention(
            *streams, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=longest, max_seqlen_k=longest
        ).flatten(1)
        if indices is not None:
            output = output.new_zeros(rows * length, WIDTH).index_copy(0, indices, output)
        return output.view(rows, length, WIDTH)


def dense(qkv: QKV, mask: Tensor) -> Tensor:
    """Attend where a mask `[batch, 1, sequence, sequence]` is True; rows that see nothing give zeros."""
    query, key, value = (part.transpose(1, 2) for part in qkv)
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    output: Tensor = scores.softmax(-1).nan_to_num(0.0) @ value
    return output.transpose(1, 2).flatten(2)


class Mask(Stage):
    packed_mask_type: Literal["block_causal"] = "block_causal"

    def forward(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        states, qkv = self.enter(inputs)
        return states + dense(qkv, attention_mask)


class Ids(Stage):
    packed_mask_type: Literal["document_ids"] = "document_ids"

    def forward(self, inputs: Tensor, _packed_seq_ids: Tensor) -> Tensor:
        states, qkv = self.enter(inputs)
        return states + dense(qkv, visible(_packed_seq_ids))


class Flat(Stage):
    packed_mask_type: Literal["flash_varlen"] = "flash_varlen"

    def forward(
        self, inputs: Tensor, cu_seq_lens_q: Tensor, cu_seq_lens_k: Tensor, max_length_q: int, max_length_k: int
    ) -> Tensor:
        del cu_seq_lens_k, max_length_k
        states, qkv = self.enter(inputs)
        return states + self.varlen(qkv, cu_seq_lens_q, max_length_q)


class Gathered(Stage):
    packed_mask_type: Literal["document_ids"] = "document_ids"
    requires_packed_sequence_metadata: bool = True

    def forward(
        self,
        inputs: Tensor,
        packed_token_indices: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        _packed_seq_ids: Tensor | None = None,
    ) -> Tensor:
        states, qkv = self.enter(inputs)
        if max_seqlen == 0:
            return states + 0 * sum(part.sum() for part in qkv)
        indices, offsets = flatten_packed_sequence_metadata(packed_token_indices, cu_seqlens, *states.shape[:2])
        return states + self.varlen(qkv, offsets, max_seqlen, indices)


class Native(Stage):
    uses_native_fa4: bool = True

    def forward(self, inputs: Tensor, packed_token_indices: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        states, qkv = self.enter(inputs)
        return states + self.varlen(qkv, cu_seqlens, max_seqlen, packed_token_indices)


class Lengths(Stage):
    uses_thd: bool = True

    def forward(self, inputs: Tensor, seq_lens: Tensor, seq_lens_padded: Tensor) -> Tensor:
        states, qkv = self.enter(inputs)
        attended = torch.zeros_like(states)
        for row, (lengths, room) in enumerate(zip(seq_lens, seq_lens_padded, strict=True)):
            starts = room.clamp(min=0).cumsum(0) - room.clamp(min=0)
            for start, length in zip(ints(starts), ints(lengths), strict=True):
                if length > 0:
                    places = slice(start, start + length)
                    alone = tuple(part[row : row + 1, places] for part in qkv)
                    one = torch.ones(1, length, dtype=torch.int64)
                    part = dense((alone[0], alone[1], alone[2]), visible(one))
                    attended = attended.index_put((torch.tensor([row]), torch.arange(start, start + length)), part[0])
        return states + attended


class Llama(nn.Module):
    """One layer of a Hugging Face model, whose attention its config dispatches."""

    implementation = "flash_attention_2"

    def __init__(self, index: int) -> None:
        from transformers import LlamaConfig, LlamaModel

        super().__init__()
        torch.default_generator.manual_seed(index)
        self.config: Any = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            num_key_value_heads=1,
        )
        self.embeds = index == 0
        self.decoder = LlamaModel(self.config)
        self.config._attn_implementation_internal = self.implementation

    def forward(self, inputs: Tensor, position_ids: Tensor, use_cache: bool = False, **kwargs: object) -> Tensor:
        decoder = cast("Any", self.decoder)
        states = decoder.embed_tokens(inputs) if self.embeds else inputs
        output = decoder(inputs_embeds=states, position_ids=position_ids, use_cache=use_cache, **kwargs)
        return cast("Tensor", output.last_hidden_state)

    def alone(self, inputs: Tensor, ids: Tensor) -> Tensor:
        self.config._attn_implementation_internal = "eager"
        mask = torch.zeros(visible(ids).shape).masked_fill(~visible(ids), torch.finfo(torch.float32).min)
        return self.forward(inputs, positions(ids), attention_mask=mask)


class FlexLlama(Llama):
    implementation = "flex_attention"


FORMS: Final[dict[str, tuple[type[Stage | Llama], str]]] = {
    "mask": (Mask, "sdpa"),
    "ids": (Ids, "sdpa"),
    "flat": (Flat, "flash_attention_2"),
    "gathered": (Gathered, "sdpa"),
    "native": (Native, "fa4"),
    "thd": (Lengths, "sdpa"),
    "hf_flash": (Llama, Llama.implementation),
    "flex": (FlexLlama, FlexLlama.implementation),
}
"""Each form's stage, and the attention that it is configured for."""


def visible(ids: Tensor) -> Tensor:
    """Say who sees whom, place by place: `[batch, 1, sequence, sequence]`."""
    same = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] > 0)
    return (same & torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril())[:, None]


def positions(ids: Tensor) -> Tensor:
    """Count the places of the same document before each place."""
    return (visible(ids)[:, 0].sum(-1) - 1).clamp(min=0)


def real_loss(states: Tensor, ids: Tensor) -> Tensor:
    """Sum over real tokens: it sees every document, and no padding."""
    return (states.square().sum(-1) * (ids > 0)).sum()
