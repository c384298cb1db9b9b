"""Where documents first meet is found whatever modules return: lists, parts within parts, tokens before rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.documents import Place
from neatpack.kernels_bridge.audit.origin import find_origin

SEQUENCE = 5
TARGET = Place(row=1, start=2, stop=5)


class Attention(nn.Module):
    """It carries the first token of a row to all others."""

    def __init__(self, form: Callable[[Tensor], object], rows: int) -> None:
        super().__init__()
        self.form, self.rows = form, rows

    def forward(self, states: Tensor) -> object:
        return self.form(states + states.select(1 - self.rows, 0).unsqueeze(1 - self.rows))


class Whole(nn.Module):
    """It gives tokens to attention with rows as the axis `rows`."""

    def __init__(self, form: Callable[[Tensor], object], rows: int = 0) -> None:
        super().__init__()
        self.rows = rows
        self.attention = Attention(form, rows)

    def forward(self, states: Tensor) -> object:
        found: object = self.attention(states if self.rows == 0 else states.transpose(0, 1))
        return found


@pytest.mark.parametrize(
    "model",
    [
        Whole(lambda states: states),
        Whole(lambda states: [states]),
        Whole(lambda states: (states[..., :1] * 0, [(states, None)])),
        Whole(lambda states: states, rows=1),
    ],
)
def test_the_innermost_module_is_found(model: nn.Module) -> None:
    before = torch.randn(2, SEQUENCE, 3, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    after[1, :2] += 1
    origin = find_origin(model, lambda: model(before), lambda: model(after), TARGET, SEQUENCE)
    assert (origin.module, origin.kind, origin.moved) == ("attention", "attention", (0, 1, 2))


def test_documents_that_do_not_meet_have_no_origin_within() -> None:
    model = Whole(lambda states: [states])
    before = torch.randn(2, SEQUENCE, 3, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    after[0] += 1
    assert find_origin(model, lambda: model(before), lambda: model(after), TARGET, SEQUENCE).module == ""
