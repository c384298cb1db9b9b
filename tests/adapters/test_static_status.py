"""What ids did wrong is told alike by all functions of fixed shapes: the first place, as plain Python finds it."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import itertools
from typing import cast

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import static
from neatpack.adapters.static_scan import StaticBounds
from neatpack.adapters.static_status import StaticRule, raise_if_invalid
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle_static
from tests.adapters.layouts import Rows, tensor
from tests.adapters.properties import holds_for
from tests.adapters.static_functions import FUNCTIONS, is_valid

NUMBERS = st.sampled_from([1, 1, 2, 2, 3, 0, 0, -1])
ROWS = st.lists(NUMBERS, min_size=6, max_size=6)
SORTED = ROWS.map(lambda row: sorted(map(abs, row), key=lambda number: (number == 0, number)))
MALFORMED = st.lists(SORTED | ROWS, min_size=1, max_size=3)
"""Ids of which some rows break no rule but a bound, and others several rules."""

EXPRESSED: dict[str, dict[str, bool]] = {
    "static_gathered_rows": {"counted": True},
    "static_gathered_flat": {},
    "static_physical_offsets": {"holes": False},
    "static_thd_lengths": {"holes": False, "leading": False, "counted": True},
    "static_segment_index": {"holes": False, "counted": True},
    "static_position_ids": {},
    "static_block_causal_mask": {},
    "static_block_mask": {},
}
"""Each function, what its encoding cannot express, and whether it counts the documents of each row."""


@settings(max_examples=100)
@holds_for(rows=MALFORMED, data=st.data())
def test_the_first_fault_is_told_alike_by_all(rows: Rows, data: st.DataObject) -> None:
    documents, longest = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    for name in EXPRESSED:
        require_first_fault(name, rows, documents, longest)


@settings(max_examples=200)
@holds_for(rows=MALFORMED, segments=st.integers(1, 9), longest=st.integers(1, 6))
def test_a_tail_hides_no_fault(rows: Rows, segments: int, longest: int) -> None:
    """Whatever the ids did wrong is told, whether places that were left out find segments or not."""
    bounds = StaticBounds(9, segments, longest)
    without, status = (static.static_gathered_flat(tensor(rows), bounds, tail)[1] for tail in ("empty", "padding"))
    if int(without[0]) != StaticRule.VALID:
        assert status.tolist() == without.tolist()
    else:
        rest = sum(number == 0 for row in rows for number in row)
        documents = sum(len(set(row) - {0}) for row in rows)
        assert is_no_room(status) == (documents + -(-rest // longest) > segments)


def is_no_room(status: Tensor) -> bool:
    return status[0].item() == StaticRule.TOO_MANY_SEGMENTS


@pytest.mark.parametrize("name", EXPRESSED)
def test_the_first_fault_of_every_short_row_is_told(name: str) -> None:
    for row in itertools.product((0, 1, 2, -1), repeat=4):
        require_first_fault(name, [list(row)], 2, 2)


def require_first_fault(name: str, rows: Rows, documents: int, longest: int) -> None:
    _, status = FUNCTIONS[name](tensor(rows), StaticBounds(documents, 24, longest))
    expected = oracle_static.first_fault(rows, documents, longest, **EXPRESSED[name])
    if expected is None:
        assert is_valid(status)
    else:
        assert (StaticRule(int(status[0])).name, *status[1:].tolist()) == expected


@settings(max_examples=100)
@holds_for(rows=MALFORMED)
def test_what_is_told_is_raised(rows: Rows) -> None:
    _, status = static.static_thd_lengths(tensor(rows), StaticBounds(2, 24, 4))
    expected = oracle_static.first_fault(rows, 2, 4, **EXPRESSED["static_thd_lengths"])
    assume(expected is not None)
    with pytest.raises((DocumentIdsError, EncodingError)) as caught:
        raise_if_invalid(status, "ids")
    problem = caught.value.problems[0]
    assert (problem.row, problem.position, problem.value) == cast("tuple[str, int, int, int]", expected)[1:]
    assert problem.field == "ids"
    assert problem.remedy


@pytest.mark.parametrize("name", ["static_physical_offsets", "static_thd_lengths", "static_segment_index"])
def test_holes_are_told_where_places_count(name: str) -> None:
    _, status = FUNCTIONS[name](tensor([[1, 1, 1, 0], [2, 2, 0, 2]]), StaticBounds(2, 8, 4))
    assert cast("Tensor", status).tolist() == [StaticRule.HOLE, 1, 3, 2]
    with pytest.raises(DocumentIdsError, match="hole"):
        raise_if_invalid(status)


def test_padding_before_documents_is_told_where_lengths_follow_each_other() -> None:
    _, status = static.static_thd_lengths(tensor([[1, 1], [0, 2]]), StaticBounds(2, 4, 2))
    assert status.tolist() == [StaticRule.LEADING_PADDING, 1, 0, 0]


@pytest.mark.parametrize("tail", static.TAILS)
def test_more_segments_than_the_bound_are_told_where_the_first_of_them_begins(tail: static.Tail) -> None:
    ids, bounds = tensor([[1, 2, 0, 3], [4, 0, 0, 0]]), StaticBounds(3, 3, 4)
    _, status = static.static_gathered_flat(ids, bounds, tail)
    assert status.tolist() == [StaticRule.TOO_MANY_SEGMENTS, 1, 0, 4]


def test_a_tail_that_does_not_fit_is_told_at_the_end_of_the_batch() -> None:
    """Three documents fill the bound, so that no segment is left for the places behind them."""
    ids = tensor([[1, 2, 0, 3], [0, 0, 0, 0]])
    _, status = static.static_gathered_flat(ids, StaticBounds(3, 3, 4), "padding")
    assert status.tolist() == [StaticRule.TOO_MANY_SEGMENTS, 1, 3, 0]
    for bounds in (StaticBounds(3, 4, 5), StaticBounds(3, 5, 4)):
        assert is_valid(static.static_gathered_flat(ids, bounds, "padding")[1])


def test_a_bound_that_is_exceeded_raises_and_truncates_nothing() -> None:
    _, status = static.static_position_ids(tensor([[1, 1, 1, 1, 1, 1, 2, 2]]), StaticBounds(2, 8, 5))
    with pytest.raises(EncodingError, match="longer than the bound") as caught:
        raise_if_invalid(status)
    assert "nothing is truncated" in caught.value.problems[0].remedy
    found, status = static.static_physical_offsets(tensor([[1, 1, 2, 2, 2, 2, 2, 2]]), StaticBounds(3, 3, 8))
    assert is_valid(status)
    assert (found.cu_seqlens.tolist(), found.max_seqlen) == ([0, 2, 8, 8], 8)


def test_values_beyond_int32_are_told_as_its_limit() -> None:
    _, status = static.static_gathered_rows(tensor([[1, -(2**40)]]), StaticBounds(2, 2, 2))
    assert status.tolist() == [StaticRule.NEGATIVE_ID, 0, 1, -(2**31)]
    _, status = static.static_gathered_rows(tensor([[2**62, 2**62, 3, 2**33, 2**62]]), StaticBounds(3, 3, 3))
    assert status.tolist() == [StaticRule.RETURNING_ID, 0, 4, 2**31 - 1]
    _, status = static.static_gathered_rows(tensor([[2**63 - 1, 2**62, 2**33, 2**33, 2**31]]), StaticBounds(4, 4, 4))
    assert is_valid(status)


def test_the_comparison_sees_planted_faults() -> None:
    """A bound that is too small is never valid."""
    rows = [[1, 2, 3, 0]]
    with pytest.raises(EncodingError, match="more documents than the bound"):
        is_valid(static.static_gathered_rows(tensor(rows), StaticBounds(2, 9, 9))[1])
    with pytest.raises(EncodingError, match="more segments than the bound"):
        is_valid(static.static_gathered_flat(tensor(rows), StaticBounds(3, 2, 9))[1])
    assert is_valid(static.static_gathered_flat(tensor(rows), StaticBounds(3, 3, 1))[1])
