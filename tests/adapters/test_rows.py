"""Offsets and lengths row by row: what they are, the way back, and what is refused."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

from neatpack.adapters.arguments import require_places
from neatpack.adapters.length_matrix import document_ids_from_length_matrix, length_matrix
from neatpack.adapters.physical_rows import document_ids_from_row_offsets, row_offsets
from neatpack.contracts.encodings import LengthMatrix, PhysicalRows, validate_length_matrix, validate_physical_rows
from neatpack.contracts.errors import DocumentIdsError, EncodingError, Problem
from tests.adapters import oracle_rows
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import DTYPES, Rows, rows_of_ids, tensor
from tests.adapters.oracle_runs import canonical
from tests.adapters.properties import holds_for

PADDINGS = st.sampled_from(["split", "run"])


def offsets_are_right(rows: Rows, padding: str, found: PhysicalRows[torch.Tensor]) -> bool:
    expected, longest = oracle_rows.row_offsets(rows, padding == "split")
    return found.cu_seqlens.tolist() == expected and found.max_seqlen.tolist() == longest


@holds_for(rows=rows_of_ids(), padding=PADDINGS, dtype=st.sampled_from(DTYPES))
def test_row_offsets(rows: Rows, padding: str, dtype: torch.dtype) -> None:
    found = row_offsets(tensor(rows, dtype), padding)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert offsets_are_right(rows, padding, found)
    assert validate_physical_rows(found) == []


@pytest.mark.parametrize(
    "offsets",
    [
        [[0, 2, 3, 3], [0, 4, 4, 4]],  # the padding is left out
        [[0, 2, 3, 4], [0, 4, -1, -1]],  # filled as gathered offsets are
        [[0, 3, 4, 4], [0, 4, 4, 4]],  # two documents joined
        [[0, 2, 3, 4], [4, 8, 8, 8]],  # counted from the first row
    ],
)
def test_the_oracle_sees_planted_faults(offsets: list[list[int]]) -> None:
    rows = [[1, 1, 2, 0], [1, 1, 1, 1]]
    right = row_offsets(tensor(rows))
    assert offsets_are_right(rows, "split", right)
    assert not offsets_are_right(rows, "split", PhysicalRows(torch.tensor(offsets), right.max_seqlen))


@holds_for(rows=rows_of_ids(), padding=PADDINGS)
def test_ids_come_back_from_row_offsets(rows: Rows, padding: str) -> None:
    ids = tensor(rows)
    found = row_offsets(ids, padding)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert document_ids_from_row_offsets(found, ids == 0).tolist() == canonical(rows)


@holds_for(rows=rows_of_ids(leading=False, empty_rows=False))
def test_ids_come_back_where_padding_is_folded_into_the_document_before_it(rows: Rows) -> None:
    ids = tensor(rows)
    starts = [
        [place for place in range(len(row)) if row[place] and (place == 0 or row[place] not in row[:place])]
        for row in rows
    ]
    width = len(rows[0])
    folded = torch.tensor([own + [width] * (width + 1 - len(own)) for own in starts], dtype=torch.int32)
    longest = torch.tensor([max(row.count(number) for number in row if number) for row in rows], dtype=torch.int32)
    assert document_ids_from_row_offsets(PhysicalRows(folded, longest), ids == 0).tolist() == canonical(rows)
    for row in range(len(rows)):
        below = longest - (torch.arange(len(rows)) == row).int()
        with pytest.raises(EncodingError, match=rf"max_seqlen\[row {row}\] = {below[row]}: must be at least"):
            document_ids_from_row_offsets(PhysicalRows(folded, below), ids == 0)


@holds_for(rows=rows_of_ids(), data=st.data())
def test_cut_along_rows_then_derived_is_derived_then_cut(rows: Rows, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(first + 1, len(rows)))
    whole, part = row_offsets(tensor(rows), "run"), row_offsets(tensor(rows[first:stop]), "run")
    width = part.cu_seqlens.shape[1]
    assert torch.equal(whole.cu_seqlens[first:stop, :width], part.cu_seqlens)
    assert (whole.cu_seqlens[first:stop, width:] == len(rows[0])).all()
    assert torch.equal(whole.max_seqlen[first:stop], part.max_seqlen)


def test_megatron_takes_a_fixed_width() -> None:
    ids = tensor([[1, 1, 2, 0]])
    assert row_offsets(ids, width=5).cu_seqlens.tolist() == [[0, 2, 3, 4, 4]]
    assert row_offsets(ids, width=4).cu_seqlens.tolist() == [[0, 2, 3, 4]]
    with pytest.raises(EncodingError) as caught:
        row_offsets(ids, width=3)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("width", 3)


@holds_for(rows=rows_of_ids(leading=False, between=False))
def test_length_matrix_and_back(rows: Rows) -> None:
    matrix = length_matrix(tensor(rows))
    assert matrix.lengths.tolist() == oracle_rows.length_matrix(rows)
    assert validate_length_matrix(matrix) == []
    assert document_ids_from_length_matrix(matrix, len(rows[0])).tolist() == canonical(rows)


def test_lengths_of_no_token_number_no_document() -> None:
    lengths = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    assert document_ids_from_length_matrix(LengthMatrix(lengths), 4).tolist() == [[1, 1, 2, 0]]


@pytest.mark.parametrize(
    ("rows", "row", "position"),
    [([[1, 1], [0, 1]], 1, 0), ([[1, 0, 2], [0, 1, 1]], 0, 1), ([[1, 0, 1]], 0, 1)],
)
def test_lengths_refuse_what_they_cannot_tell(rows: Rows, row: int, position: int) -> None:
    with pytest.raises(DocumentIdsError) as caught:
        length_matrix(tensor(rows))
    problem = caught.value.problems[0]
    assert (problem.field, problem.row, problem.position, problem.value) == ("document_ids", row, position, 0)
    assert problem.remedy


def test_offsets_refuse_holes() -> None:
    with pytest.raises(DocumentIdsError, match="hole") as caught:
        row_offsets(tensor([[1, 1, 1], [1, 0, 1]]))
    assert (caught.value.problems[0].row, caught.value.problems[0].position) == (1, 1)


def test_offsets_refuse_an_unknown_padding() -> None:
    with pytest.raises(EncodingError, match=r"no such choice\. Give one of 'split', 'run'"):
        row_offsets(tensor([[1]]), "fold")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def problem_of(lengths: list[list[int]], sequence: int) -> Problem:
    with pytest.raises(EncodingError) as caught:
        document_ids_from_length_matrix(LengthMatrix(torch.tensor(lengths, dtype=torch.int32)), sequence)
    return caught.value.problems[0]


def test_bad_lengths_are_refused() -> None:
    problem = problem_of([[1, 1], [4, -1]], 4)
    assert (problem.field, problem.row, problem.value) == ("lengths", 1, -1)
    problem = problem_of([[1, 1], [4, 1]], 4)
    assert (problem.field, problem.row, problem.value) == ("lengths", 1, 5)
    assert "Nothing is truncated" in problem.remedy
    assert problem_of([[1, 1]], 0).field == "sequence_length"


@pytest.mark.parametrize(
    ("offsets", "mask", "field", "row"),
    [
        ([[0, 2, 3]], [[False] * 4], "cu_seqlens", 0),
        ([[0, 4], [1, 4]], [[False] * 4] * 2, "cu_seqlens", 1),
        ([[0, 3, 2, 4]], [[False] * 4], "cu_seqlens", 0),
        ([[0, 4, 8]], [[False] * 4], "cu_seqlens", 0),
        ([[0]], [[False] * 4], "cu_seqlens", 0),
        ([[0, 4]], [[False] * 4] * 2, "padding_mask", None),
        ([[0, 4]], [[False, True, False, False]], "cu_seqlens", 0),
    ],
)
def test_bad_offsets_are_refused(offsets: list[list[int]], mask: list[list[bool]], field: str, row: int | None) -> None:
    rows = PhysicalRows(torch.tensor(offsets, dtype=torch.int32), torch.zeros(len(offsets), dtype=torch.int32))
    with pytest.raises(EncodingError) as caught:
        document_ids_from_row_offsets(rows, torch.tensor(mask))
    assert (caught.value.problems[0].field, caught.value.problems[0].row) == (field, row)


def test_a_mask_that_is_no_mask_is_refused() -> None:
    rows = row_offsets(tensor([[1, 1]]))
    with pytest.raises(EncodingError, match="must be a bool tensor") as caught:
        document_ids_from_row_offsets(rows, torch.zeros(1, 2, dtype=torch.int64))
    assert caught.value.problems[0].value == torch.int64


def test_one_host_read_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tensor([[1, 1, 2, 0], [1, 1, 1, 1]])
    with host_reads(monkeypatch) as reads:
        rows = row_offsets(ids)
    assert reads.total == 1
    with host_reads(monkeypatch) as reads:
        document_ids_from_row_offsets(rows, ids == 0)
    assert reads.total == 1
    with host_reads(monkeypatch) as reads:
        matrix = length_matrix(ids)
    assert reads.total == 1
    with host_reads(monkeypatch) as reads:
        document_ids_from_length_matrix(matrix, 4)
    assert reads.total == 1


def test_places_are_as_many_as_int32_can_count() -> None:
    require_places(1, 2**31 - 1)
    for batch, sequence in ((2, 2**30), (2**31, 1), (0, 4)):
        with pytest.raises(EncodingError, match="1 to 2147483647 places") as caught:
            require_places(batch, sequence)
        assert caught.value.problems[0].value == (batch, sequence)


def test_a_mask_of_other_rows_is_refused() -> None:
    offsets = row_offsets(torch.tensor([[1, 1], [1, 2]]))
    for mask in (torch.zeros(1, 2, dtype=torch.bool), torch.zeros(2, 0, dtype=torch.bool)):
        with pytest.raises(EncodingError, match="must have the 2 rows"):
            document_ids_from_row_offsets(offsets, mask)


@pytest.mark.parametrize("columns", [0, 1])
def test_offsets_without_a_segment_are_refused(columns: int) -> None:
    nothing = torch.zeros(2, columns, dtype=torch.int32)
    rows = PhysicalRows(nothing, torch.zeros(2, dtype=torch.int32))
    with pytest.raises(EncodingError, match=r"cu_seqlens\[row 0, position 0\].*: must start at zero"):
        document_ids_from_row_offsets(rows, torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("offsets", "position", "value"),
    [([0, 3, 1, 4], 2, 1), ([1, 3, 3, 4], 0, 1), ([0, 2, 3, 3], 3, 3), ([0, 5, 5, 4], 3, 4)],
)
def test_the_offset_that_is_wrong_is_named(offsets: list[int], position: int, value: int) -> None:
    rows = PhysicalRows(
        torch.tensor([[0, 4, 4, 4], offsets], dtype=torch.int32), torch.full((2,), 4, dtype=torch.int32)
    )
    with pytest.raises(EncodingError) as caught:
        document_ids_from_row_offsets(rows, torch.zeros(2, 4, dtype=torch.bool))
    problem = caught.value.problems[0]
    assert (problem.row, problem.position, problem.value) == (1, position, value)


def test_a_token_behind_padding_in_one_segment_is_told_by_its_place() -> None:
    offsets = row_offsets(torch.tensor([[1, 1, 1], [1, 1, 1]]))
    with pytest.raises(EncodingError, match="a token follows padding") as caught:
        document_ids_from_row_offsets(offsets, torch.tensor([[False] * 3, [False, True, False]]))
    assert (caught.value.problems[0].row, caught.value.problems[0].position) == (1, 2)
