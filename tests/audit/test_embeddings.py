"""Gradients by token embeddings, however a model embeds; logits, however a model returns them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters.document_rows import document_rows
from neatpack.contracts.errors import ModelError
from neatpack.kernels_bridge.audit.embeddings import EmbeddingWatch
from neatpack.kernels_bridge.audit.outputs import find_logits, find_scalars

TOKENS = torch.tensor([[3, 1, 4], [1, 5, 0]])
TABLE = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Embed = Callable[[Tensor], Tensor]

WAYS: dict[str, Embed] = {
    "indexing": lambda tokens: TABLE[tokens],
    "index_select": lambda tokens: TABLE.index_select(0, tokens.flatten()).view(*tokens.shape, -1),
    "module": nn.Embedding(8, 2, _weight=TABLE),
    "functional": lambda tokens: nn.functional.embedding(tokens, TABLE),
    "bag": lambda tokens: nn.EmbeddingBag(8, 2, _weight=TABLE, mode="sum")(tokens.view(-1, 1)).view(*tokens.shape, -1),
    "one_hot": lambda tokens: nn.functional.one_hot(tokens, 8).double() @ TABLE,
    "clipped": lambda tokens: TABLE[tokens.clone().clamp(max=7)],
    "take": lambda tokens: torch.take_along_dim(TABLE, tokens.view(-1, 1).expand(-1, 2), 0).view(*tokens.shape, -1),
}


@pytest.mark.parametrize("embed", WAYS.values(), ids=WAYS)
def test_a_gradient_tells_which_tokens_were_read(embed: Embed) -> None:
    with EmbeddingWatch(TOKENS) as watch:
        states = embed(TOKENS)
    assert torch.equal(states, TABLE[TOKENS])
    gradients = torch.autograd.grad(states[0, 1].sum() * 3, watch.leaves)
    read = sum(gradient.abs().flatten(2).sum(2) for gradient in gradients)
    assert isinstance(read, Tensor)
    assert torch.equal(read > 0, torch.tensor([[False, True, False], [False, False, False]]))


MOVES: dict[str, Embed] = {
    "other_rows": lambda tokens: tokens.flatten().index_select(0, torch.tensor([4, 1, 2, 1])).view(4, 1),
    "filled": lambda tokens: tokens.flatten()[torch.tensor([[1, 0], [5, 5]])].masked_fill_(torch.eye(2).bool(), 7),
    "prefixed": lambda tokens: torch.cat([torch.ones(2, 5, dtype=torch.int64), tokens], dim=1),
    "one_row": lambda tokens: tokens.reshape(1, -1).clone(),
    "columns": lambda tokens: tokens.transpose(0, 1).contiguous(),
}
# Which of the tokens was read at the places that a move gave them.
READ = {
    "other_rows": ((1, 0), [[False, True, False], [False, False, False]]),
    "filled": ((0, 1), [[True, False, False], [False, False, False]]),
    "prefixed": ((1, 6), [[False, False, False], [False, True, False]]),
    "one_row": ((0, 4), [[False, False, False], [False, True, False]]),
    "columns": ((2, 0), [[False, False, True], [False, False, False]]),
}


@pytest.mark.parametrize("move", MOVES)
def test_tokens_are_followed_to_other_places(move: str) -> None:
    place, expected = READ[move]
    with EmbeddingWatch(TOKENS) as watch:
        states = TABLE[MOVES[move](TOKENS)]
    (gradient,) = torch.autograd.grad(states[place].sum(), watch.leaves)
    assert (gradient.abs().sum(2) > 0).tolist() == expected  # pyright: ignore[reportUnknownMemberType]


def test_what_fills_is_no_token() -> None:
    with EmbeddingWatch(TOKENS) as watch:
        states = TABLE[MOVES["filled"](TOKENS)]
    (gradient,) = torch.autograd.grad(states[1, 1].sum(), watch.leaves)
    assert gradient.abs().max() == 0


def test_no_graph_is_cut_where_tokens_are_read_twice() -> None:
    weight = TABLE.clone().requires_grad_()
    with EmbeddingWatch(TOKENS) as watch:
        states = weight[TOKENS]
        states = states.cumsum(1) + TOKENS[..., None]
    gradients = torch.autograd.grad(states[0, 2].sum(), [weight, *watch.leaves])
    assert torch.equal(gradients[0][3], torch.ones(2, dtype=torch.float64))
    assert len(watch.leaves) == 2


def test_tokens_that_are_written_elsewhere_are_tokens_there() -> None:
    kept = torch.zeros(2, 3, dtype=torch.int64)
    with EmbeddingWatch(TOKENS) as watch:
        kept.copy_(TOKENS)
        states = TABLE[kept]
    (gradient,) = torch.autograd.grad(states[1, 0].sum(), watch.leaves)
    assert gradient[1, 0].all()


def test_whatever_was_watched_is_a_tensor_as_before_also_when_interrupted() -> None:
    tensors = [TOKENS, torch.zeros(2, 3, dtype=torch.int64)]
    watch = EmbeddingWatch(TOKENS)

    def embed() -> None:
        with watch:
            tensors.append(TOKENS.flatten())
            tensors[1].copy_(TOKENS)
            assert Tensor not in map(type, tensors)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed()
    assert [type(tensor) for tensor in tensors] == [Tensor] * 3
    assert [TABLE[tensor].shape for tensor in tensors] == [(2, 3, 2), (2, 3, 2), (6, 2)]
    assert watch.leaves == []


def test_masks_made_from_tokens_are_no_embeddings() -> None:
    with EmbeddingWatch(TOKENS) as watch:
        (TOKENS != 0).double()
        TOKENS.double()
    assert watch.leaves == []


LOGITS = torch.randn(2, 3, 4)


class Named(NamedTuple):
    """An output whose parts have names."""

    loss: Tensor
    scores: Tensor


@dataclass
class Output:
    """As Transformers' outputs were before they were mappings."""

    loss: Tensor
    logits: Tensor


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, "more"),
        (torch.tensor(1.0), LOGITS),
        [torch.tensor(1.0), LOGITS],
        {"loss": torch.tensor(1.0), "logits": LOGITS},
        {"hidden": LOGITS * 2, "logits": LOGITS},
        {"predictions": LOGITS},
        SimpleNamespace(logits=LOGITS),
        Output(torch.tensor(1.0), LOGITS),
        Named(torch.tensor(1.0), LOGITS),
        (torch.tensor(1.0), SimpleNamespace(logits=LOGITS)),
        LOGITS.flatten(0, 1),
        LOGITS.view(2, 3, 2, 2),
        (torch.zeros(2, 5, 4), LOGITS),
    ],
)
def test_logits_are_found(output: object) -> None:
    assert torch.equal(find_logits(output, TOKENS), LOGITS)


