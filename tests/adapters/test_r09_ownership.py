"""Rule 9: entries of a mapping are replaced, no tensor that came in is written to, results lie with the ids."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final, cast

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    Segments,
    StaticBounds,
    adapt_model_inputs,
    apply_packing_contract,
    build_block_causal_mask,
    build_block_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    canonical_document_ids,
    check_agreement,
    count_seen_keys,
    count_valid_targets,
    document_ids_from_metadata,
    document_lengths,
    enable_xdoc_attention,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    gathered_flat,
    gathered_states,
    get_seqlens_in_batch,
    get_unpad_data,
    is_indexed_packed_mask,
    length_matrix,
    loss_weights,
    mask_labels,
    mtp_targets,
    pad_documents,
    pad_rows,
    physical_states,
    pipeline_chunk_dims,
    reduce_by_document,
    repeat_on_axes,
    row_offsets,
    scan_segments,
    segment_index,
    shard_tokens,
    split_rows,
    static_block_causal_mask,
    static_gathered_flat,
    static_position_ids,
    static_thd_lengths,
    take_places,
    thd_flat,
    thd_lengths,
    tokens_remaining,
    unpack,
)
from neatpack.adapters.strategies import document_ids, training_batches
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PACKED_MASK_TYPES, PackedMaskType, PackingCapabilities
from tests.adapters.batches import training_batch
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for, listed

DERIVE: Final[Mapping[str, Callable[[Tensor], object]]] = {
    "scan_segments": scan_segments,
    "canonical_document_ids": canonical_document_ids,
    "build_position_ids": build_position_ids,
    "build_block_causal_mask": build_block_causal_mask,
    "build_packed_sequence_metadata": lambda ids: build_packed_sequence_metadata(ids, allow_empty=True),
    "get_seqlens_in_batch": get_seqlens_in_batch,
    "flash_varlen_kwargs": flash_varlen_kwargs,
    "is_indexed_packed_mask": is_indexed_packed_mask,
    "mask_labels": lambda ids: mask_labels(ids.to(torch.int64), ids, "model"),
    "mask_labels, with ids as packed": lambda ids: mask_labels(
        ids.to(torch.int64), ids, "model", document_ids=ids.clone()
    ),
    "mtp_targets, with ids as packed": lambda ids: mtp_targets(
        ids.to(torch.int64), ids, 1, "stream", document_ids=ids.clone()
    ),
    "check_agreement": lambda ids: check_agreement(ids, {"padding_mask": ids == 0}),
    "unpack": lambda ids: unpack(torch.zeros(*ids.shape, 2), ids),
}


@holds_for(ids=document_ids(), name=st.sampled_from(sorted(DERIVE)))
def test_no_derivation_writes_to_the_ids(ids: Tensor, name: str) -> None:
    before, version = ids.clone(), ids._version
    DERIVE[name](ids)
    assert torch.equal(before, ids)
    assert ids._version == version


@holds_for(
    batch=training_batches(axes=(0, 3)),
    mask_type=st.sampled_from(PACKED_MASK_TYPES),
    xdoc=st.booleans(),
    policy=st.booleans(),
)
def test_no_tensor_of_a_batch_is_written_to(
    batch: TrainingBatch[Tensor], mask_type: PackedMaskType, xdoc: bool, policy: bool
) -> None:
    contract = PackingCapabilities(mask_type, True, return_document_ids=True)
    seen = batch["input_ids"] % 2 == 0 if policy and mask_type != "flash_varlen" else None
    with unwritten(batch):
        adapt_model_inputs(batch, seen)
        if xdoc and mask_type != "flash_varlen":
            enable_xdoc_attention(batch, contract)
        apply_packing_contract(batch, contract, flat=mask_type != "flash_varlen" or not xdoc)


@pytest.mark.parametrize("seen", [None, torch.tensor([[True, False]])])
def test_attention_ids_of_a_batch_are_no_view_of_its_ids(seen: Tensor | None) -> None:
    ids = torch.tensor([[1, 1]])
    batch = adapt_model_inputs(training_batch(ids), seen)
    batch.get("attention_document_ids", ids).zero_()
    assert listed(ids) == [[1, 1]]


def _moved(batch: TrainingBatch[Tensor]) -> object:
    places = torch.arange(batch["input_ids"].shape[1], device=batch["input_ids"].device).flip(0)
    return take_places(batch, places.expand(batch["input_ids"].shape))


_BOUNDS: Final = StaticBounds(documents=16, segments=64, longest=16)
OF_A_BATCH: Final[Mapping[str, Callable[[TrainingBatch[Tensor]], object]]] = {
    "split_rows": lambda batch: split_rows(batch, batch["input_ids"].shape[0]),
    "pipeline_chunk_dims": pipeline_chunk_dims,
    "take_places": _moved,
    "pad_rows": lambda batch: pad_rows(batch, 3),
    "pad_documents": lambda batch: pad_documents(batch, 4),
    "shard_tokens": lambda batch: shard_tokens(batch, 0, 1, "zigzag", label_shift="document"),
    "shard_tokens, half of each": lambda batch: shard_tokens(
        pad_documents(batch, 4), 1, 2, "zigzag", label_shift="model"
    ),
    "mask_labels": lambda batch: mask_labels(batch["labels"], _ids(batch), "stream", document_ids=_ids(batch)),
    "mtp_targets": lambda batch: mtp_targets(batch["labels"], _ids(batch), 1, "model"),
    "count_valid_targets": lambda batch: count_valid_targets(batch["labels"]),
    "loss_weights": lambda batch: loss_weights(batch["labels"], _ids(batch), "document"),
    "reduce_by_document": lambda batch: reduce_by_document(batch["labels"], _ids(batch), "mean"),
    "unpack": lambda batch: unpack(batch["input_ids"], _ids(batch)),
    "repeat_on_axes": lambda batch: repeat_on_axes(batch["labels"], 3),
    "count_seen_keys": lambda batch: count_seen_keys(_ids(batch)),
    "build_block_mask": lambda batch: build_block_mask(_ids(batch), window=2, block_size=2),
    "static_position_ids": lambda batch: static_position_ids(_ids(batch), _BOUNDS),
    "static_thd_lengths": lambda batch: static_thd_lengths(_ids(batch), _BOUNDS),
    "static_gathered_flat": lambda batch: static_gathered_flat(_ids(batch), _BOUNDS),
    "static_block_causal_mask": lambda batch: static_block_causal_mask(_ids(batch), _BOUNDS, torch.float32),
}


def _ids(batch: TrainingBatch[Tensor]) -> Tensor:
    return batch.get("document_ids", batch["input_ids"])


@holds_for(batch=training_batches(padding="trailing"), name=st.sampled_from(sorted(OF_A_BATCH)))
def test_no_function_of_a_batch_writes_to_what_it_holds(batch: TrainingBatch[Tensor], name: str) -> None:
    given = dict(batch)
    with unwritten(batch):
        OF_A_BATCH[name](batch)
    assert list(batch) == list(given)
    assert all(batch.get(entry) is value for entry, value in given.items())


@contextmanager
def unwritten(batch: TrainingBatch[Tensor]) -> Generator[None, None, None]:
    """Require that no tensor of a batch is written to, by torch or through an array of numpy's."""
    came = [value for value in batch.values() if isinstance(value, Tensor)]
    before = [(value.clone(), value._version) for value in came]
    yield
    for value, (kept, version) in zip(came, before, strict=True):
        assert torch.equal(value, kept)
        assert value._version == version


