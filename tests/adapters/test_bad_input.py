"""Whatever is passed in place of an argument, the error is of the family, and names the argument."""

from __future__ import annotations

import inspect
import json
import math
import re
import traceback
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from neatpack.adapters import (
    PACKING_METHODS,
    AttentionCost,
    PackingMethod,
    RankPlan,
    RowPlan,
    RowStream,
    StaticBounds,
    aligned_length,
    apply_packing_contract,
    as_segments,
    balance_rows,
    block_causal_mask_bytes,
    build_block_causal_mask,
    build_block_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    canonical_document_ids,
    check_agreement,
    check_thd_offsets,
    collate_documents,
    context_places,
    count_valid_targets,
    document_ids_from_flash_varlen,
    document_ids_from_length_matrix,
    document_ids_from_lengths,
    document_ids_from_metadata,
    document_ids_from_positions,
    document_ids_from_segment_index,
    document_ids_from_thd_lengths,
    document_multiple,
    document_rows,
    fla_kwargs,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    gathered_flat,
    gathered_rows,
    gathered_states,
    get_seqlens_in_batch,
    get_unpad_data,
    is_document_ids,
    is_indexed_packed_mask,
    length_matrix,
    mask_function,
    mask_labels,
    mtp_targets,
    packed_seq_params_kwargs,
    pad_documents,
    pad_rows,
    parse_document_ids,
    physical_offsets,
    plan_rows,
    raise_if_invalid,
    real_places,
    reduce_by_document,
    repeat_on_axes,
    require_supported_packing_contract,
    resume_rows,
    row_offsets,
    scan_segments,
    scan_static,
    seen_range,
    sees,
    segment_ids_from_offsets,
    shard_tokens,
    split_rows,
    static_block_causal_mask,
    static_block_mask,
    static_position_ids,
    static_thd_lengths,
    take_places,
    thd_flat,
    thd_lengths,
    transformer_engine_kwargs,
    unpack,
    validate_document_ids,
    varlen_kernel_kwargs,
    visible_squares,
)
from neatpack.adapters.arguments import INTEGER_DTYPES
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.encodings import GatheredFlat, PhysicalFlat, SegmentIndex
from neatpack.contracts.errors import DocumentIdsError, EncodingError, PackingError, PlanError
from tests.adapters.properties import listed

_TAKE_IDS: Final[list[Callable[[Any], object]]] = [
    as_segments,
    build_block_causal_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    canonical_document_ids,
    flash_varlen_kwargs,
    gathered_flat,
    gathered_rows,
    get_seqlens_in_batch,
    get_unpad_data,
    parse_document_ids,
    physical_offsets,
    scan_segments,
    lambda ids: check_agreement(ids, {}),
    lambda ids: mask_labels(torch.zeros(1, 3, dtype=torch.int64), ids, "model"),
    lambda ids: unpack(torch.zeros(1, 3), ids),
]

_NO_IDS: Final[dict[str, object]] = {
    "nothing": None,
    "a list": [[1, 1, 0]],
    "an array": np.array([[1, 1, 0]]),
    "a number": 3,
    "float": torch.tensor([[1.0, 1.0, 0.0]]),
    "complex": torch.zeros(1, 3, dtype=torch.complex64),
    "rank 0": torch.tensor(1),
    "rank 1": torch.tensor([1, 1, 0]),
    "rank 3": torch.ones(1, 3, 1, dtype=torch.int64),
    "no rows": torch.ones(0, 3, dtype=torch.int64),
    "no places": torch.ones(1, 0, dtype=torch.int64),
    "meta": torch.ones(1, 3, dtype=torch.int64, device="meta"),
    "sparse": torch.eye(3, dtype=torch.int64).to_sparse(),
    "with a gradient": torch.ones(1, 3, requires_grad=True),
    "negative": torch.tensor([[1, -1, 0]]),
    "returning": torch.tensor([[1, 2, 1]]),
    "returning after padding": torch.tensor([[1, 0, 2, 0, 1]]),
}


@pytest.mark.parametrize("function", _TAKE_IDS)
@pytest.mark.parametrize("ids", _NO_IDS.values(), ids=_NO_IDS)
def test_what_are_no_ids_is_refused(function: Callable[[Any], object], ids: object) -> None:
    with pytest.raises(PackingError) as caught:
        function(ids)
    problem = caught.value.problems[0]
    assert problem.field in ("document_ids", "attention_mask", "attention_document_ids")
    assert not is_document_ids(ids)
    assert validate_document_ids(ids)


_IDS: Final = torch.tensor([[1, 1, 2]])
_PLAN: Final = plan_rows([2, 1], 4)
_COST: Final = AttentionCost(1.0, 1.0)
_RANKED: Final = balance_rows(_PLAN, 1, cost=_COST)
_DOCUMENTS: Final = [torch.tensor([1, 2]), torch.tensor([3])]
_KWARGS: Final = flash_varlen_kwargs(_IDS)
_CONTRACT: Final = PackingCapabilities("document_ids")


def _or(bad: object, instead: object) -> Any:
    """Replace what would be right: None, where an argument may be left out."""
    return instead if bad is None else bad


def _batch() -> TrainingBatch[torch.Tensor]:
    return collate_documents(_DOCUMENTS, _PLAN)


_PLACES: Final = torch.arange(4)[None]

