"""What an error says is true of what was given, and what it says to do leads out."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.masked import masked_tensor

from neatpack import adapters
from neatpack.adapters import AttentionCost, Piece, RankPlan, RowPlan, StaticBounds, strategies
from neatpack.contracts.batch import parse_training_batch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.encodings import PhysicalFlat, SegmentIndex, THDLengths
from neatpack.contracts.errors import PackingError, Problem
from tests.adapters.batches import training_batch
from tests.adapters.properties import listed

_IDS: Final = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])
_BOUNDS: Final = StaticBounds(3, 8, 4)
_PLAN: Final = adapters.plan_rows([2, 1], 4)
_COST: Final = AttentionCost(1.0, 1.0)
_FLASH: Final = adapters.flash_varlen_kwargs(torch.tensor([[1, 1, 2, 0]]))
_CONTRACT: Final = PackingCapabilities("document_ids")

Call = Callable[[Any], object]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of MaskedTensors", "ignore:Sparse", "ignore:The PyTorch API of nested"
)


def _refusal(call: Callable[..., object], *arguments: Any) -> Problem:
    with pytest.raises(PackingError) as caught:
        call(*arguments)
    return caught.value.problems[0]


def _batch(**entries: Any) -> Any:
    return training_batch(_IDS.clone(), **entries)


_NUMBERS: Final[tuple[Call, ...]] = (
    lambda bad: adapters.build_position_ids(_IDS, bad),
    lambda bad: adapters.build_block_mask(_IDS, block_size=bad),
    lambda bad: adapters.document_ids_from_lengths([[bad]], 4),
    lambda bad: adapters.plan_rows([bad], 4),
    lambda bad: RowPlan.from_rows([[bad]], [2, 3, 4], 4),
    lambda bad: adapters.collate_documents([torch.tensor([1, 2]), torch.tensor([3])], _PLAN, rows=[bad]),
    lambda bad: list(adapters.RowStream(4, 1).rows([bad])),
)


@pytest.mark.parametrize("call", _NUMBERS)
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_only_of_an_integer_the_item_is_an_int(call: Call, make: Callable[[object], object]) -> None:
    item = "Give a Python int: value.item()."
    assert _refusal(call, make(2)).remedy == item
    for other in (2.5, True):
        assert _refusal(call, make(other)).remedy != item


_TAKE_NUMBERS: Final[tuple[Call, ...]] = (
    lambda bad: AttentionCost(bad, 1.0),
    lambda bad: adapters.build_block_causal_mask(_IDS, torch.float32, blocked=bad),
    lambda bad: RowPlan.from_rows([[0]], [1], 4, [bad]),
    lambda bad: adapters.flatten_packed_sequence_metadata(_IDS, _IDS, bad, 4),
    lambda bad: adapters.build_position_ids(_IDS, bad),
)


@pytest.mark.parametrize("call", _TAKE_NUMBERS)
def test_what_is_no_number_is_not_shown_as_one(call: Call) -> None:
    assert _refusal(call, "1").value == "'1'"
    assert _refusal(call, np.array(1.5)).value == "array(1.5)"


@pytest.mark.parametrize("number", [torch.tensor(1.0), np.array(1.0)])
def test_a_cost_of_one_number_is_its_item(number: Any) -> None:
    assert _refusal(AttentionCost, number, 1.0).remedy == "Give a Python number: value.item()."
    assert AttentionCost(number.item(), 1.0) == _COST
    blocked: Any = torch.tensor(-math.inf)
    problem = _refusal(lambda: adapters.build_block_causal_mask(_IDS, torch.float32, blocked=blocked))
    assert problem.remedy == "Give a Python number: value.item()."


@pytest.fixture
def spread_ids() -> Iterator[Any]:
    """Ids as a DTensor, on the one rank of a group."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    distributed.init_process_group("gloo", store=cast("Any", distributed).HashStore(), rank=0, world_size=1)
    yield distribute_tensor(_IDS, init_device_mesh("cpu", (1,)))
    distributed.destroy_process_group()


