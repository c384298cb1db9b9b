"""Why documents answer otherwise than alone: each cause is proved by another question, and none is guessed."""

from __future__ import annotations

from typing import TypeAlias

import pytest
import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.causes import Questions
from neatpack.kernels_bridge.audit.documents import PackedDocuments, pack_documents
from neatpack.kernels_bridge.audit.inputs import path_arguments
from neatpack.kernels_bridge.audit.paths import PATHS, PathName
from neatpack.kernels_bridge.audit.subject import Answer, Subject

Mask: TypeAlias = Tensor | dict[str, Tensor] | None


class Attends(nn.Module):
    """One causal layer with learned positions. By itself it counts and hides in its own way."""

    def __init__(self, first: int = 0, window: int | None = None, hides_first: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(256, 8, generator=generator))
        self.places = nn.Parameter(torch.randn(64, 8, generator=generator))
        self.first, self.window, self.hides_first = first, window, hides_first

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, attention_mask: Mask = None) -> Tensor:
        length = input_ids.shape[1]
        places = torch.arange(length)
        positions = (places + self.first)[None] if position_ids is None else position_ids
        states = self.table[input_ids] + self.places[positions]
        mask = attention_mask["sliding_attention"] if isinstance(attention_mask, dict) else attention_mask
        scores = states @ states.transpose(1, 2) + (self.own_mask(places) if mask is None else mask)[:, 0]
        mixed: Tensor = scores.softmax(-1) @ states
        return mixed

    def own_mask(self, places: Tensor) -> Tensor:
        distance = places[:, None] - places
        hidden = distance < 0
        if self.window is not None:
            hidden |= distance >= self.window
        if self.hides_first:
            hidden |= (places == 0) & (distance > 0)
        return torch.zeros(hidden.shape).masked_fill(hidden, -1e9)[None, None]


@pytest.fixture
def packed(texts: list[bytes]) -> PackedDocuments:
    return pack_documents(texts, 256, torch.device("cpu"))


def _kind(model: nn.Module, name: PathName, packed: PackedDocuments, window: int | None = None) -> str | None:
    path = next(path for path in PATHS if path.name == name)
    windows: dict[str, int | None] = {"full_attention": None}
    if window is not None:
        windows["sliding_attention"] = window
    questions = Questions(path, Subject(model), packed, windows, noise=1e-5)
    alone = Subject(model).alone(packed)
    answer = Subject(model).packed(packed, path_arguments(path, packed, windows))
    found = questions.cause(answer, alone)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("model", "path", "window", "kind"),
    [
        (Attends(first=3), "mask_4d_float", None, "positions"),
        (Attends(window=4), "mask_4d_float", 4, "window"),
        # The window that its config names is not the one it keeps.
        (Attends(window=3), "mask_4d_float", 4, "mask"),
        (Attends(hides_first=True), "mask_4d_float", None, "mask"),
    ],
)
def test_a_cause_is_named(
    packed: PackedDocuments, model: nn.Module, path: PathName, window: int | None, kind: str
) -> None:
    assert _kind(model, path, packed, window) == kind


def test_positions_that_are_missing_are_the_cause_where_they_mend_it(packed: PackedDocuments) -> None:
    class KnowsDocuments(Attends):
        """It keeps documents apart by itself, so that only their positions can be wrong."""

        def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, attention_mask: Mask = None) -> Tensor:
            del attention_mask
            ids = packed.document_ids if input_ids.shape == packed.document_ids.shape else torch.ones_like(input_ids)
            places = torch.arange(ids.shape[1])
            hidden = (ids[:, :, None] != ids[:, None]) | (places[:, None] < places)
            mask = torch.zeros(hidden.shape).masked_fill(hidden, -1e9)[:, None]
            return super().forward(input_ids, position_ids, mask)

    assert _kind(KnowsDocuments(), "varlen_no_positions", packed) == "positions"


class ScaledByRow(Attends):
    """Its positions are squeezed by the longest of a call, as those of dynamic RoPE are."""

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, attention_mask: Mask = None) -> Tensor:
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        return super().forward(input_ids, places * 2 // (2 + int(places.max()) // 6), attention_mask)


def test_what_is_scaled_by_the_longest_row_is_named(packed: PackedDocuments) -> None:
    assert _kind(ScaledByRow(), "mask_4d_float", packed) == "length"
    assert _kind(Attends(), "mask_4d_float", packed) != "length"
    assert _kind(Attends(window=4), "mask_4d_float", packed, 4) == "window"


def test_what_no_question_accounts_for_is_not_explained(packed: PackedDocuments) -> None:
    class CountsRows(Attends):
        """What it answers depends on how many rows it is given."""

        def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, attention_mask: Mask = None) -> Tensor:
            return super().forward(input_ids, position_ids, attention_mask) * len(input_ids)

    assert _kind(CountsRows(), "mask_4d_float", packed) is None
    assert _kind(CountsRows(first=3), "mask_4d_float", packed) is None


def test_a_model_that_cannot_be_asked_so_is_not_explained(packed: PackedDocuments) -> None:
    class TakesNoPositions(Attends):
        def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, attention_mask: Mask = None) -> Tensor:
            if position_ids is not None and len(input_ids) == 1:
                raise ValueError("no")
            return super().forward(input_ids, position_ids, attention_mask)

    assert _kind(TakesNoPositions(first=3), "mask_4d_float", packed) is None


def test_a_document_left_out_is_compared_with_nothing(packed: PackedDocuments) -> None:
    path = next(path for path in PATHS if path.name == "mask_4d_float")
    model = Subject(Attends(first=3))
    answer = model.packed(packed, path_arguments(path, packed, {"full_attention": None}))
    alone = model.alone(packed)
    fewer = Answer((alone.logits[0][:0], *alone.logits[1:]), alone.pieces)
    found = Questions(path, model, packed, {"full_attention": None}, noise=1e-5).cause(answer, fewer)
    assert found is not None
    assert found[0] == "positions"