@holds_for(ids=document_ids())
def test_results_share_no_memory_with_the_ids(ids: Tensor) -> None:
    before = ids.clone()
    for found in (canonical_document_ids(ids), build_position_ids(ids), mask_labels(ids.long(), ids, "model")):
        found.fill_(7)
    assert torch.equal(before, ids)


OF_SEGMENTS: Final[Mapping[str, Callable[[Tensor | Segments], object]]] = {
    "build_block_causal_mask": build_block_causal_mask,
    "build_packed_sequence_metadata": lambda ids: build_packed_sequence_metadata(ids, allow_empty=True),
    "build_position_ids": build_position_ids,
    "canonical_document_ids": canonical_document_ids,
    "count_seen_keys": count_seen_keys,
    "document_lengths": document_lengths,
    "flash_varlen_kwargs": flash_varlen_kwargs,
    "flash_varlen_kwargs, run": lambda ids: flash_varlen_kwargs(ids, "run"),
    "gathered_flat": gathered_flat,
    "gathered_states": gathered_states,
    "get_seqlens_in_batch": get_seqlens_in_batch,
    "length_matrix": length_matrix,
    "physical_states": physical_states,
    "row_offsets": row_offsets,
    "segment_index": segment_index,
    "thd_flat": thd_flat,
    "thd_lengths": thd_lengths,
    "tokens_remaining": tokens_remaining,
}


@holds_for(rows=rows_of_ids(leading=False, between=False), name=st.sampled_from(sorted(OF_SEGMENTS)))
def test_what_is_written_to_a_result_is_not_read_again(rows: Rows, name: str) -> None:
    ids = tensor(rows)
    segments, derive = scan_segments(ids), OF_SEGMENTS[name]
    for found in _tensors(derive(segments)):
        found.fill_(7)
    for again, expected in zip(_tensors(derive(segments)), _tensors(derive(ids)), strict=True):
        assert torch.equal(again, expected)


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inner = cast("object", value) if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return [found for entry in cast("Mapping[str, object]", inner).values() for found in _tensors(entry)]


@pytest.mark.parametrize("name", sorted(DERIVE))
def test_a_derivation_waits_for_a_device_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(1, 9).repeat_interleave(4).view(4, 8)
    with host_reads(monkeypatch) as counted:
        DERIVE[name](ids)
    assert counted.total <= 1


@pytest.mark.parametrize("rows", [1, 32])
def test_a_whole_batch_waits_for_a_device_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(1, 9).repeat_interleave(4).expand(rows, 32)
    batch: TrainingBatch[Tensor] = {
        "input_ids": ids,
        "labels": ids,
        "position_ids": build_position_ids(ids),
        "padding_mask": ids == 0,
        "document_ids": ids,
        "attention_document_ids": ids.clone(),
    }
    contract = PackingCapabilities("flash_varlen", True, return_document_ids=True)
    with host_reads(monkeypatch) as counted:
        apply_packing_contract(batch.copy(), contract, flat=True)
    assert counted.total == 1
    with host_reads(monkeypatch) as counted:
        adapt_model_inputs(batch, ids > 0)
    assert counted.total == 1


def test_segments_stand_for_the_ids_without_another_read(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = scan_segments(torch.tensor([[1, 1, 2, 0], [3, 3, 3, 3]]))
    with host_reads(monkeypatch) as counted:
        for derive in (build_packed_sequence_metadata, get_unpad_data, flash_varlen_kwargs, build_position_ids):
            derive(segments)
        build_block_causal_mask(segments, torch.float32, window=2)
        canonical_document_ids(segments)
    assert counted.total == 0


def test_flattening_waits_for_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = build_packed_sequence_metadata(torch.tensor([[1, 1, 2, 0], [3, 3, 3, 3]]))
    with host_reads(monkeypatch) as counted:
        flatten_packed_sequence_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"], 2, 4)
    assert counted.total == 1
    with host_reads(monkeypatch) as counted:
        document_ids_from_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"])
    assert counted.total == 1