_OF_IDS: Final[tuple[Call, ...]] = (
    adapters.gathered_flat,
    adapters.build_packed_sequence_metadata,
    adapters.document_ids_from_positions,
    lambda ids: adapters.scan_static(ids, _BOUNDS),
    lambda ids: adapters.mask_labels(ids, _IDS, "model"),
    lambda ids: adapters.reduce_by_document(ids, _IDS, "sum"),
    lambda ids: adapters.unpack(ids, _IDS),
    lambda ids: adapters.repeat_on_axes(ids, 3),
    lambda ids: adapters.pad_rows(_batch(labels=ids), 8),
    lambda ids: adapters.take_places(_batch(more=ids), _IDS),
)


@pytest.mark.parametrize("call", _OF_IDS)
def test_tensors_that_do_not_mix_with_plain_ones_are_told_how_to_become_plain(call: Call, spread_ids: Any) -> None:
    positions: Any = masked_tensor(torch.arange(4).expand(2, 4), torch.ones(2, 4, dtype=torch.bool))
    for value, plain in ((spread_ids, spread_ids.full_tensor()), (positions, positions.to_tensor(0))):
        problem = _refusal(call, value)
        assert (problem.message, problem.value) == ("must be a plain tensor", type(value).__name__)
        assert f"{problem.field}.{'full_tensor()' if value is spread_ids else 'to_tensor(0)'}" in problem.remedy
        assert not adapters.is_document_ids(value)
        assert plain.shape == _IDS.shape
    call(spread_ids.full_tensor())


def test_what_is_not_dense_is_told_how_to_become_so() -> None:
    for value in (_IDS.to_sparse(), _IDS.to_sparse_csr()):
        assert _refusal(adapters.gathered_flat, value).remedy == "Convert it: document_ids.to_dense()."
        assert adapters.gathered_flat(value.to_dense()).max_seqlen == 3


def test_only_what_holds_numbers_is_to_be_converted() -> None:
    convert = "Convert it: torch.tensor(...)."
    hidden = np.ma.masked_equal(_IDS.numpy(), 2)
    told: list[tuple[object, str]] = [
        ([[1, 1, 2, 0]], convert), (_IDS.numpy(), convert), (None, "Give a tensor."), ("ids", "Give a tensor."),
        (hidden, "Give a tensor."), (adapters.as_segments, "Give a tensor."),
    ]  # fmt: skip
    for value, remedy in told:
        assert _refusal(adapters.scan_segments, value).remedy == remedy


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_of_lengths_costs_what_an_array_does() -> None:
    lengths: Any = np.matrix([[2, 4], [1, 3]])
    assert _COST.of(lengths).tolist() == [[6.0, 20.0], [2.0, 12.0]]


_PIECES: Final = (Piece(0, 0, 2), Piece(0, 2, 3))


def test_what_is_dropped_is_a_tuple_of_pieces() -> None:
    for dropped in (_PIECES[1], 3):
        remedy = _refusal(RowPlan, 4, *_PIECE_ARRAYS, dropped).remedy
        assert remedy == "Give a tuple of pieces: (Piece(document, start, stop),)."
    assert RowPlan(4, *_PIECE_ARRAYS, (_PIECES[1],)).dropped == (_PIECES[1],)


_PIECE_ARRAYS: Final = (np.array([3]), np.array([0]), np.array([0]), np.array([2]), np.array([0, 1]))


def test_steps_are_of_three_axes() -> None:
    told = _refusal(RankPlan, _PLAN, _COST, np.array([[0]]))
    assert (told.message, told.value) == ("must be integers on 3 axes", ("int64", (1, 1)))
    assert told.remedy == "Give numpy.array([[[0]]]), rows by step and rank."
    assert len(RankPlan(_PLAN, _COST, np.array([[[0]]]))) == 1


def test_a_token_past_int64_is_not_made_another() -> None:
    documents = [torch.tensor([1, 2**63 + 1], dtype=torch.uint64), torch.tensor([3])]
    assert "long()" not in _refusal(adapters.collate_documents, documents, _PLAN).remedy


