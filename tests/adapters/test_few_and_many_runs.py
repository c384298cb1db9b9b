"""The scan takes another way for few runs than for many, and over many places than over few: all give the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st

import neatpack.adapters.segments
from neatpack.adapters.segments import bounds_of, flags_for, scan_segments
from neatpack.contracts.errors import DocumentIdsError
from tests.adapters import (
    test_r01_ids,
    test_r03_r04_r05_r06_encodings,
    test_r08_positions,
    test_visibility_and_masks,
)
from tests.adapters.properties import holds_for, run_property


@pytest.mark.parametrize(
    "test",
    [
        test_r01_ids.test_the_scan_finds_the_documents,
        test_r01_ids.test_an_id_that_returns_is_named,
        test_r01_ids.test_malformed_ids_are_refused,
        test_r01_ids.test_no_width_of_ids_changes_a_length,
        test_r03_r04_r05_r06_encodings.test_gathered_rows_hold_kept_tokens_only,
        test_r03_r04_r05_r06_encodings.test_physical_segments_cover_the_batch,
        test_r08_positions.test_positions_restart_in_each_document,
        test_visibility_and_masks.test_nothing_is_seen_outside_the_squares_but_the_diagonal,
    ],
)
def test_the_way_for_many_runs_gives_the_same(test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What few ids there are in a test take the way for few runs, unless none are few enough."""
    monkeypatch.setattr(neatpack.adapters.segments, "FEW_RUNS", 0)
    run_property(test.__name__, max_examples=50)


@holds_for(batch=st.integers(1, 5), sequence=st.integers(1, 90), data=st.data())
def test_bounds_are_the_flags_and_the_heads_of_rows(batch: int, sequence: int, data: st.DataObject) -> None:
    places = batch * sequence
    chosen = data.draw(st.sets(st.integers(0, places - 1), max_size=data.draw(st.sampled_from([2, 9, 90]))))
    expected = sorted(chosen | set(range(0, places + 1, sequence)))
    for enough in (0, places + 1):
        opens = flags_for(places)
        opens[:] = True
        opens[:places] = False
        opens[list(chosen)] = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(neatpack.adapters.segments, "MANY_PLACES", enough)
            assert bounds_of(opens, places, sequence).tolist() == expected


@holds_for(rows=st.lists(st.lists(st.integers(-1, 9), min_size=4, max_size=4), min_size=1, max_size=3))
def test_ids_are_in_order_where_they_rise_along_their_row_with_zeros_at_its_end(rows: list[list[int]]) -> None:
    rows = [row if rows.index(row) % 2 else sorted(row, key=_rank) for row in rows]
    expected = all(row == sorted(row, key=_rank) and min(row) >= 0 for row in rows)
    try:
        for few in (0, 99):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(neatpack.adapters.segments, "FEW_RUNS", few)
                assert scan_segments(torch.tensor(rows)).in_order == expected
    except DocumentIdsError:
        assert not expected


def _rank(number: int) -> int:
    """Put ids first, then what is none, then padding."""
    return number if number > 0 else 11 + number
