"""What other implementations of this mathematics have got wrong, each with the wrong result and the right one.

Found by running NeMo AutoModel 0.7.0. Those of models and their hooks are in `tests/kernels_bridge`, those of whole
graphs without a host read in `test_static.py`; here are those of batches:

| fault | wrong there |
|---|---|
| order and repeats of ids unchecked | encodings of one batch disagree, and a document that returns leaks |
| flat offsets cut by a pipeline schedule | a microbatch gets offsets of other rows |
| a microbatch of padding alone | it builds, and raises after the cut |
| metadata not compared with the tokens | that of another batch is accepted, an index reads the next row |
| lengths in the dtype of the ids | a document of 256 tokens vanishes in uint8 |
| work and memory by the greatest id | one id of 20008 makes a batch take 4 seconds |
| a read from the device for each row and document | 162 for a batch of 32 rows |
| declarations unchecked | a misspelt mask type is accepted |
| padding attended as one long document | 16 tokens in a row of 8192 set a maximum of 8176 |
| negative ids | they are tokens in one encoding and none in another |
| a default contract recognised by identity | an equal contract is overridden by a name |
| keys of a batch by its data | a batch of one document per row has other entries than the next |
| rows that do not divide among chunks | one is dropped |
| lengths that do not cover the row | the rows after it shift |
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from neatpack.adapters import (
    apply_packing_contract,
    build_packed_sequence_metadata,
    document_lengths,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    flatten_thd_lengths,
    get_seqlens_in_batch,
    get_unpad_data,
    pipeline_chunk_dims,
    resolve_packing_contract,
    split_rows,
    thd_lengths,
)
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.encodings import THDLengths
from neatpack.contracts.errors import BatchError, CapabilitiesError, DocumentIdsError, EncodingError
from tests.adapters.batches import training_batch
from tests.adapters.host_reads import host_reads
from tests.adapters.properties import listed


def test_every_encoding_has_the_boundaries_of_descending_ids() -> None:
    ids = torch.tensor([[2, 2, 2, 1]])
    # Counting by number, the lengths came in the order of the ids: [0, 1, 4].
    assert listed(get_unpad_data(ids)[1]) == [0, 3, 4]
    assert listed(build_packed_sequence_metadata(ids)["cu_seqlens"]) == [[0, 3, 4]]
    assert listed(flash_varlen_kwargs(ids)["cu_seq_lens_q"]) == [0, 3, 4]
    assert listed(get_seqlens_in_batch(ids)) == [3, 1]


def test_a_document_that_returns_is_refused_and_not_joined_with_what_stands_between() -> None:
    for function in (get_unpad_data, build_packed_sequence_metadata, flash_varlen_kwargs, get_seqlens_in_batch):
        with pytest.raises(DocumentIdsError, match=r"row 0, position 2\] = 1: id comes back"):
            function(torch.tensor([[1, 2, 1]]))


def test_flat_offsets_are_derived_again_for_each_microbatch() -> None:
    ids = torch.tensor([[1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]])
    batch = apply_packing_contract(training_batch(ids), PackingCapabilities("flash_varlen"), flat=True)
    last = cast("dict[str, Any]", split_rows(batch, 3)[2])
    # A cut of dimension 0 gave a part of [0, 3, 6, 9, 11, 12, 13, 16, 18].
    assert listed(last["cu_seq_lens_q"]) == [0, 1, 4, 6]
    with pytest.raises(BatchError, match="does not survive a cut"):
        pipeline_chunk_dims(batch)


def test_a_microbatch_of_padding_alone_is_no_token_after_the_cut() -> None:
    metadata = build_packed_sequence_metadata(torch.tensor([[1, 1, 2], [0, 0, 0]]))
    indices, offsets = flatten_packed_sequence_metadata(
        metadata["packed_token_indices"][1:], metadata["cu_seqlens"][1:], batch_size=1, sequence_length=3
    )
    assert (listed(indices), listed(offsets)) == ([], [0])


def test_metadata_of_another_batch_is_refused() -> None:
    metadata = build_packed_sequence_metadata(torch.tensor([[1, 1, 2, 2]]))
    with pytest.raises(EncodingError, match="packed_token_indices"):
        flatten_packed_sequence_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"], 2, 8)


def test_an_index_does_not_reach_the_next_row() -> None:
    for indices, offsets in (([[0, 3], [0, 1]], [[0, 2], [0, 2]]), ([0, 1, 2, 5], [0, 2, 4])):
        with pytest.raises(EncodingError, match="packed_token_indices"):
            flatten_packed_sequence_metadata(torch.tensor(indices), torch.tensor(offsets), 2, 2)


@pytest.mark.parametrize(("dtype", "tokens"), [(torch.uint8, 256), (torch.int8, 200), (torch.int16, 40_000)])
def test_a_document_is_as_long_as_it_is_in_any_dtype(dtype: torch.dtype, tokens: int) -> None:
    found = get_seqlens_in_batch(torch.ones(1, tokens, dtype=dtype))
    assert (listed(found), found.dtype) == ([tokens], torch.int64)


def test_a_great_id_costs_no_more_than_a_small_one() -> None:
    # One entry for each number up to the greatest would take more memory than there is.
    ids = torch.tensor([[1, 1, 2**62, 2**62]])
    assert listed(document_lengths(ids)) == [2, 2]
    assert listed(build_packed_sequence_metadata(ids)["cu_seqlens"]) == [[0, 2, 4]]


def test_a_batch_of_many_rows_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(1, 9).repeat_interleave(4).expand(32, -1)
    with host_reads(monkeypatch) as reads:
        build_packed_sequence_metadata(ids)
    assert reads.total == 1


@pytest.mark.parametrize("mask_type", ["document_id", "no", "4d", None])
def test_a_mask_type_that_does_not_exist_is_refused(mask_type: Any) -> None:
    with pytest.raises(CapabilitiesError, match="packed_mask_type"):
        PackingCapabilities(mask_type)


def test_padding_sets_no_maximum() -> None:
    ids = torch.zeros(1, 8192, dtype=torch.int64)
    ids[0, :16] = 1
    kwargs = flash_varlen_kwargs(ids)
    offsets = kwargs["cu_seq_lens_q"].diff()
    assert (kwargs["max_length_q"], int(offsets.max())) == (16, 16)
    # As one document, padding made 8176 * 8176 scores.
    assert int((offsets**2).sum()) == 16 * 8192


def test_negative_ids_are_refused_by_every_encoding() -> None:
    for function in (get_unpad_data, build_packed_sequence_metadata, flash_varlen_kwargs, get_seqlens_in_batch):
        with pytest.raises(DocumentIdsError, match="negative id"):
            function(torch.tensor([[1, -1, 2]]))


def test_a_contract_that_equals_the_default_is_not_overridden_by_a_name() -> None:
    with pytest.warns(FutureWarning):
        found = resolve_packing_contract(PackingCapabilities("block_causal"), "flash_attention_2")
    assert found.packed_mask_type == "block_causal"


def test_batches_of_one_and_of_several_documents_have_the_same_entries() -> None:
    contract = PackingCapabilities("document_ids", requires_packed_sequence_metadata=True)
    rows = ([[1, 1, 1, 1]], [[1, 1, 2, 0]], [[0, 0, 0, 0]])
    one, several, none = (set(apply_packing_contract(training_batch(torch.tensor(ids)), contract)) for ids in rows)
    assert one == several == none


def test_rows_that_do_not_divide_are_all_there() -> None:
    ids = torch.tensor([[1, 1], [1, 2], [1, 0]])
    parts = split_rows(training_batch(ids), 2)
    assert [len(part["input_ids"]) for part in parts] == [2, 1]


def test_lengths_that_do_not_cover_a_row_do_not_shift_those_after_it() -> None:
    lengths = thd_lengths(torch.tensor([[1, 1, 0, 0], [1, 2, 2, 2]]))
    assert listed(flatten_thd_lengths(lengths, 4).cu_seqlens_padded) == [0, 4, 5, 8]
    short = THDLengths(lengths.seq_lens, torch.where(lengths.seq_lens_padded == 4, 2, lengths.seq_lens_padded))
    with pytest.raises(EncodingError, match=r"seq_lens_padded\[row 0\] = 2: must cover the 4 places"):
        flatten_thd_lengths(short, 4)
