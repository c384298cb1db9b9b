"""Targets at every depth, and weights."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

from neatpack.adapters.labels import mask_labels
from neatpack.adapters.loss import loss_weights, mtp_targets
from neatpack.adapters.positions import tokens_remaining
from neatpack.contracts.batch import LABEL_SHIFTS, LabelShift
from neatpack.contracts.errors import EncodingError
from tests.adapters import oracle_loss
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, listed, rows_of_ids, tensor
from tests.adapters.properties import holds_for

LAYOUTS = rows_of_ids(holes=True)
DEPTHS = st.integers(0, 4)
SHIFTS: st.SearchStrategy[LabelShift] = st.sampled_from(LABEL_SHIFTS)


def tokens_of(rows: Rows) -> torch.Tensor:
    """Give every place of a batch a token of its own."""
    return torch.arange(1000, 1000 + len(rows) * len(rows[0])).view(len(rows), -1)


def ahead_of(labels: torch.Tensor) -> torch.Tensor:
    """Shift labels as a model does."""
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], dim=1)


@holds_for(rows=LAYOUTS, depth=DEPTHS)
def test_targets_from_labels_that_nobody_shifted(rows: Rows, depth: int) -> None:
    tokens = tokens_of(rows)
    found = mtp_targets(tokens, tensor(rows), depth, "model")
    assert found.tolist() == oracle_loss.targets(listed(tokens), rows, depth)


@holds_for(rows=LAYOUTS, depth=DEPTHS)
def test_targets_from_labels_shifted_along_the_row(rows: Rows, depth: int) -> None:
    tokens = tokens_of(rows)
    shifted = torch.cat([tokens[:, 1:], tokens[:, :1] + 9000], dim=1)
    found = mtp_targets(shifted, tensor(rows), depth, "stream")
    assert found.tolist() == oracle_loss.targets(listed(tokens), rows, depth)


@holds_for(rows=rows_of_ids(), depth=DEPTHS)
def test_targets_from_labels_shifted_inside_documents(rows: Rows, depth: int) -> None:
    """Each document came with one token more than it shows: the last one's own target."""
    ids, tokens = tensor(rows), tokens_of(rows)
    following = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)
    labels = torch.where(tokens_remaining(ids) > 0, following, tokens + 5000)
    found = mtp_targets(labels, ids, depth, "document")
    expected = torch.tensor(oracle_loss.targets(listed(tokens), rows, depth))
    own = (ids != 0) & (tokens_remaining(ids) == depth)
    expected[own] = (tokens + 5000 + depth)[own]
    assert torch.equal(found, expected)


@holds_for(rows=LAYOUTS, label_shift=SHIFTS)
def test_depth_zero_is_the_masked_labels(rows: Rows, label_shift: LabelShift) -> None:
    ids, labels = tensor(rows), tokens_of(rows)
    found = mtp_targets(labels, ids, 0, label_shift)
    masked = mask_labels(labels, ids, label_shift)
    assert torch.equal(found, ahead_of(masked) if label_shift == "model" else masked)


@holds_for(
    rows=rows_of_ids(),
    depth=DEPTHS,
    shift=SHIFTS,
    joined=st.booleans(),
    inside=st.booleans(),
    data=st.data(),
)
def test_targets_under_policy(
    rows: Rows, depth: int, shift: LabelShift, joined: bool, inside: bool, data: st.DataObject
) -> None:
    """Tokens are taken out, documents of a row joined, and the structural ids tell where documents really end."""
    size = len(rows) * len(rows[0])
    kept = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(len(rows), -1)
    ids, labels = tensor(rows), tokens_of(rows)
    attention = torch.where(kept, (ids != 0).long() if joined else ids, 0)
    found = mtp_targets(labels, attention, depth, shift, document_ids=ids, inside_documents=inside)
    expected = oracle_loss.targets_under_policy(listed(labels), listed(attention), rows, depth, shift, inside=inside)
    assert found.tolist() == expected
    if depth == 0:
        masked = mask_labels(labels, attention, shift, document_ids=ids, inside_documents=inside)
        assert torch.equal(found, ahead_of(masked) if shift == "model" else masked)


