"""Spans of documents are found again where the documents stand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import mark_spans, place_spans, take_places
from neatpack.adapters.strategies import document_ids
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of


@holds_for(ids=document_ids(), data=st.data())
def test_a_span_names_the_same_tokens_in_its_row(ids: Tensor, data: st.DataObject) -> None:
    documents = oracle.documents(rows_of(ids))
    spans: list[list[tuple[int, int]]] = []
    expected = [[False] * ids.shape[1] for _ in range(ids.shape[0])]
    named: list[tuple[int, list[int]]] = []
    for row, _, places in documents:
        cuts = data.draw(st.lists(st.integers(0, len(places)), max_size=4, unique=True).map(sorted))
        own = list(zip(cuts[::2], cuts[1::2], strict=False))
        spans.append(own)
        for start, stop in own:
            named.append((row, places[start:stop]))
            for place in places[start:stop]:
                expected[row][place] = True
    assert [(span.row, list(range(span.start, span.stop))) for span in place_spans(ids, spans)] == named
    assert listed(mark_spans(ids, spans)) == expected


@pytest.mark.parametrize(
    "spans",
    [None, 3, [[(0, 1)]], [[(0, 1)], None], [[(0, 3)], []], [[(1, 1)], []], [[(-1, 1)], []], [[(0, 1, 2)], []],
     [[(0, True)], []], [[0, 1], []], [[(0.0, 1)], []]],
)  # fmt: skip
def test_what_is_no_span_of_the_documents_is_refused(spans: Any) -> None:
    with pytest.raises(EncodingError) as caught:
        place_spans(torch.tensor([[1, 1, 2, 0]]), spans)
    assert caught.value.problems[0].field == "spans"


def test_places_in_a_document_with_a_hole_are_not_known() -> None:
    with pytest.raises(DocumentIdsError, match="hole"):
        mark_spans(torch.tensor([[1, 0, 1]]), [[(0, 1)]])


def test_marks_move_with_the_tokens() -> None:
    ids = torch.tensor([[1, 1, 2]])
    batch: Any = {"input_ids": ids, "labels": ids, "position_ids": ids, "padding_mask": ids == 0}
    batch["answers"] = mark_spans(ids, [[(1, 2)], [(0, 1)]])
    moved: Any = take_places(batch, torch.tensor([[2, -1, 1]]))
    assert listed(moved["answers"]) == [[True, False, True]]
