"""Nested, sparse, empty and otherwise strange tensors, wherever one is taken: an answer, or an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import neatpack.adapters.host_arrays
from neatpack import adapters
from neatpack.adapters import StaticBounds, adapt_model_inputs
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.encodings import LengthMatrix, PhysicalRows, SegmentIndex, THDLengths
from neatpack.contracts.errors import BatchError, PackingError
from tests.adapters.batches import training_batch

Call = Callable[[Any], object]

_IDS: Final = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])
_LABELS: Final = torch.arange(8).view(2, 4)
_BOUNDS: Final = StaticBounds(3, 8, 4)
_METADATA: Final = adapters.build_packed_sequence_metadata(_IDS)
_KWARGS: Final = adapters.flash_varlen_kwargs(_IDS)
_ROWS: Final = adapters.row_offsets(_IDS)
_LENGTHS: Final = adapters.thd_lengths(_IDS)
_FLAT: Final = adapters.thd_flat(_IDS)


pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse")


def _nested(values: list[Tensor], layout: torch.layout = torch.strided) -> Tensor:
    return torch.nested.nested_tensor(values, layout=layout)  # pyright: ignore[reportUnknownMemberType]


def _no_places() -> dict[str, Tensor]:
    """Tensors that have no place for each value, or none to read: no function can take them."""
    ones = torch.ones(2, 4, dtype=torch.int64)
    ragged = [torch.tensor([1, 1]), torch.tensor([1])]
    return {
        "nested": _nested(ragged),
        "nested bool": _nested([each.bool() for each in ragged]),
        "nested float": _nested([each.float() for each in ragged]),
        "sparse": ones.to_sparse(),
        "sparse bool": ones.bool().to_sparse(),
        "compressed": ones.to_sparse_csc(),
    }


def _strange() -> dict[str, object]:
    ones = torch.ones(2, 4, dtype=torch.int64)
    return {
        **_no_places(),
        "jagged": _nested([torch.tensor([1, 1]), torch.tensor([1])], torch.jagged),
        "meta": ones.to("meta"),
        "narrow float": ones.float().to(torch.float8_e4m3fn),
        "complex": ones.to(torch.complex64),
        "not a number": torch.full((2, 4), float("nan")),
        "uint16": ones.to(torch.uint16),
        "past int64": torch.full((2, 4), 2**63 + 5, dtype=torch.uint64),
        "lowest": torch.full((2, 4), -(2**63)),
        "greatest": torch.full((2, 4), 2**63 - 1),
        "bool": ones.bool(),
        "rank 0": torch.tensor(1),
        "rank 1": torch.ones(5, dtype=torch.int32),
        "rank 4": torch.ones(2, 1, 4, 4, dtype=torch.int64),
        "no rows": ones[:0],
        "no places": ones[:, :0],
        "of another batch": torch.ones(3, 7, dtype=torch.int64),
        "repeated in memory": torch.ones(1, 1, dtype=torch.int64).expand(2, 4),
        "an array": ones.numpy(),
        "a tuple": (1, 2),
        "a class": Tensor,
    }


_ONE_ARGUMENT: Final[tuple[Call, ...]] = (
    adapters.as_segments,
    adapters.build_block_causal_mask,
    adapters.build_block_mask,
    adapters.build_packed_sequence_metadata,
    adapters.build_position_ids,
    adapters.canonical_document_ids,
    adapters.count_seen_keys,
    adapters.count_valid_targets,
    adapters.document_ids_from_positions,
    adapters.flash_varlen_kwargs,
    adapters.gathered_flat,
    adapters.gathered_rows,
    adapters.gathered_states,
    adapters.get_seqlens_in_batch,
    adapters.get_unpad_data,
    adapters.is_document_ids,
    adapters.is_indexed_packed_mask,
    adapters.length_matrix,
    adapters.mask_function,
    adapters.parse_document_ids,
    adapters.physical_offsets,
    adapters.physical_offsets_from_positions,
    adapters.physical_states,
    adapters.raise_if_invalid,
    adapters.row_offsets,
    adapters.scan_segments,
    adapters.segment_ids_from_offsets,
    adapters.segment_index,
    adapters.thd_flat,
    adapters.thd_lengths,
    adapters.tokens_remaining,
    adapters.validate_document_ids,
)
_ONE_OF_SEVERAL: Final[dict[str, Call]] = {
    "static rows": lambda bad: adapters.static_gathered_rows(bad, _BOUNDS),
    "static mask": lambda bad: adapters.static_block_mask(bad, _BOUNDS),
    "labels to mask": lambda bad: adapters.mask_labels(bad, _IDS, "model"),
    "structural ids": lambda bad: adapters.mask_labels(_LABELS, _IDS, "model", document_ids=bad),
    "labels to shift": lambda bad: adapters.mtp_targets(bad, _IDS, 0, "model"),
    "structural ids to shift": lambda bad: adapters.mtp_targets(_LABELS, _IDS, 0, "model", document_ids=bad),
    "labels to weight": lambda bad: adapters.loss_weights(bad, _IDS, "document"),
    "values to reduce": lambda bad: adapters.reduce_by_document(bad, _IDS, "mean"),
    "values to unpack": lambda bad: adapters.unpack(bad, _IDS),
    "keys": lambda bad: adapters.unpack(_LABELS, _IDS, bad),
    "padding of positions": lambda bad: adapters.document_ids_from_positions(_IDS, bad),
    "gathered indices": lambda bad: adapters.flatten_packed_sequence_metadata(bad, _METADATA["cu_seqlens"], 2, 4),
    "gathered offsets": lambda bad: adapters.document_ids_from_metadata(_METADATA["packed_token_indices"], bad),
    "flash offsets": lambda bad: adapters.document_ids_from_flash_varlen({**_KWARGS, "cu_seq_lens_k": bad}, _IDS == 0),
    "flash padding": lambda bad: adapters.document_ids_from_flash_varlen(_KWARGS, bad),
    "row offsets": lambda bad: adapters.document_ids_from_row_offsets(PhysicalRows(bad, _ROWS.max_seqlen), _IDS == 0),
    "longest of rows": lambda bad: adapters.document_ids_from_row_offsets(replace(_ROWS, max_seqlen=bad), _IDS == 0),
    "row padding": lambda bad: adapters.document_ids_from_row_offsets(_ROWS, bad),
    "length matrix": lambda bad: adapters.document_ids_from_length_matrix(LengthMatrix(bad), 4),
    "real lengths": lambda bad: adapters.flatten_thd_lengths(THDLengths(bad, _LENGTHS.seq_lens_padded), 4),
    "padded lengths": lambda bad: adapters.document_ids_from_thd_lengths(THDLengths(_LENGTHS.seq_lens, bad), 4),
    "real offsets": lambda bad: adapters.real_places(replace(_FLAT, cu_seqlens=bad)),
    "padded offsets": lambda bad: adapters.transformer_engine_kwargs(replace(_FLAT, cu_seqlens_padded=bad)),
    "segment numbers": lambda bad: adapters.document_ids_from_segment_index(SegmentIndex(bad)),
    "segment padding": lambda bad: adapters.document_ids_from_segment_index(adapters.segment_index(_IDS), bad),
    "query ids": lambda bad: adapters.sees(bad, _IDS, _IDS, _IDS),
    "key places": lambda bad: adapters.sees(_IDS, _IDS, _IDS, bad),
    "starts": lambda bad: adapters.seen_range(_IDS, bad, _IDS),
    "stops": lambda bad: adapters.seen_range(_IDS, _IDS, bad),
    "places": lambda bad: adapters.take_places(_batch(), bad),
    "a document": lambda bad: adapters.collate_documents([bad], adapters.plan_rows([5], 5)),
    "eligibility": lambda bad: adapt_model_inputs(_batch(), bad),
    "positions beside ids": lambda bad: adapters.check_agreement(_IDS, {"position_ids": bad}),
}


def _batch() -> TrainingBatch[Tensor]:
    return training_batch(_IDS.clone())


@pytest.mark.parametrize("call", _ONE_ARGUMENT, ids=lambda call: call.__name__)
def test_a_function_of_one_tensor_answers_or_refuses(call: Call) -> None:
    _answers_or_refuses(call)


@pytest.mark.parametrize("call", _ONE_OF_SEVERAL.values(), ids=_ONE_OF_SEVERAL)
def test_a_function_of_several_answers_or_refuses(call: Call) -> None:
    _answers_or_refuses(call)


def _answers_or_refuses(call: Call) -> None:
    for value in _strange().values():
        with suppress(PackingError):
            call(value)
    # These two say whether a value is of a kind, and why not.
    if call in (adapters.is_document_ids, adapters.validate_document_ids):
        return
    for value in _no_places().values():
        with pytest.raises(PackingError, match="dense"):
            call(value)


_CONTRACT: Final = PackingCapabilities("document_ids", True, return_document_ids=True)
_FLASH: Final = PackingCapabilities("flash_varlen")
_OF_A_BATCH: Final[dict[str, Call]] = {
    "adapt_model_inputs": adapt_model_inputs,
    "apply_packing_contract": lambda batch: adapters.apply_packing_contract(batch, _CONTRACT),
    "apply_packing_contract, flat": lambda batch: adapters.apply_packing_contract(batch, _FLASH, flat=True),
    "convert_batch_output": lambda batch: adapters.convert_batch_output(batch, "thd"),
    "enable_xdoc_attention": lambda batch: adapters.enable_xdoc_attention(batch, _CONTRACT),
    "enable_xdoc_attention, flash": lambda batch: adapters.enable_xdoc_attention(batch, _FLASH),
    "check_agreement": lambda batch: adapters.check_agreement(_IDS, batch),
    "pad_documents": lambda batch: adapters.pad_documents(batch, 4),
    "pad_rows": lambda batch: adapters.pad_rows(batch, 8),
    "shard_tokens": lambda batch: adapters.shard_tokens(batch, 0, 2, "contiguous", label_shift="model"),
    "split_rows": lambda batch: adapters.split_rows(batch, 2),
}
_FIELDS: Final = (
    "input_ids", "labels", "position_ids", "padding_mask", "document_ids", "attention_document_ids", "_packed_seq_ids",
    "seq_idx", "attention_mask", "packed_token_indices", "cu_seqlens", "max_seqlen", "cu_seq_lens_q", "max_length_q",
    "seq_lens", "qkv_format", "document_keys", "an_entry_of_others",
)  # fmt: skip


@pytest.mark.parametrize("call", _OF_A_BATCH.values(), ids=_OF_A_BATCH)
def test_a_function_of_a_batch_answers_or_leaves_it_as_it_came(call: Call) -> None:
    for value in _strange().values():
        with suppress(PackingError):
            call(value)
        for field in _FIELDS:
            batch: dict[str, Any] = {
                **adapt_model_inputs(_batch()),
                **_METADATA,
                "seq_lens": _LENGTHS.seq_lens,
            }
            batch[field] = value
            before = dict(batch)
            try:
                call(batch)
            except PackingError:
                assert batch.keys() == before.keys()
                assert all(batch[name] is entry for name, entry in before.items())


_NAMED: Final[dict[str, Call]] = {
    "document_ids": adapters.gathered_flat,
    "key_ids": lambda bad: adapters.sees(_IDS, bad, _IDS, _IDS),
    "starts": lambda bad: adapters.seen_range(_IDS, bad, _IDS),
    "values": lambda bad: adapters.reduce_by_document(bad, _IDS, "sum"),
    "labels": lambda bad: adapters.apply_packing_contract({**_batch(), "labels": bad}, _CONTRACT),
}


@pytest.mark.parametrize(("field", "call"), _NAMED.items())
def test_the_error_names_the_argument(field: str, call: Call) -> None:
    for value in _no_places().values():
        with pytest.raises(PackingError) as caught:
            call(value)
        assert caught.value.problems[0].field == field


@pytest.mark.parametrize(
    ("name", "field", "near"),
    [
        ("labels to mask", "labels", _LABELS),
        ("labels to shift", "labels", _LABELS),
        ("labels to weight", "labels", _LABELS),
        ("eligibility", "attention_eligibility", _IDS == 0),
        ("positions beside ids", "position_ids", _LABELS),
        ("gathered offsets", "cu_seqlens", _METADATA["cu_seqlens"]),
        ("flash offsets", "cu_seq_lens_k", _KWARGS["cu_seq_lens_k"]),
        ("flash padding", "padding_mask", _IDS == 0),
        ("longest of rows", "max_seqlen", _ROWS.max_seqlen),
        ("row padding", "padding_mask", _IDS == 0),
    ],
)
def test_what_lies_on_another_device_is_named(name: str, field: str, near: Tensor) -> None:
    """A fake tensor claims to lie where this machine may have no device."""
    with FakeTensorMode():
        far = torch.empty(near.shape, dtype=near.dtype, device="cuda")
    with pytest.raises(PackingError) as caught:
        _ONE_OF_SEVERAL[name](far)
    assert (caught.value.problems[0].field, caught.value.problems[0].kind) == (field, "device")


@pytest.mark.parametrize("name", ["attention_document_ids", "position_ids"])
def test_entries_to_join_lie_with_the_ids(name: str) -> None:
    batch: dict[str, Any] = {**adapt_model_inputs(_batch())}
    with FakeTensorMode():
        batch[name] = torch.empty(batch[name].shape, dtype=torch.int64, device="cuda")
    before = dict(batch)
    with pytest.raises(BatchError, match=f"^{name} = cuda:0: must lie where document_ids lies, on cpu"):
        adapters.enable_xdoc_attention(cast("TrainingBatch[Tensor]", batch), _CONTRACT)
    assert all(batch[key] is entry for key, entry in before.items())


def _fake(call: Call) -> object:
    with FakeTensorMode() as mode:
        return call(mode.from_tensor(_IDS))


_RECORDERS: Final[dict[str, Call]] = {
    "functionalize": lambda call: torch.func.functionalize(call)(_IDS),
    "vmap": lambda call: torch.func.vmap(call)(_IDS[None]),
    "compile": lambda call: cast("Any", torch).compile(call, backend="eager")(_IDS),
    "fake tensors": _fake,
}


@pytest.mark.parametrize("record", _RECORDERS.values(), ids=_RECORDERS)
def test_where_torch_records_there_is_nothing_to_read(record: Call) -> None:
    calls: tuple[Call, ...] = (adapters.build_position_ids, adapters.flash_varlen_kwargs)
    for call in calls:
        with pytest.raises(PackingError, match="static_"):
            record(call)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 1, 5)])
def test_shapes_that_do_not_broadcast_are_named(shape: tuple[int, ...]) -> None:
    bad = torch.ones(shape, dtype=torch.int64)
    for field, call in (
        ("query_places", lambda: adapters.sees(_IDS, _IDS, bad, _IDS)),
        ("stops", lambda: adapters.seen_range(_IDS, _IDS, bad)),
    ):
        with pytest.raises(PackingError, match="does not broadcast") as caught:
            call()
        assert (caught.value.problems[0].field, caught.value.problems[0].value) == (field, shape)


def test_where_a_document_begins_expands_to_the_queries_and_not_the_other_way() -> None:
    with pytest.raises(PackingError, match=r"starts = \(2, 4\): does not broadcast to query_places"):
        adapters.seen_range(torch.ones(2, 1, dtype=torch.int64), _IDS, torch.tensor(4))


def _elsewhere(_: Tensor) -> bool:
    return False


def test_ids_past_int64_read_with_others_are_told_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neatpack.adapters.host_arrays, "_lies_on_host", _elsewhere)
    ids = torch.tensor([[5, 2**63 + 1, 2]], dtype=torch.uint64)
    with pytest.raises(PackingError, match="id past int64") as caught:
        adapters.check_agreement(ids, {"padding_mask": torch.zeros(1, 3, dtype=torch.bool)})
    assert caught.value.problems[0].value == 2**63 + 1
