"""Documents and rows padded to multiples: every token stays once, with its label and position."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.alignment import aligned_length, document_multiple, pad_documents, pad_rows
from neatpack.adapters.arguments import INTEGER_DTYPES
from neatpack.adapters.attention_cost import AttentionCost
from neatpack.adapters.balancing import balance_rows
from neatpack.adapters.batch_output import convert_batch_output
from neatpack.adapters.collation import collate_documents
from neatpack.adapters.planning import PACKING_METHODS, PackingMethod, plan_rows
from neatpack.adapters.row_plans import RowPlan
from neatpack.adapters.thd import thd_flat, thd_lengths
from neatpack.adapters.unpacking import unpack
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError
from tests.adapters import oracle_slicing
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for


def training_batch(rows: Rows, **entries: Any) -> TrainingBatch[Tensor]:
    ids = tensor(rows)
    tokens = torch.arange(1000, 1000 + ids.numel()).view(ids.shape)
    batch: TrainingBatch[Tensor] = {
        "input_ids": tokens,
        "labels": tokens + 1,
        "position_ids": torch.stack([tokens + 2, tokens + 3]),
        "padding_mask": ids == 0,
        "document_ids": ids,
        "document_keys": torch.zeros(len(rows), 7, dtype=torch.int64),
    }
    return cast("TrainingBatch[Tensor]", {**batch, **entries})


@holds_for(rows=rows_of_ids(), multiple=st.integers(1, 5))
def test_documents_are_padded_one_by_one(rows: Rows, multiple: int) -> None:
    batch = training_batch(rows)
    found = pad_documents(batch, multiple, pad_token_id=7)
    ids = found["document_ids"]
    width = ids.shape[1]
    expected = [oracle_slicing.padded_documents(row, multiple) for row in rows]
    assert ids.tolist() == [row + [0] * (width - len(row)) for row in expected]
    assert width == max(multiple, *map(len, expected))
    kept = ids != 0
    assert torch.equal(found["padding_mask"], ~kept)
    tokens = found["input_ids"][kept]
    assert torch.equal(tokens, batch["input_ids"][batch["document_ids"] != 0])
    assert torch.equal(found["labels"][kept], tokens + 1)
    assert torch.equal(found["position_ids"][:, kept], torch.stack([tokens + 2, tokens + 3]))
    assert (found["input_ids"][~kept] == 7).all()
    assert (found["labels"][~kept] == -100).all()
    assert (found["position_ids"][:, ~kept] == 0).all()
    assert found["document_keys"] is batch["document_keys"]


@holds_for(rows=rows_of_ids(), multiple=st.integers(1, 5), dtype=st.sampled_from(INTEGER_DTYPES))
def test_ids_and_tokens_of_any_width_are_moved_alike(rows: Rows, multiple: int, dtype: torch.dtype) -> None:
    wide = training_batch(rows, input_ids=tensor(rows))
    narrow = cast("Any", {**wide, "input_ids": tensor(rows, dtype), "document_ids": tensor(rows, dtype)})
    expected: dict[str, Any] = {**pad_documents(wide, multiple, pad_token_id=120)}
    for name, value in pad_documents(narrow, multiple, pad_token_id=120).items():
        assert cast("Tensor", value).dtype == narrow[name].dtype
        assert torch.equal(cast("Tensor", value).long(), expected[name].long())


@holds_for(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    multiple=st.integers(1, 5),
    slots=st.integers(1, 6),
    method=st.sampled_from(PACKING_METHODS),
    bound=st.none() | st.integers(1, 3),
)
def test_rows_planned_with_lengths_rounded_up_do_not_outgrow_the_plan(
    lengths: list[int], multiple: int, slots: int, method: PackingMethod, bound: int | None
) -> None:
    """Also where long documents are split, and where pieces are spread over ranks: as docs/parallel.md shows it."""
    capacity = slots * multiple
    rounded = plan_rows(
        [-(-length // multiple) * multiple for length in lengths],
        capacity,
        method=method,
        overlong="split",
        documents_per_row=bound,
    )
    if len(rounded) % 2 == 0 or rounded.documents.size > len(rounded):
        rounded = balance_rows(rounded, 2, cost=AttentionCost(1.0, 0.1)).rows
    rows = [[piece._replace(stop=min(piece.stop, lengths[piece.document])) for piece in row] for row in rounded.pieces]
    plan = RowPlan.from_rows(rows, lengths, capacity)
    documents = [torch.arange(100 * index + 1, 100 * index + length + 1) for index, length in enumerate(lengths)]
    padded = pad_documents(collate_documents(documents, plan), multiple)
    assert padded["input_ids"].shape[1] <= capacity
    found = pad_rows(padded, capacity)
    assert found["input_ids"].shape == (len(plan), capacity)
    assert (
        (thd_lengths(found["document_ids"]).seq_lens_padded % multiple)
        .where(found["document_keys"] >= 0, 0)
        .eq(0)
        .all()
    )
    again = unpack(found["input_ids"], found["document_ids"], found["document_keys"], found["document_starts"])
    assert all(torch.equal(one, other) for one, other in zip(again, documents, strict=True))


@pytest.mark.parametrize("pad", [pad_documents, pad_rows])
def test_rows_do_not_grow_past_what_int32_counts(pad: Any) -> None:
    batch = training_batch([[1, 1, 2], [3, 0, 0]])
    for multiple in (2**30, 2**31 - 1):
        with pytest.raises(EncodingError, match=rf"^multiple = {multiple}: padded rows have more places than int32"):
            pad(batch, multiple)


def test_rows_planned_with_real_lengths_may_outgrow_the_plan() -> None:
    documents = [torch.ones(length, dtype=torch.int64) for length in (3, 3, 2)]
    batch = collate_documents(documents, plan_rows([3, 3, 2], 8))
    assert pad_documents(batch, 4)["input_ids"].shape == (1, 12)


@holds_for(rows=rows_of_ids(), multiple=st.integers(1, 5))
def test_every_slot_of_a_padded_batch_is_a_multiple(rows: Rows, multiple: int) -> None:
    found = pad_documents(training_batch(rows), multiple)
    flat = thd_flat(found["document_ids"])
    assert (flat.cu_seqlens_padded % multiple == 0).all()
    assert flat.real_tokens == sum(number != 0 for row in rows for number in row)


def test_the_property_sees_planted_faults() -> None:
    """Padding the row alone leaves slots that are no multiple."""
    batch = training_batch([[1, 1, 1, 2, 2]])
    assert (thd_flat(pad_documents(batch, 4)["document_ids"]).cu_seqlens_padded % 4 == 0).all()
    assert not (thd_flat(pad_rows(batch, 4)["document_ids"]).cu_seqlens_padded % 4 == 0).all()


def test_two_offsets_of_a_padded_batch() -> None:
    padded = convert_batch_output(pad_documents(training_batch([[1, 1, 1, 2, 2]]), 4), "thd", padded_documents=True)
    assert (padded["seq_lens"].tolist(), padded["seq_lens_padded"].tolist()) == ([[3, 2]], [[4, 4]])


@holds_for(rows=rows_of_ids(), multiple=st.integers(1, 5))
def test_rows_are_padded_at_their_end(rows: Rows, multiple: int) -> None:
    ones = torch.ones(len(rows), len(rows[0]), 2)
    batch = training_batch(rows, rewards=ones, shift_labels=ones.int(), soft_labels=ones, has_labels=ones.bool())
    found = pad_rows(batch, multiple)
    width = len(rows[0])
    assert found["input_ids"].shape[1] == aligned_length(width, multiple)
    assert torch.equal(found["input_ids"][:, :width], batch["input_ids"])
    assert (found["document_ids"][:, width:] == 0).all()
    fills = {"rewards": 0, "shift_labels": -100, "soft_labels": 0, "has_labels": 0}
    assert all((cast("Any", found)[name][:, width:] == fill).all() for name, fill in fills.items())


@pytest.mark.parametrize(
    ("context", "tensor_parallel", "multiple"),
    [(1, 1, 1), (2, 1, 4), (4, 1, 8), (1, 4, 4), (2, 2, 4), (2, 3, 12), (2, 4, 8)],
)
def test_document_multiples(context: int, tensor_parallel: int, multiple: int) -> None:
    found = document_multiple(context, tensor_parallel)
    assert found == multiple
    assert found % (2 * context if context > 1 else 1) == found // context % tensor_parallel == 0


def test_the_length_that_runs_is_aligned() -> None:
    stored = 18
    assert aligned_length(stored - 1, 8) == 24
    with pytest.raises(EncodingError) as caught:
        aligned_length(3, 0)
    assert caught.value.problems[0].value == 0
    with pytest.raises(EncodingError, match="context_parallel = 0"):
        document_multiple(0, 1)
    with pytest.raises(EncodingError, match="tensor_parallel = 0"):
        document_multiple(1, 0)


def test_what_cannot_be_padded_is_refused() -> None:
    with pytest.raises(DocumentIdsError, match="hole"):
        pad_documents(training_batch([[1, 0, 1]]), 2)
    for name, value in {"cu_seqlens": torch.zeros(1, 2), "pixel_values": torch.zeros(5), "max_seqlen": 2}.items():
        for pad in (pad_documents, pad_rows):
            with pytest.raises(BatchError) as caught:
                pad(training_batch([[1, 1]], **{name: value}), 2)
            assert caught.value.problems[0].field == name
            assert caught.value.problems[0].remedy
    with pytest.raises(BatchError, match="no ids"):
        pad_documents(training_batch([[1]], document_ids=None), 2)
    with pytest.raises(BatchError, match="input_ids"):
        pad_rows(training_batch([[1]], input_ids=torch.zeros(3)), 2)
    with pytest.raises(EncodingError):
        pad_documents(training_batch([[1]]), 0)


def test_a_token_that_the_padding_mask_knows_is_not_left_out_as_padding() -> None:
    """Policy took it out at the end of its document, and there are no ids as packed that would tell."""
    packed = tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    batch = training_batch([[1, 1, 1, 1], [1, 1, 1, 0]], _packed_seq_ids=packed)
    assert pad_documents(batch, 2)["input_ids"][1].tolist() == [1004, 1005, 1006, 0]
    del batch["document_ids"]
    with pytest.raises(DocumentIdsError, match=r"_packed_seq_ids\[row 1, position 2\] = 0: a hole"):
        pad_documents(batch, 2)
    batch["padding_mask"] = packed == 0
    assert pad_documents(batch, 2)["input_ids"][1].tolist() == [1004, 1005, 0, 0]


@holds_for(rows=rows_of_ids(), multiple=st.integers(1, 5))
def test_padding_that_the_mask_knows_separates_documents_that_attention_joins(rows: Rows, multiple: int) -> None:
    """As the last step leaves a batch where the contract drops the ids as packed."""
    batch = training_batch(rows, _packed_seq_ids=(tensor(rows) > 0).long())
    del batch["document_ids"]
    found = pad_documents(batch, multiple)
    width = found["input_ids"].shape[1]
    expected: Rows = []
    for row in rows:
        begun = itertools.accumulate(bool(number) and not before for before, number in pairwise([0, *row]))
        runs = [start * bool(number) for start, number in zip(begun, row, strict=True)]
        kept = [int(number > 0) for number in oracle_slicing.padded_documents(runs, multiple)]
        expected.append(kept + [0] * (width - len(kept)))
    assert found["_packed_seq_ids"].tolist() == expected
    assert torch.equal(
        found["input_ids"][found["_packed_seq_ids"] > 0], batch["input_ids"][batch["_packed_seq_ids"] > 0]
    )


def test_padding_between_joined_documents_moves_as_thd_tells_to_move_it() -> None:
    batch = training_batch([[1, 1, 0, 2, 0]], _packed_seq_ids=tensor([[1, 1, 0, 1, 0]]))
    del batch["document_ids"]
    with pytest.raises(DocumentIdsError, match=r"call pad_documents\(batch, 1\)"):
        convert_batch_output(batch, "thd")
    assert convert_batch_output(pad_documents(batch, 1), "thd")["seq_lens"].tolist() == [[3]]


def test_ids_padding_mask_and_positions_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(EncodingError, match=r"padding_mask\[row 0, position 1\] = True"):
        pad_documents(training_batch([[1, 1]], padding_mask=tensor([[1, 0]]) == 0), 2)
    with pytest.raises(EncodingError, match="document_ids"):
        pad_documents(training_batch([[1, 1]], _packed_seq_ids=tensor([[1, 2]])), 2)
    with pytest.raises(EncodingError, match=r"position_ids\[row 0, position 1\] = 0: restarts inside a document"):
        pad_documents(training_batch([[1, 1]], position_ids=tensor([[0, 0]])), 2)


@pytest.mark.parametrize("pad", [pad_documents, pad_rows])
def test_views_of_complex_numbers_move_with_the_tokens(pad: Any) -> None:
    turns = torch.complex(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[4.0, 5.0, 6.0]]))
    conjugate, negative = turns.conj(), turns.conj().imag
    found = pad(training_batch([[1, 1, 1]], conjugate=conjugate, negative=negative), 2)
    assert torch.equal(found["conjugate"], torch.cat([conjugate, torch.zeros(1, 1)], dim=1))
    assert torch.equal(found["negative"], torch.cat([negative, torch.zeros(1, 1)], dim=1))


def test_one_host_read(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = training_batch([[1, 1, 2, 0]])
    with host_reads(monkeypatch) as reads:
        pad_documents(batch, 2)
    assert reads.total == 1
    with host_reads(monkeypatch) as reads:
        pad_rows(batch, 8)
    assert reads.total == 0


def test_padding_is_token_0_by_default() -> None:
    for pad in (pad_documents, pad_rows):
        assert pad(training_batch([[1, 1, 1]]), 2)["input_ids"].tolist() == [[1000, 1001, 1002, 0]]