def test_no_rows_are_not_too_many() -> None:
    documents = [torch.tensor([1, 2]), torch.tensor([3])]
    told = _refusal(lambda: adapters.collate_documents(documents, _PLAN, rows=[]))
    assert (told.field, told.value, told.remedy) == ("rows", 0, "Give one row at least.")


_OF_BATCH: Final[tuple[Call, ...]] = (
    adapters.adapt_model_inputs,
    lambda batch: adapters.apply_packing_contract(batch, _CONTRACT),
    lambda batch: adapters.convert_batch_output(batch, "thd"),
    lambda batch: adapters.enable_xdoc_attention(batch, _CONTRACT),
)


@pytest.mark.parametrize("call", _OF_BATCH)
def test_a_mapping_that_keeps_what_is_taken_out_is_no_batch(call: Call) -> None:
    """What its lower map holds comes to light again where an entry is taken out of the upper one."""
    entries: dict[str, object] = {**adapters.adapt_model_inputs(_batch())}
    batch: ChainMap[str, object] = ChainMap({}, entries)
    told = _refusal(call, batch)
    assert (told.field, told.value) == ("batch", "ChainMap")
    assert "dict(batch)" in told.remedy
    call(dict(batch))
    assert not batch.maps[0]


@pytest.mark.parametrize("name", adapters.flash_varlen_kwargs(_IDS))
def test_a_part_of_flash_kwargs_is_never_to_be_left_out_alone(name: str) -> None:
    ids = torch.tensor([[1, 1, 2, 0]])
    wrong: list[object] = [None, ids.float(), torch.tensor([0, 1, 4]), torch.tensor(2)]
    for value in wrong:
        told = _refusal(adapters.check_agreement, ids, {**_FLASH, name: value})
        assert told.remedy.endswith(
            "leave out all of cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, or derive them of these ids."
        )
    adapters.check_agreement(ids, {})
    adapters.check_agreement(ids, {**adapters.flash_varlen_kwargs(ids)})


@pytest.mark.parametrize("name", ["packed_token_indices", "cu_seqlens"])
def test_a_part_of_metadata_is_never_to_be_left_out_alone(name: str) -> None:
    metadata = adapters.build_packed_sequence_metadata(_IDS)
    given: list[dict[str, object]] = [{**metadata, name: value} for value in (None, _IDS.float(), _IDS)]
    for wrong in (*given, {"max_seqlen": 3}, {**metadata, "max_seqlen": 1}):
        told = _refusal(adapters.check_agreement, _IDS, wrong)
        assert told.remedy.endswith(
            "leave out all of packed_token_indices, cu_seqlens, max_seqlen, or derive them of these ids."
        )
    for right in ({}, {**metadata, "max_seqlen": None}, dict(metadata)):
        adapters.check_agreement(_IDS, right)


def test_a_batch_of_no_row_has_none_to_cut() -> None:
    for microbatches in (1, 2):
        told = _refusal(adapters.split_rows, {"input_ids": _IDS[:0]}, microbatches)
        assert (told.field, told.value, told.remedy) == ("input_ids", (0, 4), "Leave such batches out.")


_CUTS: Final[tuple[Call, ...]] = (lambda batch: adapters.split_rows(batch, 2), adapters.pipeline_chunk_dims)


@pytest.mark.parametrize("call", _CUTS)
def test_a_longest_that_is_no_int_is_not_told_to_have_rows(call: Call) -> None:
    told = _refusal(call, _batch(max_seqlen=torch.tensor(3)))
    assert (told.field, told.message) == ("max_seqlen", "must be a Python int")
    assert "int(x)" in told.remedy
    call(_batch(max_seqlen=3))


def test_a_count_is_told_by_what_it_is() -> None:
    metadata: dict[str, Any] = {**adapters.build_packed_sequence_metadata(_IDS)}

    def convert(longest: object) -> object:
        return adapters.convert_batch_output(_batch(**{**metadata, "max_seqlen": longest}), "thd")

    for value in (torch.tensor(3), np.int64(3)):
        assert _refusal(convert, value).remedy == "Pass int(x): kernels wait for a tensor."
        convert(int(value))
    for other in (None, 3.5, "3", True):
        assert _refusal(convert, other).remedy == "Give the number of tokens, or leave it out."
    told = _refusal(adapters.varlen_kernel_kwargs, PhysicalFlat(_FLASH["cu_seq_lens_q"], cast("Any", None)))
    assert told.remedy == "Give the number of tokens."


