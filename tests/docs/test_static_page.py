"""The bounds that the page on fixed shapes gives suffice for every batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

import torch
from hypothesis import given
from torch import Tensor

from neatpack.adapters import StaticBounds, as_segments, static_gathered_flat, static_physical_offsets
from neatpack.adapters.strategies import document_ids
from tests.environments import REPOSITORY

FORMULAS = re.findall(r"^\| (.*) \| `(batch \* .*)` \|$", (REPOSITORY / "docs" / "static.md").read_text(), re.MULTILINE)


def sizes_of(ids: Tensor) -> Mapping[str, int]:
    documents = as_segments(ids).documents
    return {
        "batch": ids.shape[0],
        "sequence": ids.shape[1],
        "documents": max(int(documents.counts.max()), 1),
        "longest": max(documents.longest, 1),
    }


def broken_rules(ids: Tensor, formula: str) -> list[int]:
    """The rules that the streams break under the bounds that a formula gives."""
    sizes = sizes_of(ids)
    segments: int = eval(formula, {"ceil": ceil}, dict(sizes))  # noqa: S307
    bounds = StaticBounds(sizes["documents"], segments, sizes["longest"])
    if formula == "batch * documents":
        return [int(static_gathered_flat(ids, bounds)[1][0])]
    streams = (static_gathered_flat(ids, bounds, "padding"), static_physical_offsets(ids, bounds))
    return [int(status[0]) for _, status in streams]


def test_the_page_has_three_formulas() -> None:
    assert len(FORMULAS) == 3


@given(document_ids(padding="trailing"))
def test_they_suffice_where_padding_trails(ids: Tensor) -> None:
    assert not any(rule for _, formula in FORMULAS for rule in broken_rules(ids, formula))


@given(document_ids(padding="anywhere"))
def test_they_suffice_where_padding_is_anywhere(ids: Tensor) -> None:
    (anywhere,) = (formula for padding, formula in FORMULAS if padding == "anywhere")
    (left_out,) = (formula for padding, formula in FORMULAS if "left out" in padding)
    assert not any(broken_rules(ids, anywhere) + broken_rules(ids, left_out))


def test_without_room_for_padding_none_would() -> None:
    assert all(broken_rules(torch.tensor([[1, 0, 0]]), "batch * documents + 0"))
