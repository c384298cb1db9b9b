"""Rule 2: boundaries come from ids; whatever else speaks of them is checked, never merged."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    adapt_model_inputs,
    apply_packing_contract,
    build_block_causal_mask,
    build_packed_sequence_metadata,
    check_agreement,
    convert_batch_output,
    enable_xdoc_attention,
    flash_varlen_kwargs,
    gathered_flat,
    get_unpad_data,
    scan_segments,
    segment_index,
)
from neatpack.adapters.recurrent import PaddingIndex
from neatpack.adapters.strategies import (
    BATCH_FAULTS,
    BatchFault,
    attention_document_ids,
    contradicting_batches,
    document_ids,
    training_batches,
)
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import CapabilitiesError, DocumentIdsError, EncodingError, PackingError
from tests.adapters import oracle
from tests.adapters.batches import training_batch
from tests.adapters.properties import holds_for, listed, rows_of

_FIELDS: Mapping[BatchFault, tuple[str, ...]] = {
    "positions_restart": ("position_ids",),
    "padding_mask_shifted": ("padding_mask",),
    "mask_of_ones": ("attention_mask",),
    "mask_leaks": ("attention_mask",),
    "offsets_moved": ("cu_seq_lens_q",),
    "lengths_joined": ("seq_lens",),
    "metadata_moved": ("cu_seqlens", "packed_token_indices"),
}

_IDS = torch.tensor([[1, 1, 2, 2, 0]])


@holds_for(fault=st.sampled_from(BATCH_FAULTS), data=st.data())
def test_a_contradiction_is_refused_and_nothing_changes(fault: BatchFault, data: st.DataObject) -> None:
    batch = data.draw(contradicting_batches(fault))
    before = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
    with pytest.raises(EncodingError) as caught:
        apply_packing_contract(batch, PackingCapabilities("document_ids"))
    assert caught.value.problems[0].field in _FIELDS[fault]
    assert list(batch) == list(before)
    for name, value in batch.items():
        kept = before[name]
        assert torch.equal(value, kept) if isinstance(value, Tensor) and isinstance(kept, Tensor) else value == kept


@holds_for(fault=st.sampled_from(BATCH_FAULTS), data=st.data())
def test_a_contradiction_is_refused_where_thd_is_the_last_step(fault: BatchFault, data: st.DataObject) -> None:
    batch = data.draw(contradicting_batches(fault))
    before = dict(batch)
    with pytest.raises(EncodingError) as caught:
        convert_batch_output(batch, "thd", padded_documents=True)
    assert caught.value.problems[0].field in _FIELDS[fault]
    assert list(batch) == list(before)
    assert all(batch[name] is before[name] for name in before)  # type: ignore[literal-required]


@given(ids=attention_document_ids())
def test_encodings_of_the_same_ids_agree(ids: Tensor) -> None:
    segments = scan_segments(ids)
    indices, offsets, longest = (torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), 0)
    if segments.kept.size:
        indices, offsets, longest = get_unpad_data(segments)
    given: list[dict[str, object]] = [
        {"padding_mask": ids == 0, "position_ids": torch.tensor(oracle.positions(rows_of(ids)))},
        {"attention_mask": ids.to(torch.int64)},
        {"attention_mask": ids != 0},
        {"attention_mask": build_block_causal_mask(segments)},
        {"attention_mask": build_block_causal_mask(segments, torch.float32)},
        dict(build_packed_sequence_metadata(segments, allow_empty=True)),
        {"packed_token_indices": indices, "cu_seqlens": offsets, "max_seqlen": longest + 3},
        {"document_ids": ids, "_packed_seq_ids": 3 * ids.to(torch.int64)},
    ]
    if not segments.holes.size:
        given += [dict(flash_varlen_kwargs(segments, "run")), dict(flash_varlen_kwargs(segments, "split"))]
    for entries in given:
        assert check_agreement(ids, entries).bounds.tolist() == segments.bounds.tolist()


def _some_excluded(ids: Tensor, data: st.DataObject) -> Tensor:
    """Take some tokens of documents out of attention, the first and last ones as well as others."""
    kept = data.draw(st.lists(st.booleans(), min_size=ids.numel(), max_size=ids.numel()))
    return ids * torch.tensor(kept, dtype=ids.dtype).view(ids.shape)


@holds_for(ids=document_ids(dtypes=(torch.int64,)), start=st.integers(0, 3), told=st.booleans(), data=st.data())
def test_positions_that_restart_agree_wherever_they_start_and_whatever_is_excluded(
    ids: Tensor, start: int, told: bool, data: st.DataObject
) -> None:
    positions = torch.tensor(oracle.positions(rows_of(ids))) + start * (ids != 0)
    entries = {"position_ids": positions, **({"document_ids": ids} if told else {})}
    check_agreement(_some_excluded(ids, data), entries)


@holds_for(ids=document_ids(dtypes=(torch.int64,)), first=st.integers(0, 3), wide=st.booleans(), data=st.data())
def test_positions_that_run_on_are_refused_unless_that_was_declared(
    ids: Tensor, first: int, wide: bool, data: st.DataObject
) -> None:
    positions = torch.arange(first, first + ids.shape[1])[None]
    entries = {"position_ids": positions.expand(ids.shape) if wide else positions}
    attention = _some_excluded(ids, data)
    check_agreement(attention, entries, position_policy="sequence")
    check_agreement((attention != 0).long(), entries)
    documents = oracle.documents(rows_of(attention))
    later = [one for before, one in pairwise(documents) if before.row == one.row]
    if not later:
        check_agreement(attention, entries)
        return
    with pytest.raises(EncodingError, match="does not restart") as caught:
        check_agreement(attention, entries)
    (problem,) = caught.value.problems
    place = later[0].places[0]
    assert (problem.field, problem.row, problem.position) == ("position_ids", later[0].row, place)
    assert problem.value == first + place


def test_a_loader_yields_positions_that_run_on_where_its_contract_says_so() -> None:
    def batch() -> TrainingBatch[Tensor]:
        return training_batch(_IDS, position_ids=torch.arange(5)[None])

    with pytest.raises(EncodingError, match=r"position_ids\[row 0, position 2\] = 2: does not restart"):
        apply_packing_contract(adapt_model_inputs(batch()), PackingCapabilities("document_ids"))
    contract = PackingCapabilities("document_ids", position_policy="sequence")
    assert listed(apply_packing_contract(adapt_model_inputs(batch()), contract)["position_ids"]) == [[0, 1, 2, 3, 4]]
    with pytest.raises(EncodingError, match="does not restart") as caught:  # They would be shifted twice.
        enable_xdoc_attention(adapt_model_inputs(batch()), contract)
    assert caught.value.problems[0].remedy == "Build them of the ids as packed: build_position_ids(document_ids)."


@pytest.mark.parametrize("policy", ["documents", None, np.array(["document", "sequence"])])
def test_a_policy_that_is_none_does_not_switch_the_check_off(policy: Any) -> None:
    with pytest.raises(CapabilitiesError, match="is no position policy"):
        check_agreement(_IDS, {"position_ids": torch.arange(5)[None]}, position_policy=policy)


@given(batch=training_batches(axes=(1, 3)))
def test_positions_of_several_axes_are_checked_for_shape_alone(batch: TrainingBatch[Tensor]) -> None:
    ids = batch.get("document_ids", batch["input_ids"])
    positions = batch["position_ids"]
    check_agreement(ids, {"position_ids": positions})
    with pytest.raises(EncodingError, match="position_ids"):
        check_agreement(ids, {"position_ids": positions[:, :, 1:]})


@given(batch=training_batches())
def test_joined_documents_are_checked_against_the_attention_ids(batch: TrainingBatch[Tensor]) -> None:
    structural = batch.get("document_ids", batch["input_ids"])
    joined = (structural > 0).long()
    running = torch.tensor(oracle.joined_positions(rows_of(structural), [listed(batch["position_ids"])])[0])
    check_agreement(joined, {"document_ids": structural, "padding_mask": structural == 0, "position_ids": running})
    if int(structural.max()) > 1 and bool((structural[:, 1:] > structural[:, :-1]).any()):
        with pytest.raises(EncodingError, match="document_ids"):
            check_agreement(structural, {"document_ids": joined})


@pytest.mark.parametrize(
    ("entries", "field", "kind"),
    [
        ({"attention_mask": torch.ones(1, 4)}, "attention_mask", "dtype"),
        ({"attention_mask": torch.ones(1, 4, dtype=torch.int64)}, "attention_mask", "shape"),
        ({"attention_mask": torch.ones(1, 2, 5, 5, dtype=torch.bool)}, "attention_mask", "shape"),
        ({"attention_mask": {"full": 1}}, "attention_mask", "type"),
        ({"attention_mask": torch.tensor([[1, 2, 2, 2, 0]])}, "attention_mask", "disagreement"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}, None, ""),
        ({"_packed_seq_ids": torch.tensor([[1, 1, 1, 1, 0]])}, "_packed_seq_ids", "disagreement"),
        ({"padding_mask": torch.zeros(1, 5, dtype=torch.bool, device="meta")}, "padding_mask", "device"),
        ({"position_ids": torch.tensor([[0, 1, 0, 1, 0, 1]])}, "position_ids", "shape"),
        ({"position_ids": torch.tensor([[0, 1, 0, 0, 0]])}, "position_ids", "disagreement"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 4, 5])}, "cu_seq_lens_k", "missing"),
        ({"packed_token_indices": torch.tensor([[0, 1, 2, 3, -1]])}, "cu_seqlens", "missing"),
        ({"cu_seqlens": torch.tensor([[0, 2, 4]])}, "packed_token_indices", "missing"),
        (
            {"packed_token_indices": torch.tensor([[0, 1, 2, 4, -1]]), "cu_seqlens": torch.tensor([[0, 2, 4]])},
            "packed_token_indices",
            "disagreement",
        ),
        (
            {"packed_token_indices": torch.tensor([[0, 1, 2, 3, -1]]), "cu_seqlens": torch.tensor([[0, 2, 4, -1, 0]])},
            "cu_seqlens",
            "disagreement",
        ),
        ({"seq_lens": torch.tensor([[2, 2]])}, None, ""),
        ({"seq_lens": torch.tensor([[2, 2, -1000]])}, None, ""),
        ({"seq_lens": torch.tensor([[2, 1, 1]])}, "seq_lens", "disagreement"),
        ({"seq_lens_padded": torch.tensor([[2, 3]])}, None, ""),
        ({"seq_lens_padded": torch.tensor([[3, 2]])}, "seq_lens_padded", "disagreement"),
        ({"seq_lens_padded": torch.tensor([[2, 4]])}, "seq_lens_padded", "disagreement"),
        ({"max_seqlen": 2}, "packed_token_indices", "missing"),
        ({"seq_lens_padded": torch.tensor([[2, 1]])}, "seq_lens_padded", "disagreement"),
        (
            {"seq_lens": torch.tensor([[2, 2]]), "seq_lens_padded": torch.tensor([[2, 0, 3]])},
            "seq_lens_padded",
            "shape",
        ),
        ({"seq_lens": torch.tensor([[2, 2, 0]]), "seq_lens_padded": torch.tensor([[2, 3, 0]])}, None, ""),
        ({"seq_lens": torch.tensor([[2, 2]], dtype=torch.int16)}, "seq_lens", "dtype"),
        (
            {"packed_token_indices": _IDS, "cu_seqlens": torch.tensor([[0, 2, 4]], dtype=torch.uint8)},
            "cu_seqlens",
            "dtype",
        ),
        ({"seq_idx": torch.tensor([[0, 0, 1, 1, -1]])}, None, ""),
        ({"attention_mask": torch.tensor([[1, 1, -1, 1, 0]])}, "attention_mask", "disagreement"),
        ({"attention_mask": build_block_causal_mask(_IDS).long()}, "attention_mask", "dtype"),
        ({"attention_mask": build_block_causal_mask(_IDS).to(torch.complex64)}, "attention_mask", "dtype"),
        ({"attention_mask": build_block_causal_mask(_IDS).to_sparse()}, "attention_mask", "type"),
        ({"attention_mask": torch.zeros(1, 1, 5, 5, device="meta")}, "attention_mask", "device"),
        ({"position_ids": torch.tensor([[-2, -1, 0, 1, 0]])}, "position_ids", "disagreement"),
        ({"document_ids": _IDS.bool()}, "document_ids", "dtype"),
        ({"_packed_seq_ids": _IDS.bool()}, "_packed_seq_ids", "dtype"),
        ({"seq_idx": _IDS.bool()}, "seq_idx", "dtype"),
        ({"padding_mask": _IDS == 0}, None, ""),
        ({"position_ids": torch.tensor([[0, 1, 0, 1, -1]])}, None, ""),
        ({"position_ids": torch.tensor([[[-2, -1, 0, 1, 0]]])}, None, ""),
    ],
)
def test_one_entry_beside_the_ids(entries: Mapping[str, object], field: str | None, kind: str) -> None:
    if field is None:
        check_agreement(_IDS, entries)
        return
    with pytest.raises(EncodingError) as caught:
        check_agreement(_IDS, entries)
    problem = caught.value.problems[0]
    assert (problem.field, problem.kind) == (field, kind)
    if kind in ("dtype", "shape", "type", "missing"):
        assert (problem.row, problem.position) == (None, None)
    assert (problem.value is None) == (kind == "missing")


@pytest.mark.parametrize(
    "changes",
    [
        {"max_length_q": 1},
        {"max_length_k": torch.tensor(2)},
        {"cu_seq_lens_k": torch.tensor([0, 2, 5], dtype=torch.int32)},
        {"cu_seq_lens_q": torch.tensor([0, 2, 4, 6], dtype=torch.int32)},
        {"cu_seq_lens_q": torch.tensor([0, 4, 2, 5], dtype=torch.int32)},
        {"cu_seq_lens_q": torch.tensor([0], dtype=torch.int32)},
        {"cu_seq_lens_q": torch.tensor([[0, 2, 4, 5]], dtype=torch.int32)},
        {"cu_seq_lens_k": torch.tensor([0, 2, 2, 4, 5], dtype=torch.int32)},
    ],
)
def test_flash_kwargs_that_differ_are_refused(changes: Mapping[str, object]) -> None:
    kwargs = dict(flash_varlen_kwargs(_IDS))
    check_agreement(_IDS, kwargs)
    with pytest.raises(EncodingError, match=next(iter(changes))):
        check_agreement(_IDS, {**kwargs, **changes})


def test_flash_kwargs_cannot_stand_beside_a_hole() -> None:
    with pytest.raises(EncodingError, match="hole"):
        check_agreement(torch.tensor([[1, 0, 1]]), dict(flash_varlen_kwargs(torch.ones(1, 3, dtype=torch.int64))))


@pytest.mark.parametrize(("name", "length"), [("seq_lens", 2), ("seq_lens", 3), ("seq_lens_padded", 3)])
def test_lengths_cannot_stand_beside_a_hole(name: str, length: int) -> None:
    with pytest.raises(EncodingError, match=rf"{name}\[row 0, position 1\].*hole"):
        check_agreement(torch.tensor([[1, 0, 1]]), {name: torch.tensor([[length]])})


def test_padded_lengths_cover_the_row() -> None:
    """In one stream, every later row would begin too early."""
    ids = torch.tensor([[1, 1, 0], [1, 1, 0]])
    check_agreement(ids, {"seq_lens_padded": torch.tensor([[3], [3]])})
    with pytest.raises(EncodingError, match=r"seq_lens_padded\[row 0, position 0\] = 2"):
        check_agreement(ids, {"seq_lens_padded": torch.tensor([[2], [3]])})


@pytest.mark.parametrize(
    ("real", "padded"), [([[2, 2, 0]], [[2, 0, 3]]), ([[2, -1000, 2]], [[2, 3, -1000]]), ([[0, 2, 2]], [[2, 3, 0]])]
)
def test_lengths_of_a_document_stand_in_one_column(real: list[list[int]], padded: list[list[int]]) -> None:
    """Consumers pair the two by column, so that documents would take the slots of others."""
    for name, lengths in (("seq_lens", real), ("seq_lens_padded", padded)):
        check_agreement(_IDS, {name: torch.tensor(lengths)})
    with pytest.raises(EncodingError, match=r"seq_lens_padded\[row 0, position [01]\] = .*column"):
        check_agreement(_IDS, {"seq_lens": torch.tensor(real), "seq_lens_padded": torch.tensor(padded)})


@pytest.mark.parametrize(
    ("indices", "offsets", "row", "position", "value"),
    [
        ([[0, 1, 3, 2, -1]], [[0, 2, 4]], 0, 2, 3),
        ([[0, 1, 2, 3, 4]], [[0, 2, 4]], 0, 4, 4),
        ([0, 1, 2, 4], [0, 2, 4], None, 3, 4),
        ([0, 1, 2], [0, 2, 3], None, None, (3,)),
    ],
)
def test_the_index_that_is_wrong_is_named(
    indices: Any, offsets: Any, row: int | None, position: int | None, value: object
) -> None:
    with pytest.raises(EncodingError) as caught:
        check_agreement(_IDS, {"packed_token_indices": torch.tensor(indices), "cu_seqlens": torch.tensor(offsets)})
    problem = caught.value.problems[0]
    assert (problem.field, problem.row, problem.position, problem.value) == (
        "packed_token_indices",
        row,
        position,
        value,
    )


@pytest.mark.parametrize("lengths", [[2], [3], [1, 2], [0]])
def test_padded_lengths_cannot_stand_beside_padding_before_the_first_document(lengths: list[int]) -> None:
    with pytest.raises(EncodingError, match=r"seq_lens_padded\[row 0, position [01]\].*counts other documents"):
        check_agreement(torch.tensor([[0, 1, 1]]), {"seq_lens_padded": torch.tensor([lengths])})


@pytest.mark.parametrize(
    ("name", "entries", "position", "value"),
    [
        ("seq_lens", [2, 1, 1], 1, 1),
        ("seq_lens", [-1000, 2, 3], 2, 3),
        ("seq_lens", [2, 2, 1], 2, 1),
        ("seq_lens", [2, 0, 0], 3, None),
        ("seq_lens_padded", [3, 2, 0], 0, 3),
        ("seq_lens_padded", [2, 2, 0], 1, 2),
        ("seq_lens_padded", [2, 0, 0], 3, None),
    ],
)
def test_the_length_that_is_wrong_is_named(name: str, entries: list[int], position: int, value: int | None) -> None:
    ids = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 2, 2, 0]])
    with pytest.raises(EncodingError, match="counts other documents") as caught:
        check_agreement(ids, {name: torch.tensor([[5, 0, 0], entries])})
    problem = caught.value.problems[0]
    assert (problem.row, problem.position, problem.value) == (1, position, value)


@pytest.mark.parametrize(
    ("offsets", "position", "value"),
    [
        ([0, 4, 2], 1, 4),
        ([0, -1, 2, 4], 1, -1),
        ([0, -3, -7, 4], 1, -3),
        ([2, 0, 4], 0, 2),
        ([0, 2, 4, -1, 4], 4, 4),
        ([0, 2, 4, 5], 3, 5),
        ([0, 2, -9], 2, -9),
        ([0, 2], 2, None),
        ([], 0, None),
    ],
)
def test_gathered_offsets_rise_up_to_what_is_unused(offsets: list[int], position: int, value: int | None) -> None:
    indices = build_packed_sequence_metadata(_IDS)["packed_token_indices"]
    right = torch.tensor([[0, 2, 4, 4, -1, -7]])
    check_agreement(_IDS, {"packed_token_indices": indices, "cu_seqlens": right})
    with pytest.raises(EncodingError, match="cuts the kept tokens elsewhere") as caught:
        check_agreement(_IDS, {"packed_token_indices": indices, "cu_seqlens": torch.tensor([offsets]).long()})
    problem = caught.value.problems[0]
    assert (problem.field, problem.row, problem.position, problem.value) == ("cu_seqlens", 0, position, value)


def test_offsets_of_a_stream_are_named_without_a_row() -> None:
    """The one that is wrong here cuts tokens of the second row."""
    ids = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])
    given = {"packed_token_indices": gathered_flat(ids).token_indices, "cu_seqlens": torch.tensor([0, 2, 3, 5, 7])}
    with pytest.raises(EncodingError, match=r"^cu_seqlens\[position 3\] = 5: cuts the kept tokens elsewhere"):
        check_agreement(ids, given)


@pytest.mark.parametrize(
    "names",
    [("position_ids",), ("padding_mask",), ("seq_lens",), ("packed_token_indices", "cu_seqlens"), ("cu_seq_lens_q",)],
)
def test_the_ids_themselves_are_no_other_encoding(names: tuple[str, ...]) -> None:
    """What is compared are values, so that a tensor that came in twice is refused as its copy would be."""
    for ids in (_IDS, _IDS.clone()):
        with pytest.raises(EncodingError, match="|".join(names)):
            check_agreement(_IDS, dict.fromkeys(names, ids))
    check_agreement(_IDS, dict.fromkeys(("attention_mask", "seq_idx", "_packed_seq_ids", "document_ids"), _IDS))


def test_a_segment_number_does_not_come_back() -> None:
    """Kernels that scan by chunks compare numbers across whole chunks."""
    ids = torch.tensor([[1, 2, 3, 3, 0]])
    check_agreement(ids, {"seq_idx": torch.tensor([[7, 5, 6, 6, 7]])})
    with pytest.raises(EncodingError, match=r"seq_idx\[row 0, position 2\] = 7: comes back"):
        check_agreement(ids, {"seq_idx": torch.tensor([[7, 5, 7, 7, -1]])})


@pytest.mark.parametrize("ids", [[0, 0, 3, 3], [1, 1, 0, 3], [0, 3, 0, 4]])
def test_padding_before_a_document_does_not_have_its_segment_number(ids: list[int]) -> None:
    document_ids = torch.tensor([ids, [1, 1, 1, 1]])
    numbers = document_ids.where(document_ids != 0, -1)
    check_agreement(document_ids, {"seq_idx": numbers})
    before = ids.index(3) - 1
    numbers[0, before] = 3
    with pytest.raises(EncodingError, match=rf"seq_idx\[row 0, position {before + 1}\] = 3: marks other documents"):
        check_agreement(document_ids, {"seq_idx": numbers})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.5, -0.25, -1e4])
@pytest.mark.parametrize("place", [(0, 1, 0), (0, 1, 3), (0, 4, 0)])
def test_an_additive_mask_holds_what_allows_or_blocks_and_nothing_else(
    dtype: torch.dtype, value: float, place: tuple[int, int, int]
) -> None:
    mask = build_block_causal_mask(_IDS, dtype)
    check_agreement(_IDS, {"attention_mask": mask})
    row, position, key = place
    mask[row, 0, position, key] = value
    with pytest.raises(EncodingError, match=f"is neither 0.* first at key {key}") as caught:
        check_agreement(_IDS, {"attention_mask": mask})
    problem = caught.value.problems[0]
    assert (problem.row, problem.position, str(problem.value)) == (
        row,
        position,
        str(mask[row, 0, position, key].item()),
    )


def test_a_dense_mask_that_leaks_names_the_first_key() -> None:
    mask = build_block_causal_mask(_IDS, torch.float32, blocked=float("-inf"))
    check_agreement(_IDS, {"attention_mask": mask})
    mask[0, 0, 3, 1] = 0.0
    with pytest.raises(EncodingError, match=r"position 3\] = 0.0: .* first at key 1\."):
        check_agreement(_IDS, {"attention_mask": mask})


@pytest.mark.parametrize("seen", [[], [4], [0, 1], [0, 1, 2, 3, 4]])
def test_what_padding_sees_in_a_dense_mask_is_the_loaders_choice(seen: list[int]) -> None:
    for mask in (build_block_causal_mask(_IDS), build_block_causal_mask(_IDS, torch.float32)):
        allowed, hidden = (mask[0, 0, 0, key].item() for key in (0, 1))
        mask[0, 0, 4] = hidden
        mask[0, 0, 4, seen] = allowed
        check_agreement(_IDS, {"attention_mask": mask})


def test_a_plain_mask_may_keep_a_hole_or_leave_it_out() -> None:
    ids = torch.tensor([[1, 0, 1, 2, 0]])
    for mask in ([[1, 1, 1, 1, 0]], [[1, 0, 1, 1, 0]]):
        check_agreement(ids, {"attention_mask": torch.tensor(mask)})
    for mask in ([[1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0]]):
        with pytest.raises(EncodingError, match="attention_mask"):
            check_agreement(ids, {"attention_mask": torch.tensor(mask)})


@holds_for(ids=document_ids(dtypes=(torch.int64,)), data=st.data())
def test_a_plain_mask_may_keep_whatever_policy_took_out(ids: Tensor, data: st.DataObject) -> None:
    attention, tokens = _some_excluded(ids, data), ids != 0
    for mask in (tokens, attention != 0, tokens.long()):
        check_agreement(attention, {"document_ids": ids, "attention_mask": mask})
    row, place = (data.draw(st.integers(0, size - 1)) for size in ids.shape)
    if not tokens[row, place] or attention[row, place]:
        wrong = tokens.clone()
        wrong[row, place] ^= True
        with pytest.raises(EncodingError, match=rf"attention_mask\[row {row}, position {place}\]"):
            check_agreement(attention, {"document_ids": ids, "attention_mask": wrong})


def test_a_longest_that_is_too_short_is_refused() -> None:
    metadata: dict[str, object] = {**build_packed_sequence_metadata(_IDS)}
    for longest, told in ((1, "1"), (np.int64(9), "int64"), (torch.tensor(9), "Tensor"), (True, "bool")):
        with pytest.raises(EncodingError, match=f"max_seqlen = {told}: must be a Python int of at least 2"):
            check_agreement(_IDS, {**metadata, "max_seqlen": longest})


def test_a_restart_across_a_hole_is_found() -> None:
    with pytest.raises(EncodingError, match="position 2"):
        check_agreement(torch.tensor([[1, 0, 1]]), {"position_ids": torch.tensor([[0, 1, 0]])})


def test_policy_may_exclude_and_join_but_neither_split_nor_reveal() -> None:
    structural = torch.tensor([[1, 1, 2, 2, 0]])
    for attention in ([[1, 0, 2, 2, 0]], [[1, 1, 1, 1, 0]], [[0, 0, 0, 0, 0]]):
        check_agreement(torch.tensor(attention), {"document_ids": structural})
    for attention in ([[1, 2, 3, 3, 0]], [[1, 1, 2, 2, 3]]):
        with pytest.raises(EncodingError, match="document_ids"):
            check_agreement(torch.tensor(attention), {"document_ids": structural})


def test_second_ids_are_ids_too() -> None:
    with pytest.raises(DocumentIdsError, match="_packed_seq_ids"):
        check_agreement(_IDS, {"_packed_seq_ids": torch.tensor([[1, 2, 1, 2, 0]])})
    with pytest.raises(PackingError, match="mine"):
        check_agreement(cast("Tensor", None), {}, field="mine")


_ROWS = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 1, 1, 2, 0, 0]])


@pytest.mark.parametrize(
    ("name", "given", "row", "position"),
    [
        ("seq_idx", torch.zeros_like(_ROWS), 0, 2),
        ("seq_idx", torch.tensor([[0, 0, 1, 1, 2, -1], [0, 0, 0, 1, -1, -1]]), 0, 4),
        ("seq_idx", torch.tensor([[0, 0, 1, 1, 1, -1], [0, 0, 0, -1, -1, -1]]), 1, 3),
        ("attention_document_ids", torch.ones_like(_ROWS), 0, 2),
        ("attention_document_ids", (_ROWS > 0).long(), 0, 2),
        ("_packed_seq_ids", (_ROWS > 0).long(), 0, 2),
    ],
)
def test_the_ids_again_are_compared(name: str, given: Tensor, row: int, position: int) -> None:
    with pytest.raises(EncodingError) as caught:
        check_agreement(_ROWS, {name: given})
    problem = caught.value.problems[0]
    assert (problem.field, problem.row, problem.position) == (name, row, position)


@pytest.mark.parametrize("padding", ["unused", "numbered"])
def test_a_segment_index_agrees(padding: PaddingIndex) -> None:
    given = {"seq_idx": segment_index(_ROWS, padding).seq_idx, "attention_document_ids": _ROWS}
    assert check_agreement(_ROWS, given).batch == 2


@pytest.mark.parametrize("name", ["seq_idx", "attention_document_ids"])
def test_a_loader_refuses_other_ids_beside_its_own(name: str) -> None:
    before = training_batch(_ROWS, **{name: torch.ones_like(_ROWS)})
    batch = before.copy()
    with pytest.raises(EncodingError) as caught:
        adapt_model_inputs(batch)
    assert caught.value.problems[0].field == name
    with pytest.raises(EncodingError):
        apply_packing_contract(batch, PackingCapabilities("document_ids"))
    assert all(batch[key] is before[key] for key in before)  # type: ignore[literal-required]


def test_tokens_excluded_before_are_no_contradiction() -> None:
    batch = adapt_model_inputs(
        training_batch(_ROWS, attention_document_ids=torch.where(torch.arange(6) == 3, 0, _ROWS))
    )
    assert torch.equal(batch.get("attention_document_ids", _ROWS[:0]), torch.where(torch.arange(6) == 3, 0, _ROWS))


@pytest.mark.parametrize(("keys", "position", "value"), [([0, 1, 4], 1, 1), ([0, 2], 2, None), ([0, 2, 4, 4], 3, 4)])
def test_the_first_offset_of_keys_that_differs_is_named(keys: list[int], position: int, value: int | None) -> None:
    ids = torch.tensor([[1, 1, 2, 2]])
    kwargs: Any = {**flash_varlen_kwargs(ids), "cu_seq_lens_k": torch.tensor(keys, dtype=torch.int32)}
    with pytest.raises(EncodingError, match="differs from cu_seq_lens_q") as caught:
        check_agreement(ids, kwargs)
    problem = caught.value.problems[0]
    assert (problem.field, problem.position, problem.value) == ("cu_seq_lens_k", position, value)


@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_kv_padded", "max_seqlen_k", "packed_seq_params"])
def test_arguments_of_kernels_are_refused_and_nothing_changes(name: str) -> None:
    """Their names do not tell which places they count, so that nothing could be compared."""
    ids = torch.tensor([[1, 1, 2, 2]])
    batch: Any = {"input_ids": ids, "labels": ids, "position_ids": torch.tensor([[0, 1, 0, 1]])}
    batch |= {"padding_mask": ids == 0, "document_ids": ids, name: torch.tensor([0, 2, 4])}
    before = dict(batch)
    with pytest.raises(EncodingError, match=f"{name}: is an argument of kernels"):
        check_agreement(ids, batch)
    with pytest.raises(EncodingError, match=name):
        apply_packing_contract(batch, PackingCapabilities("document_ids"))
    with pytest.raises(EncodingError, match=name):
        convert_batch_output(batch, "thd")
    assert batch == before