_CALLS: Final[list[tuple[str, Callable[[Any], object]]]] = [
    ("start", lambda bad: build_position_ids(_IDS, bad)),
    ("dtype", lambda bad: build_block_causal_mask(_IDS, _or(bad, torch.int32))),
    ("window", lambda bad: build_block_causal_mask(_IDS, window=_or(bad, 0))),
    ("padding", lambda bad: flash_varlen_kwargs(_IDS, bad)),
    ("longest_padding", lambda bad: flash_varlen_kwargs(_IDS, longest_padding=_or(bad, 0))),
    ("label_shift", lambda bad: mask_labels(_IDS, _IDS, bad)),
    ("labels", lambda bad: mask_labels(bad, _IDS, "model")),
    ("labels", lambda bad: count_valid_targets(bad)),
    ("position_ids", lambda bad: document_ids_from_positions(bad)),
    ("padding_mask", lambda bad: document_ids_from_positions(_IDS, _or(bad, 0))),
    ("lengths", lambda bad: document_ids_from_lengths(bad, 4)),
    ("lengths", lambda bad: document_ids_from_lengths([[bad]], 4)),
    ("lengths", lambda bad: document_ids_from_lengths([[1], bad], 4)),
    ("sequence_length", lambda bad: document_ids_from_lengths([[1]], bad)),
    ("packed_token_indices", lambda bad: document_ids_from_metadata(bad, _IDS)),
    ("cu_seqlens", lambda bad: document_ids_from_metadata(_IDS, bad)),
    ("packed_token_indices", lambda bad: flatten_packed_sequence_metadata(bad, _IDS, 1, 3)),
    ("cu_seqlens", lambda bad: flatten_packed_sequence_metadata(_IDS, bad, 1, 3)),
    ("batch_size", lambda bad: flatten_packed_sequence_metadata(_IDS, _IDS, bad, 3)),
    ("sequence_length", lambda bad: flatten_packed_sequence_metadata(_IDS, _IDS, 1, bad)),
    ("kwargs", lambda bad: document_ids_from_flash_varlen(bad, _IDS == 0)),
    ("padding_mask", lambda bad: document_ids_from_flash_varlen(_KWARGS, bad)),
    ("capacity", lambda bad: plan_rows([1], bad)),
    ("lengths", lambda bad: plan_rows([bad], 4)),
    ("pad_token_id", lambda bad: collate_documents(_DOCUMENTS, _PLAN, bad)),
    ("documents", lambda bad: collate_documents([bad, _DOCUMENTS[1]], _PLAN)),
    ("values", lambda bad: unpack(bad, _IDS)),
    ("document_keys", lambda bad: unpack(_IDS, _IDS, _or(bad, 0))),
    ("document_starts", lambda bad: unpack(_IDS, _IDS, torch.tensor([[0, 1]]), _or(bad, 0))),
    ("method", lambda bad: plan_rows([1], 4, method=bad)),
    ("overlong", lambda bad: plan_rows([1], 4, overlong=bad)),
    ("documents_per_row", lambda bad: plan_rows([1], 4, documents_per_row=_or(bad, 0))),
    ("rows", lambda bad: collate_documents(_DOCUMENTS, _PLAN, rows=_or(bad, 3))),
    ("rows", lambda bad: collate_documents(_DOCUMENTS, _PLAN, rows=[bad])),
    ("rows", lambda bad: RowPlan.from_rows([[bad]], [1], 4)),
    ("lengths", lambda bad: RowPlan.from_rows([[0]], [bad], 4)),
    ("capacity", lambda bad: RowPlan.from_rows([[0]], [1], bad)),
    ("state", lambda bad: RowPlan.from_state(bad)),
    ("plan", lambda bad: balance_rows(bad, 2, cost=_COST)),
    ("ranks", lambda bad: balance_rows(_PLAN, bad, cost=_COST)),
    ("cost", lambda bad: balance_rows(_PLAN, 1, cost=bad)),
    ("rows_per_rank", lambda bad: balance_rows(_PLAN, 1, cost=_COST, rows_per_rank=bad)),
    ("remainder", lambda bad: balance_rows(_PLAN, 1, cost=_COST, remainder=bad)),
    ("seed", lambda bad: balance_rows(_PLAN, 1, cost=_COST, seed=bad)),
    ("rank", lambda bad: _RANKED.rank_rows(bad)),
    ("done", lambda bad: _RANKED.state(bad)),
    ("state", lambda bad: resume_rows(bad)),
    ("ranks", lambda bad: resume_rows(_RANKED.state(0), ranks=_or(bad, 0))),
    ("rows_per_rank", lambda bad: resume_rows(_RANKED.state(0), rows_per_rank=_or(bad, 0))),
    ("rows", lambda bad: RankPlan(bad, _COST, _RANKED.steps)),
    ("cost", lambda bad: RankPlan(_PLAN, bad, _RANKED.steps)),
    ("steps", lambda bad: RankPlan(_PLAN, _COST, bad)),
    ("carried", lambda bad: RankPlan(_PLAN, _COST, _RANKED.steps, bad)),
    ("carried", lambda bad: RankPlan(_PLAN, _COST, _RANKED.steps, (bad,))),
    ("remainder", lambda bad: RankPlan(_PLAN, _COST, _RANKED.steps, (), bad)),
    ("seed", lambda bad: RankPlan(_PLAN, _COST, _RANKED.steps, (), "pad", bad)),
    ("dropped", lambda bad: RowPlan.from_rows([[0]], [1], 4, [bad])),
    ("linear", lambda bad: AttentionCost(_or(bad, "1") if bad != 2.5 else -2.5, 1.0)),
    ("quadratic", lambda bad: AttentionCost(1.0, _or(bad, "1") if bad != 2.5 else -2.5)),
    ("layers", lambda bad: AttentionCost.of_model(1, bad, 1)),
    ("attention_mask", lambda bad: check_agreement(_IDS, {"attention_mask": _or(bad, 0)})),
    ("given", lambda bad: check_agreement(_IDS, bad)),
    ("plan", lambda bad: collate_documents(_DOCUMENTS, bad)),
    ("lengths", lambda bad: plan_rows(_or(bad, 3), 3)),
    ("length", lambda bad: aligned_length(bad, 4)),
    ("multiple", lambda bad: aligned_length(4, bad)),
    ("multiple", lambda bad: pad_rows(_batch(), bad)),
    ("multiple", lambda bad: pad_documents(_batch(), bad)),
    ("pad_token_id", lambda bad: pad_rows(_batch(), 2, pad_token_id=bad)),
    ("pad_token_id", lambda bad: pad_documents(_batch(), 2, pad_token_id=bad)),
    ("batch", lambda bad: pad_rows(bad, 2)),
    ("places", lambda bad: take_places(_batch(), bad)),
    ("context_parallel", lambda bad: document_multiple(bad)),
    ("rank", lambda bad: context_places(_IDS, bad, 1, "contiguous")),
    ("ranks", lambda bad: context_places(_IDS, 0, bad, "contiguous")),
    ("rank", lambda bad: shard_tokens(_batch(), bad, 1, "contiguous", label_shift="model")),
    ("microbatches", lambda bad: split_rows(_batch(), bad)),
    ("padding", lambda bad: split_rows(_batch(), 1, padding=bad)),
    ("depth", lambda bad: mtp_targets(_IDS, _IDS, bad, "model")),
    ("inside_documents", lambda bad: mtp_targets(_IDS, _IDS, 0, "model", inside_documents=bad)),
    ("sequence_length", lambda bad: document_ids_from_thd_lengths(thd_lengths(_IDS), bad)),
    ("sequence_length", lambda bad: document_ids_from_length_matrix(length_matrix(_IDS), bad)),
    ("width", lambda bad: row_offsets(_IDS, width=_or(bad, -1))),
    ("total_tokens", lambda bad: real_places(thd_flat(_IDS), _or(bad, -1))),
    ("documents", lambda bad: StaticBounds(bad, 1, 1)),
    ("longest", lambda bad: StaticBounds(1, 1, bad)),
    ("bounds", lambda bad: static_thd_lengths(_IDS, bad)),
    ("bounds", lambda bad: scan_static(_IDS, bad)),
    ("start", lambda bad: static_position_ids(_IDS, StaticBounds(2, 3, 3), bad)),
    ("dtype", lambda bad: static_block_causal_mask(_IDS, StaticBounds(2, 3, 3), bad)),
    ("status", lambda bad: raise_if_invalid(bad)),
    ("batch", lambda bad: block_causal_mask_bytes(bad, 6)),
    ("dtype", lambda bad: block_causal_mask_bytes(1, 6, bad)),
    ("max_bytes", lambda bad: build_block_causal_mask(_IDS, max_bytes=bad)),
    ("states", lambda bad: fla_kwargs(bad)),
    ("rows", lambda bad: fla_kwargs(gathered_states(_IDS), rows=bad)),
    ("axes", lambda bad: repeat_on_axes(_IDS, bad)),
    ("position_ids", lambda bad: repeat_on_axes(bad, 3)),
    ("flat", lambda bad: packed_seq_params_kwargs(bad)),
    ("flat", lambda bad: transformer_engine_kwargs(bad)),
    ("flat", lambda bad: real_places(bad)),
    ("segments", lambda bad: visible_squares(bad)),
    ("key_ids", lambda bad: sees(_IDS, bad, _IDS, _IDS)),
    ("starts", lambda bad: seen_range(_IDS, bad, _IDS)),
    ("values", lambda bad: reduce_by_document(bad, _IDS, "sum")),
    ("flat", lambda bad: apply_packing_contract(_batch(), PackingCapabilities("document_ids"), flat=bad)),
    ("allow_empty", lambda bad: build_packed_sequence_metadata(_IDS, allow_empty=bad)),
    ("inside_documents", lambda bad: mask_labels(_IDS, _IDS, "model", inside_documents=bad)),
    ("causal", lambda bad: sees(_PLACES, _PLACES, _PLACES, _PLACES, causal=bad)),
    ("causal", lambda bad: seen_range(_PLACES, _PLACES, _PLACES, causal=bad)),
    ("causal", lambda bad: static_block_mask(_IDS, StaticBounds(2, 3, 3), causal=bad)),
    ("remainder", lambda bad: resume_rows(_RANKED.state(0), remainder=_or(bad, "drop"))),
    ("given", lambda bad: check_thd_offsets(_IDS, bad)),
    ("offsets", lambda bad: check_thd_offsets(_IDS, {"offsets": bad})),
    ("shape", lambda bad: document_ids_from_metadata(_PLACES, _PLACES, _or(bad, (1,)))),
    ("groups", lambda bad: document_rows(_IDS, _or(bad, 0))),
    ("groups", lambda bad: document_rows(_IDS, [bad])),
    ("groups", lambda bad: document_rows(_IDS, [[0, bad]])),
    ("blocked", lambda bad: build_block_causal_mask(_IDS, torch.float32, blocked=_or(bad, "-1"))),
]


