"""Ids from special tokens: an end belongs to what it ends, padding is what the mask says, and a wrong id is noticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import canonical_document_ids, document_ids_from_tokens, is_document_ids
from neatpack.adapters.strategies import INTEGER_DTYPES
from neatpack.contracts.errors import EncodingError
from tests.adapters import oracle_tokens
from tests.adapters.properties import holds_for, listed

_EOS, _BOS, _PAD = 2, 1, 0


@dataclass
class Tokenizer:
    """What is read of one."""

    eos_token_id: Any = _EOS
    bos_token_id: Any = _BOS


@st.composite
def _rows(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    batch, sequence = draw(st.integers(1, 3)), draw(st.integers(1, 10))
    row = st.lists(st.integers(0, 4), min_size=sequence, max_size=sequence)
    mask = st.lists(st.sampled_from((False, False, True)), min_size=sequence, max_size=sequence)
    tokens, padding = ([draw(each) for _ in range(batch)] for each in (row, mask))
    return torch.tensor(tokens).to(draw(st.sampled_from(INTEGER_DTYPES))), torch.tensor(padding)


def _set(token: Any) -> set[int]:
    return set() if token is None else {token} if isinstance(token, int) else set(token)


@holds_for(
    rows=_rows(),
    special=st.sampled_from(
        ((_EOS, None), (None, _BOS), (_EOS, _BOS), ([_EOS, 4], _BOS), ((3, _EOS), None), ([4], [_BOS, 3]))
    ),
    pad=st.sampled_from((None, _PAD)),
    masked=st.booleans(),
)
def test_each_token_is_in_the_document_that_the_special_tokens_say(
    rows: tuple[Tensor, Tensor], special: tuple[Any, Any], pad: int | None, masked: bool
) -> None:
    tokens, mask = rows
    padding = mask if masked else torch.zeros_like(mask)
    eos, bos = special
    found = document_ids_from_tokens(
        tokens,
        eos_token_id=eos,
        bos_token_id=bos,
        padding_mask=padding if masked else None,
        pad_token_id=pad,
        allow_unbroken=True,
    )
    expected = [
        oracle_tokens.documents(row, gaps, _set(eos), _set(bos), pad)
        for row, gaps in zip(listed(tokens.to(torch.int64)), listed(padding), strict=True)
    ]
    assert listed(found) == expected
    assert is_document_ids(found)
    assert torch.equal(found, canonical_document_ids(found))


def test_padding_that_is_an_end_token_is_known_by_the_mask() -> None:
    tokens = torch.tensor([[5, 6, 2, 7, 2, 2, 2]])
    masked = document_ids_from_tokens(tokens, eos_token_id=2, padding_mask=torch.arange(7)[None] > 4)
    assert listed(masked) == [[1, 1, 1, 2, 2, 0, 0]]
    # Without a mask every one of them ends a document, its own.
    assert listed(document_ids_from_tokens(tokens, eos_token_id=2)) == [[1, 1, 1, 2, 2, 3, 4]]
    with pytest.raises(EncodingError, match="pad_token_id = 2") as caught:
        document_ids_from_tokens(tokens, eos_token_id=2, pad_token_id=2)
    assert "padding_mask" in caught.value.problems[0].remedy


@pytest.mark.parametrize("padding", [[4], [4, 5, 6], [0], []])
def test_beside_a_mask_a_token_that_documents_hold_pads_nothing(padding: list[int]) -> None:
    tokens, mask = torch.tensor([[5, 6, 2, 7, 2, 2, 2]]), torch.zeros(1, 7, dtype=torch.bool)
    mask[:, padding] = True
    for special in ("eos_token_id", "bos_token_id"):
        arguments: dict[str, Any] = {special: [1, 2], "padding_mask": mask}
        expected = document_ids_from_tokens(tokens, **arguments)
        assert torch.equal(document_ids_from_tokens(tokens, pad_token_id=2, **arguments), expected)


@pytest.mark.parametrize(
    ("tokens", "ids"),
    [
        ([0, 0, 5, 6, 2], [0, 0, 1, 1, 1]),
        ([5, 2, 0, 0, 7, 2, 0, 0], [1, 1, 0, 0, 2, 2, 0, 0]),
        ([5, 6, 0, 1, 7], [1, 1, 0, 2, 2]),
        ([5, 0, 6, 2], [1, 1, 1, 1]),
        ([0, 0, 0], [0, 0, 0]),
    ],
    ids=["left", "after an end", "before an opening", "inside a document", "a whole row"],
)
def test_a_token_of_padding_is_padding_outside_of_documents(tokens: list[int], ids: list[int]) -> None:
    found = document_ids_from_tokens(
        torch.tensor([tokens]), eos_token_id=_EOS, bos_token_id=_BOS, pad_token_id=_PAD, allow_unbroken=True
    )
    assert listed(found) == [ids]


@pytest.mark.parametrize("own", [_EOS, [_EOS, 7], (7, _EOS), range(_EOS + 1), np.int64(_EOS)])
def test_the_tokenizers_own_tokens_are_taken(own: object) -> None:
    tokens = torch.tensor([[3, _EOS, 4]])
    found = document_ids_from_tokens(tokens, eos_token_id=_EOS, tokenizer=Tokenizer(eos_token_id=own))
    assert listed(found) == [[1, 1, 2]]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("eos_token_id", {}),
        ("eos_token_id", {"eos_token_id": "2"}),
        ("eos_token_id", {"eos_token_id": [], "bos_token_id": 1}),
        ("eos_token_id", {"eos_token_id": [2, "3"]}),
        ("eos_token_id", {"eos_token_id": [2, None]}),
        ("eos_token_id", {"eos_token_id": [[2]]}),
        ("eos_token_id", {"eos_token_id": [2, 3], "tokenizer": Tokenizer()}),
        ("bos_token_id", {"eos_token_id": [2, 3], "bos_token_id": [1, 3]}),
        ("pad_token_id", {"eos_token_id": [2, 3], "pad_token_id": 3}),
        ("bos_token_id", {"bos_token_id": 1.5}),
        ("bos_token_id", {"eos_token_id": 1, "bos_token_id": 1}),
        ("pad_token_id", {"eos_token_id": 2, "pad_token_id": True}),
        ("pad_token_id", {"bos_token_id": 1, "pad_token_id": 1}),
        ("eos_token_id", {"eos_token_id": 3, "tokenizer": Tokenizer()}),
        ("eos_token_id", {"eos_token_id": 3, "tokenizer": Tokenizer(eos_token_id=None)}),
        ("bos_token_id", {"eos_token_id": 2, "bos_token_id": 3, "tokenizer": Tokenizer(bos_token_id=[1, 4])}),
        ("tokenizer", {"eos_token_id": 2, "tokenizer": "gpt2"}),
        ("tokenizer.eos_token_id", {"eos_token_id": 2, "tokenizer": Tokenizer(eos_token_id=torch.tensor([2, 3]))}),
        ("tokenizer.bos_token_id", {"bos_token_id": 1, "tokenizer": Tokenizer(bos_token_id=np.array([1, 3]))}),
        ("input_ids", {"eos_token_id": 9}),
        ("padding_mask", {"eos_token_id": 2, "padding_mask": torch.ones(1, 3)}),
        ("padding_mask", {"eos_token_id": 2, "padding_mask": torch.ones(1, 2, dtype=torch.bool)}),
        ("allow_unbroken", {"eos_token_id": 2, "allow_unbroken": "yes"}),
    ],
)
def test_what_cannot_be_right_is_named(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(EncodingError) as caught:
        document_ids_from_tokens(torch.tensor([[4, 2, 1]]), **arguments)
    assert caught.value.problems[0].field == field


def test_a_batch_of_one_document_a_row_is_taken_where_it_is_allowed() -> None:
    tokens = torch.tensor([[4, 5], [6, 7]])
    assert listed(document_ids_from_tokens(tokens, eos_token_id=2, allow_unbroken=True)) == [[1, 1], [1, 1]]