def test_the_last_target_of_a_document_is_known_from_the_structural_ids() -> None:
    labels, attention, structural = torch.tensor([[5, 6, 7]]), tensor([[1, 1, 0]]), tensor([[1, 1, 1]])
    assert mtp_targets(labels, attention, 0, "document").tolist() == [[5, 6, -100]]
    found = [mtp_targets(labels, attention, depth, "document", document_ids=structural) for depth in (0, 1, 2)]
    assert [each.tolist() for each in found] == [[[5, -100, -100]], [[-100, 7, -100]], [[7, -100, -100]]]


def test_a_document_that_was_taken_out_between_joined_ones_has_no_target() -> None:
    labels, attention, structural = torch.tensor([[5, 6, 7]]), tensor([[1, 0, 1]]), tensor([[1, 2, 3]])
    assert mtp_targets(labels, attention, 1, "document", document_ids=structural).tolist() == [[-100, -100, -100]]
    assert mtp_targets(labels, attention, 2, "document", document_ids=structural).tolist() == [[7, -100, -100]]


def test_the_oracle_sees_planted_faults() -> None:
    rows, tokens = [[1, 1, 2, 2], [2, 2, 2, 0]], [[10, 11, 20, 21], [30, 31, 32, 0]]
    right = oracle_loss.targets(tokens, rows, 0)
    assert mtp_targets(torch.tensor(tokens), tensor(rows), 0, "model").tolist() == right
    rolled = torch.tensor(tokens).flatten().roll(-1).view(2, 4)
    over_padding = rolled.masked_fill(tensor(rows) == 0, -100)
    unshifted = mask_labels(torch.tensor(tokens), tensor(rows), "model")
    assert right not in (rolled.tolist(), over_padding.tolist(), unshifted.tolist())


def test_labels_without_a_target_stay_without_and_are_not_written_to() -> None:
    labels = torch.tensor([[10, -100, 12, 13]])
    found = mtp_targets(labels, tensor([[1, 1, 1, 1]]), 0, "model")
    assert found.tolist() == [[-100, 12, 13, -100]]
    assert labels.tolist() == [[10, -100, 12, 13]]


@holds_for(rows=LAYOUTS, per=st.sampled_from(["token", "document", "sequence"]), data=st.data())
def test_weights(rows: Rows, per: str, data: st.DataObject) -> None:
    size = len(rows) * len(rows[0])
    kept = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    labels = tokens_of(rows).masked_fill(~torch.tensor(kept).view(len(rows), -1), -100)
    found = loss_weights(labels, tensor(rows), per)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    expected = torch.tensor(oracle_loss.weights(listed(labels), rows, per), dtype=torch.float32)
    torch.testing.assert_close(found, expected)


def test_padding_alone_has_no_document() -> None:
    ids = tensor([[0, 0]])
    assert loss_weights(ids, ids, "document").tolist() == [[0.0, 0.0]]
    assert mtp_targets(ids, ids, 9, "document").tolist() == [[-100, -100]]


def test_bad_arguments_are_refused() -> None:
    ids = tensor([[1, 1]])
    with pytest.raises(EncodingError) as caught:
        mtp_targets(ids, ids, -1, "model")
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("depth", -1)
    with pytest.raises(EncodingError, match="'model', 'stream', 'document'"):
        mtp_targets(ids, ids, 0, "data")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(EncodingError, match="'token', 'document', 'sequence'"):
        loss_weights(ids, ids, "row")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for labels in (ids[:, :1], ids.float(), ids.to("meta")):
        with pytest.raises(EncodingError) as caught:
            mtp_targets(labels, ids, 0, "model")
        assert caught.value.problems[0].field == "labels"


def test_one_host_read_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tensor([[1, 1, 2, 0]])
    with host_reads(monkeypatch) as reads:
        mtp_targets(ids, ids, 1, "model")
    assert reads.total == 1
    with host_reads(monkeypatch) as reads:
        loss_weights(ids, ids, "document")
    assert reads.total == 1