def _promised(caught: pytest.ExceptionInfo[PackingError]) -> list[str]:
    """The errors that the docstring of the function names, or of the class, that a lambda of a test called."""
    called = [frame for frame, _ in traceback.walk_tb(caught.tb)][2]
    name, scope = called.f_code.co_name, called.f_locals
    documented: Any = called.f_globals.get(name)
    owner: Any = scope.get("self", scope.get("cls"))
    if owner is not None:
        documented = owner.__class__ if name == "__init__" else getattr(owner, name)
    raised = (inspect.getdoc(documented) or "").partition("\nRaises:\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (\w+):", raised, re.MULTILINE)


@pytest.mark.parametrize(("field", "call"), _CALLS)
@pytest.mark.parametrize("bad", [None, "3", 2.5, np.timedelta64(2, "s")], ids=repr)
def test_every_other_argument_is_named(field: str, call: Callable[[Any], object], bad: object) -> None:
    with pytest.raises(PackingError) as caught:
        call(bad)
    assert caught.value.problems[0].field == field
    assert caught.value.problems[0].remedy
    assert type(caught.value).__name__ in _promised(caught)


_SINGLE: Final[list[tuple[str, Callable[[Any], object]]]] = [
    ("window", lambda bad: build_block_causal_mask(_IDS, window=bad)),
    ("block_size", lambda bad: build_block_mask(_IDS, block_size=bad)),
    ("lengths", lambda bad: document_ids_from_lengths([[1, bad]], 9)),
    ("batch_size", lambda bad: flatten_packed_sequence_metadata(_PLACES, _PLACES, bad, 4)),
    ("sequence_length", lambda bad: document_ids_from_lengths([[1]], bad)),
]


