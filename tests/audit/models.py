"""Small custom models whose isolation is known by construction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import torch
from torch import Tensor, nn

from neatpack.adapters import build_block_causal_mask

VOCABULARY = 256
WIDTH = 16


class Base(nn.Module):
    """Embeds, mixes tokens in some way, and predicts."""

    def __init__(self) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 32)

    def answer(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.mix(states)))
        return logits


class TokenByToken(Base):
    """Clean: no token sees another."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.answer(self.embed(input_ids))


class CausalAttention(nn.Module):
    """Every token sees the earlier ones that `mask` allows, and all of them without a mask."""

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        attend = nn.functional.scaled_dot_product_attention
        queries = states[:, None]
        if mask is None:
            return attend(queries, queries, queries, is_causal=True)[:, 0]
        return attend(queries, queries, queries, mask)[:, 0]


class Leaks(Base):
    """Leaks through attention over the whole row."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = CausalAttention()

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.answer(self.attention(self.embed(input_ids)))


class Remembers(Leaks):
    """Leaks from call to call: each hears from the one `back` before it, since the last call of six tokens."""

    def __init__(self, back: int) -> None:
        super().__init__()
        self.back = back
        self.heard: list[Tensor] = []

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.embed(input_ids)
        if input_ids.shape[1] == 6:
            self.heard.clear()
        self.heard.append(states.detach().mean())
        earlier = self.heard[-1 - self.back] if len(self.heard) > self.back else 0.0
        return self.answer(self.attention(states) + earlier)


class IgnoresTheMask(Leaks):
    """Takes every argument, and reads none."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: object) -> Tensor:
        del attention_mask, kwargs
        return super().forward(input_ids)


class ReadsIds(Leaks):
    """Clean where it is given document ids, as it declares."""

    packed_mask_type: Literal["document_ids"] = "document_ids"

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        if _packed_seq_ids is None:
            return super().forward(input_ids)
        return self.answer(self.attention(self.embed(input_ids), build_block_causal_mask(_packed_seq_ids)))


class DeclaresFalsely(ReadsIds):
    """Declares that it reads document ids, takes them, and does not."""

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        return super().forward(input_ids)


class StartsAtZero(DeclaresFalsely):
    """Would leak, but the output of its attention is projected by zeros, as before training."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        states = self.embed(input_ids)
        return self.answer(states + self.out(self.attention(states)))


class Convolves(Base):
    """Leaks through a causal convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, kernel_size=3, padding=2)

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.conv(self.embed(input_ids).transpose(1, 2))
        return self.answer(states[..., : input_ids.shape[1]].transpose(1, 2))


class ReadsIdsHalf(ReadsIds):
    """Its attention keeps documents apart by their ids, and its convolution does not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, kernel_size=3, padding=2)

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        states: Tensor = self.embed(input_ids)
        states = self.conv(states.transpose(1, 2))[..., : input_ids.shape[1]].transpose(1, 2)
        mask = None if _packed_seq_ids is None else build_block_causal_mask(_packed_seq_ids)
        return self.answer(self.attention(states, mask))


class Recurs(Base):
    """Leaks through a recurrent state."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, str]:
        return self.answer(self.state(self.embed(input_ids))[0]), "a second output"


class JoinsRows(Base):
    """Leaks from one row into the next."""

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        states = self.embed(input_ids)
        return SimpleNamespace(logits=self.answer(states + states.mean(dim=(0, 1)).roll(1)))


class LooksAhead(Base):
    """Clean between documents where it is given ids, but a token sees later tokens of its own document."""

    packed_mask_type: Literal["document_ids"] = "document_ids"

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        states = self.embed(input_ids)
        if _packed_seq_ids is None:
            return self.answer(states)
        same = _packed_seq_ids[:, :, None] == _packed_seq_ids[:, None, :]
        return self.answer(states + same.float() @ states)


class DrawsNoise(Base):
    """No token sees another, but each answer has noise of its own."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.answer(nn.functional.dropout(self.embed(input_ids), 0.5, training=True))


class Constant(Leaks):
    """Its logits never move, so that nothing can be told."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids) * 0 + 1.0


class NotANumber(Leaks):
    """Its logits are not numbers."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids) * float("nan")


class NoGradient(TokenByToken):
    """No gradient reaches its embeddings."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.answer(self.embed(input_ids).detach())


class NoEmbedding(Base):
    """Embeds in a way that cannot be watched."""

    def forward(self, input_ids: Tensor) -> Tensor:
        with torch.no_grad():
            states = self.embed(input_ids)
        return self.answer(states)


class OwnEmbedding(nn.Module):
    """An embedding of another class than torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(0)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[tokens]


class NamesItsEmbedding(Leaks):
    """Embeds by a module that only `get_input_embeddings` names."""

    def __init__(self) -> None:
        super().__init__()
        self.own = OwnEmbedding()

    def get_input_embeddings(self) -> nn.Module:
        return self.own

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.answer(self.attention(self.own(input_ids)))


class Raises(Base):
    """Cannot answer at all."""

    def forward(self, input_ids: Tensor) -> Tensor:
        raise RuntimeError(f"cannot answer {tuple(input_ids.shape)}")


class ReturnsText(Base):
    """Returns no logits."""

    def forward(self, input_ids: Tensor) -> str:
        del input_ids
        return "no logits"


def leaks() -> Leaks:
    """Build a module, as the command line asks for."""
    return Leaks()


def reads_ids() -> ReadsIds:
    """Build a module that is clean once configured."""
    return ReadsIds()


BUILT = nn.Linear(1, 1)
"""A module, where a callable that builds one is asked for."""


def number() -> int:
    """Build no module."""
    return 7