_DECODERS: Final[tuple[tuple[str, str, Call, Call], ...]] = (
    ("matrix", "LengthMatrix", lambda bad: adapters.document_ids_from_length_matrix(bad, 4), adapters.length_matrix),
    ("rows", "PhysicalRows", lambda bad: adapters.document_ids_from_row_offsets(bad, _IDS == 0), adapters.row_offsets),
    ("index", "SegmentIndex", adapters.document_ids_from_segment_index, adapters.segment_index),
    ("lengths", "THDLengths", lambda bad: adapters.document_ids_from_thd_lengths(bad, 4), adapters.thd_lengths),
    ("lengths", "THDLengths", lambda bad: adapters.flatten_thd_lengths(bad, 4), adapters.thd_lengths),
    (
        "kwargs",
        "Mapping",
        lambda bad: adapters.document_ids_from_flash_varlen(bad, _IDS == 0),
        adapters.flash_varlen_kwargs,
    ),
)


@pytest.mark.parametrize(("field", "kind", "call", "encode"), _DECODERS)
def test_an_encoding_is_named_as_the_argument_it_is(field: str, kind: str, call: Call, encode: Call) -> None:
    for bad in (None, _IDS, "3", 3):
        told = _refusal(call, bad)
        assert (told.field, told.message, told.value) == (field, f"must be a {kind}", type(bad).__name__)
        assert "(" in told.remedy
    call(encode(_IDS))


@pytest.mark.parametrize("shape", [(1, "4"), (None, 4), (1.0, 4), (-1, 4)])
def test_a_shape_of_something_else_is_named_as_shape(shape: Any) -> None:
    told = _refusal(adapters.document_ids_from_metadata, _IDS[0], torch.tensor([0, 4]), shape)
    assert (told.field, told.value) == ("shape", repr(shape))


@pytest.mark.parametrize("lengths", ["", [""], [[2], ""], [[2], "12"]])
def test_words_are_no_lengths(lengths: Any) -> None:
    assert _refusal(adapters.document_ids_from_lengths, lengths, 4).message == "must be rows of lengths"


def test_a_list_of_nested_tensors_stays_where_tokens_move() -> None:
    images: Any = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])  # pyright: ignore[reportUnknownMemberType]
    for move in (adapters.pad_rows, adapters.pad_documents):
        moved: Any = move(_batch(images=[images]), 4)
        assert moved["images"][0] is images


def test_offsets_of_keys_name_the_first_that_differs() -> None:
    ids = torch.tensor([[1, 1, 2, 0]])
    wrong = {**_FLASH, "cu_seq_lens_k": torch.tensor([0, 1, 3, 4], dtype=torch.int32)}
    told = _refusal(adapters.document_ids_from_flash_varlen, wrong, ids == 0)
    assert (told.field, told.position, told.value) == ("cu_seq_lens_k", 1, 1)


@pytest.mark.parametrize("shape", [(0, 2), (2, 0)])
def test_a_mask_of_no_place_is_not_to_be_cut(shape: tuple[int, int]) -> None:
    mask = torch.ones(shape, dtype=torch.bool)
    told = _refusal(adapters.document_ids_from_flash_varlen, _FLASH, mask)
    assert (told.field, "Cut" in told.remedy) == ("padding_mask", False)


def test_offsets_of_no_entry_are_not_to_be_flattened() -> None:
    told = _refusal(adapters.segment_ids_from_offsets, torch.zeros(0, dtype=torch.int64))
    assert (told.value, told.remedy) == ((0,), "Give the offsets of one stream, from 0 on.")
    assert adapters.segment_ids_from_offsets(torch.tensor([0])).numel() == 0