@pytest.mark.parametrize(("field", "call"), _SINGLE)
@pytest.mark.parametrize("bad", [torch.tensor(2), np.array(2)])
def test_a_tensor_of_one_number_is_told_to_give_it(field: str, call: Callable[[Any], object], bad: object) -> None:
    """Its value alone would look as if it were right."""
    with pytest.raises(PackingError) as caught:
        call(bad)
    assert (caught.value.problems[0].field, caught.value.problems[0].remedy) == (
        field,
        "Give a Python int: value.item().",
    )


_LISTS: Final[list[tuple[str, Callable[[Any], object]]]] = [
    ("lengths", lambda bad: plan_rows(bad, 3)),
    ("lengths", lambda bad: RowPlan.from_rows([[0]], bad, 3)),
    ("rows", lambda bad: RowPlan.from_rows(bad, [1], 3)),
    ("rows", lambda bad: RowPlan.from_rows([bad], [1], 3)),
    ("dropped", lambda bad: RowPlan.from_rows([[0]], [1], 3, bad)),
    ("rows", lambda bad: collate_documents(_DOCUMENTS, _PLAN, rows=bad)),
    ("groups", lambda bad: document_rows(_IDS, [bad])),
    ("lengths", lambda bad: RowStream(5, 1).rows(bad)),
]


@pytest.mark.parametrize(("field", "call"), _LISTS)
@pytest.mark.parametrize("bad", [3, np.array(3), {0: 1}])
def test_a_number_or_a_mapping_is_no_list(field: str, call: Callable[[Any], object], bad: object) -> None:
    with pytest.raises(PackingError) as caught:
        call(bad)
    assert caught.value.problems[0].field == field


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
@pytest.mark.parametrize("plan", [None, _PLAN])
def test_a_key_past_int64_does_not_become_another(number: int, plan: RowPlan | None) -> None:
    ids, given = torch.tensor([[1, 1, 2, 0]]), torch.tensor([[0, number]], dtype=torch.uint64)
    with pytest.raises(PackingError, match=r"document_keys = .* within int64"):
        unpack(ids, ids, given, plan=plan)
    with pytest.raises(PackingError, match=r"document_starts = .* within int64"):
        unpack(ids, ids, torch.tensor([[0, 0]]), given, plan=plan)


def test_a_key_may_be_the_greatest_of_int64() -> None:
    ids = torch.tensor([[1, 1, 2, 0]])
    assert [listed(each) for each in unpack(ids, ids, torch.tensor([[2**63 - 1, 0]]))] == [[2], [1, 1]]


_COUNTS: Final[list[tuple[str, Callable[[Any], object]]]] = [
    ("start", lambda bad: build_position_ids(_IDS, bad)),
    ("start", lambda bad: static_position_ids(_IDS, StaticBounds(2, 3, 3), bad)),
    ("documents", lambda bad: StaticBounds(bad, 1, 1)),
    ("batch", lambda bad: block_causal_mask_bytes(bad, 6)),
    ("multiple", lambda bad: pad_rows(_batch(), bad)),
    ("microbatches", lambda bad: split_rows(_batch(), bad)),
    ("ranks", lambda bad: context_places(_IDS, 0, bad, "contiguous")),
    ("sequence_length", lambda bad: document_ids_from_lengths([[1]], bad)),
    ("window", lambda bad: build_block_causal_mask(_IDS, window=bad)),
    ("total_tokens", lambda bad: real_places(thd_flat(_IDS), bad)),
]


@pytest.mark.parametrize(("field", "call"), _COUNTS)
@pytest.mark.parametrize("bad", [True, -1, 10**30])
def test_no_bool_no_negative_and_no_huge_number_counts(field: str, call: Callable[[Any], object], bad: object) -> None:
    with pytest.raises(PackingError) as caught:
        call(bad)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == (field, bad)


_SIZES: Final[list[tuple[str, Callable[[Any], object]]]] = [
    ("capacity", lambda bad: plan_rows([1], bad)),
    ("ranks", lambda bad: balance_rows(_PLAN, bad, cost=_COST)),
    ("rows_per_rank", lambda bad: balance_rows(_PLAN, 1, cost=_COST, rows_per_rank=bad)),
    ("ranks", lambda bad: resume_rows(_RANKED.state(0), ranks=bad)),
    ("rows_per_rank", lambda bad: resume_rows(_RANKED.state(0), rows_per_rank=bad)),
    ("ranks", lambda bad: context_places(_IDS, 0, bad, "contiguous")),
    ("microbatches", lambda bad: split_rows(_batch(), bad)),
    ("multiple", lambda bad: aligned_length(4, bad)),
    ("multiple", lambda bad: pad_rows(_batch(), bad)),
    ("multiple", lambda bad: pad_documents(_batch(), bad)),
    ("context_parallel", lambda bad: document_multiple(bad)),
    ("tensor_parallel", lambda bad: document_multiple(1, bad)),
    ("sequence_length", lambda bad: require_supported_packing_contract(_CONTRACT, sequence_length=bad)),
]


@pytest.mark.parametrize(("field", "call"), _SIZES)
def test_zero_is_no_size(field: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(PackingError) as caught:
        call(0)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == (field, 0)
    assert type(caught.value).__name__ in _promised(caught)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (_PLACES + 1, "must be from -1 to 3"),
        (_PLACES - 2, "must be from -1 to 3"),
        (_PLACES[0], "must be [1, new sequence]"),
        (_PLACES.expand(2, -1), "must be [1, new sequence]"),
        (_PLACES.float(), "must be a dense int64 tensor"),
        (_PLACES.to("meta"), "must lie where input_ids lies, with data"),
        (_PLACES.to_sparse(), "must be a dense int64 tensor"),
    ],
)
def test_places_are_places_of_the_rows(places: torch.Tensor, message: str) -> None:
    with pytest.raises(PackingError, match="places") as caught:
        take_places(_batch(), places)
    assert (caught.value.problems[0].field, caught.value.problems[0].message) == ("places", message)


