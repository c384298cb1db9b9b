"""Parts of rows hold every token once between the ranks of a group, with the targets of the whole rows."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.alignment import document_multiple, pad_documents, pad_rows
from neatpack.adapters.collation import collate_documents
from neatpack.adapters.context_parallel import CONTEXT_LAYOUTS, ContextLayout, context_places, shard_tokens
from neatpack.adapters.loss import mtp_targets
from neatpack.adapters.planning import plan_rows
from neatpack.adapters.thd import thd_lengths
from neatpack.contracts.batch import LABEL_SHIFTS, LabelShift, TrainingBatch
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError, PackingError
from tests.adapters import oracle_slicing
from tests.adapters.batches import fault, training_batch
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, listed, rows_of_ids, tensor
from tests.adapters.properties import holds_for


@pytest.mark.parametrize("layout", CONTEXT_LAYOUTS)
def test_one_rank_takes_every_place_whatever_the_lengths(layout: ContextLayout) -> None:
    rows = [[1, 1, 1, 2, 0], [4, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert listed(context_places(tensor(rows), 0, document_multiple(1), layout)) == [[0, 1, 2, 3, 4]] * 3


@holds_for(rows=rows_of_ids(leading=False, multiple=4), ranks=st.sampled_from([1, 2]))
def test_zigzag_deals_every_document_to_all_ranks(rows: Rows, ranks: int) -> None:
    found = [listed(context_places(tensor(rows), rank, ranks, "zigzag")) for rank in range(ranks)]
    assert found == [[oracle_slicing.zigzag(row, ranks)[rank] for row in rows] for rank in range(ranks)]


@holds_for(rows=rows_of_ids(holes=True, multiple=6), ranks=st.sampled_from([1, 2, 3]))
def test_contiguous_parts_are_pieces_of_the_row(rows: Rows, ranks: int) -> None:
    found = [listed(context_places(tensor(rows), rank, ranks, "contiguous")) for rank in range(ranks)]
    assert found == [[oracle_slicing.contiguous(row, ranks)[rank] for row in rows] for rank in range(ranks)]


def test_the_oracle_sees_planted_faults() -> None:
    """A zigzag of the row as a whole, and one without the way back, are other places."""
    row = [1] * 8 + [2] * 4
    right = oracle_slicing.zigzag(row, 2)
    assert right == [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]
    assert right != oracle_slicing.zigzag([1] * 12, 2)
    assert right != [[0, 1, 4, 5, 8, 10], [2, 3, 6, 7, 9, 11]]
    assert [context_places(tensor([row]), rank, 2, "zigzag")[0].tolist() for rank in range(2)] == right


@holds_for(
    rows=rows_of_ids(leading=False, multiple=4),
    layout=st.sampled_from(["contiguous", "zigzag"]),
    ranks=st.sampled_from([1, 2]),
)
def test_parts_make_up_the_batch(rows: Rows, layout: str, ranks: int) -> None:
    batch = training_batch(rows, rewards=torch.randn(len(rows), len(rows[0]), 2))
    ids = batch["document_ids"]
    whole = {**batch, "labels": mtp_targets(batch["labels"], ids, 0, "model")}
    rebuilt = {name: torch.zeros_like(cast("Tensor", value)) for name, value in whole.items()}
    for rank in range(ranks):
        shard = shard_tokens(batch, rank, ranks, layout, label_shift="model")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        index = torch.arange(len(rows))[:, None], shard.places
        for name in rebuilt:
            rebuilt[name][index] = cast("Any", shard.batch)[name]
        assert torch.equal(shard.lengths.seq_lens_padded, thd_lengths(ids).seq_lens_padded)
        first = ids.gather(1, shard.places[:, :1])
        before = ids.gather(1, (shard.places[:, :1] - 1).clamp(min=0))
        expected = (first != 0) & (first == before) & (shard.places[:, :1] > 0)
        assert torch.equal(shard.continues, expected.squeeze(1))
    assert all(torch.equal(rebuilt[name], cast("Tensor", whole[name])) for name in rebuilt)


@holds_for(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    ranks=st.integers(1, 3),
    layout=st.sampled_from(CONTEXT_LAYOUTS),
    shift=st.sampled_from(LABEL_SHIFTS),
    depth=st.integers(0, 3),
)
def test_parts_train_what_each_document_trains_alone(
    lengths: list[int], ranks: int, layout: ContextLayout, shift: LabelShift, depth: int
) -> None:
    """Every token has a number of its own, and the one after the last of a document is its own last target."""
    documents = [list(range(100 * number, 100 * number + length)) for number, length in enumerate(lengths, 1)]
    batch = collate_documents([torch.tensor(each) for each in documents], plan_rows(lengths, 9))
    if shift != "model":
        batch["labels"] = batch["input_ids"].roll(-1, 1)
    if shift == "document":
        batch["labels"] = torch.where(batch["padding_mask"], 7, batch["input_ids"] + 1)
    batch = pad_documents(batch, document_multiple(ranks), pad_token_id=7)
    entries = cast("dict[str, Tensor]", batch)
    entries["ahead"] = mtp_targets(batch["labels"], entries["document_ids"], depth, shift)
    found: dict[str, list[tuple[int, int]]] = {"labels": [], "ahead": []}
    for rank in range(ranks):
        part = cast("dict[str, Tensor]", shard_tokens(batch, rank, ranks, layout, label_shift=shift).batch)
        for name, pairs in found.items():
            both = torch.stack([part["input_ids"], part[name]], dim=-1).flatten(0, 1)
            pairs += [(token, target) for token, target in listed(both) if target != -100]
    for name, distance in (("labels", 1), ("ahead", depth + 1)):
        known = [(token, each[-1] + (shift == "document")) for each in documents for token in each]
        assert sorted(found[name]) == [(token, token + distance) for token, last in known if token + distance <= last]


def test_labels_are_shifted_before_the_cut() -> None:
    tokens = torch.arange(8)[None]
    batch = training_batch([[1] * 8], input_ids=tokens, labels=tokens)
    parts = [shard_tokens(batch, rank, 2, "zigzag", label_shift="model").batch for rank in range(2)]
    assert [part["input_ids"].tolist() for part in parts] == [[[0, 1, 6, 7]], [[2, 3, 4, 5]]]
    assert [part["labels"].tolist() for part in parts] == [[[1, 2, 7, -100]], [[3, 4, 5, 6]]]
    shifted = training_batch([[1] * 8], labels=torch.arange(1, 9)[None])
    parts = [shard_tokens(shifted, rank, 2, "zigzag", label_shift="document").batch for rank in range(2)]
    assert [part["labels"].tolist() for part in parts] == [[[1, 2, 7, 8]], [[3, 4, 5, 6]]]


def test_attention_ids_decide_and_do_not_reach_a_part_as_its_boundaries() -> None:
    joined = tensor([[1, 1, 1, 1]])
    batch = training_batch(
        [[1, 1, 2, 2]], attention_document_ids=joined, _packed_seq_ids=joined, position_ids=torch.arange(4)[None]
    )
    shard = shard_tokens(batch, 1, 2, "contiguous", label_shift="model")
    assert shard.continues.tolist() == [True]
    assert shard.lengths.seq_lens.tolist() == [[4]]
    assert "_packed_seq_ids" not in shard.batch
    assert shard.batch["document_ids"].tolist() == [[2, 2]]
    assert "_packed_seq_ids" in batch


def test_a_target_that_policy_took_out_is_none_in_any_part() -> None:
    excluded = tensor([[1, 1, 1, 0]])
    batch = training_batch([[1, 1, 1, 1]], attention_document_ids=excluded, labels=torch.tensor([[2, 3, 4, 5]]))
    parts = [shard_tokens(batch, rank, 2, "contiguous", label_shift="document").batch for rank in range(2)]
    assert [part["labels"].tolist() for part in parts] == [[[2, 3]], [[-100, -100]]]


@pytest.mark.parametrize("layout", CONTEXT_LAYOUTS)
def test_a_row_of_which_policy_took_out_every_token_is_padding(layout: ContextLayout) -> None:
    excluded = tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    batch = training_batch([[1, 1, 1, 1], [1, 1, 1, 1]], attention_document_ids=excluded)
    parts = [shard_tokens(batch, rank, 2, layout, label_shift="model") for rank in range(2)]
    assert all(part.batch["labels"][1].tolist() == [-100, -100] for part in parts)
    assert parts[0].lengths.seq_lens.tolist() == [[4], [-1000]]


def test_a_hole_is_told_of_the_ids_that_have_it() -> None:
    joined = tensor([[1, 1, 0, 1]])
    batch = training_batch([[1, 1, 0, 2]], attention_document_ids=joined, position_ids=tensor([[0, 1, 0, 2]]))
    with pytest.raises(DocumentIdsError, match=r"attention_document_ids\[row 0, position 2\] = 0: a hole"):
        shard_tokens(batch, 0, 2, "contiguous", label_shift="model")


def test_the_ways_out_of_a_hole_lead_out() -> None:
    rows, joined, positions = [[1, 1, 0, 2]], tensor([[1, 1, 0, 1]]), tensor([[0, 1, 0, 2]])
    padded = training_batch(rows, attention_document_ids=joined, position_ids=positions)
    excluded = training_batch([[1, 1, 1, 1]], attention_document_ids=joined)
    at_head = training_batch([[1, 1, 1, 1]], attention_document_ids=tensor([[0, 1, 1, 1]]))
    for batch in (padded, excluded, at_head):
        with pytest.raises(DocumentIdsError, match=r"pad_documents\(batch, 1\), then pad_rows.*context_places\("):
            shard_tokens(batch, 0, 2, "zigzag", label_shift="model")
    trailing = pad_rows(pad_documents(padded, 1), 4)
    parts = [shard_tokens(trailing, rank, 2, "zigzag", label_shift="model") for rank in range(2)]
    assert sum(int((~part.batch["padding_mask"]).sum()) for part in parts) == 3
    assert context_places(joined, 1, 2, "contiguous").tolist() == [[2, 3]]


def test_the_ways_out_of_lengths_that_do_not_divide_lead_out() -> None:
    apart = training_batch([[1, 1, 2, 2]])
    joined = training_batch([[1, 1, 2]], attention_document_ids=tensor([[1, 1, 1]]), position_ids=tensor([[0, 1, 2]]))
    one_alone = training_batch(
        [[1, 1, 2], [1, 1, 1]], attention_document_ids=tensor([[1] * 3] * 2), position_ids=tensor([[0, 1, 2]] * 2)
    )
    late = training_batch([[1, 1, 1, 1, 2, 2, 2, 2]], attention_document_ids=tensor([[1, 1, 1, 1, 0, 2, 2, 2]]))
    ways: list[tuple[TrainingBatch[Tensor], Any, str]] = [
        (apart, pad_documents, r"pad_documents\(batch, 4\)\.$"),
        (joined, pad_rows, r"pad_rows\(batch, 4\)\.$"),
        (one_alone, pad_rows, r"pad_rows\(batch, 4\)\.$"),
    ]
    for batch, pad, said in ways:
        with pytest.raises(EncodingError, match=said):
            shard_tokens(batch, 0, 2, "zigzag", label_shift="model")
        shard_tokens(pad(batch, 4), 0, 2, "zigzag", label_shift="model")
    with pytest.raises(EncodingError, match=r"context_places\(document_ids, rank, ranks, \"contiguous\"\)\.$"):
        shard_tokens(late, 0, 2, "zigzag", label_shift="model")


def test_ids_that_contradict_one_another_are_refused() -> None:
    batch = training_batch([[1, 1, 2, 2]], _packed_seq_ids=tensor([[1, 2, 2, 2]]))
    with pytest.raises(EncodingError, match="document_ids"):
        shard_tokens(batch, 0, 2, "contiguous", label_shift="model")
    batch = training_batch([[1, 1, 2, 2]], padding_mask=tensor([[1, 1, 1, 0]]) == 0)
    with pytest.raises(EncodingError, match=r"padding_mask\[row 0, position 3\] = True"):
        shard_tokens(batch, 0, 2, "contiguous", label_shift="model")
    batch = training_batch([[1, 1, 2, 2]], position_ids=tensor([[0, 0, 0, 1]]))
    with pytest.raises(EncodingError, match=r"position_ids\[row 0, position 1\] = 0: restarts inside a document"):
        shard_tokens(batch, 0, 2, "contiguous", label_shift="model")


def test_lengths_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(EncodingError, match=r"pad_documents\(batch, 4\)") as caught:
        context_places(tensor([[1, 1, 1, 1], [1, 1, 2, 2]]), 0, 2, "zigzag")
    problem = caught.value.problems[0]
    assert (problem.row, problem.position, problem.value) == (1, 0, 2)
    with pytest.raises(EncodingError, match=r"pad_rows\(batch, 2\)"):
        context_places(tensor([[1, 1, 1]]), 0, 2, "contiguous")
    with pytest.raises(EncodingError, match="4 places, no multiple") as caught:
        context_places(tensor([[1, 1, 1, 1], [0, 0, 0, 0]]), 0, 4, "zigzag")
    assert caught.value.problems[0].row == 0
    with pytest.raises(DocumentIdsError, match="hole"):
        context_places(tensor([[1, 0, 1, 1]]), 0, 2, "zigzag")


@pytest.mark.parametrize("layout", CONTEXT_LAYOUTS)
def test_rows_padded_on_the_left_are_cut_once_their_padding_was_moved(layout: ContextLayout) -> None:
    batch = training_batch([[0, 0, 0, 1, 1, 1, 2, 2]])
    with pytest.raises(DocumentIdsError, match=r"padding before the first document.*pad_documents\(batch, 1\)"):
        shard_tokens(batch, 0, 2, layout, label_shift="model")
    assert torch.equal(pad_documents(batch, 1)["document_ids"], tensor([[1, 1, 1, 2, 2]]))
    padded = pad_documents(batch, 4)
    shards = [shard_tokens(padded, rank, 2, layout, label_shift="model") for rank in range(2)]
    assert sum(int((~shard.batch["padding_mask"]).sum()) for shard in shards) == 5


@pytest.mark.parametrize(
    ("rows", "attention", "layout", "said"),
    [
        ([[0, 1, 1, 1]], [[0, 1, 1, 1]], "contiguous", r"\[row 0, position 0\] = 0: padding before the first document"),
        ([[1, 1, 1, 1]], [[0, 1, 1, 1]], "contiguous", r"\[row 0, position 0\] = 0: a hole"),
        ([[1, 1, 2, 2]], [[0, 0, 1, 1]], "zigzag", r"\[row 0, position 0\] = 0: a hole"),
        ([[1, 1, 2, 2]], [[1, 1, 2, 2]], "zigzag", r"\[row 0, position 0\] = 2: a document with its padding"),
        ([[1, 1, 1]], [[1, 1, 1]], "contiguous", " = 3: rows of 3 places do not divide"),
    ],
)
def test_an_error_names_the_ids_that_attention_goes_by(
    rows: Rows, attention: Rows, layout: ContextLayout, said: str
) -> None:
    """Padding can be moved; a token that policy took out at the head of a row can not."""
    batch = training_batch(rows, attention_document_ids=tensor(attention))
    with pytest.raises(PackingError, match=f"attention_document_ids{said}"):
        shard_tokens(batch, 0, 2, layout, label_shift="model")


def test_bad_arguments_are_refused() -> None:
    ids = tensor([[1, 1]])
    assert fault(EncodingError, lambda: context_places(ids, 2, 2, "contiguous")) == ("rank", 2)
    assert fault(EncodingError, lambda: context_places(ids, 0, 1, cast("Any", "ring"))) == ("layout", "'ring'")
    batch = training_batch([[1, 1]])
    call = lambda: shard_tokens(batch, 0, 1, "zigzag", label_shift=cast("Any", "data"))  # noqa: E731
    assert fault(EncodingError, call) == ("label_shift", "'data'")


def test_a_batch_without_labels_is_refused_by_name() -> None:
    ids = torch.ones(1, 4, dtype=torch.int64)
    batch = cast("TrainingBatch[Tensor]", {"input_ids": ids, "document_ids": ids})
    with pytest.raises(BatchError, match="labels: missing"):
        shard_tokens(batch, 0, 2, "zigzag", label_shift="model")


def test_one_host_read_for_a_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = training_batch([[1, 1, 2, 2], [1, 1, 1, 1], [0, 0, 0, 0]])
    with host_reads(monkeypatch) as reads:
        shard_tokens(batch, 0, 2, "contiguous", label_shift="model")
    assert reads.total == 1