def test_slots_beyond_the_row_are_not_told_to_grow() -> None:
    lengths = adapters.thd_lengths(_IDS)
    for places in (3, 5):
        told = _refusal(adapters.document_ids_from_thd_lengths, lengths, places)
        assert told.remedy == "Count each place of a row once: padding with the document before it."


def test_keys_that_do_not_broadcast_are_no_queries() -> None:
    places = torch.arange(4)
    told = _refusal(adapters.sees, places[:, None], places[:3], places[:, None], places)
    assert (told.field, told.value) == ("key_places", (4,))
    assert told.remedy == "Give one value per query and per key, with a dimension of 1 for the other."
    adapters.sees(places[:, None], places[:3], places[:, None], places[:3])


def test_where_a_document_begins_may_be_a_number_of_the_host() -> None:
    """One number on the host goes with tensors of any device, here of one without data."""
    places = torch.arange(4, device="meta")
    for window in (None, 2):
        first, last = adapters.seen_range(places, torch.tensor(0), torch.tensor(4), window=window, causal=False)
        assert [(each.is_meta, each.shape) for each in (first, last)] == [(True, (4,))] * 2


def test_several_special_tokens_are_a_list() -> None:
    tokens = torch.tensor([[1, 2, 3]])
    told = _refusal(lambda: adapters.document_ids_from_tokens(tokens, eos_token_id=cast("Any", {2, 3})))
    assert told.remedy == "Give the id of a token, or a list of several."
    adapters.document_ids_from_tokens(tokens, eos_token_id=[2, 3])


def test_ids_that_are_none_are_to_be_left_out_where_others_are_there() -> None:
    told = _refusal(adapters.apply_packing_contract, _batch(_packed_seq_ids=None), _CONTRACT)
    assert (told.field, told.value, told.remedy) == ("_packed_seq_ids", "NoneType", "Give a tensor, or leave it out.")
    adapters.apply_packing_contract(_batch(), _CONTRACT)


@pytest.mark.parametrize("numbers", [[2**64], [2**70, 1], [[2**64 - 1], [-1]], [-(2**63) - 1]])
def test_numbers_that_no_tensor_holds_are_named(numbers: list[object], tmp_path: Path) -> None:
    path = tmp_path / "batch.json"
    path.write_text(json.dumps({"ids": numbers}))
    assert _refusal(adapters.load_batch, path).remedy == "Save ints of 64 bits."


def test_what_is_no_npz_file_is_not_said_to_hold_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    for content in (b"", b"xx", b"\x80\x04N."):
        path.write_bytes(content)
        assert _refusal(adapters.load_batch, path).message == "is no npz file"
    np.save(tmp_path / "batch.npy", np.ones(2))
    (tmp_path / "batch.npy").rename(path)
    told = _refusal(adapters.load_batch, path)
    assert (told.message, told.remedy) == ("is no npz file", "Save it with `numpy.savez`, arrays of numbers only.")
    np.savez(path, ids=np.array([None], object))
    assert "without pickle" in _refusal(adapters.load_batch, path).message
    np.savez(path, ids=np.ones(2))
    assert listed(cast("Any", adapters.load_batch(path)["ids"])) == [1.0, 1.0]


def test_what_has_no_data_cannot_be_moved() -> None:
    told = _refusal(adapters.reduce_by_document, _IDS.to("meta"), _IDS, "sum")
    assert (told.kind, told.remedy) == ("device", "Give a tensor that lies on a real device.")


