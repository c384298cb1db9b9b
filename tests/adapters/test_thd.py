"""THD lengths, and the stream they describe."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.kernel_arguments import packed_seq_params_kwargs, transformer_engine_kwargs
from neatpack.adapters.recurrent import segment_ids_from_offsets
from neatpack.adapters.thd import document_ids_from_thd_lengths, flatten_thd_lengths, real_places, thd_flat, thd_lengths
from neatpack.contracts.encodings import THDFlat, THDLengths, validate_thd_flat, validate_thd_lengths
from neatpack.contracts.errors import DocumentIdsError, EncodingError, Problem
from tests.adapters import oracle_thd
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import DTYPES, Rows, rows_of_ids, tensor
from tests.adapters.oracle_runs import canonical
from tests.adapters.properties import holds_for


def lengths_are_right(rows: Rows, found: THDLengths[Tensor]) -> bool:
    return (found.seq_lens.tolist(), found.seq_lens_padded.tolist()) == oracle_thd.thd_lengths(rows)


def flat_is_right(rows: Rows, found: THDFlat[Tensor]) -> bool:
    real, padded = oracle_thd.thd_flat(rows)
    return (
        (found.cu_seqlens.tolist(), found.cu_seqlens_padded.tolist()) == (real, padded)
        and found.max_seqlen == max(stop - start for start, stop in pairwise(padded))
        and (found.real_tokens, found.total_tokens) == (real[-1], len(rows) * len(rows[0]))
    )


@holds_for(rows=rows_of_ids(leading=False), dtype=st.sampled_from(DTYPES))
def test_lengths_and_the_way_back(rows: Rows, dtype: torch.dtype) -> None:
    found = thd_lengths(tensor(rows, dtype))
    assert lengths_are_right(rows, found)
    assert validate_thd_lengths(found) == []
    assert document_ids_from_thd_lengths(found, len(rows[0])).tolist() == canonical(rows)


@holds_for(rows=rows_of_ids(leading=False))
def test_the_stream_from_ids_and_from_lengths(rows: Rows) -> None:
    ids = tensor(rows)
    found = thd_flat(ids)
    assert flat_is_right(rows, found)
    assert flat_is_right(rows, flatten_thd_lengths(thd_lengths(ids), len(rows[0])))
    assert validate_thd_flat(found) == []
    assert found.pad_between_seqs == any(0 in row for row in rows)
    assert real_places(found).tolist() == [number != 0 for row in rows for number in row]


@holds_for(rows=rows_of_ids(leading=False), data=st.data())
def test_cut_along_rows_then_flattened(rows: Rows, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(first + 1, len(rows)))
    whole = thd_lengths(tensor(rows))
    part = THDLengths(whole.seq_lens[first:stop], whole.seq_lens_padded[first:stop])
    assert flat_is_right(rows[first:stop], flatten_thd_lengths(part, len(rows[0])))


@pytest.mark.parametrize(
    ("real", "padded"),
    [
        ([[3, 2], [8, -1000]], [[3, 2], [8, -1000]]),  # padding left out: the second row would move
        ([[4, 4], [8, -1000]], [[4, 4], [8, -1000]]),  # padding taken for tokens
        ([[3, 2], [8, 0]], [[4, 4], [8, 0]]),  # filled with 0
    ],
)
def test_the_oracle_sees_planted_faults(real: list[list[int]], padded: list[list[int]]) -> None:
    rows = [[1, 1, 1, 0, 2, 2, 0, 0], [1] * 8]
    assert lengths_are_right(rows, thd_lengths(tensor(rows)))
    assert not lengths_are_right(rows, THDLengths(torch.tensor(real), torch.tensor(padded)))
    flat = thd_flat(tensor(rows))
    assert not flat_is_right(rows, THDFlat(flat.cu_seqlens_padded, flat.cu_seqlens, 8, 13, 16))


def test_rows_of_padding_keep_the_rows_after_them_in_place() -> None:
    flat = thd_flat(tensor([[0, 0], [1, 0], [0, 0], [2, 2]]))
    assert flat.cu_seqlens.tolist() == [0, 0, 1, 1, 3]
    assert flat.cu_seqlens_padded.tolist() == [0, 2, 4, 6, 8]
    assert real_places(flat).tolist() == [False, False, True, False, False, False, True, True]


def test_kernels_get_both_offsets_and_python_ints() -> None:
    flat = thd_flat(tensor([[1, 1, 1, 0, 2, 2, 0, 0]]))
    kwargs = packed_seq_params_kwargs(flat)
    assert {name: value.tolist() if isinstance(value, Tensor) else value for name, value in kwargs.items()} == {
        "qkv_format": "thd",
        "cu_seqlens_q": [0, 3, 5],
        "cu_seqlens_kv": [0, 3, 5],
        "cu_seqlens_q_padded": [0, 4, 8],
        "cu_seqlens_kv_padded": [0, 4, 8],
        "max_seqlen_q": 4,
        "max_seqlen_kv": 4,
        "pad_between_seqs": True,
        "total_tokens": 8,
    }
    assert type(kwargs["max_seqlen_q"]) is int
    assert set(kwargs) - set(transformer_engine_kwargs(flat)) == {"total_tokens"}
    assert segment_ids_from_offsets(flat.cu_seqlens_padded, 8).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_stream_may_be_longer_than_its_slots() -> None:
    offsets = torch.tensor([0, 3, 8], dtype=torch.int32)
    flat = THDFlat(offsets, torch.tensor([0, 4, 12], dtype=torch.int32), 8, 8, 12)
    assert real_places(flat, 16).int().tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(EncodingError, match="last padded offset") as caught:
        real_places(flat, 11)
    assert caught.value.problems[0].value == 11
    with pytest.raises(EncodingError, match=r"^cu_seqlens = 3: document 0 does not fit the 2 places"):
        real_places(replace(flat, cu_seqlens_padded=torch.tensor([0, 2, 12], dtype=torch.int32)))


@pytest.mark.parametrize("field", ["cu_seqlens", "cu_seqlens_padded"])
@pytest.mark.parametrize("offsets", [[1, 3], [-1, 2], []])
def test_places_of_a_stream_are_counted_from_its_start(field: str, offsets: list[int]) -> None:
    right = thd_flat(torch.tensor([[1, 1, 0]]))
    wrong: Any = {field: torch.tensor(offsets, dtype=torch.int32)}
    with pytest.raises(EncodingError, match=field):
        real_places(replace(right, **wrong))


def problem_of(real: list[list[int]], padded: list[list[int]], sequence: int = 8) -> Problem:
    lengths = THDLengths(torch.tensor(real), torch.tensor(padded))
    with pytest.raises(EncodingError) as caught:
        document_ids_from_thd_lengths(lengths, sequence)
    with pytest.raises(EncodingError):
        flatten_thd_lengths(lengths, sequence)
    return caught.value.problems[0]


def test_lengths_that_do_not_cover_the_row_are_refused() -> None:
    problem = problem_of([[3, 2], [8, -1000]], [[4, 4], [7, -1000]][::-1])
    assert problem.field == "seq_lens_padded"
    problem = problem_of([[8, -1000], [3, 2]], [[8, -1000], [3, 2]])
    assert (problem.field, problem.row, problem.value) == ("seq_lens_padded", 1, 5)
    assert "each place of a row once" in problem.remedy
    assert problem_of([[8, 1]], [[8, 1]]).value == 9


def test_a_slot_past_int32_is_told() -> None:
    with pytest.raises(EncodingError, match=r"document 0 has a slot of 2147483648 places, past int32"):
        flatten_thd_lengths(THDLengths(torch.tensor([[1]]), torch.tensor([[2**31]])), 4)


def test_lengths_without_a_column_are_refused() -> None:
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    for read in (document_ids_from_thd_lengths, flatten_thd_lengths):
        with pytest.raises(EncodingError, match=r"seq_lens = \(2, 0\): has no column"):
            read(THDLengths(nothing, nothing), 4)


@pytest.mark.parametrize(
    ("real", "padded", "ids"),
    [([1, 0, 2], [1, 2, 2], [1, 0, 0, 2, 2]), ([0, 5], [0, 5], [1, 1, 1, 1, 1]), ([0], [5], [0, 0, 0, 0, 0])],
)
def test_a_slot_without_a_token_is_no_document(real: list[int], padded: list[int], ids: list[int]) -> None:
    lengths = THDLengths(torch.tensor([real]), torch.tensor([padded]))
    assert document_ids_from_thd_lengths(lengths, 5).tolist() == [ids]


def test_lengths_that_contradict_each_other_are_refused() -> None:
    problem = problem_of([[8, -1000]], [[4, 4]])
    assert (problem.field, problem.row, problem.value) == ("seq_lens_padded", 0, (-1000, 4))
    problem = problem_of([[3, 5]], [[4, 4]])
    assert (problem.field, problem.row, problem.value) == ("seq_lens", 0, 5)
    assert "document 1" in problem.message
    assert problem_of([[8]], [[8]], 0).field == "sequence_length"


@pytest.mark.parametrize(
    ("rows", "message", "row", "position"),
    [
        ([[1, 1, 1], [1, 0, 1]], "hole", 1, 1),
        ([[0, 1]], "before the first document", 0, 0),
        ([[0, 0], [0, 1], [0, 2]], "before the first document", 1, 0),
    ],
)
def test_ids_that_lengths_cannot_tell_are_refused(rows: Rows, message: str, row: int, position: int) -> None:
    for function in (thd_lengths, thd_flat):
        with pytest.raises(DocumentIdsError, match=message) as caught:
            function(tensor(rows))
        problem = caught.value.problems[0]
        assert (problem.field, problem.row, problem.position) == ("document_ids", row, position)


def test_one_host_read_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tensor([[1, 1, 2, 0], [1, 1, 1, 1]])
    lengths, flat = thd_lengths(ids), thd_flat(ids)
    calls = (
        lambda: thd_lengths(ids),
        lambda: thd_flat(ids),
        lambda: flatten_thd_lengths(lengths, 4),
        lambda: document_ids_from_thd_lengths(lengths, 4),
        lambda: real_places(flat),
    )
    for call in calls:
        with host_reads(monkeypatch) as reads:
            call()
        assert reads.total == 1
