"""Values made one per document are what a loop over documents makes of them, with gradients to their tokens alone."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

from neatpack.adapters.reductions import reduce_by_document
from neatpack.contracts.errors import BatchError, EncodingError
from tests.adapters import oracle_loss
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, listed, rows_of_ids, tensor
from tests.adapters.properties import holds_for


@holds_for(rows=rows_of_ids(holes=True), reduction=st.sampled_from(["sum", "mean"]), rest=st.sampled_from([(), (2,)]))
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
    labels = torch.tensor([[-100, 1, 2, -100, -100, 5, -100]])
    assert reduce_by_document(labels != -100, ids, "sum").tolist() == [2, 0, 1]


@holds_for(rows=rows_of_ids(), data=st.data())
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


def test_padding_alone_has_no_document() -> None:
    assert reduce_by_document(torch.ones(1, 2, 3), tensor([[0, 0]]), "mean").shape == (0, 3)


def test_bad_arguments_are_refused() -> None:
    ids = tensor([[1, 1]])
    with pytest.raises(EncodingError, match="'sum', 'mean'"):
        reduce_by_document(ids, ids, "max")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for values in (torch.ones(1, 3), torch.ones(2), torch.ones(1, 2, device="meta")):
        with pytest.raises(BatchError) as caught:
            reduce_by_document(values, ids, "sum")
        assert caught.value.problems[0].field == "values"


def test_one_host_read_gradients_included(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.ones(1, 4, requires_grad=True)
    with host_reads(monkeypatch) as reads:
        torch.autograd.grad(reduce_by_document(values, tensor([[1, 1, 2, 0]]), "mean").sum(), values)
    assert reads.total == 1
