"""Small models with one planted fault each, and unusual ones without any; all declare that they read document ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from neatpack.adapters import build_position_ids

VOCABULARY = 64
WIDTH = 8

Mask = Callable[[Tensor], Tensor]
"""From ids `[batch, sequence]` to what each token sees, bool `[batch, sequence, sequence]`."""


class Mixer(nn.Module):
    """Mixes the tokens of a row; what it is given in place of ids is what went wrong."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, states: Tensor, ids: Tensor) -> Tensor:
        return states + self.mix(states, ids)


class Model(nn.Module):
    """Embeds, mixes tokens layer by layer, and predicts."""

    packed_mask_type: Literal["document_ids"] = "document_ids"

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        nn.init.normal_(self.embed.weight)

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states: Tensor = self.embed(input_ids)
        for layer in self.layers:
            states = layer(states, ids)
        return states

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        ids = torch.ones_like(input_ids) if _packed_seq_ids is None else _packed_seq_ids
        logits: Tensor = self.head(torch.tanh(self.states(input_ids, ids)))
        return logits


def causal(ids: Tensor) -> Tensor:
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril().expand(len(ids), -1, -1)


def same(ids: Tensor, keys: Tensor | None = None) -> Tensor:
    keys = ids if keys is None else keys
    return (ids[:, :, None] == keys[:, None, :]) & (keys[:, None, :] > 0)


def block_causal(ids: Tensor) -> Tensor:
    return same(ids) & causal(ids)


def starts_of(ids: Tensor) -> Tensor:
    """Where each token's document starts, along the row."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    changes = torch.ones_like(ids, dtype=torch.bool)
    changes[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return torch.where(changes, places, 0).cummax(dim=1).values


def positions_of(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1]) - starts_of(ids)


class Attention(Mixer):
    """Sees what `mask` says."""

    def __init__(self, mask: Mask = block_causal, window: int | None = None) -> None:
        super().__init__()
        self.mask = mask
        self.window = window
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def visible(self, ids: Tensor) -> Tensor:
        visible = self.mask(ids)
        places = torch.arange(ids.shape[1])
        if self.window is not None:
            visible = visible & (places[:, None] - places[None, :] < self.window)
        return visible

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        return self.attend(states, self.visible(ids))

    def attend(self, states: Tensor, visible: Tensor, queries: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(states).chunk(3, dim=-1)
        query = query if queries is None else queries
        visible = visible | torch.eye(visible.shape[-1], dtype=torch.bool)  # padding sees itself, or nothing at all
        return functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], visible[:, None])[
            :, 0
        ]


def shifted_ids(by: int) -> Mask:
    """Boundaries that count `by` tokens too late, or too early."""

    def mask(ids: Tensor) -> Tensor:
        moved = ids.roll(by, dims=1)
        edge = slice(None, by) if by > 0 else slice(by, None)
        moved[:, edge] = ids[:, edge]
        return block_causal(torch.where(ids > 0, torch.where(moved > 0, moved, ids), 0))

    return mask


def last_lost(ids: Tensor) -> Tensor:
    last = ids.amax(dim=1, keepdim=True)
    return block_causal(torch.where((ids == last) & (last > 1), last - 1, ids))


def first_lost(ids: Tensor) -> Tensor:
    return block_causal(torch.where(ids == 1, torch.where(ids.amax(dim=1, keepdim=True) > 1, 2, 1), ids))


def later_row(ids: Tensor) -> Tensor:
    """Every row is cut as the last one is."""
    return block_causal(torch.where(ids > 0, ids[-1:].clamp(min=1).expand_as(ids), 0))


def only_third_reads_first(ids: Tensor) -> Tensor:
    return block_causal(ids) | ((ids[:, :, None] == 3) & (ids[:, None, :] == 1))


def ranks_of(ids: Tensor) -> Tensor:
    """Number the documents of each row from 1, whatever their ids."""
    begins = (positions_of(ids) == 0) & (ids > 0)
    return torch.where(ids > 0, begins.cumsum(dim=1), 0)


def joined_from_fourth(ids: Tensor) -> Tensor:
    return block_causal(ranks_of(ids).clamp(max=5))


def ranks_in_a_byte(ids: Tensor) -> Tensor:
    return block_causal(torch.where(ids > 0, ranks_of(ids) % 256 + 1, 0))


def past_many_tokens(ids: Tensor) -> Tensor:
    far = torch.arange(ids.shape[1]) >= 128
    return block_causal(ids) | (causal(ids) & far[None, :, None] & (ids > 0)[:, None, :])


def unmasked_where(condition: Callable[[Tensor], bool]) -> Mask:
    """Where a batch is like that, only causality is kept."""
    return lambda ids: causal(ids) if condition(ids) else block_causal(ids)


def long_ones_see_all_before(ids: Tensor) -> Tensor:
    long = same(ids).sum(dim=2, keepdim=True) > 128
    return block_causal(ids) | (causal(ids) & long & (ids > 0)[:, None, :])


def not_causal_if_packed(ids: Tensor) -> Tensor:
    return same(ids) if int(ids.max()) != int(ids.min()) else causal(ids)


def all_seen_if_packed(ids: Tensor) -> Tensor:
    return ~causal(ids) | same(ids) if int(ids.max()) != int(ids.min()) else causal(ids)


def first_hidden_if_packed(ids: Tensor) -> Tensor:
    """Later tokens of a document do not see its first one."""
    if int(ids.max()) == int(ids.min()):
        return causal(ids)
    return block_causal(ids) & (positions_of(ids) > 0)[:, None, :]


def padding_seen(ids: Tensor) -> Tensor:
    return block_causal(ids) | (ids == 0)[:, None, :]


def first_padding_seen(ids: Tensor) -> Tensor:
    """Padding before a document is taken for part of it."""
    before = torch.cat([ids[:, 1:], ids[:, -1:]], dim=1)
    return block_causal(torch.where((ids == 0) & (before > 0), before, ids))


class Caches(Attention):
    """Keeps masks by the shape of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[tuple[int, ...], Tensor] = {}

    def visible(self, ids: Tensor) -> Tensor:
        return self.masks.setdefault(tuple(ids.shape), super().visible(ids))


