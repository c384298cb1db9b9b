"""Rule 1: what document ids are, and that their width never changes a result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    build_packed_sequence_metadata,
    canonical_document_ids,
    document_ids_from_lengths,
    document_ids_from_positions,
    flash_varlen_kwargs,
    get_seqlens_in_batch,
    get_unpad_data,
    is_document_ids,
    parse_document_ids,
    physical_offsets_from_positions,
    scan_segments,
    validate_document_ids,
)
from neatpack.adapters.strategies import (
    IDS_FAULTS,
    INTEGER_DTYPES,
    IdsFault,
    attention_document_ids,
    document_ids,
    malformed_document_ids,
)
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of

_KINDS = {
    "bool": "dtype",
    "float": "dtype",
    "rank_1": "rank",
    "rank_3": "rank",
    "no_rows": "shape",
    "no_places": "shape",
    "meta": "device",
    "negative": "value",
    "returning": "value",
}


@holds_for(ids=attention_document_ids())
def test_the_scan_finds_the_documents(ids: Tensor) -> None:
    rows = rows_of(ids)
    expected = oracle.documents(rows)
    found = scan_segments(ids).documents
    assert found.rows.tolist() == [document.row for document in expected]
    assert found.ids.tolist() == [document.number for document in expected]
    assert found.lengths.tolist() == [len(document.places) for document in expected]
    starts = [document.row * len(rows[0]) + document.places[0] for document in expected]
    assert found.starts.tolist() == starts
    assert found.ends.tolist() == [document.row * len(rows[0]) + document.places[-1] + 1 for document in expected]
    assert found.counts.tolist() == [sum(document.row == row for document in expected) for row in range(len(rows))]


@holds_for(ids=attention_document_ids())
def test_canonical_numbers_go_up_in_row_order(ids: Tensor) -> None:
    found = parse_document_ids(ids)
    assert found.dtype == torch.int64
    assert listed(found) == oracle.canonical(rows_of(ids))
    assert torch.equal(canonical_document_ids(found), found)
    assert is_document_ids(ids)


@holds_for(rows=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=3))
def test_an_id_that_returns_is_named(rows: list[list[int]]) -> None:
    problems = validate_document_ids(torch.tensor(rows))
    expected = oracle.returning(rows)
    assert bool(problems) == (expected is not None)
    if expected is not None:
        row, place = expected
        assert (problems[0].row, problems[0].position) == expected
        assert problems[0].value == rows[row][place]
        before = max(other for other in range(place) if rows[row][other] == rows[row][place])
        assert f"position {before}" in problems[0].message


@holds_for(fault=st.sampled_from(IDS_FAULTS), data=st.data())
def test_malformed_ids_are_refused(fault: IdsFault, data: st.DataObject) -> None:
    ids = data.draw(malformed_document_ids(fault))
    before = None if ids.is_meta else ids.clone()
    for call in (scan_segments, get_seqlens_in_batch, get_unpad_data, flash_varlen_kwargs, parse_document_ids):
        if fault == "bool" and call in (get_seqlens_in_batch, get_unpad_data):
            continue
        with pytest.raises(DocumentIdsError) as caught:
            call(ids)
        problem = caught.value.problems[0]
        assert problem.kind == _KINDS[fault]
        assert problem.remedy
        assert problem.value is not None
        if fault in ("negative", "returning"):
            assert ids[problem.row or 0, problem.position or 0] == problem.value
    assert before is None or torch.equal(before, ids)


@holds_for(length=st.integers(1, 700), dtype=st.sampled_from(INTEGER_DTYPES), number=st.integers(1, 127))
def test_no_width_of_ids_changes_a_length(length: int, dtype: torch.dtype, number: int) -> None:
    ids = torch.full((2, length), number, dtype=dtype)
    assert listed(get_seqlens_in_batch(ids)) == [length, length]
    assert get_seqlens_in_batch(ids).dtype == torch.int64
    metadata = build_packed_sequence_metadata(ids)
    assert listed(metadata["cu_seqlens"]) == [[0, length]] * 2
    assert metadata["cu_seqlens"].dtype == torch.int32
    assert listed(flash_varlen_kwargs(ids)["cu_seq_lens_q"]) == [0, length, 2 * length]


@given(ids=document_ids(dtypes=(torch.int64,)), dtype=st.sampled_from(INTEGER_DTYPES))
def test_every_dtype_gives_the_same_table(ids: Tensor, dtype: torch.dtype) -> None:
    wide, narrow = scan_segments(ids), scan_segments(ids.to(dtype))
    assert wide.bounds.tolist() == narrow.bounds.tolist()
    assert wide.ids.tolist() == narrow.ids.tolist()


def test_a_total_past_int32_is_an_error_and_not_a_wrap() -> None:
    ids = torch.ones(1, 1, dtype=torch.int64).expand(65536, 32768)
    with pytest.raises(DocumentIdsError) as caught:
        scan_segments(ids)
    assert caught.value.problems[0].kind == "shape"
    assert caught.value.problems[0].value == (65536, 32768)


def test_the_first_negative_id_of_each_row_is_named_whatever_stands_before_it() -> None:
    problems = validate_document_ids(torch.tensor([[0, 1, 0, -4, -4, -7], [2, 2, 2, 2, 2, 0], [-1, 0, 1, 1, -1, 0]]))
    assert [(problem.row, problem.position, problem.value) for problem in problems] == [(0, 3, -4), (2, 0, -1)]


def test_an_id_past_int64_is_refused() -> None:
    ids = torch.tensor([[1, 2**63 + 5], [2**63 - 1, 3]], dtype=torch.uint64)
    (problem,) = validate_document_ids(ids)
    assert (problem.message, problem.row, problem.position, problem.value) == ("id past int64", 0, 1, 2**63 + 5)
    problems = validate_document_ids(torch.tensor([[1, 1], [2**63, 1], [2**64 - 1, 2**63]], dtype=torch.uint64))
    assert [(problem.row, problem.position, problem.value) for problem in problems] == [
        (1, 0, 2**63),
        (2, 0, 2**64 - 1),
    ]


@pytest.mark.parametrize("value", [None, [[1, 2]], "ids", 3])
def test_what_is_no_tensor_is_no_ids(value: object) -> None:
    assert not is_document_ids(value)
    assert validate_document_ids(value, field="mine")[0].field == "mine"


def test_sparse_ids_are_refused() -> None:
    with pytest.raises(DocumentIdsError, match="dense"):
        scan_segments(torch.tensor([[1, 0, 0]]).to_sparse())


def test_several_problems_are_told_together() -> None:
    with pytest.raises(DocumentIdsError) as caught:
        scan_segments(torch.zeros(3, dtype=torch.float32, device="meta"))
    assert [problem.kind for problem in caught.value.problems] == ["dtype", "rank", "device"]


def test_every_row_with_a_fault_is_named() -> None:
    problems = validate_document_ids(torch.tensor([[1, 2, 1], [1, 1, 1], [3, 4, 3]]))
    assert [problem.row for problem in problems] == [0, 2]
    problems = validate_document_ids(torch.tensor([[-1, 1, -2], [1, -3, 1]]))
    assert [(problem.row, problem.position, problem.value) for problem in problems] == [(0, 0, -1), (1, 1, -3)]


@holds_for(ids=document_ids(dtypes=(torch.int64,)), start=st.integers(0, 5))
def test_ids_come_back_from_positions_and_padding(ids: Tensor, start: int) -> None:
    rows = rows_of(ids)
    positions = torch.tensor(oracle.positions(rows, start))
    # Two documents of which the second goes on counting where the first ended look like one: there are none here,
    # as every document begins at `start`.
    assert listed(document_ids_from_positions(positions, ids == 0)) == oracle.canonical(rows)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([[5, 6, 7, 8]], [[1, 1, 1, 1]]),
        ([[2, 3, 4, 2, 3]], [[1, 1, 1, 2, 2]]),
        ([[0, 0, 0]], [[1, 2, 3]]),
        ([[3, 4, 0, 1, 2]], [[1, 1, 2, 2, 2]]),
        ([[0, 1, 2], [3, 4, 5]], [[1, 1, 1], [1, 1, 1]]),
    ],
)
def test_a_row_opens_a_document_whatever_its_position(positions: list[list[int]], expected: list[list[int]]) -> None:
    assert listed(document_ids_from_positions(torch.tensor(positions))) == expected


@pytest.mark.parametrize(
    ("positions", "mask", "kind"),
    [
        (torch.zeros(1, 3), None, "dtype"),
        (torch.zeros(3, dtype=torch.int64), None, "rank"),
        (torch.zeros(3, 1, 4, dtype=torch.int64), None, "rank"),
        (torch.zeros(1, 4, dtype=torch.int64, device="meta"), None, "device"),
        (torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64), "dtype"),
        (torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.bool), "shape"),
        ("positions", None, "type"),
    ],
)
def test_positions_that_tell_nothing_are_refused(positions: Tensor, mask: Tensor | None, kind: str) -> None:
    with pytest.raises(EncodingError) as caught:
        document_ids_from_positions(positions, mask)
    assert caught.value.problems[0].kind == kind


_COORDINATES = torch.tensor([[[0, 0, 0, 3, 0]], [[0, 1, 1, 3, 0]], [[0, 1, 2, 3, 0]]])  # An image amid its text.


@pytest.mark.parametrize("read", [document_ids_from_positions, physical_offsets_from_positions])
def test_positions_of_several_axes_are_refused_with_where_text_positions_are(read: Callable[[Tensor], object]) -> None:
    text = torch.tensor([[0, 1, 2, 3, 0]])
    with pytest.raises(EncodingError, match=r"the first of the four axes: position_ids\[0\]\.$"):
        read(torch.cat([text[None], _COORDINATES]))
    with pytest.raises(EncodingError, match=r"give text positions, or call document_ids_from_lengths\(\.\.\.\)\.$"):
        read(_COORDINATES)
    with pytest.raises(EncodingError, match=r"one row alone is \[1, sequence\]\.$"):
        read(text[0])
    read(text)


@pytest.mark.parametrize(("lengths", "sequence"), [([], 3), ([[1]], 0), ([[2, 0]], 3), ([[2, 2]], 3), ([[-1]], 3)])
def test_lengths_that_do_not_fit_are_refused(lengths: list[list[int]], sequence: int) -> None:
    with pytest.raises(EncodingError, match="length"):
        document_ids_from_lengths(lengths, sequence)