def _flash(offsets: torch.Tensor) -> Any:
    return {**_FLASH, "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}


def _joinable(ids: torch.Tensor) -> Any:
    return _batch(document_ids=ids, attention_document_ids=ids.clone(), position_ids=ids.clone())


def test_a_batch_tells_how_its_tensors_become_dense() -> None:
    nested = torch.nested.nested_tensor([[1, 1], [1]])  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    sparse = {**_batch(), "document_ids": _IDS.to_sparse()}
    assert _refusal(parse_training_batch, sparse).remedy == "Convert it: document_ids.to_dense()."
    assert _refusal(parse_training_batch, {**sparse, "document_ids": nested}).remedy == "Pad its rows to one length."
    parse_training_batch({**sparse, "document_ids": _IDS.to_sparse().to_dense()})


def test_what_is_read_in_a_graph_is_named() -> None:
    calls: list[tuple[str, Call]] = [
        ("document_ids", adapters.gathered_flat),
        ("attention_mask", adapters.get_seqlens_in_batch),
        ("cu_seqlens", lambda ids: adapters.segment_ids_from_offsets(ids[0])),
        ("position_ids", adapters.physical_offsets_from_positions),
        ("packed_token_indices", lambda ids: adapters.document_ids_from_metadata(ids, ids)),
        ("input_ids", lambda ids: adapters.document_ids_from_tokens(ids, eos_token_id=1)),
        ("seq_idx", lambda ids: adapters.document_ids_from_segment_index(SegmentIndex(ids.int()), ids == 0)),
        ("seq_lens", lambda ids: adapters.document_ids_from_thd_lengths(THDLengths(ids, ids), 4)),
        ("attention_document_ids", lambda ids: adapters.mask_labels(ids, ids, "model", document_ids=ids.clone())),
        ("ids", lambda ids: adapters.check_agreement(ids, {"seq_idx": ids}, field="ids")),
        ("places", lambda ids: adapters.take_places(_batch(input_ids=ids), ids)),
        ("position_ids", adapters.document_ids_from_positions),
        ("cu_seq_lens_q", lambda ids: adapters.document_ids_from_flash_varlen(_flash(ids[0].int()), ids == 0)),
        ("document_ids", lambda ids: adapters.enable_xdoc_attention(_joinable(ids), _CONTRACT)),
    ]
    for field, call in calls:
        told = _refusal(torch.func.functionalize(call), _IDS)
        assert (told.field, told.kind) == (field, "device")


@pytest.mark.parametrize(
    ("ids", "longest", "message", "position"),
    [
        ([[0, 1, -5]], 1, "negative id", 2),
        ([[0, 1, 2, 1]], 2, "id comes back after another id", 3),
        ([[0, 2, 2, 2]], 1, "the document that begins here is longer than the bound", 1),
        ([[0, 0, 1, 0]], 1, "the batch has more segments than the bound", 3),
    ],
)
def test_ids_that_are_malformed_are_not_too_many(
    ids: list[list[int]], longest: int, message: str, position: int
) -> None:
    """What does not fit behind the last document is told at the end of the batch, where it would stand."""
    _, status = adapters.static_gathered_flat(torch.tensor(ids), StaticBounds(2, 2, longest), "padding")
    told = _refusal(adapters.raise_if_invalid, status)
    assert (told.message, told.position) == (message, position)


@pytest.mark.parametrize("size", [4, 5, 2**30, (2**31 - 1, 2), (2, 2**31 - 1)])
def test_blocks_may_be_larger_than_rows(size: Any) -> None:
    static, _ = adapters.static_block_mask(_IDS, _BOUNDS, block_size=size)
    dynamic = adapters.build_block_mask(_IDS, block_size=size)
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "q_num_blocks", "q_indices", "full_q_indices"):
        assert torch.equal(getattr(static, name), getattr(dynamic, name))


def test_padding_before_documents_is_told_where_it_can_go() -> None:
    ids = torch.tensor([[0, 1, 1, 2]])
    told = _refusal(adapters.convert_batch_output, training_batch(ids), "thd")
    assert "pad_documents(batch, 1) moves it" in told.remedy
    assert "padded_documents=True" in told.remedy
    converted = adapters.convert_batch_output(adapters.pad_documents(training_batch(ids), 1), "thd")
    assert cast("Any", converted)["seq_lens"].tolist() == [[2, 1]]


_RECURRENT: Final[tuple[Call, ...]] = (adapters.segment_index, adapters.joined_segment_index, adapters.physical_states)