class CachesInTraining(Caches):
    """Keeps masks by the shape of the batch in training mode alone; `by_ids`, by what the ids are instead."""

    def __init__(self, by_ids: bool = False) -> None:
        super().__init__()
        self.by_ids = by_ids

    def visible(self, ids: Tensor) -> Tensor:
        if not self.training:
            return Attention.visible(self, ids)
        key = (*ids.shape, *map(int, ids.flatten())) if self.by_ids else tuple(ids.shape)
        return self.masks.setdefault(key, Attention.visible(self, ids))


class KeepsTheLastMask(Attention):
    """Keeps its mask while batches have the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def visible(self, ids: Tensor) -> Tensor:
        if self.kept is None or self.kept.shape[:2] != ids.shape:
            self.kept = super().visible(ids)
        return self.kept


class LeaksInTraining(Attention):
    """Takes another road in training mode."""

    def visible(self, ids: Tensor) -> Tensor:
        return causal(ids) if self.training else super().visible(ids)


class MasksOtherwiseInTraining(Attention):
    """Sees something else in training mode."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.in_training = mask

    def visible(self, ids: Tensor) -> Tensor:
        return self.in_training(ids) if self.training else super().visible(ids)


class JoinsRows(Attention):
    """Keys and values of the row before are seen as well."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        return super().mix(states, ids) + states.roll(1, dims=0).mean(dim=1, keepdim=True) * (ids > 0)[..., None]


class SharesKeys(Attention):
    """One row of keys and values stands for all."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        queries = self.qkv(states).chunk(3, dim=-1)[0]
        return self.attend(states[:1].expand_as(states), super().visible(ids), queries)


class PoolsKeys(Attention):
    """Each token also sees the mean of its block of four places, whosever they are."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        blocks = functional.pad(states, (0, 0, 0, -states.shape[1] % 4))
        pooled = blocks.view(len(blocks), -1, 4, WIDTH).mean(dim=2).repeat_interleave(4, dim=1)[:, : states.shape[1]]
        return self.attend(states + pooled.roll(4, dims=1), super().visible(ids))


class ChunksRow(Attention):
    """Sees its chunk of four places, which are counted from where the row begins."""

    def visible(self, ids: Tensor) -> Tensor:
        chunks = torch.arange(ids.shape[1]) // 4
        return block_causal(ids) & (chunks[:, None] == chunks[None, :])


class SortsByIds(Attention):
    """Brings tokens into the order of their ids, and takes for granted that they come so."""

    def visible(self, ids: Tensor) -> Tensor:
        return block_causal(ids.masked_fill(ids == 0, 1 << 40).sort(dim=1).values) & (ids > 0)[:, None, :]


class Convolution(Mixer):
    """Convolves; reads nothing of another document unless told to."""

    def __init__(self, reset: bool = True, late: int = 0) -> None:
        super().__init__()
        self.reset, self.late = reset, late
        self.taps = nn.Parameter(torch.randn(3, WIDTH))

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        mixed = states * self.taps[0]
        places = positions_of(ids) + self.late
        for back in (1, 2):
            earlier = functional.pad(states, (0, 0, back, 0))[:, : states.shape[1]]
            mine = (places >= back)[..., None] if self.reset else torch.ones(())
            mixed = mixed + earlier * self.taps[back] * mine
        return mixed


class Conv1dLayer(Mixer):
    """Torch's own convolution, never reset."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        mixed: Tensor = self.conv(states.transpose(1, 2))[..., : states.shape[1]].transpose(1, 2)
        return mixed