@pytest.mark.parametrize(
    ("name", "message"), [("attention_mask", "is derived from the ids"), ("pixel_values", "is not per token")]
)
def test_what_does_not_move_with_the_tokens_says_why(name: str, message: str) -> None:
    batch: Any = {**_batch(), name: torch.ones(7, 3)}
    with pytest.raises(PackingError) as caught:
        take_places(batch, _PLACES)
    assert caught.value.problems[0].field == name
    assert caught.value.problems[0].message.startswith(message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", [[1, 2, 3, 4]], "must be a torch.Tensor"),
        ("padding_mask", _batch()["padding_mask"].numpy(), "must be a torch.Tensor"),
        ("document_keys", [[0, 1]], "must be a torch.Tensor"),
        ("rewards", np.ones(_batch()["labels"].shape), "must be a torch.Tensor"),
        ("rewards", [[1.0, 2.0, 3.0, 4.0]], "must be a torch.Tensor"),
        ("rewards", (torch.ones(4),), "must be a torch.Tensor"),
        ("mtp_labels", [torch.ones(1, 4), torch.ones(1, 4)], "must be a torch.Tensor"),
        ("attention_mask", {"full_attention": torch.ones(1, 1, 4, 4)}, "is derived from the ids"),
        ("masks", {"full_attention": torch.ones(1, 1, 4, 4)}, "is not per token"),
        ("block_mask", build_block_mask(_IDS), "is not per token"),
    ],
)
def test_what_is_no_tensor_is_not_left_where_tokens_move(name: str, value: object, message: str) -> None:
    batch: Any = {**_batch(), name: value}
    moves: list[Callable[[], object]] = [
        lambda: take_places(batch, _PLACES),
        lambda: pad_documents(batch, 2),
        lambda: pad_rows(batch, 8),
    ]
    for move in moves:
        with pytest.raises(PackingError) as caught:
            move()
        assert (caught.value.problems[0].field, caught.value.problems[0].message[: len(message)]) == (name, message)
    kept: dict[str, Any] = {
        "names": ["four"],
        "images": [torch.ones(3, 4)],
        "rewards": np.ones(1),
        "labels": None,
        "spans": [[1, 2, 3, 4], [1]],
    }
    brought: Any = {**_batch(), **kept}
    moved: Any = take_places(brought, _PLACES)
    assert [moved[each] is entry for each, entry in kept.items()] == [True] * 5


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn])
def test_a_dtype_that_does_not_move_is_refused(dtype: torch.dtype) -> None:
    batch: Any = _batch()
    batch["scales"] = batch["document_ids"].to(dtype)
    with pytest.raises(PackingError, match=r"scales = .*cannot be moved"):
        pad_rows(batch, 3)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_labels_that_cannot_be_none_are_refused_where_padding_is_added(dtype: torch.dtype) -> None:
    batch: Any = _batch()
    batch["labels"] = batch["document_ids"].to(dtype)
    with pytest.raises(PackingError, match="labels"):
        pad_rows(batch, 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_labels_are_signed(dtype: torch.dtype) -> None:
    labels = torch.ones(1, 3).to(dtype)
    calls: list[Callable[[], object]] = [
        lambda: mask_labels(labels, _IDS, "model"),
        lambda: mtp_targets(labels, _IDS, 0, "model"),
        lambda: count_valid_targets(labels),
    ]
    for call in calls:
        with pytest.raises(EncodingError, match=f"labels = {dtype}: must be signed"):
            call()


@pytest.mark.parametrize("keys", [torch.ones(1, 2, device="meta"), torch.ones(1, 2).long().to_sparse()])
def test_document_keys_have_data(keys: torch.Tensor) -> None:
    with pytest.raises(PackingError, match="document_keys"):
        unpack(_IDS, _IDS, keys)


@pytest.mark.parametrize("told", [[9, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 0], [[0, 0, 0, 0]]])
def test_a_status_tells_a_rule(told: Any) -> None:
    with pytest.raises(PackingError, match="status"):
        raise_if_invalid(torch.tensor(told, dtype=torch.int32))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: build_block_causal_mask(_IDS, blocked=-math.inf),
            "blocked = -inf: .* Leave it out, or give",
        ),
        (lambda: build_block_mask(_IDS, block_size=cast("int", [2, 2])), r"block_size = \[2, 2\]: .* a tuple of two"),
        (
            lambda: apply_packing_contract(
                {**_batch(), "attention_mask": torch.ones(1, 1, 4, 4, dtype=torch.int64)},
                PackingCapabilities("block_causal"),
            ),
            r"attention_mask = int64: .* bool or floating \[batch, 1, .* Convert it to bool or floating",
        ),
        (
            lambda: build_block_causal_mask(_IDS, torch.int32),
            "dtype = torch.int32: .* Give torch.bool",
        ),
    ],
)
def test_what_is_wrong_of_masks_is_named_with_the_way_out(call: Callable[[], object], told: str) -> None:
    with pytest.raises(PackingError, match=told):
        call()


def test_widths_of_numpy_numbers_change_no_sum() -> None:
    lengths: Any = [[np.uint8(200), np.uint8(100)], [np.uint8(255)]]
    ids = document_ids_from_lengths(lengths, 300)
    assert listed(ids) == [[1] * 200 + [2] * 100, [1] * 255 + [0] * 45]
    with pytest.raises(EncodingError, match=r"lengths\[row 0\] = 300: documents of the row need more than 299"):
        document_ids_from_lengths(lengths, 299)


def test_an_id_past_int64_is_told_as_it_is() -> None:
    ids = torch.tensor([[5, 2**63 + 1, 2], [1, 2, 2**63 + 1]], dtype=torch.uint64)
    (first, second) = validate_document_ids(ids)
    assert (first.row, first.position, first.value, first.message) == (0, 1, 2**63 + 1, "id past int64")
    assert (second.row, second.position) == (1, 2)


