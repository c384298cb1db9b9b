"""What a batch under a contract says of padding, by what it brought."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neatpack.adapters import apply_packing_contract
from neatpack.contracts.capabilities import PackingCapabilities

_IDS = torch.tensor([[1, 0, 1, 2, 0, 0]])
_STRUCTURAL = torch.tensor([[1, 1, 1, 2, 2, 0]])
_MASK = torch.tensor([[False, False, False, False, True, True]])


@pytest.mark.parametrize(
    ("brought", "expected"),
    [
        ({"document_ids": _STRUCTURAL}, _STRUCTURAL == 0),
        ({"document_ids": _STRUCTURAL, "padding_mask": _STRUCTURAL == 0}, _STRUCTURAL == 0),
        ({"padding_mask": _MASK}, _MASK),
        ({}, _IDS == 0),
    ],
)
def test_padding_is_told_from_tokens_that_attention_leaves_out(brought: Any, expected: torch.Tensor) -> None:
    batch: Any = {"input_ids": _IDS + 9, "labels": _IDS + 9, "attention_document_ids": _IDS, **brought}
    found = apply_packing_contract(batch, PackingCapabilities("document_ids"))
    assert torch.equal(found["padding_mask"], expected)