class Blends(Convolution):
    """Convolves under a name that says nothing of it."""


_RFFT = cast("Callable[[Tensor, int, int], Tensor]", torch.fft.rfft)  # pyright: ignore[reportUnknownMemberType]
_IRFFT = cast("Callable[[Tensor, int, int], Tensor]", torch.fft.irfft)  # pyright: ignore[reportUnknownMemberType]


class BlendsByFourier(Mixer):
    """Convolves with all that was before, by a product of Fourier transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(32, WIDTH))

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        places = 2 * states.shape[1]
        product = _RFFT(states, places, 1) * _RFFT(self.filter, places, 0)
        return _IRFFT(product, places, 1)[:, : states.shape[1]]


class Multiplies(nn.Module):
    """A product of two matrices, as quantised models wrap it."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one @ other


class AttentionOfParts(Attention):
    """Attends by modules that multiply."""

    def __init__(self, mask: Mask = causal) -> None:
        super().__init__(mask)
        self.scores, self.mixes = Multiplies(), Multiplies()

    def attend(self, states: Tensor, visible: Tensor, queries: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(states).chunk(3, dim=-1)
        query = query if queries is None else queries
        hidden = ~(visible | torch.eye(visible.shape[-1], dtype=torch.bool))
        scores = self.scores(query, key.transpose(1, 2)).masked_fill(hidden, -1e9)
        mixed: Tensor = self.mixes(torch.relu(scores) + 0.1 * ~hidden, value)
        return mixed


class WeighsPairs(Attention):
    """Attends without a softmax, under a name that says nothing of it."""

    def attend(self, states: Tensor, visible: Tensor, queries: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(states).chunk(3, dim=-1)
        query = query if queries is None else queries
        mixed: Tensor = torch.relu(torch.einsum("bqd,bkd->bqk", query, key)) * visible @ value
        return mixed


class EmbedsPairs(nn.Embedding):
    """Embeds each token with the one before it, whosever it is."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as torch calls it
        states = super().forward(input)
        return states + functional.pad(states, (0, 0, 1, 0))[:, :-1]


class PairsInEmbedding(Model):
    """Mixes tokens as it embeds them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.embed = EmbedsPairs(VOCABULARY, WIDTH)


class Recurrence(Mixer):
    """A decaying state, which starts anew in each document unless told otherwise."""

    def __init__(self, reset: bool = True, late: int = 0, skip_last: bool = False, by_positions: bool = False) -> None:
        super().__init__()
        self.reset, self.late, self.skip_last, self.by_positions = reset, late, skip_last, by_positions
        self.decay = nn.Parameter(torch.full((WIDTH,), 1.5))

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        state, outputs = torch.zeros_like(states[:, 0]), list[Tensor]()
        starts = (build_position_ids(ids) if self.by_positions else positions_of(ids)) == self.late
        if self.skip_last:
            starts = starts & (ids < ids.amax(dim=1, keepdim=True).clamp(min=2))
        for place in range(states.shape[1]):
            if self.reset:
                state = state * ~starts[:, place, None]
            state = state * self.decay.sigmoid() + states[:, place]
            outputs.append(state)
        return torch.stack(outputs, dim=1)


class RemembersTheLastCall(Mixer):
    """Adds the mean of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        last, self.last = self.last, states.detach().mean(dim=(0, 1))
        return states if last is None else states + last


class _ScaleOfTheNext(torch.autograd.Function):
    """Scales; its backward pass takes the input of the place before for that of the weight."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, states: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        return states * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:  # torch types its context so
        states, weight = ctx.saved_tensors
        return gradients[0] * weight, (gradients[0] * states.roll(1, dims=1)).sum(dim=(0, 1))


class ScalesWithWrongGradient(Mixer):
    """Does right but for the gradient of its weight, into which the document before comes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        apply = cast("Callable[[Tensor, Tensor], Tensor]", _ScaleOfTheNext.apply)  # pyright: ignore[reportUnknownMemberType]  # of torch's own
        return apply(states, self.weight)


class ConvolvesAndRecurs(Mixer):
    """As mixers of state space models do: a short convolution before the state."""

    def __init__(self, conv: bool, state: bool) -> None:
        super().__init__()
        self.conv, self.state = Convolution(reset=conv), Recurrence(reset=state)

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        mixed: Tensor = self.state(self.conv(states, ids), ids)
        return mixed


class ShiftsTokens(Mixer):
    """Adds the token before, whosever it is unless told otherwise."""

    def __init__(self, reset: bool = False) -> None:
        super().__init__()
        self.reset = reset

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        before = functional.pad(states, (0, 0, 1, 0))[:, :-1]
        return before * (positions_of(ids) > 0)[..., None] if self.reset else before


class RowStatistics(Mixer):
    """Normalises by the mean and variance of the row."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        centred = states - states.mean(dim=1, keepdim=True)
        return centred / (centred.square().mean(dim=1, keepdim=True) + 0.1).sqrt()


class BatchNorm(Mixer):
    """Statistics of the batch, in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        mixed: Tensor = self.norm(states.transpose(1, 2)).transpose(1, 2)
        return mixed


class LearnedPositions(Mixer):
    """Adds a vector per position."""

    def __init__(self, restart: bool = True, off: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(1024, WIDTH)
        self.restart, self.off = restart, off

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        places = positions_of(ids) if self.restart else torch.arange(ids.shape[1]).expand_as(ids)
        off = torch.where(starts_of(ids) > 0, self.off, 0)
        mixed: Tensor = self.table(places + off).expand_as(states)
        return mixed


class ScalesByLongest(Mixer):
    """Scales by the longest document of the batch, as dynamic RoPE does."""

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        return states * (1 + positions_of(ids).masked_fill(ids == 0, 0).max() / 10)


class ExpertRouter(Mixer):
    """Gives each of two experts room for half of the tokens of a row: who comes later is left out."""

    def __init__(self, capacity: bool = True) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2 * WIDTH)
        self.capacity = capacity

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        del ids
        chosen = functional.one_hot(self.gate(states).argmax(dim=-1), 2)
        room = chosen.cumsum(dim=1) <= states.shape[1] // 3
        kept = (chosen * room if self.capacity else chosen).to(states)
        mixed: Tensor = (self.experts(states).view(*states.shape[:2], 2, WIDTH) * kept[..., None]).sum(dim=2)
        return mixed


class GatedLeak(Mixer):
    """A leaking branch behind a gate of zeros, beside attention that keeps documents apart."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.branch = Attention(), Recurrence(reset=False)
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        mixed: Tensor = self.attention(states, ids) + self.gate * self.branch(states, ids)
        return mixed


class SharesRoom(ExpertRouter):
    """Does so under a name that says nothing of it."""


class LeaksALittle(Mixer):
    """A state that is not reset, by so little that no logit around a great number shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Recurrence(reset=False)

    def mix(self, states: Tensor, ids: Tensor) -> Tensor:
        mixed: Tensor = self.state(states, ids) / 1000
        return mixed


class BalancesExperts(Model):
    """Balances its experts by all tokens, those at padding too."""

    def __init__(self) -> None:
        super().__init__(Attention(), SharesRoom(capacity=False))

    def forward(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        logits = super().forward(input_ids, _packed_seq_ids)
        router = self.layers[1]
        assert isinstance(router, SharesRoom)
        shares = router.gate(self.embed(input_ids)).softmax(dim=-1).mean(dim=(0, 1))
        return {"logits": logits, "balance": shares.square().sum()}


class BalancesPadding(Model):
    """A loss over its predictions counts padding."""

    def forward(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = super().forward(input_ids, _packed_seq_ids)
        return logits.softmax(dim=-1).mean(dim=(0, 1)).square().sum(), logits


class TakesWholeBlocks(Model):
    """Takes rows of whole blocks alone, as some kernels do."""

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        if input_ids.shape[1] % 64:
            raise ValueError(f"rows must have a multiple of 64 places, not {input_ids.shape[1]}")
        return super().forward(input_ids, _packed_seq_ids)


class CountsOtherwiseWhenPacked(Model):
    """Counts positions from `first` where it is given ids, and from 0 where it is not."""

    def __init__(self, *layers: nn.Module, first: int) -> None:
        super().__init__(*layers)
        self.table, self.first = nn.Embedding(1024, WIDTH), first

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        self.begin = 0 if _packed_seq_ids is None else self.first
        return super().forward(input_ids, _packed_seq_ids)

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states: Tensor = self.embed(input_ids) + self.table(positions_of(ids) + self.begin)
        for layer in self.layers:
            states = layer(states, ids)
        return states


class Sharp(Model):
    """Its logits vary little around a great number, which is one of the terms that they are summed up of."""

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        ids = torch.ones_like(input_ids) if _packed_seq_ids is None else _packed_seq_ids
        states = torch.tanh(self.states(input_ids, ids)) / 1000
        terms = torch.cat([states, torch.full_like(states[..., :1], 100.0)], dim=-1)
        weights = torch.cat([self.head.weight, torch.ones(VOCABULARY, 1)], dim=1)
        return terms @ weights.T


class SharpThroughout(Model):
    """Its states vary little around a great number, too."""

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states: Tensor = torch.tanh(self.embed(input_ids)) / 1000 + 100
        for layer in self.layers:
            states = layer(states, ids)
        return states

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        ids = torch.ones_like(input_ids) if _packed_seq_ids is None else _packed_seq_ids
        logits: Tensor = self.head(self.states(input_ids, ids))
        return logits


class CountsByTokens(nn.Embedding):
    """Takes some tokens for padding wherever they stand, which take no position."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as torch calls it
        states = super().forward(input)
        places = (input % 4 != 0).to(torch.int64).cumsum(dim=1)
        return states + torch.sin(places[..., None] / 2 ** torch.arange(WIDTH))


class CountsPlacesByTokens(Model):
    """Counts positions over the row by its tokens as it embeds them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.embed = CountsByTokens(VOCABULARY, WIDTH)


class PutsPromptsBefore(Model):
    """Puts learned vectors before each row, in a document of their own."""

    def __init__(self, *layers: nn.Module, prompts: int = 12) -> None:
        super().__init__(*layers)
        self.prompts = nn.Parameter(torch.randn(prompts, WIDTH))

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states = torch.cat([self.prompts.expand(len(ids), -1, -1), self.embed(input_ids)], dim=1)
        ids = functional.pad(ids, (len(self.prompts), 0), value=1 << 50)
        for layer in self.layers:
            states = layer(states, ids)
        return states[:, len(self.prompts) :]


class NeedsLabels(Model):
    """Answers only with its loss."""

    def forward(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, labels: Tensor, _packed_seq_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = super().forward(input_ids, _packed_seq_ids)
        return functional.cross_entropy(logits.transpose(1, 2), labels), logits


class PredictsTwice(Model):
    """Predicts a second time, and a value, beside its logits; `leaks` in one of them, where the first token of a
    document sees the one before."""

    def __init__(self, *layers: nn.Module, leaks: str = "") -> None:
        super().__init__(*layers)
        self.leaks = leaks

    def forward(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None
    ) -> dict[str, object]:
        logits = super().forward(input_ids, _packed_seq_ids)
        before = logits + functional.pad(logits, (0, 0, 1, 0))[:, :-1]
        value = (before if self.leaks == "value" else logits).sum(dim=2)
        return {"logits": logits, "later": [before if self.leaks == "later" else 2 * logits], "value": value / 1000}


class AddsRowFeature(Model):
    """The mean of the row goes into every prediction."""

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states = super().states(input_ids, ids)
        return states + states.mean(dim=1, keepdim=True)


class DropsIds(Model):
    """Takes ids, and gives none of them to its layers."""

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        return super().states(input_ids, torch.ones_like(ids))


class LosesIdsInSecondLayer(Model):
    """Gives ids to its first layer alone."""

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states: Tensor = self.embed(input_ids)
        for index, layer in enumerate(self.layers):
            states = layer(states, ids if index == 0 else torch.where(ids > 0, 1, 0))
        return states


class WindowLost(Attention):
    """Past its window, which it tells of, it also sees the documents before."""

    def __init__(self, window_size: int) -> None:
        super().__init__()
        self.window_size = window_size

    def visible(self, ids: Tensor) -> Tensor:
        late = positions_of(ids) > self.window_size
        return super().visible(ids) | (causal(ids) & late[:, :, None] & (ids > 0)[:, None, :])


class ReadsStructure(Model):
    """Is given the ids of attention and those as packed, and goes by the latter."""

    def forward(
        self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None, document_ids: Tensor | None = None
    ) -> Tensor:
        return super().forward(input_ids, _packed_seq_ids if document_ids is None else document_ids)


class RestartsByStructure(Model):
    """Attends by the ids of attention, and counts positions by those as packed."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.positions = LearnedPositions()

    def forward(
        self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None, document_ids: Tensor | None = None
    ) -> Tensor:
        self.structure = document_ids
        return super().forward(input_ids, _packed_seq_ids)

    def states(self, input_ids: Tensor, ids: Tensor) -> Tensor:
        states: Tensor = self.positions(self.embed(input_ids), ids if self.structure is None else self.structure)
        for layer in self.layers:
            states = layer(states, ids)
        return states