def test_a_token_has_no_negative_position() -> None:
    positions = torch.tensor([[0, 1, -1, -1]])
    with pytest.raises(PackingError, match=r"position_ids\[row 0, position 2\] = -1"):
        document_ids_from_positions(positions)
    assert torch.equal(document_ids_from_positions(positions, positions < 0), torch.tensor([[1, 1, 0, 0]]))


@pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
def test_segment_numbers_of_no_place_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(PackingError, match=rf"seq_idx = \({shape[0]}, {shape[1]}\): is empty"):
        document_ids_from_segment_index(SegmentIndex(torch.zeros(shape, dtype=torch.int32)))


def test_rows_of_no_place_have_nothing_to_move() -> None:
    batch: Any = {"input_ids": torch.zeros(2, 0, dtype=torch.int64)}
    with pytest.raises(PackingError, match=r"input_ids = \(2, 0\): has no place"):
        take_places(batch, torch.full((2, 3), -1))


def test_positions_past_int64_are_told_as_they_are() -> None:
    """As int64 they would count on to 0."""
    positions = torch.tensor([[2**64 - 2, 2**64 - 1, 0, 1]], dtype=torch.uint64)
    with pytest.raises(EncodingError, match=f"position 0\\] = {2**64 - 2}: position past int64"):
        document_ids_from_positions(positions)
    last = torch.tensor([[False, False, True, True]])
    assert listed(document_ids_from_positions(positions, ~last)) == [[0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("index", "mask", "position"),
    [
        ([[0, 0, 1, -1]], [[True, True, True, False]], 0),
        ([[0, 0, 1, -1]], [[False, False, False, False]], 3),
        ([[0, 0, 1, 2]], [[False, True, False, True]], 1),
    ],
)
def test_a_padding_mask_fits_the_segment_numbers(index: Any, mask: Any, position: int) -> None:
    with pytest.raises(PackingError) as caught:
        document_ids_from_segment_index(SegmentIndex(torch.tensor(index, dtype=torch.int32)), torch.tensor(mask))
    problem = caught.value.problems[0]
    assert (problem.field, problem.row, problem.position) == ("padding_mask", 0, position)


def test_half_of_the_flash_kwargs_is_refused() -> None:
    half: Any = {"cu_seq_lens_q": _KWARGS["cu_seq_lens_q"]}
    with pytest.raises(PackingError, match="cu_seq_lens_k"):
        document_ids_from_flash_varlen(half, _IDS == 0)


@pytest.mark.parametrize(
    ("rows", "lengths", "capacity"),
    [(((0,), (0,)), (2,), 4), (((0,),), (2, 1), 4), (((0, 1),), (3, 2), 4), (((0, 2),), (1, 1), 4)],
)
def test_a_plan_that_loses_or_repeats_documents_cannot_be_made(
    rows: tuple[tuple[int, ...], ...], lengths: tuple[int, ...], capacity: int
) -> None:
    with pytest.raises(PackingError, match="rows"):
        RowPlan.from_rows(rows, lengths, capacity)


@pytest.mark.parametrize("mask", [None, torch.tensor(2), torch.zeros(2, 0), torch.ones(1, 1, 2, 2) * 3])
def test_what_is_no_2d_mask_numbers_no_documents(mask: Any) -> None:
    assert not is_indexed_packed_mask(mask)


@pytest.mark.parametrize("dtype", sorted(INTEGER_DTYPES, key=str), ids=str)
def test_a_mask_of_any_width_numbers_documents_where_it_holds_more_than_1(dtype: torch.dtype) -> None:
    for greatest in (2, torch.iinfo(dtype).max):
        assert is_indexed_packed_mask(torch.tensor([[0, 1, greatest]], dtype=dtype))
    assert not is_indexed_packed_mask(torch.tensor([[0, 1, 1]], dtype=dtype))


@pytest.mark.parametrize("name", ["a list", "an array", "a number", "complex", "meta", "sparse"])
def test_what_is_no_mask_at_all_is_refused(name: str) -> None:
    mask: Any = _NO_IDS[name]
    with pytest.raises(DocumentIdsError, match="attention_mask"):
        is_indexed_packed_mask(mask)


@pytest.mark.parametrize(
    "name", [name for name in _NO_IDS if name not in ("negative", "returning", "returning after padding")]
)
def test_a_mask_function_takes_ids_alone(name: str) -> None:
    ids: Any = _NO_IDS[name]
    with pytest.raises(DocumentIdsError, match="document_ids"):
        mask_function(ids)


_WORDS_AND_NUMBERS: Final[list[tuple[str, Callable[[Any], object]]]] = [
    ("method", lambda bad: plan_rows([1], 4, method=bad)),
    ("overlong", lambda bad: plan_rows([1], 4, overlong=bad)),
    ("remainder", lambda bad: balance_rows(_PLAN, 1, cost=_COST, remainder=bad)),
    ("ranks", lambda bad: resume_rows(_RANKED.state(0), ranks=bad)),
    ("rows_per_rank", lambda bad: resume_rows(_RANKED.state(0), rows_per_rank=bad)),
    ("rows", lambda bad: collate_documents(_DOCUMENTS, _PLAN, rows=bad)),
    ("allow_empty", lambda bad: build_packed_sequence_metadata(_IDS, allow_empty=bad)),
    ("bounds", lambda bad: static_thd_lengths(scan_static(_IDS, StaticBounds(2, 3, 3)), bad)),
]


@pytest.mark.parametrize(("field", "call"), _WORDS_AND_NUMBERS)
@pytest.mark.parametrize("bad", [np.array([[1, 1]]), torch.tensor([[1, 1]])])
def test_an_array_where_a_word_or_a_number_stands_is_named(
    field: str, call: Callable[[Any], object], bad: object
) -> None:
    with pytest.raises(PackingError) as caught:
        call(bad)
    assert caught.value.problems[0].field == field


def test_arrays_that_hide_values_are_refused() -> None:
    masked = cast("Any", np.ma.masked_equal([2, 1], 1))
    plan = plan_rows([2, 1], 3)
    calls: list[Callable[[], object]] = [
        lambda: plan_rows(masked, 3),
        lambda: RowPlan.from_rows([[0, 1]], masked, 3),
        lambda: RowPlan(3, masked, plan.documents, plan.starts, plan.stops, plan.bounds),
        lambda: _COST.of(masked),
    ]
    for call in calls:
        with pytest.raises(PackingError, match=r"lengths = MaskedArray: must not be masked\. Give what it shows"):
            call()


@pytest.mark.parametrize(("name", "bad"), [("ranks", 1.0), ("rows_per_rank", True)])
def test_what_equals_the_number_of_before_is_no_count(name: str, bad: object) -> None:
    arguments: Any = {name: bad}
    with pytest.raises(PackingError, match=name):
        resume_rows(balance_rows(_PLAN, 1, cost=_COST).state(0), **arguments)


@pytest.mark.parametrize(("dtype", "bad"), [(torch.float16, -1e9), (torch.float32, -1e39), (torch.float64, -(10**400))])
def test_what_is_blocked_fits_the_dtype(dtype: torch.dtype, bad: float) -> None:
    with pytest.raises(PackingError, match=f"blocked = .*: does not fit {dtype}"):
        build_block_causal_mask(_IDS, dtype, blocked=bad)


@pytest.mark.parametrize("method", PACKING_METHODS)
def test_lengths_that_no_plan_can_count_are_refused(method: PackingMethod) -> None:
    with pytest.raises(PackingError, match=r"lengths = 4611686018427387904: would be cut into more than 2147483647"):
        plan_rows([2**62, 2**62, 5], 8, method=method, overlong="split")


def test_bytes_are_numbers_and_not_memory() -> None:
    assert plan_rows(bytes(range(1, 9)), 40).lengths.tolist() == list(range(1, 9))


def test_a_cost_of_numpy_numbers_is_saved() -> None:
    cost = AttentionCost(cast("Any", np.int64(3)), cast("Any", np.float32(0.5)))
    assert cost == AttentionCost(3.0, 0.5)
    state = json.dumps(balance_rows(_PLAN, 1, cost=cost).state(0))
    assert resume_rows(json.loads(state)).cost == cost


def test_numbers_of_numpy_are_counts_too() -> None:
    lengths: Any = np.array([2, 1])
    assert plan_rows(lengths, 3) == plan_rows([2, 1], 3)
    assert plan_rows(list(lengths), 3) == plan_rows([2, 1], 3)
    assert RowPlan.from_rows([lengths - 1], list(lengths), 3).rows == ((1, 0),)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_is_no_plain_tensor_is_told_by_what_it_is() -> None:
    values = {
        torch.quint8: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8),
        torch.sparse_coo: torch.ones(2, 2).to_sparse(),
    }
    for told, value in values.items():
        with pytest.raises(PackingError) as caught:
            scan_segments(value)
        assert caught.value.problems[0].value == told


