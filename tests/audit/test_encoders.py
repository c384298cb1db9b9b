"""Encoders: tokens see all of their own document, and nothing of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from neatpack.kernels_bridge.audit import witness
from neatpack.kernels_bridge.audit.documents import pack_documents
from neatpack.kernels_bridge.audit.inputs import layer_mask
from neatpack.kernels_bridge.audit.paths import PATHS
from neatpack.kernels_bridge.audit.report import ModelReport
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder, ModelType
from neatpack.kernels_bridge.audit.tiny_models import model_types
from neatpack.kernels_bridge.reference import varlen_attention
from tests.audit import models

CLEAN = ("clean", None)
DROPPED = ("leak", "kwargs_dropped")
ATTENTION = ("leak", "attention")
WINDOW_LOST = ("differs", "window")
OWN_POSITIONS = ("differs", "positions")

EXPECTED: dict[str, dict[str, tuple[str, str | None]]] = {
    # Positions are learned, so that a loader without any gives the wrong ones.
    "bert@encoder": {
        "varlen": CLEAN,
        "varlen_no_positions": ("differs", "positions"),
        "varlen_on_native": DROPPED,
        "mask_4d_float": CLEAN,
        "mask_4d_bool": ("leak", "attention"),
        "mask_4d_float_sdpa": CLEAN,
        "mask_4d_bool_sdpa": CLEAN,
        "mask_4d_per_layer": CLEAN,
        "positions": ("leak", "attention"),
        "positions_sdpa": ("leak", "attention"),
        "positions+mask_2d": ATTENTION,
        "mask_2d": ATTENTION,
        "per_document": CLEAN,
    },
    "modernbert@encoder": {
        "varlen": CLEAN,
        "varlen_no_positions": CLEAN,
        "mask_4d_float": WINDOW_LOST,
        "mask_4d_float_sdpa": WINDOW_LOST,
        "mask_4d_per_layer": CLEAN,
        "mask_2d": ATTENTION,
        "per_document": CLEAN,
    },
    # It counts its own positions from where the padding token stands, and not from 0.
    "roberta@encoder": {
        "varlen": OWN_POSITIONS,
        "varlen_no_positions": OWN_POSITIONS,
        "mask_4d_float": OWN_POSITIONS,
        "per_document": CLEAN,
        "configured": CLEAN,
    },
    "nystromformer@encoder": {"mask_4d_float": ("leak", "convolution"), "per_document": CLEAN, "configured": CLEAN},
    # It rounds rows up to whole windows, where its tokens are looked up too.
    "longformer@encoder": {"positions": ATTENTION, "per_document": CLEAN, "configured": CLEAN},
    # Windows of its own stand at each layer.
    "neomme@encoder": {"varlen": CLEAN, "mask_4d_float": ("differs", "mask"), "per_document": CLEAN},
    # It mixes by a Fourier transform over the row, which no mask reaches.
    "fnet@encoder": {"varlen": ("leak", "kernel_not_called"), "positions": ("leak", "mixing"), "per_document": CLEAN},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts(family: Callable[[str], ModelReport], name: str) -> None:
    found = {path: (report.verdict, report.kind) for path, report in family(name).paths.items()}
    assert {path: found[path] for path in EXPECTED[name]} == EXPECTED[name]


def test_paths_of_recurrent_layers_and_caches_are_not_tried(family: Callable[[str], ModelReport]) -> None:
    assert list(family("bert@encoder").paths) == [path.name for path in PATHS if path.of_encoders]
    assert len(family("bert@encoder").paths) == len(PATHS) - 4


def test_encoders_are_those_that_have_no_decoder_behind_them() -> None:
    names = model_types("encoder")
    assert {"bert@encoder", "roberta@encoder", "modernbert@encoder"} <= set(names)
    assert "bart@encoder" not in names


def test_every_token_of_a_document_sees_those_near_it(texts: list[bytes]) -> None:
    packed = replace(pack_documents(texts, 256, torch.device("cpu")), bidirectional=True)
    ids = packed.document_ids
    for window in (None, 1, 3):
        mask = layer_mask(packed, "sliding_attention", window, torch.bool)
        added = layer_mask(packed, "sliding_attention", window, torch.float32)
        assert torch.equal(added == 0, mask)
        for row, query, key in _places(ids):
            near = window is None or abs(query - key) <= window
            same = int(ids[row, query]) == int(ids[row, key]) > 0 and near
            assert bool(mask[row, 0, query, key]) == (same or query == key)


def _places(ids: Tensor) -> list[tuple[int, int, int]]:
    rows, places = range(ids.shape[0]), range(ids.shape[1])
    return [(row, query, key) for row in rows for query in places for key in places]


class _Encoder(models.Leaks):
    """A module of one's own in which every token sees all that the mask allows."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        states = self.embed(input_ids)[:, None]
        attend = torch.nn.functional.scaled_dot_product_attention
        return self.answer(attend(states, states, states, attention_mask)[:, 0])


def test_an_encoder_of_ones_own_is_known_by_what_it_answers_alone(texts: list[bytes]) -> None:
    report = audit_models([Builder("m", _Encoder)], texts).models[0]
    assert report.paths["mask_4d_bool"].verdict == "clean"
    assert "positions+cache" not in report.paths


def test_a_kernel_that_hides_later_tokens_is_found(monkeypatch: pytest.MonkeyPatch, texts: list[bytes]) -> None:
    def broken(*states: Tensor, causal: bool, **rest: object) -> Tensor:
        del causal
        return varlen_attention(*states, causal=True, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(witness, "varlen_attention", broken)
    assert (
        audit_models([ModelType("bert@encoder")], texts, paths=["varlen"]).models[0].paths["varlen"].verdict
        == "differs"
    )
