"""THD lengths, the stream they describe, and batches that leave in that format."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.recurrent import segment_ids_from_offsets
from neatpack.adapters.thd import (
    check_thd_offsets,
    convert_batch_output,
    document_ids_from_thd_lengths,
    flatten_thd_lengths,
    packed_seq_params_kwargs,
    real_places,
    thd_flat,
    thd_lengths,
    transformer_engine_kwargs,
)
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.encodings import THDFlat, THDLengths, validate_thd_flat, validate_thd_lengths
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError, PackingError, Problem
from tests.adapters import oracle_thd
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import DTYPES, Rows, rows_of_ids, tensor
from tests.adapters.oracle_runs import canonical


def lengths_are_right(rows: Rows, found: THDLengths[Tensor]) -> bool:
    return (found.seq_lens.tolist(), found.seq_lens_padded.tolist()) == oracle_thd.thd_lengths(rows)


def flat_is_right(rows: Rows, found: THDFlat[Tensor]) -> bool:
    real, padded = oracle_thd.thd_flat(rows)
    return (
        (found.cu_seqlens.tolist(), found.cu_seqlens_padded.tolist()) == (real, padded)
        and found.max_seqlen == max(stop - start for start, stop in pairwise(padded))
        and (found.real_tokens, found.total_tokens) == (real[-1], len(rows) * len(rows[0]))
    )


def training_batch(rows: Rows, **entries: Any) -> TrainingBatch[Tensor]:
    ids = tensor(rows)
    batch: TrainingBatch[Tensor] = {
        "input_ids": ids,
        "labels": ids,
        "position_ids": torch.arange(ids.numel()).view(ids.shape),
        "padding_mask": ids == 0,
        "document_ids": ids,
    }
    return cast("TrainingBatch[Tensor]", {**batch, **entries})


@given(rows_of_ids(leading=False), st.sampled_from(DTYPES))
def test_lengths_and_the_way_back(rows: Rows, dtype: torch.dtype) -> None:
    found = thd_lengths(tensor(rows, dtype))
    assert lengths_are_right(rows, found)
    assert validate_thd_lengths(found) == []
    assert document_ids_from_thd_lengths(found, len(rows[0])).tolist() == canonical(rows)


@given(rows_of_ids(leading=False))
def test_the_stream_from_ids_and_from_lengths(rows: Rows) -> None:
    ids = tensor(rows)
    found = thd_flat(ids)
    assert flat_is_right(rows, found)
    assert flat_is_right(rows, flatten_thd_lengths(thd_lengths(ids), len(rows[0])))
    assert validate_thd_flat(found) == []
    assert found.pad_between_seqs == any(0 in row for row in rows)
    assert real_places(found).tolist() == [number != 0 for row in rows for number in row]


@given(rows_of_ids(leading=False), st.data())
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
    with pytest.raises(EncodingError, match="document 0 does not fit the 2 places"):
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
    assert "padding after the last document" in problem.remedy
    assert problem_of([[8, 1]], [[8, 1]]).value == 9


def test_lengths_that_contradict_each_other_are_refused() -> None:
    problem = problem_of([[8, -1000]], [[4, 4]])
    assert (problem.field, problem.row, problem.value) == ("seq_lens_padded", 0, (-1000, 4))
    problem = problem_of([[3, 5]], [[4, 4]])
    assert (problem.field, problem.row, problem.value) == ("seq_lens", 0, 5)
    assert "document 1" in problem.message
    assert problem_of([[8]], [[8]], 0).field == "sequence_length"


@pytest.mark.parametrize(
    ("rows", "message", "row", "position"),
    [([[1, 1, 1], [1, 0, 1]], "hole", 1, 1), ([[0, 1]], "before the first document", 0, 0)],
)
def test_ids_that_lengths_cannot_tell_are_refused(rows: Rows, message: str, row: int, position: int) -> None:
    for function in (thd_lengths, thd_flat):
        with pytest.raises(DocumentIdsError, match=message) as caught:
            function(tensor(rows))
        problem = caught.value.problems[0]
        assert (problem.field, problem.row, problem.position) == ("document_ids", row, position)


@given(rows_of_ids(leading=False, between=False, empty_rows=False))
def test_a_thd_batch_gains_its_lengths_and_loses_nothing(rows: Rows) -> None:
    batch = training_batch(rows)
    before = dict(batch)
    positions = batch["position_ids"].clone()
    assert convert_batch_output(batch, "batched") is batch
    assert dict(batch) == before
    assert convert_batch_output(batch, "thd") is batch
    assert lengths_are_right(rows, THDLengths(batch["seq_lens"], batch["seq_lens_padded"]))
    assert batch["qkv_format"] == "thd"
    assert set(batch) - set(before) == {"seq_lens", "seq_lens_padded", "qkv_format"}
    assert torch.equal(batch["position_ids"], positions)


def test_joined_documents_are_one_in_thd() -> None:
    rows = [[1, 1, 2, 0]]
    batch = convert_batch_output(training_batch(rows, attention_document_ids=tensor([[1, 1, 1, 0]])), "thd")
    assert (batch["seq_lens"].tolist(), batch["seq_lens_padded"].tolist()) == ([[3]], [[4]])


def test_padding_between_documents_only_where_it_was_asked_for() -> None:
    rows = [[1, 0, 2, 0]]
    with pytest.raises(DocumentIdsError, match="padding that tokens of its row follow") as caught:
        convert_batch_output(training_batch(rows), "thd")
    assert (caught.value.problems[0].field, caught.value.problems[0].position) == ("document_ids", 1)
    batch = convert_batch_output(training_batch(rows), "thd", padded_documents=True)
    assert batch["seq_lens_padded"].tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("batch", "error", "field", "row"),
    [
        (training_batch([[1], [0]]), DocumentIdsError, "document_ids", 1),
        (training_batch([[1, 2, 1]]), DocumentIdsError, "document_ids", 0),
        (training_batch([[1, 1, 1]], attention_document_ids=tensor([[1, 0, 1]])), DocumentIdsError, None, 0),
        (training_batch([[1, 1]], attention_document_ids=tensor([[1, 0]])), DocumentIdsError, None, 0),
        (training_batch([[1, 1]], attention_document_ids=tensor([[1]])), BatchError, None, None),
        (training_batch([[1, 1]], attention_document_ids=tensor([[1, 2]])), EncodingError, "document_ids", 0),
        (training_batch([[1, 1]], _packed_seq_ids=tensor([[1, 2]])), EncodingError, "document_ids", 0),
        (training_batch([[1, 0]], padding_mask=tensor([[1, 1]]) == 0), EncodingError, "padding_mask", 0),
        (training_batch([[1]], document_ids=None), BatchError, "attention_document_ids", None),
    ],
)
def test_batches_that_thd_cannot_tell_are_refused_unchanged(
    batch: TrainingBatch[Tensor], error: type[PackingError], field: str | None, row: int | None
) -> None:
    before = dict(batch)
    with pytest.raises(error) as caught:
        convert_batch_output(batch, "thd")
    assert (caught.value.problems[0].field, caught.value.problems[0].row) == (field or "attention_document_ids", row)
    assert dict(batch) == before


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(BatchError, match="'batched', 'thd'") as caught:
        convert_batch_output(training_batch([[1]]), "bshd")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.problems[0].value == "'bshd'"


def test_one_host_read_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1, 1, 2, 0], [1, 1, 1, 1]]
    ids = tensor(rows)
    lengths, flat = thd_lengths(ids), thd_flat(ids)
    calls = (
        lambda: thd_lengths(ids),
        lambda: thd_flat(ids),
        lambda: flatten_thd_lengths(lengths, 4),
        lambda: document_ids_from_thd_lengths(lengths, 4),
        lambda: real_places(flat),
        lambda: convert_batch_output(training_batch(rows, attention_document_ids=ids), "thd"),
    )
    for call in calls:
        with host_reads(monkeypatch) as reads:
            call()
        assert reads.total == 1


def cuts_agree(rows: Rows, cuts: list[int]) -> bool:
    """Whether each document is one segment, counted by tokens or by places, with padding of its own row at its end."""
    runs = [(row, id_, len(list(run))) for row, ids in enumerate(rows) for id_, run in groupby(ids)]
    if cuts == [0, *accumulate(length for _, id_, length in runs if id_)]:
        return True
    places = [(row, id_) for row, id_, length in runs for _ in range(length)]
    segments = [places[start:stop] for start, stop in pairwise(cuts)]
    pure = [[place for place in segment if place[1]] for segment in segments]
    whole = all(
        len({row for row, _ in segment}) == 1 and len(set(kept)) == 1 and segment[: len(kept)] == kept
        for segment, kept in zip(segments, pure, strict=True)
        if kept
    )
    found = [(*kept[0], len(kept)) for kept in pure if kept]
    return whole and cuts[:1] == [0] and found == [run for run in runs if run[1]]


@given(rows_of_ids(holes=False), st.data())
def test_offsets_of_thd_are_compared_with_the_ids(rows: Rows, data: st.DataObject) -> None:
    ids = tensor(rows)
    total = ids.numel()
    runs = [len(list(run)) for ids_of_row in rows for _, run in groupby(ids_of_row)]
    kept = [len(list(run)) for ids_of_row in rows for id_, run in groupby(ids_of_row) if id_]
    right = data.draw(st.sampled_from([[0, *accumulate(runs)], [0, *accumulate(kept)]]))
    changes = data.draw(st.sets(st.integers(0, total), max_size=2))
    cuts = sorted(set(right) ^ changes)
    fill = data.draw(st.lists(st.sampled_from([-1, -1000]), max_size=2))
    offsets = torch.tensor([*cuts, *fill], dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    if cuts_agree(rows, cuts):
        check_thd_offsets(ids, {"cu_seqlens": offsets})
    else:
        with pytest.raises(EncodingError, match=r"^other = .*cuts elsewhere"):
            check_thd_offsets(ids, {"other": offsets})


@pytest.mark.parametrize("cuts", [[0, 4, 2], [0, -1, 2, 4], [-1, 0, 2, 4], [2, 0, 4]])
def test_offsets_of_thd_rise_up_to_what_is_unused(cuts: list[int]) -> None:
    ids = torch.tensor([[1, 1, 2, 2]])
    check_thd_offsets(ids, {"cu_seqlens": torch.tensor([0, 2, 2, 4, -1, -1000])})
    with pytest.raises(EncodingError, match="cuts elsewhere"):
        check_thd_offsets(ids, {"cu_seqlens": torch.tensor(cuts)})


@given(rows_of_ids(holes=False, leading=False), st.data())
def test_offsets_that_are_paired_have_each_document_in_one_column(rows: Rows, data: st.DataObject) -> None:
    real, padded = oracle_thd.thd_flat(rows)
    ids, slots = tensor(rows), torch.tensor(padded)
    check_thd_offsets(ids, {"cu_seqlens_q": torch.tensor(real), "cu_seqlens_q_padded": slots})
    place = data.draw(st.integers(0, len(real) - 1))
    longer = torch.tensor([*real[: place + 1], *real[place:]])
    check_thd_offsets(ids, {"cu_seqlens_q": longer, "cu_seqlens_kv": longer})
    if real[place] == real[-1]:  # No document stands behind the empty one.
        check_thd_offsets(ids, {"cu_seqlens_q": longer, "cu_seqlens_q_padded": slots})
        return
    with pytest.raises(EncodingError, match=r"^cu_seqlens_q_padded = .*other columns than cu_seqlens_q\."):
        check_thd_offsets(ids, {"cu_seqlens_q": longer, "cu_seqlens_q_padded": slots})


@pytest.mark.parametrize("offsets", [torch.tensor([0.0, 2.0]), torch.zeros(2, 3, dtype=torch.int64), torch.tensor(3)])
def test_what_is_no_stream_of_offsets_is_refused(offsets: Tensor) -> None:
    with pytest.raises(EncodingError) as caught:
        check_thd_offsets(torch.tensor([[1, 1]]), {"cu_seqlens_q": offsets})
    assert caught.value.problems[0].field == "cu_seqlens_q"


@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 2, 3, 4], [0, 1, 2]])
def test_padding_counts_with_a_document_of_its_own_row(cuts: list[int]) -> None:
    check_thd_offsets(torch.tensor([[1, 0], [0, 1]]), {"cu_seqlens": torch.tensor(cuts)})


@pytest.mark.parametrize("cuts", [[0, 3, 4], [0, 2, 4], [0, 4], [0, 1, 4], [0, 2, 3], [0, 1, 2, 3]])
def test_padding_does_not_join_rows(cuts: list[int]) -> None:
    with pytest.raises(EncodingError, match="cuts elsewhere"):
        check_thd_offsets(torch.tensor([[1, 0], [0, 1]]), {"cu_seqlens": torch.tensor(cuts)})
