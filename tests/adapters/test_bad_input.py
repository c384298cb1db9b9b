"""Whatever is passed in place of an argument, the error is of the family, and names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import torch

from neatpack.adapters import (
    RowPlan,
    as_segments,
    build_block_causal_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    canonical_document_ids,
    check_agreement,
    collate_documents,
    count_valid_targets,
    document_ids_from_flash_varlen,
    document_ids_from_lengths,
    document_ids_from_metadata,
    document_ids_from_positions,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    gathered_flat,
    gathered_rows,
    get_seqlens_in_batch,
    get_unpad_data,
    is_document_ids,
    is_indexed_packed_mask,
    mask_function,
    mask_labels,
    parse_document_ids,
    physical_offsets,
    plan_rows,
    scan_segments,
    unpack,
    validate_document_ids,
)
from neatpack.contracts.errors import DocumentIdsError, PackingError

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
_DOCUMENTS: Final = [torch.tensor([1, 2]), torch.tensor([3])]
_KWARGS: Final = flash_varlen_kwargs(_IDS)


def _or(bad: object, instead: object) -> Any:
    """Replace what would be right: None, where an argument may be left out."""
    return instead if bad is None else bad


_CALLS: Final[list[tuple[str, Callable[[Any], object]]]] = [
    ("start", lambda bad: build_position_ids(_IDS, bad)),
    ("dtype", lambda bad: build_block_causal_mask(_IDS, _or(bad, torch.int32))),
    ("window", lambda bad: build_block_causal_mask(_IDS, window=_or(bad, 0))),
    ("padding", lambda bad: flash_varlen_kwargs(_IDS, bad)),
    ("label_shift", lambda bad: mask_labels(_IDS, _IDS, bad)),
    ("labels", lambda bad: mask_labels(bad, _IDS, "model")),
    ("labels", lambda bad: count_valid_targets(bad)),
    ("position_ids", lambda bad: document_ids_from_positions(bad)),
    ("padding_mask", lambda bad: document_ids_from_positions(_IDS, _or(bad, 0))),
    ("lengths", lambda bad: document_ids_from_lengths(bad, 4)),
    ("lengths", lambda bad: document_ids_from_lengths([[bad]], 4)),
    ("sequence_length", lambda bad: document_ids_from_lengths([[1]], bad)),
    ("packed_token_indices", lambda bad: document_ids_from_metadata(bad, _IDS)),
    ("cu_seqlens", lambda bad: document_ids_from_metadata(_IDS, bad)),
    ("packed_token_indices", lambda bad: flatten_packed_sequence_metadata(bad, _IDS, 1, 3)),
    ("cu_seqlens", lambda bad: flatten_packed_sequence_metadata(_IDS, bad, 1, 3)),
    ("batch_size", lambda bad: flatten_packed_sequence_metadata(_IDS, _IDS, bad, 3)),
    ("sequence_length", lambda bad: flatten_packed_sequence_metadata(_IDS, _IDS, 1, bad)),
    ("FlashVarlenKwargs", lambda bad: document_ids_from_flash_varlen(bad, _IDS == 0)),
    ("padding_mask", lambda bad: document_ids_from_flash_varlen(_KWARGS, bad)),
    ("capacity", lambda bad: plan_rows([1], bad)),
    ("lengths", lambda bad: plan_rows([bad], 4)),
    ("pad_token_id", lambda bad: collate_documents(_DOCUMENTS, _PLAN, bad)),
    ("documents", lambda bad: collate_documents([bad, _DOCUMENTS[1]], _PLAN)),
    ("values", lambda bad: unpack(bad, _IDS)),
    ("document_keys", lambda bad: unpack(_IDS, _IDS, _or(bad, 0))),
    ("attention_mask", lambda bad: check_agreement(_IDS, {"attention_mask": _or(bad, 0)})),
]


@pytest.mark.parametrize(("field", "call"), _CALLS)
@pytest.mark.parametrize("bad", [None, "3", 2.5])
def test_every_other_argument_is_named(field: str, call: Callable[[Any], object], bad: object) -> None:
    with pytest.raises(PackingError) as caught:
        call(bad)
    assert caught.value.problems[0].field == field


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
        RowPlan(rows, lengths, capacity)


@pytest.mark.parametrize("mask", [None, torch.tensor(2), torch.zeros(2, 0), torch.ones(1, 1, 2, 2) * 3])
def test_what_is_no_2d_mask_numbers_no_documents(mask: Any) -> None:
    assert not is_indexed_packed_mask(mask)


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


def test_numbers_of_numpy_are_counts_too() -> None:
    lengths: Any = np.array([2, 1])
    assert plan_rows(lengths, 3) == plan_rows([2, 1], 3)
    assert [type(length) for length in plan_rows(lengths, 3).lengths] == [int, int]
