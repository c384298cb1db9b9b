"""Targets at every depth, weights, tokens remaining, and sums per document."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neatpack.adapters.labels import mask_labels
from neatpack.adapters.loss import loss_weights, mtp_targets, reduce_by_document, tokens_remaining
from neatpack.adapters.positions import build_position_ids
from neatpack.contracts.errors import BatchError, EncodingError
from tests.adapters import oracle_loss
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, listed, rows_of_ids, tensor

LAYOUTS = rows_of_ids(holes=True)
DEPTHS = st.integers(0, 4)


def tokens_of(rows: Rows) -> torch.Tensor:
    """Give every place of a batch a token of its own."""
    return torch.arange(1000, 1000 + len(rows) * len(rows[0])).view(len(rows), -1)


@given(LAYOUTS, DEPTHS)
def test_targets_from_labels_that_nobody_shifted(rows: Rows, depth: int) -> None:
    tokens = tokens_of(rows)
    found = mtp_targets(tokens, tensor(rows), depth, "model")
    assert found.tolist() == oracle_loss.targets(listed(tokens), rows, depth)


@given(LAYOUTS, DEPTHS)
def test_targets_from_labels_shifted_along_the_row(rows: Rows, depth: int) -> None:
    tokens = tokens_of(rows)
    shifted = torch.cat([tokens[:, 1:], tokens[:, :1] + 9000], dim=1)
    found = mtp_targets(shifted, tensor(rows), depth, "stream")
    assert found.tolist() == oracle_loss.targets(listed(tokens), rows, depth)


@given(rows_of_ids(), DEPTHS)
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


@given(LAYOUTS, st.sampled_from(["model", "stream", "document"]))
def test_depth_zero_is_the_masked_labels(rows: Rows, label_shift: str) -> None:
    ids, labels = tensor(rows), tokens_of(rows)
    found = mtp_targets(labels, ids, 0, label_shift)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    masked = mask_labels(labels, ids, label_shift)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    if label_shift == "model":
        masked = torch.cat([masked[:, 1:], torch.full_like(masked[:, :1], -100)], dim=1)
    assert torch.equal(found, masked)


@given(rows_of_ids(), DEPTHS)
def test_targets_stay_inside_documents_that_attention_joins(rows: Rows, depth: int) -> None:
    ids, tokens = tensor(rows), tokens_of(rows)
    joined = (ids != 0).long()
    across = mtp_targets(tokens, joined, depth, "model")
    assert across.tolist() == oracle_loss.targets(listed(tokens), listed(joined), depth)
    inside = mtp_targets(tokens, joined, depth, "model", inside=ids)
    assert torch.equal(inside, mtp_targets(tokens, ids, depth, "model"))


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


@given(LAYOUTS, st.sampled_from(["token", "document", "sequence"]), st.data())
def test_weights(rows: Rows, per: str, data: st.DataObject) -> None:
    size = len(rows) * len(rows[0])
    kept = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    labels = tokens_of(rows).masked_fill(~torch.tensor(kept).view(len(rows), -1), -100)
    found = loss_weights(labels, tensor(rows), per)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    expected = torch.tensor(oracle_loss.weights(listed(labels), rows, per), dtype=torch.float32)
    torch.testing.assert_close(found, expected)


@given(LAYOUTS)
def test_tokens_remaining_and_positions_make_up_the_document(rows: Rows) -> None:
    ids = tensor(rows)
    found = tokens_remaining(ids)
    assert found.tolist() == oracle_loss.remaining(rows)
    span = (found + build_position_ids(ids))[ids != 0]
    lengths = [places[-1][1] - places[0][1] for places in oracle_loss.documents(rows) for _ in places]
    assert span.sort().values.tolist() == sorted(lengths)


@given(LAYOUTS, st.sampled_from(["sum", "mean"]), st.sampled_from([(), (2,)]))
def test_values_per_document(rows: Rows, reduction: str, rest: tuple[int, ...]) -> None:
    ids = tensor(rows)
    values = torch.randn(*ids.shape, *rest, dtype=torch.float64)
    values[ids == 0] = torch.nan
    values.requires_grad_()
    found = reduce_by_document(values, ids, reduction)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    places = oracle_loss.documents(rows)
    assert found.shape == (len(places), *rest)
    for document, own in enumerate(places):
        total = sum(values[row, place] for row, place in own) / (len(own) if reduction == "mean" else 1)
        torch.testing.assert_close(found[document], total)
    (gradient,) = torch.autograd.grad(found.sum(), values)
    assert torch.equal(gradient != 0, (ids != 0).view(*ids.shape, *[1] * len(rest)).expand(values.shape))


@pytest.mark.parametrize(
    ("given_dtype", "summed", "averaged"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.float32, torch.float32),
        (torch.float64, torch.float64, torch.float64),
        (torch.bool, torch.int64, torch.float64),
        (torch.int8, torch.int64, torch.float64),
    ],
)
def test_sums_are_wide(given_dtype: torch.dtype, summed: torch.dtype, averaged: torch.dtype) -> None:
    ids = torch.ones(1, 300, dtype=torch.int64)
    ones = torch.ones(1, 300, dtype=given_dtype)
    found = reduce_by_document(ones, ids, "sum")
    assert (found.dtype, found.tolist()) == (summed, [300])
    found = reduce_by_document(ones, ids, "mean")
    assert (found.dtype, found.tolist()) == (averaged, [1])


def test_targets_of_each_document_are_counted() -> None:
    ids = tensor([[1, 1, 1, 2, 3, 3, 0]])
    labels = mask_labels(tokens_of([[0] * 7]), ids, "model")
    assert reduce_by_document(labels != -100, ids, "sum").tolist() == [2, 0, 1]


def test_padding_alone_has_no_document() -> None:
    ids = tensor([[0, 0]])
    assert reduce_by_document(torch.ones(1, 2, 3), ids, "mean").shape == (0, 3)
    assert tokens_remaining(ids).tolist() == [[0, 0]]
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
    with pytest.raises(EncodingError, match="'sum', 'mean'"):
        reduce_by_document(ids, ids, "max")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for labels in (ids[:, :1], ids.float(), ids.to("meta")):
        with pytest.raises(EncodingError) as caught:
            mtp_targets(labels, ids, 0, "model")
        assert caught.value.problems[0].field == "labels"
    for values in (torch.ones(1, 3), torch.ones(2), torch.ones(1, 2, device="meta")):
        with pytest.raises(BatchError) as batch_caught:
            reduce_by_document(values, ids, "sum")
        assert batch_caught.value.problems[0].field == "values"


def test_one_host_read_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tensor([[1, 1, 2, 0]])
    values = torch.ones(1, 4, requires_grad=True)
    calls = (
        lambda: mtp_targets(ids, ids, 1, "model"),
        lambda: loss_weights(ids, ids, "document"),
        lambda: tokens_remaining(ids),
        lambda: torch.autograd.grad(reduce_by_document(values, ids, "mean").sum(), values),
    )
    for call in calls:
        with host_reads(monkeypatch) as reads:
            call()
        assert reads.total == 1


@given(rows_of_ids(), st.data())
def test_sums_of_integers_wrap_as_those_of_torch_and_means_never(rows: Rows, data: st.DataObject) -> None:
    ids = tensor(rows)
    big = st.sampled_from([-(2**63), -(2**62), -1, 0, 1, 2**62, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)
    values = torch.tensor(data.draw(st.lists(big, min_size=ids.numel(), max_size=ids.numel()))).view(ids.shape)
    listed_values = listed(values)
    places = oracle_loss.documents(rows)
    sums = [sum(listed_values[row][place] for row, place in own) for own in places]
    wrapped = [(total + 2**63) % 2**64 - 2**63 for total in sums]
    assert reduce_by_document(values, ids, "sum").tolist() == wrapped
    means = torch.tensor([total / len(own) for total, own in zip(sums, places, strict=True)], dtype=torch.float64)
    # Values of both signs may leave what float64 rounds off.
    torch.testing.assert_close(reduce_by_document(values, ids, "mean"), means, rtol=1e-12, atol=2.0**14)


def test_values_without_entries_are_reduced_to_such() -> None:
    ids = tensor([[1, 1, 2], [3, 0, 0]])
    assert reduce_by_document(torch.ones(2, 3, 0), ids, "mean").shape == (3, 0)


def test_values_that_int64_cannot_sum_are_refused() -> None:
    with pytest.raises(BatchError, match="cannot be summed in int64"):
        reduce_by_document(torch.tensor([[2**63]], dtype=torch.uint64), torch.tensor([[1]]), "sum")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_of_a_long_document_is_as_exact_as_its_dtype(dtype: torch.dtype) -> None:
    values, ids = torch.full((1, 2**19), 0.1, dtype=dtype), torch.ones(1, 2**19, dtype=torch.int64)
    found = reduce_by_document(values, ids, "mean")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, values[0, :1].float(), rtol=1e-6, atol=0.0)
