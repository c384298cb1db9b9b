"""What an attention function saw in a forward: whether that keeps the documents of the batch apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final, cast

import pytest
import torch
from torch import Tensor

from neatpack.kernels_bridge.audit.configured import kernel_calls
from neatpack.kernels_bridge.audit.documents import pack_ids
from neatpack.kernels_bridge.binding import Binding

IDS: Final = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]])
PACKED: Final = pack_ids(IDS, 64, torch.device("cpu"))
LEAST: Final = torch.finfo(torch.float32).min


def visible(window: int = 6) -> Tensor:
    """Say place by place who sees whom, padding itself alone: bool `[batch, 1, sequence, sequence]`."""
    pairs = [
        [[i == j or (a == b > 0 and 0 <= i - j < window) for j, b in enumerate(row)] for i, a in enumerate(row)]
        for row in ((1, 1, 1, 2, 2, 0), (1, 2, 2, 2, 2, 2))
    ]
    return torch.tensor(pairs)[:, None]


def changed(row: int, query: int, key: int, value: bool) -> Tensor:
    mask = visible()
    mask[row, 0, query, key] = value
    return mask


def additive(mask: Tensor, bias: float = 0.0) -> Tensor:
    return torch.where(mask, bias, LEAST)


SEEN: Final[dict[str, tuple[Tensor | None, bool]]] = {
    "as given": (visible(), True),
    "added to scores": (additive(visible()), True),
    "with biases": (additive(visible(), bias=1.0) - 0.5, True),
    "of each head": (visible().expand(-1, 4, -1, -1), True),
    "a key left out": (changed(1, 5, 2, False), True),
    "nothing": (None, False),
    "nothing visible": (torch.zeros_like(visible()), False),
    "one token sees nothing": (visible() & (torch.arange(6) != 3).view(6, 1), False),
    "all visible": (torch.ones_like(visible()), False),
    "all visible, added to scores": (torch.zeros(2, 1, 6, 6), False),
    "another document": (changed(0, 3, 2, True), False),
    "another document, added to scores": (additive(changed(0, 3, 2, True), bias=-3.0), False),
    "padding": (changed(0, 4, 5, True), False),
    "a later token": (changed(1, 2, 3, True), False),
    "causal over the row": (torch.ones(2, 1, 6, 6).tril().bool(), False),
    "of one row": (visible()[:1], False),
    "of other places": (visible()[..., :-1], False),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_mask_keeps_documents_apart_or_not(name: str) -> None:
    seen, right = SEEN[name]
    binding = cast("Binding", SimpleNamespace(calls=1, boundaries=seen, block_mask=None))
    calls = kernel_calls(binding, PACKED, {"full_attention": None})
    assert calls is not None
    assert calls.boundaries_seen is right


@pytest.mark.parametrize(("seen", "right"), [(visible(2), True), (visible(3), False), (visible(1), True)])
def test_a_mask_does_not_reach_over_the_window(seen: Tensor, right: bool) -> None:
    binding = cast("Binding", SimpleNamespace(calls=1, boundaries=seen, block_mask=None))
    calls = kernel_calls(binding, PACKED, {"sliding_attention": 2})
    assert calls is not None
    assert calls.boundaries_seen is right