def test_a_type_of_the_same_name_is_told_with_its_module() -> None:
    other: Any = type("StaticBounds", (), {"__module__": "elsewhere"})()
    with pytest.raises(EncodingError, match=r"^bounds = elsewhere\.StaticBounds: must be a StaticBounds\."):
        scan_static(_IDS, other)
    with pytest.raises(EncodingError, match=r"^allow_empty = numpy\.bool_?: must be a bool\."):
        build_packed_sequence_metadata(_IDS, allow_empty=cast("Any", np.True_))


def test_one_of_two_costs_may_be_nothing() -> None:
    for linear, quadratic in ((0.0, 1.0), (1.0, 0.0)):
        assert AttentionCost(linear, quadratic).of(np.array([3])).tolist() == [3 * linear + 9 * quadratic]


@pytest.mark.parametrize(("encoding", "indices"), [(GatheredFlat, [torch.tensor([0, 1])]), (PhysicalFlat, [])])
def test_offsets_for_a_kernel_are_what_it_takes(encoding: Any, indices: list[Tensor]) -> None:
    offsets = torch.tensor([0, 2], dtype=torch.int32)
    assert varlen_kernel_kwargs(encoding(*indices, offsets, 2))["cu_seqlens_q"] is offsets
    for bad in (offsets.long(), offsets[None], None):
        with pytest.raises(EncodingError, match="cu_seqlens"):
            varlen_kernel_kwargs(encoding(*indices, bad, 2))
    with pytest.raises(EncodingError, match="max_seqlen"):
        varlen_kernel_kwargs(encoding(*indices, offsets, torch.tensor(2)))


def test_offsets_for_a_kernel_have_their_coordinates() -> None:
    offsets: Any = {"cu_seqlens": torch.tensor([0, 2]), "max_seqlen": 2}
    with pytest.raises(EncodingError) as caught:
        varlen_kernel_kwargs(offsets)
    assert caught.value.problems[0].field == "flat"


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ([[0, 2, 3], [1, 2, -1]], r"cu_seqlens\[row 1, position 0\] = 1: must start at zero"),
        ([[0, 2, 3], [-1, -1, -1]], r"cu_seqlens\[row 1, position 0\] = -1: must start at zero"),
        ([[0, -1, 3], [0, 2, -1]], r"cu_seqlens\[row 0, position 2\] = 3: has a boundary after an unused one"),
        ([[0, 2, 3], [0, 2, 1]], r"cu_seqlens\[row 1, position 2\] = 1: must never fall"),
        ([[0, 2, 3], [0, 1, -1]], r"cu_seqlens\[row 1, position 1\] = 1: must end at the number of kept tokens"),
        ([[0, 2, 4], [0, 2, 2]], r"cu_seqlens\[row 0, position 2\] = 4: must end at the number of kept tokens"),
    ],
)
def test_offsets_of_rows_name_the_first_that_is_wrong(offsets: list[list[int]], told: str) -> None:
    indices = torch.tensor([[0, 1, 2], [0, -1, 2]])
    with pytest.raises(EncodingError, match=told):
        flatten_packed_sequence_metadata(indices, torch.tensor(offsets), 2, 3)


