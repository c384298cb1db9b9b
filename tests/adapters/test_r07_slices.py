"""Rule 7: rows may be cut before or after deriving, and the contract fixes what a batch holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    apply_packing_contract,
    build_block_causal_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    canonical_document_ids,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    get_unpad_data,
    mask_labels,
    yielding,
)
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.strategies import attention_document_ids, training_batches
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PACKED_MASK_TYPES, PackedMaskType, PackingCapabilities
from neatpack.contracts.errors import BatchError, DocumentIdsError
from tests.adapters.batches import training_batch
from tests.adapters.properties import holds_for, listed

_ALWAYS = {"input_ids", "labels", "position_ids", "padding_mask", "_packed_seq_ids"}
_METADATA = {"packed_token_indices", "cu_seqlens", "max_seqlen"}
_FLAT: dict[PackedMaskType, set[str]] = {
    "block_causal": {"attention_mask"},
    "document_ids": {"attention_mask"},
    "flash_varlen": {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"},
}

_BUILDERS = {
    "metadata": "build_packed_sequence_metadata",
    "block_causal": "build_block_causal_mask",
    "flash_varlen": "flash_varlen_kwargs",
}
"""What may be asked for, and which function makes it."""


def _without_fill(offsets: Tensor) -> list[list[int]]:
    rows: list[list[int]] = listed(offsets)
    return [[offset for offset in row if offset >= 0] for row in rows]


@holds_for(ids=attention_document_ids(), data=st.data())
def test_cutting_rows_and_deriving_commute(ids: Tensor, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, ids.shape[0] - 1))
    rows = slice(start, data.draw(st.integers(start + 1, ids.shape[0])))
    whole, part = (build_packed_sequence_metadata(each, allow_empty=True) for each in (ids, ids[rows]))
    assert torch.equal(whole["packed_token_indices"][rows], part["packed_token_indices"])
    assert _without_fill(whole["cu_seqlens"][rows]) == _without_fill(part["cu_seqlens"])
    assert whole["max_seqlen"] >= part["max_seqlen"]
    for derive in (canonical_document_ids, build_position_ids, build_block_causal_mask):
        assert torch.equal(derive(ids)[rows], derive(ids[rows]))
    # What a pipeline schedule cuts is flattened after the cut.
    indices, offsets = flatten_packed_sequence_metadata(
        whole["packed_token_indices"][rows], whole["cu_seqlens"][rows], rows.stop - rows.start, ids.shape[1]
    )
    flat = gathered_flat(ids[rows])
    assert torch.equal(indices, flat.token_indices)
    assert torch.equal(offsets, flat.cu_seqlens)
    labels = torch.arange(ids.numel()).view(ids.shape)
    assert torch.equal(mask_labels(labels, ids, "stream")[rows], mask_labels(labels[rows], ids[rows], "stream"))


@holds_for(
    batch=training_batches(),
    mask_type=st.sampled_from(PACKED_MASK_TYPES),
    metadata=st.booleans(),
    original=st.booleans(),
    flat=st.booleans(),
)
def test_the_contract_alone_fixes_the_keys(
    batch: TrainingBatch[Tensor], mask_type: PackedMaskType, metadata: bool, original: bool, flat: bool
) -> None:
    contract = PackingCapabilities(mask_type, metadata, return_document_ids=original)
    ids = batch.get("document_ids", batch["input_ids"])
    found = apply_packing_contract(batch, contract, flat=flat)
    expected = set(_ALWAYS)
    expected |= _METADATA if metadata else set[str]()
    expected |= {"document_ids"} if original else set[str]()
    expected |= _FLAT[mask_type] if flat else set[str]()
    assert found is batch
    assert set(found) == expected
    packed = found.get("_packed_seq_ids", torch.zeros(0))
    assert packed.dtype == torch.int64
    assert torch.equal(packed, ids)
    assert torch.equal(found["padding_mask"], ids == 0)


@holds_for(
    batch=training_batches(), mask_type=st.sampled_from(PACKED_MASK_TYPES), metadata=st.booleans(), flat=st.booleans()
)
def test_nothing_is_derived_that_the_contract_does_not_ask_for(
    batch: TrainingBatch[Tensor], mask_type: PackedMaskType, metadata: bool, flat: bool
) -> None:
    """Rule 16."""
    derived: list[str] = []

    def recorded(name: str, build: Callable[..., Any]) -> Callable[..., Any]:
        def recording(*args: Any, **kwargs: Any) -> Any:
            derived.append(name)
            return build(*args, **kwargs)

        return recording

    with pytest.MonkeyPatch.context() as patch:
        for name in _BUILDERS.values():
            patch.setattr(yielding, name, recorded(name, getattr(yielding, name)))
        apply_packing_contract(batch, PackingCapabilities(mask_type, metadata), flat=flat)
    asked = (["metadata"] if metadata else []) + ([mask_type] if flat else [])
    assert derived == [_BUILDERS[what] for what in asked if what in _BUILDERS]


@holds_for(batch=training_batches())
def test_what_is_shipped_is_what_its_builder_gives(batch: TrainingBatch[Tensor]) -> None:
    ids = batch.get("document_ids", batch["input_ids"])
    capabilities = {name: PackingCapabilities(name, True) for name in PACKED_MASK_TYPES}
    found = {name: apply_packing_contract(batch.copy(), each, flat=True) for name, each in capabilities.items()}
    metadata = build_packed_sequence_metadata(ids, allow_empty=True)
    for each in found.values():
        assert torch.equal(each.get("packed_token_indices", ids), metadata["packed_token_indices"])
        assert torch.equal(each.get("cu_seqlens", ids), metadata["cu_seqlens"])
        assert each.get("max_seqlen") == metadata["max_seqlen"]
        assert torch.equal(each["labels"], mask_labels(batch["labels"], ids, "model"))
    assert torch.equal(found["block_causal"].get("attention_mask", ids), build_block_causal_mask(ids))
    assert torch.equal(found["document_ids"].get("attention_mask", ids), ids)
    kwargs = flash_varlen_kwargs(ids)
    assert torch.equal(found["flash_varlen"].get("cu_seq_lens_q", ids), kwargs["cu_seq_lens_q"])
    assert found["flash_varlen"].get("max_length_k") == kwargs["max_length_k"]


def test_a_microbatch_of_padding_is_legal_and_its_offsets_are_zero() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    metadata = build_packed_sequence_metadata(ids, allow_empty=True)
    assert _without_fill(metadata["cu_seqlens"]) == [[0], [0]]
    assert metadata["max_seqlen"] == 0
    indices, offsets = flatten_packed_sequence_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"], 2, 3)
    assert (indices.numel(), listed(offsets)) == (0, [0])
    assert listed(flatten_packed_sequence_metadata(indices, offsets, 2, 3)[1]) == [0]
    for build in (build_packed_sequence_metadata, get_unpad_data):
        with pytest.raises(DocumentIdsError, match="at least one valid token"):
            build(ids)


def test_rows_longer_than_the_contract_allows_are_refused() -> None:
    contract = PackingCapabilities("document_ids", max_sequence_length=3)
    apply_packing_contract(training_batch(torch.tensor([[1, 1, 0]])), contract)
    with pytest.raises(BatchError, match="max_sequence_length, 3"):
        apply_packing_contract(training_batch(torch.tensor([[1, 1, 1, 0]])), contract)


def test_original_ids_that_are_asked_for_must_be_there() -> None:
    ids = torch.tensor([[1, 1, 0]])
    batch = training_batch(ids)
    del batch["document_ids"]
    batch["attention_document_ids"] = ids
    apply_packing_contract(batch.copy(), PackingCapabilities("document_ids"))
    with pytest.raises(BatchError, match="the contract asks for it"):
        apply_packing_contract(batch, PackingCapabilities("document_ids", return_document_ids=True))


def test_a_batch_may_be_yielded_twice() -> None:
    once = apply_packing_contract(
        training_batch(torch.tensor([[1, 1, 2, 0]])), PackingCapabilities("flash_varlen", True)
    )
    twice = apply_packing_contract(once.copy(), PackingCapabilities("flash_varlen", True))
    assert list(once) == list(twice)
    assert torch.equal(once["labels"], twice["labels"])


@pytest.mark.parametrize("missing", ["labels", "document_ids"])
def test_what_is_missing_is_named(missing: str) -> None:
    batch = training_batch(torch.tensor([[1, 1, 0]]))
    batch.pop(missing)  # type: ignore[misc]
    with pytest.raises(BatchError, match=f"{missing}: missing"):
        apply_packing_contract(batch, PackingCapabilities("document_ids"))


def test_entries_of_other_lengths_are_refused_together() -> None:
    batch = training_batch(torch.tensor([[1, 1, 0]]))
    batch["input_ids"] = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(BatchError, match="along sequence"):
        apply_packing_contract(batch, PackingCapabilities("document_ids"))


@pytest.mark.parametrize("flat", [False, True])
def test_a_hole_is_refused_where_physical_offsets_are_asked_for(flat: bool) -> None:
    batch = training_batch(torch.tensor([[1, 1, 1]]))
    batch["attention_document_ids"] = torch.tensor([[1, 0, 1]])
    apply_packing_contract(batch.copy(), PackingCapabilities("document_ids"), flat=flat)
    with pytest.raises(DocumentIdsError, match="hole"):
        apply_packing_contract(batch, PackingCapabilities("flash_varlen"), flat=flat)