@pytest.mark.parametrize("call", _RECURRENT)
def test_state_over_a_hole_is_told_to_run_over_gathered_tokens(call: Call) -> None:
    ids = torch.tensor([[1, 0, 1, 2]])
    told = _refusal(call, ids)
    assert (told.row, told.position) == (0, 1)
    assert told.remedy == "Gather the kept tokens into one row, as gathered_states(document_ids) counts them."
    states = adapters.gathered_states(ids)
    assert listed(adapters.segment_ids_from_offsets(states.cu_seqlens)) == [0, 0, 1]


def test_two_ways_out_are_told_as_two() -> None:
    told = _refusal(lambda: adapters.require_supported_packing_contract(PackingCapabilities("flash_varlen"), xdoc=True))
    assert "trailing_padding=True; or build a model" in told.remedy
    adapters.require_supported_packing_contract(PackingCapabilities("flash_varlen"), xdoc=True, trailing_padding=True)
    adapters.require_supported_packing_contract(PackingCapabilities("block_causal"), xdoc=True)


def test_a_type_is_named_with_its_article() -> None:
    assert (
        _refusal(lambda: adapters.balance_rows(_PLAN, 1, cost=cast("Any", None))).message == "must be an AttentionCost"
    )
    assert _refusal(lambda: adapters.balance_rows(cast("Any", None), 1, cost=_COST)).message == "must be a RowPlan"


def test_dtypes_of_strategies_are_dtypes() -> None:
    def draw(dtype: Any) -> object:
        return strategies.document_ids(dtypes=(dtype,))

    for wrong in (np.array([1, 2]), torch.float32, "int64"):
        told = _refusal(draw, wrong)
        assert (told.field, told.message) == ("dtypes", "must be dtypes of integers")


@pytest.mark.parametrize("fault", strategies.BATCH_FAULTS)
@given(data=st.data())
def test_what_contradicts_the_ids_is_left_out_as_told(fault: strategies.BatchFault, data: st.DataObject) -> None:
    batch: dict[str, Any] = {**data.draw(strategies.contradicting_batches(fault))}
    ids = batch["document_ids"]
    told = _refusal(adapters.check_agreement, ids, batch)
    together = re.search(r"leave out all of ([\w, ]+), or derive", told.remedy)
    for name in together[1].split(", ") if together else [told.field]:
        batch.pop(name, None)
    adapters.check_agreement(ids, batch)


def test_rows_that_are_carried_twice_are_not_said_to_be_dealt() -> None:
    plan = adapters.plan_rows([4, 4, 4], 4)
    for carried, field in (((1, 1), "carried"), ((0,), "steps"), ((), "steps")):
        steps = np.array([[[0]], [[2]]] if carried else [[[0]], [[0]]])
        told = _refusal(RankPlan, plan, _COST, steps, carried)
        assert (told.field, told.value) == (field, carried[0] if carried else 0)
    assert RankPlan(plan, _COST, np.array([[[0]], [[2]]]), (1,)).carried == (1,)


def test_a_step_of_padding_is_named() -> None:
    told = _refusal(RankPlan, _PLAN, _COST, np.array([[[0]], [[-1]]]))
    assert told.message == "step 1 is nothing but padding"


@pytest.mark.parametrize(("name", "index"), [("documents", 0), ("cut", 0)])
@pytest.mark.parametrize("wrong", [-1, 9])
def test_numbers_of_a_saved_plan_are_told_as_they_are(name: str, index: int, wrong: int) -> None:
    state: dict[str, Any] = {**adapters.plan_rows([7], 5, overlong="split").state()}
    entries = np.array(state[name])
    entries[(index, 0)[: entries.ndim]] = wrong
    told = _refusal(RowPlan.from_state, {**state, name: entries.tolist()})
    assert (told.field, told.value) == (name, wrong)
    assert told.message.startswith("must be from 0 to ")


def test_offsets_that_fall_are_not_said_to_be_too_long() -> None:
    flat = adapters.thd_flat(_IDS)
    for name in ("cu_seqlens", "cu_seqlens_padded"):
        offsets = getattr(flat, name).clone()
        offsets[2] = 1
        told = _refusal(adapters.real_places, dataclasses.replace(flat, **{name: offsets}))
        assert (told.field, told.message) == (name, "must start at 0 and never fall")
        assert (told.position, told.value) == (2, 1)
