"""Rules 3 to 6: rows never join, padding stays apart, holes are kept or refused, and ids come back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    PaddingSegments,
    build_packed_sequence_metadata,
    document_ids_from_flash_varlen,
    document_ids_from_lengths,
    document_ids_from_metadata,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    get_seqlens_in_batch,
    get_unpad_data,
    physical_offsets,
)
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.strategies import attention_document_ids, document_ids
from neatpack.contracts.encodings import FlashVarlenKwargs
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of

_WAYS = st.sampled_from(("split", "run"))


@holds_for(ids=attention_document_ids())
def test_gathered_rows_hold_kept_tokens_only(ids: Tensor) -> None:
    rows = rows_of(ids)
    metadata = build_packed_sequence_metadata(ids, allow_empty=True)
    indices, offsets = metadata["packed_token_indices"], metadata["cu_seqlens"]
    assert (indices.dtype, offsets.dtype) == (torch.int64, torch.int32)
    assert listed(indices) == [[place if number else -1 for place, number in enumerate(row)] for row in rows]
    expected = [oracle.row_offsets(rows, row) for row in range(len(rows))]
    width = max(map(len, expected))
    assert listed(offsets) == [row + [-1] * (width - len(row)) for row in expected]
    assert metadata["max_seqlen"] == max(oracle.lengths(rows), default=0)


@holds_for(ids=attention_document_ids())
def test_the_gathered_stream_holds_every_document_once(ids: Tensor) -> None:
    rows = rows_of(ids)
    counts = oracle.lengths(rows)
    assert listed(get_seqlens_in_batch(ids)) == counts
    flat = gathered_flat(ids)
    assert listed(flat.token_indices) == oracle.kept_places(rows)
    assert listed(flat.cu_seqlens) == oracle.running(counts)
    assert (flat.token_indices.dtype, flat.cu_seqlens.dtype) == (torch.int64, torch.int32)
    if counts:
        indices, offsets, longest = get_unpad_data(ids)
        assert torch.equal(indices, flat.token_indices)
        assert torch.equal(offsets, flat.cu_seqlens)
        assert longest == max(counts)


@holds_for(ids=attention_document_ids())
def test_flattening_rows_gives_the_stream(ids: Tensor) -> None:
    metadata = build_packed_sequence_metadata(ids, allow_empty=True)
    batch, sequence = ids.shape
    flat = gathered_flat(ids)
    once = flatten_packed_sequence_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"], batch, sequence)
    twice = flatten_packed_sequence_metadata(*once, batch, sequence)
    for indices, offsets in (once, twice):
        assert torch.equal(indices, flat.token_indices)
        assert torch.equal(offsets, flat.cu_seqlens)
        assert offsets.dtype == metadata["cu_seqlens"].dtype


@holds_for(ids=document_ids(), padding=_WAYS)
def test_physical_segments_cover_the_batch(ids: Tensor, padding: PaddingSegments) -> None:
    rows = rows_of(ids)
    longest = max(oracle.lengths(rows), default=1)
    segments = oracle.padded_segments(rows, longest if padding == "split" else None)
    kwargs = flash_varlen_kwargs(ids, padding)
    assert listed(kwargs["cu_seq_lens_q"]) == oracle.running(segments)
    assert kwargs["cu_seq_lens_q"].dtype == torch.int32
    assert torch.equal(kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"])
    assert kwargs["max_length_q"] == kwargs["max_length_k"] == (longest if padding == "split" else max(segments))
    assert type(kwargs["max_length_q"]) is int


@holds_for(ids=document_ids(), longest_padding=st.integers(1, 8))
def test_padding_is_cut_at_the_given_length_and_documents_are_not(ids: Tensor, longest_padding: int) -> None:
    segments = oracle.padded_segments(rows_of(ids), longest_padding)
    kwargs = flash_varlen_kwargs(ids, longest_padding=longest_padding)
    assert listed(kwargs["cu_seq_lens_q"]) == oracle.running(segments)
    assert kwargs["max_length_q"] == kwargs["max_length_k"] == max(segments)
    with pytest.raises(EncodingError, match="longest_padding"):
        flash_varlen_kwargs(ids, "run", longest_padding=longest_padding)


@holds_for(ids=document_ids(), padding=_WAYS)
def test_no_segment_joins_rows_or_documents_or_padding(ids: Tensor, padding: PaddingSegments) -> None:
    rows = rows_of(ids)
    owners = [(row, number) for row, numbers in enumerate(rows) for number in numbers]
    offsets: list[int] = listed(physical_offsets(ids, padding).cu_seqlens)
    for start, stop in pairwise(offsets):
        assert start < stop
        assert len(set(owners[start:stop])) == 1


@holds_for(ids=document_ids(padding="trailing"))
def test_the_work_of_padding_grows_linearly(ids: Tensor) -> None:
    rows = [[*row, *[0] * 300] for row in rows_of(ids)]
    kwargs = flash_varlen_kwargs(torch.tensor(rows))
    longest = max(oracle.lengths(rows), default=1)
    offsets: list[int] = listed(kwargs["cu_seq_lens_q"])
    assert kwargs["max_length_q"] == longest
    assert sum((b - a) ** 2 for a, b in pairwise(offsets)) <= longest * offsets[-1]


@holds_for(ids=attention_document_ids(), padding=_WAYS)
def test_holes_are_kept_where_gathered_and_refused_where_physical(ids: Tensor, padding: PaddingSegments) -> None:
    rows = rows_of(ids)
    holes = oracle.holes(rows)
    if not holes:
        flash_varlen_kwargs(ids, padding)
        return
    with pytest.raises(DocumentIdsError) as caught:
        flash_varlen_kwargs(ids, padding)
    problem = caught.value.problems[0]
    assert problem.kind == "unsupported"
    assert (problem.row, problem.position) == min(holes)
    assert len(oracle.documents(rows)) == get_seqlens_in_batch(ids).numel()


@holds_for(ids=attention_document_ids())
def test_ids_come_back_from_gathered_rows(ids: Tensor) -> None:
    metadata = build_packed_sequence_metadata(ids, allow_empty=True)
    found = document_ids_from_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"])
    assert listed(found) == oracle.canonical(rows_of(ids))


@holds_for(ids=document_ids(), padding=_WAYS)
def test_ids_come_back_from_physical_offsets_and_padding(ids: Tensor, padding: PaddingSegments) -> None:
    found = document_ids_from_flash_varlen(flash_varlen_kwargs(ids, padding), ids == 0)
    assert listed(found) == oracle.canonical(rows_of(ids))


@holds_for(
    ids=document_ids(), padding=_WAYS, name=st.sampled_from(["max_length_q", "max_length_k"]), change=st.integers(-2, 2)
)
def test_a_longest_below_a_segment_is_refused(ids: Tensor, padding: PaddingSegments, name: str, change: int) -> None:
    kwargs: Any = flash_varlen_kwargs(ids, padding)
    kwargs[name] = max(kwargs[name] + change, 0)
    longest = max(pair[1] - pair[0] for pair in pairwise(listed(kwargs["cu_seq_lens_q"])))
    if kwargs[name] >= longest:
        assert listed(document_ids_from_flash_varlen(kwargs, ids == 0)) == oracle.canonical(rows_of(ids))
        return
    with pytest.raises(EncodingError, match=f"{name} = {kwargs[name]}: must be at least {longest}"):
        document_ids_from_flash_varlen(kwargs, ids == 0)


@holds_for(ids=document_ids(), padding=_WAYS, data=st.data())
def test_a_segment_that_holds_tokens_and_padding_is_refused(
    ids: Tensor, padding: PaddingSegments, data: st.DataObject
) -> None:
    kwargs = flash_varlen_kwargs(ids, padding)
    segments = [pair for pair in pairwise(listed(kwargs["cu_seq_lens_q"])) if pair[1] - pair[0] > 1]
    assume(segments)
    start, stop = data.draw(st.sampled_from(segments))
    mask = (ids == 0).flatten()
    mask[data.draw(st.integers(start, stop - 1))] ^= True
    with pytest.raises(EncodingError, match="holds padding and tokens") as caught:
        document_ids_from_flash_varlen(kwargs, mask.view(ids.shape))
    problem = caught.value.problems[0]
    assert (problem.row, problem.position) == divmod(start, ids.shape[1])


@holds_for(ids=document_ids(padding="trailing"))
def test_ids_come_back_from_lengths(ids: Tensor) -> None:
    rows = rows_of(ids)
    lengths = [
        [len(document.places) for document in oracle.documents(rows) if document.row == row] for row in range(len(rows))
    ]
    assert listed(document_ids_from_lengths(lengths, len(rows[0]))) == oracle.canonical(rows)


@pytest.mark.parametrize("padding", ["cut", None, True])
def test_an_unknown_way_to_cut_padding_is_refused(padding: PaddingSegments) -> None:
    with pytest.raises(EncodingError, match="'split', 'run'"):
        flash_varlen_kwargs(torch.ones(1, 2, dtype=torch.int64), padding)


def test_padding_alone_is_cut_into_single_places() -> None:
    kwargs = flash_varlen_kwargs(torch.zeros(2, 2, dtype=torch.int64))
    assert listed(kwargs["cu_seq_lens_q"]) == [0, 1, 2, 3, 4]
    assert kwargs["max_length_q"] == 1


def _kwargs(offsets: list[int], other: list[int] | None = None) -> FlashVarlenKwargs[Tensor]:
    return {
        "cu_seq_lens_q": torch.tensor(offsets, dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor(offsets if other is None else other, dtype=torch.int32),
        "max_length_q": 4,
        "max_length_k": 4,
    }


@pytest.mark.parametrize(
    ("kwargs", "field"),
    [
        (_kwargs([0, 2, 4], [0, 3, 4]), "cu_seq_lens_k"),
        (_kwargs([0, 2, 4], [0, 4]), "cu_seq_lens_k"),
        (_kwargs([0, 4]), "cu_seq_lens_q"),
        (_kwargs([0, 3]), "cu_seq_lens_q"),
        (_kwargs([1, 4]), "cu_seq_lens_q"),
        (_kwargs([0, 3, 2, 4]), "cu_seq_lens_q"),
        (_kwargs([]), "cu_seq_lens_q"),
        (_kwargs([0, 1, 3, 4]), "cu_seq_lens_q"),
    ],
)
def test_offsets_from_which_no_ids_come_back_are_refused(kwargs: FlashVarlenKwargs[Tensor], field: str) -> None:
    with pytest.raises(EncodingError) as caught:
        document_ids_from_flash_varlen(kwargs, torch.tensor([[False, False], [False, True]]))
    assert caught.value.problems[0].field == field


@pytest.mark.parametrize("field", ["cu_seq_lens_q", "cu_seq_lens_k"])
@pytest.mark.parametrize(
    ("offsets", "kind"), [(torch.tensor([0, 2, 4]), "dtype"), (torch.tensor([[0, 2, 4]], dtype=torch.int32), "rank")]
)
def test_offsets_of_a_wrong_form_are_named(field: str, offsets: Tensor, kind: str) -> None:
    kwargs: Any = {**_kwargs([0, 2, 4]), field: offsets}
    with pytest.raises(EncodingError) as caught:
        document_ids_from_flash_varlen(kwargs, torch.zeros(2, 2, dtype=torch.bool))
    assert [(problem.field, problem.kind) for problem in caught.value.problems] == [(field, kind)]


def test_offsets_of_two_lengths_are_compared_by_shape() -> None:
    with pytest.raises(EncodingError) as caught:
        document_ids_from_flash_varlen(_kwargs([0, 2, 4], [0, 4]), torch.zeros(2, 2, dtype=torch.bool))
    assert (caught.value.problems[0].field, caught.value.problems[0].kind) == ("cu_seq_lens_k", "shape")


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (torch.zeros(2, 2), torch.float32),
        (torch.zeros(4, dtype=torch.bool), (4,)),
        (torch.zeros(0, 2, dtype=torch.bool), (0, 2)),
    ],
)
def test_ids_do_not_come_back_without_a_padding_mask(mask: Tensor, told: object) -> None:
    with pytest.raises(EncodingError) as caught:
        document_ids_from_flash_varlen(_kwargs([0, 4]), mask)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("padding_mask", told)


def _metadata(indices: list[list[int]], offsets: list[list[int]]) -> tuple[Tensor, Tensor]:
    return torch.tensor(indices), torch.tensor(offsets, dtype=torch.int32)


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([[0, 1, 3]], [[0, 3]], "ascend"),
        ([[1, 0, 2]], [[0, 3]], "ascend"),
        ([[0, 0, 2]], [[0, 3]], "ascend"),
        ([[0, 1, 2]], [[1, 3]], "start at zero"),
        ([[0, 1, 2]], [[-1, -1]], "start at zero"),
        ([[0, 1, 2]], [[0, -1, 3]], "after an unused"),
        ([[0, 1, 2]], [[0, 3, -1, 0]], "after an unused"),
        ([[0, 1, 2]], [[0, 2, 1, 3]], "never fall"),
        ([[0, 1, -1]], [[0, 3]], "number of kept tokens"),
        ([[0, 1], [0, -1]], [[0, 2], [0, 2]], "row 1"),
    ],
)
def test_metadata_that_does_not_fit_itself_is_refused(
    indices: list[list[int]], offsets: list[list[int]], message: str
) -> None:
    metadata = _metadata(indices, offsets)
    with pytest.raises(EncodingError, match=message):
        flatten_packed_sequence_metadata(*metadata, *metadata[0].shape)


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([0, 1, 4], [0, 3], "ascend"),
        ([-1, 1, 2], [0, 3], "ascend"),
        ([0, 2, 1], [0, 3], "ascend"),
        ([0, 0, 1], [0, 3], "ascend"),
        ([1, 2, 3], [0, 3], "next row"),
        ([0, 1, 2], [0, 2], "must start at zero"),
        ([0, 1, 2], [1, 3], "must start at zero"),
        ([0, 1, 2], [0, 2, 1, 3], "must start at zero"),
    ],
)
def test_flat_metadata_is_checked_against_the_batch(indices: list[int], offsets: list[int], message: str) -> None:
    with pytest.raises(EncodingError, match=message):
        flatten_packed_sequence_metadata(torch.tensor(indices), torch.tensor(offsets), 2, 2)


@pytest.mark.parametrize(
    ("indices", "offsets", "batch", "kind"),
    [
        (torch.zeros(1, 2), torch.zeros(1, 2), 1, "dtype"),
        (torch.zeros(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.int32), 1, "dtype"),
        (torch.zeros(1, 2, dtype=torch.int64, device="meta"), torch.zeros(1, 2, dtype=torch.int32), 1, "device"),
        (torch.zeros(1, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32), 1, "shape"),
        (torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int32), 2, "shape"),
        (torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.int32), 1, "shape"),
        (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 1, "shape"),
        ([[0, 1]], torch.zeros(1, 2, dtype=torch.int32), 1, "type"),
        (torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int32), 2**31, "shape"),
    ],
)
def test_metadata_of_another_batch_is_refused(indices: Tensor, offsets: Tensor, batch: int, kind: str) -> None:
    with pytest.raises(EncodingError) as caught:
        flatten_packed_sequence_metadata(indices, offsets, batch, 2)
    assert caught.value.problems[0].kind == kind
    assert caught.value.problems[0].value is not None


def test_empty_documents_in_metadata_are_kept_as_they_came_and_give_no_ids() -> None:
    indices, offsets = _metadata([[0, 1, 2]], [[0, 0, 2, 2, 3]])
    assert listed(flatten_packed_sequence_metadata(indices, offsets, 1, 3)[1]) == [0, 0, 2, 2, 3]
    assert listed(document_ids_from_metadata(indices, offsets)) == [[1, 1, 2]]
