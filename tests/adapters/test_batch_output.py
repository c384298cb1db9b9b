"""Batches leave as they are, or in THD with the lengths of every document."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from neatpack.adapters.alignment import pad_documents
from neatpack.adapters.batch_output import convert_batch_output
from neatpack.adapters.collation import collate_documents
from neatpack.adapters.planning import plan_rows
from neatpack.adapters.slicing import split_rows
from neatpack.adapters.training_batch import adapt_model_inputs, enable_xdoc_attention
from neatpack.adapters.yielding import apply_packing_contract
from neatpack.contracts.batch import BATCH_OUTPUT_FORMATS, BatchOutputFormat, TrainingBatch, validate_training_batch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError, PackingError
from tests.adapters import oracle_thd
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for


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


@holds_for(rows=rows_of_ids(leading=False, between=False, empty_rows=False))
def test_a_thd_batch_gains_its_lengths_and_loses_nothing(rows: Rows) -> None:
    batch = training_batch(rows)
    before = dict(batch)
    positions = batch["position_ids"].clone()
    assert convert_batch_output(batch, "batched") is batch
    assert dict(batch) == before
    assert convert_batch_output(batch, "thd") is batch
    assert (batch["seq_lens"].tolist(), batch["seq_lens_padded"].tolist()) == oracle_thd.thd_lengths(rows)
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
    assert "padded_documents=True" in caught.value.problems[0].remedy
    batch = convert_batch_output(training_batch(rows), "thd", padded_documents=True)
    assert batch["seq_lens_padded"].tolist() == [[2, 2]]


@pytest.mark.parametrize("joined", [True, False])
def test_padding_moves_before_metadata_is_derived_from_it(joined: bool) -> None:
    contract = PackingCapabilities("document_ids", requires_packed_sequence_metadata=True)
    plan = plan_rows([3, 3], capacity=6)
    padded = pad_documents(collate_documents([torch.tensor([5, 6, 7]), torch.tensor([8, 9, 10])], plan), 2)

    def in_thd(batch: TrainingBatch[Tensor]) -> TrainingBatch[Tensor]:
        batch = adapt_model_inputs(batch)
        batch = enable_xdoc_attention(batch, contract) if joined else batch
        return convert_batch_output(apply_packing_contract(batch, contract), "thd")

    with pytest.raises(DocumentIdsError) as caught:
        in_thd({**padded})
    remedy = caught.value.problems[0].remedy
    assert "pad_documents(batch, 1)" in remedy
    assert remedy.endswith("Padding moves before apply_packing_contract(...), which derives from it.")
    assert in_thd(pad_documents(padded, 1))["seq_lens"].tolist() == ([[6]] if joined else [[3, 3]])


@pytest.mark.parametrize(
    ("batch", "error", "field", "row"),
    [
        (training_batch([[1], [0], [0]]), DocumentIdsError, "document_ids", 1),
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


@pytest.mark.parametrize("masked", [False, True])
def test_a_token_that_policy_took_out_is_named(masked: bool) -> None:
    batch: Any = training_batch([[1, 1, 1, 0]] * 2, attention_document_ids=tensor([[1, 1, 1, 0], [1, 1, 0, 0]]))
    if not masked:
        del batch["padding_mask"]
    with pytest.raises(DocumentIdsError, match="policy took out a token") as caught:
        convert_batch_output(batch, "thd")
    problem = caught.value.problems[0]
    assert (problem.row, problem.position, problem.value) == (1, 2, 0)


def test_a_hole_is_told_by_the_padding_mask_where_the_contract_dropped_the_ids_as_packed() -> None:
    rows = [[1, 1, 1, 0], [1, 1, 1, 2]]
    batch = training_batch(rows, attention_document_ids=tensor([[1, 1, 1, 0], [1, 1, 1, 0]]))
    batch = apply_packing_contract(batch, PackingCapabilities("document_ids", position_policy="sequence"))
    assert "document_ids" not in batch
    with pytest.raises(DocumentIdsError, match=r"_packed_seq_ids\[row 1, position 3\] = 0: a hole"):
        convert_batch_output(batch, "thd")


def test_an_error_names_the_ids_that_have_the_hole() -> None:
    batch = training_batch([[1, 0, 1, 0]])
    del batch["document_ids"]
    batch["_packed_seq_ids"] = tensor([[1, 0, 1, 0]])
    with pytest.raises(DocumentIdsError, match=r"_packed_seq_ids\[row 0, position 1\] = 0: a hole"):
        convert_batch_output(batch, "thd", padded_documents=True)


def test_an_error_names_the_ids_that_begin_with_padding() -> None:
    batch = training_batch([[0, 1, 1, 0]], _packed_seq_ids=tensor([[0, 1, 1, 0]]))
    del batch["document_ids"]
    with pytest.raises(DocumentIdsError, match=r"_packed_seq_ids\[row 0, position 0\] = 0: padding before the first"):
        convert_batch_output(batch, "thd", padded_documents=True)


@pytest.mark.parametrize("joined", [False, True])
def test_thd_batches_of_fewer_documents_than_were_packed_are_batches(joined: bool) -> None:
    """The keys keep the columns of the documents as packed, in a part of the batch and where attention joins them."""
    documents = [torch.arange(length) for length in (3, 2, 4)]
    batch = adapt_model_inputs(collate_documents(documents, plan_rows([3, 2, 4], capacity=5)))
    contract = PackingCapabilities("document_ids")
    batch = apply_packing_contract(enable_xdoc_attention(batch, contract) if joined else batch, contract)
    for part in split_rows(batch, 2):
        converted = convert_batch_output(part, "thd")
        assert not validate_training_batch(converted)
        assert convert_batch_output(converted.copy(), "thd").keys() == converted.keys()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(BatchError, match="'batched', 'thd'") as caught:
        convert_batch_output(training_batch([[1]]), "bshd")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.problems[0].value == "'bshd'"


@pytest.mark.parametrize("output_format", BATCH_OUTPUT_FORMATS)
def test_whether_documents_are_padded_is_a_bool(output_format: BatchOutputFormat) -> None:
    bad: Any = 1
    with pytest.raises(BatchError, match="padded_documents = int: must be a bool"):
        convert_batch_output(training_batch([[1]]), output_format, padded_documents=bad)


def test_one_host_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1, 1, 2, 0], [1, 1, 1, 1]]
    with host_reads(monkeypatch) as reads:
        convert_batch_output(training_batch(rows, attention_document_ids=tensor(rows)), "thd")
    assert reads.total == 1