def test_a_value_per_token_is_an_answer() -> None:
    assert find_logits(LOGITS[..., 0], TOKENS).shape == (2, 3, 1)


@pytest.mark.parametrize("output", ["text", None, 7, (), {}, torch.zeros(2, 4, 4), torch.zeros(2, 3, 4).long()])
def test_what_holds_no_logits_is_refused(output: object) -> None:
    with pytest.raises(ModelError, match="returned no logits"):
        find_logits(output, TOKENS)


def test_scalars_have_names() -> None:
    assert find_scalars((torch.tensor(1.0), LOGITS)) == {"output 0": torch.tensor(1.0)}
    assert find_scalars(Named(torch.tensor(1.0), LOGITS)) == {"loss": torch.tensor(1.0)}
    assert find_scalars({"aux": torch.tensor(2.0), "count": torch.tensor(2)}) == {"aux": torch.tensor(2.0)}
    assert find_scalars("text") == {}


def _in_rows_of_their_own(tokens: Tensor, table: Tensor) -> Tensor:
    rows = document_rows(torch.tensor([[1, 1, 1, 2, 0], [1, 1, 2, 2, 2]]))
    return nn.functional.embedding(rows.take(tokens, 0), table)


def test_tokens_that_were_moved_are_followed_to_where_they_came_from() -> None:
    tokens = torch.tensor([[10, 11, 12, 20, 99], [30, 31, 40, 41, 42]])
    with EmbeddingWatch(tokens) as watch:
        looked_up = _in_rows_of_their_own(tokens, torch.randn(100, 3))
    (leaf,) = watch.leaves
    assert leaf.shape == (2, 5, 3)
    for row, place, source in ((0, 2, (0, 2)), (1, 0, (0, 3)), (2, 1, (1, 1)), (3, 0, (1, 2))):
        (gradient,) = torch.autograd.grad(looked_up[row, place].sum(), leaf, retain_graph=True)
        assert torch.equal(gradient.abs().sum(2).nonzero(), torch.tensor([source]))
    (gradient,) = torch.autograd.grad(looked_up[1, 1:].sum(), leaf)
    assert not gradient.any()  # padding of a row came from nowhere


def test_tokens_that_were_changed_are_not_taken_for_moved_ones() -> None:
    tokens = torch.tensor([[10, 11, 12], [13, 14, 15]])
    with EmbeddingWatch(tokens) as watch:
        nn.functional.embedding((tokens.flatten()[:4] * 7) % 100, torch.randn(100, 3))
    assert watch.leaves == []
