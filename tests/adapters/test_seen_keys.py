"""Counts of seen keys are the row sums of the mask."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import pytest
from hypothesis import strategies as st

from neatpack.adapters.seen_keys import count_seen_keys
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, listed, rows_of_ids, tensor
from tests.adapters.properties import holds_for
from tests.adapters.test_block_mask import WINDOWS, pairs


@holds_for(rows=rows_of_ids(holes=True), window=WINDOWS, causal=st.booleans())
def test_counts_are_the_row_sums_of_the_mask(rows: Rows, window: int | None, causal: bool) -> None:
    found = count_seen_keys(tensor(rows), window=window, causal=causal)
    assert found.tolist() == pairs(rows, causal, window).sum(-1).tolist()


def test_the_comparison_sees_planted_faults() -> None:
    """A window that is one too wide, and a hole that is counted, are other sums."""
    rows = [[1, 1, 0, 1, 1]]
    right = listed(pairs(rows, causal=True, window=3).sum(-1))
    assert listed(count_seen_keys(tensor(rows), window=3)) == right == [[1, 2, 1, 2, 2]]
    assert count_seen_keys(tensor(rows), window=4).tolist() != right
    assert count_seen_keys(tensor([[1, 1, 1, 1, 1]]), window=3).tolist() != right


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(EncodingError) as caught:
        count_seen_keys(tensor([[1]]), window=0)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("window", 0)
    with pytest.raises(DocumentIdsError):
        count_seen_keys(tensor([[1, 2, 1]]))


def test_one_host_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with host_reads(monkeypatch) as reads:
        count_seen_keys(tensor([[1, 1, 2, 0]]), window=2)
    assert reads.total == 1