@pytest.mark.parametrize(
    ("indices", "offsets", "told"),
    [
        ([0, 3, 2, 9], [0, 4], r"packed_token_indices\[position 2\] = 2: must ascend"),
        ([0, 1, 2], [0, 2, 1, 0], r"cu_seqlens\[position 2\] = 1: must start at zero, never fall"),
        ([0, 2, 3], [0, 1, 3], r"cu_seqlens\[row 0, position 1\]: document 1 continues into the next row"),
        ([[0, 2, 1], [1, 0, 2]], [[0, 3], [0, 3]], r"packed_token_indices\[row 0, position 2\] = 1: must ascend"),
        ([[1, -1, 0], [0, 1, 2]], [[0, 2], [0, 3]], r"packed_token_indices\[row 0, position 2\] = 0: must ascend"),
    ],
)
def test_metadata_names_the_first_entry_that_is_wrong(indices: list[Any], offsets: list[Any], told: str) -> None:
    with pytest.raises(EncodingError, match=told):
        flatten_packed_sequence_metadata(torch.tensor(indices), torch.tensor(offsets), 2, 3)


@pytest.mark.parametrize("size", [True, -1])
def test_sizes_of_a_microbatch_are_counts(size: int) -> None:
    with pytest.raises(EncodingError) as caught:
        flatten_packed_sequence_metadata(_PLACES, _PLACES, size, size)
    told = [(problem.field, problem.value) for problem in caught.value.problems]
    assert told == [("batch_size", size), ("sequence_length", size)]


def test_flat_metadata_is_of_as_many_places_as_int32_counts() -> None:
    indices, offsets = torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2, 3], dtype=torch.int32)
    assert listed(document_ids_from_metadata(indices, offsets, (1, 3))) == [[1, 1, 2]]
    for shape in ((2**20, 2**20), (2**16, 2**15)):
        with pytest.raises(EncodingError, match="more places than int32"):
            document_ids_from_metadata(indices, offsets, shape)


def test_a_plan_over_ranks_says_by_default_that_rows_were_spread() -> None:
    plan = RankPlan(plan_rows([1], 1), AttentionCost(1.0, 1.0), np.zeros((1, 1, 1), np.int64))
    assert (plan.remainder, plan.seed, plan.carried) == ("spread", 0, ())


def test_a_plan_holds_no_document_of_no_token() -> None:
    zero, one = np.array([0]), np.array([0, 1])
    with pytest.raises(PlanError, match="no piece of a document"):
        RowPlan(3, zero, zero, zero, zero, one)
    dropped: Any = 3
    with pytest.raises(PlanError, match="dropped"):
        RowPlan.from_rows([[0]], [1], 2, dropped)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("blocked", [-1e-60, -1e-3, -1e4])
def test_what_is_blocked_is_outweighed_by_no_score(dtype: torch.dtype, blocked: float) -> None:
    """A mask of zeros, or about zeros, would let every document see all others."""
    with pytest.raises(PackingError, match="no score outweighs it"):
        build_block_causal_mask(_IDS, dtype, blocked=blocked)
    for share in (1.0, 0.75, 0.5):
        about = torch.finfo(dtype).min * share
        check_agreement(_IDS, {"attention_mask": build_block_causal_mask(_IDS, dtype, blocked=about)})


_TOLD: Final = [
    (
        lambda: document_ids_from_segment_index(SegmentIndex(torch.tensor([[0, 1, 0]]).int())),
        "position 2] = 0: id comes",
    ),
    (lambda: document_ids_from_metadata(torch.tensor([0, 1]), torch.tensor([0, 2])), "Pass shape="),
    (lambda: segment_ids_from_offsets(torch.tensor([0, 2**31])), "cu_seqlens = 2147483648: go past int32"),
    (lambda: RowPlan.from_rows(cast("Any", [["0"], ["1"]]), [2, 3], 4), "= '0': must hold documents"),
    (lambda: RowPlan.from_rows(cast("Any", [0, 1]), [2, 3], 4), "for each row a list"),
    (lambda: document_ids_from_lengths(cast("Any", [["2", "1"]]), 4), "= '2': must be a positive int"),
    (lambda: build_position_ids(cast("Any", None)), "NoneType: must be a torch.Tensor. Give a tensor."),
    (
        lambda: scan_static(cast("Any", as_segments(_IDS)), StaticBounds(3, 3, 3)),
        "Segments: must be a torch.Tensor. Give a tensor.",
    ),
    (lambda: collate_documents([_IDS[0]], plan_rows([3], 4), rows=[1]), "collate by its own `rows`."),
    (lambda: document_ids_from_lengths([[1]] * 3, 2**30), "(3, 1073741824): must make a batch of 1 to 2147483647"),
]


@pytest.mark.parametrize(("call", "text"), _TOLD)
def test_what_is_told_is_what_was_given(call: Callable[[], object], text: str) -> None:
    with pytest.raises(PackingError) as caught:
        call()
    assert text in str(caught.value)


def test_an_error_of_many_documents_writes_out_those_that_it_shows() -> None:
    written: list[int] = []

    class Tokens:
        def __repr__(self) -> str:
            written.append(1)
            return "tokens"

    with pytest.raises(PlanError) as caught:
        plan_rows(cast("Any", [Tokens()] * 1000), 8)
    assert "lengths[document 0] = tokens: must be a positive int. Give ints" in str(caught.value)
    assert (len(caught.value.problems), len(written)) == (1000, 20)


@pytest.mark.parametrize(("field", "pad"), [("labels", 0), ("input_ids", -1), ("input_ids", 300)])
def test_what_stands_at_padding_fits_the_dtype(field: str, pad: int) -> None:
    ids = torch.tensor([[1, 1, 2]])
    batch: Any = {"input_ids": ids, "labels": ids, "padding_mask": ids == 0, "document_ids": ids}
    batch[field] = ids.to(torch.uint8)
    for move in (pad_rows, pad_documents):
        with pytest.raises(PackingError, match=f"{field} = torch.uint8: cannot hold"):
            move(batch, 2, pad_token_id=pad)
