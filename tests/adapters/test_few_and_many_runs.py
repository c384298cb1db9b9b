"""Few runs are taken another way than many, and few places another than many: all ways give the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, groupby
from types import ModuleType
from typing import Final

import pytest
import torch
from hypothesis import example
from hypothesis import strategies as st

from neatpack.adapters import physical, physical_rows, positions, segments
from neatpack.adapters.neat_metadata import gathered_rows
from neatpack.adapters.segments import bounds_of, flags_for, scan_segments
from neatpack.contracts.errors import DocumentIdsError
from tests.adapters import (
    test_offsets_from_positions,
    test_r01_ids,
    test_r03_r04_r05_r06_encodings,
    test_r08_positions,
    test_rows,
    test_visibility_and_masks,
)
from tests.adapters.properties import holds_for, run_property

_SCANNED = [
    test_r01_ids.test_the_scan_finds_the_documents,
    test_r01_ids.test_an_id_that_returns_is_named,
    test_r01_ids.test_malformed_ids_are_refused,
    test_r01_ids.test_no_width_of_ids_changes_a_length,
]
_OF_FEW_RUNS = [
    *_SCANNED,
    test_r03_r04_r05_r06_encodings.test_gathered_rows_hold_kept_tokens_only,
    test_r03_r04_r05_r06_encodings.test_physical_segments_cover_the_batch,
    test_r08_positions.test_positions_restart_in_each_document,
    test_visibility_and_masks.test_nothing_is_seen_outside_the_squares_but_the_diagonal,
]
_CUT = [
    test_r03_r04_r05_r06_encodings.test_physical_segments_cover_the_batch,
    test_r03_r04_r05_r06_encodings.test_padding_is_cut_at_the_given_length_and_documents_are_not,
]
_WAYS: list[tuple[ModuleType, str, list[Callable[[], None]]]] = [
    (segments, "FEW_RUNS", _OF_FEW_RUNS),
    (segments, "MANY_PLACES", _SCANNED),
    (positions, "_LONG_RUN", [test_r08_positions.test_positions_restart_in_each_document]),
    (physical, "_LONG_STRETCH", _CUT),
    (physical, "_FEW_BOUNDS", [test_offsets_from_positions.test_documents_of_known_lengths_are_found]),
    (physical_rows, "_LONG_WINDOW", [test_rows.test_row_offsets]),
]


@pytest.mark.parametrize(
    ("module", "limit", "test"),
    [
        pytest.param(module, limit, test, id=f"{limit}-{test.__name__}")
        for module, limit, tests in _WAYS
        for test in tests
    ],
)
def test_the_way_for_many_gives_the_same(
    module: ModuleType, limit: str, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a test draws takes the way for few, unless the limit between the two is nothing."""
    monkeypatch.setattr(module, limit, 0)
    run_property(test.__name__, max_examples=50)


_LEAST_NAN: Final = 0x7FF0_0000_0000_0001
"""Ids of which the bits, read as a float, are a number, an infinity or none, or -0.0."""
_STRANGE: Final = [0, 1, 2**52, _LEAST_NAN - 1, _LEAST_NAN, 2**63 - 1, -(2**63), -(2**63) + 1, -_LEAST_NAN, -1]


@example(rows=[[1, 1, 1], [1, 1, 1], [0, -(2**63), 1]], repeated=1)
@example(rows=[[0, -(2**63), 0], [1, 1, 0]], repeated=1)
@holds_for(
    rows=st.lists(st.lists(st.sampled_from(_STRANGE), min_size=3, max_size=3), min_size=1, max_size=3),
    repeated=st.integers(1, 3),
)
def test_ids_of_any_bits_are_told_apart(rows: list[list[int]], repeated: int) -> None:
    rows = [[number for number in row for _ in range(repeated)] for row in rows]
    runs = [[number for number, _ in groupby(row)] for row in rows]
    tokens = [[number for number, _ in groupby(filter(None, row))] for row in rows]
    valid = all(min(row) >= 0 for row in rows) and all(len(row) == len(set(row)) for row in tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MANY_PLACES", 0)
        if valid:
            assert scan_segments(torch.tensor(rows)).ids.tolist() == list(chain(*runs))
            return
        with pytest.raises(DocumentIdsError) as many:
            scan_segments(torch.tensor(rows))
    with pytest.raises(DocumentIdsError) as few:
        scan_segments(torch.tensor(rows))
    assert str(many.value) == str(few.value)


def test_documents_are_found_where_torch_takes_small_floats_for_zero() -> None:
    ids = torch.arange(segments.MANY_PLACES).view(64, -1) // 100 + 1
    expected = scan_segments(ids).bounds.tolist()
    assert len(expected) > 600
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always keeps small floats")
    try:
        assert scan_segments(ids).bounds.tolist() == expected
    finally:
        torch.set_flush_denormal(False)


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
            patch.setattr(segments, "MANY_PLACES", enough)
            assert bounds_of(opens, places, sequence).tolist() == expected


@holds_for(rows=st.lists(st.lists(st.integers(-1, 9), min_size=4, max_size=4), min_size=1, max_size=3))
def test_ids_are_in_order_where_they_rise_along_their_row_with_zeros_at_its_end(rows: list[list[int]]) -> None:
    rows = [row if rows.index(row) % 2 else sorted(row, key=_rank) for row in rows]
    expected = all(row == sorted(row, key=_rank) and min(row) >= 0 for row in rows)
    try:
        for few in (0, 99):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(segments, "FEW_RUNS", few)
                assert scan_segments(torch.tensor(rows)).in_order == expected
    except DocumentIdsError:
        assert not expected


@holds_for(rows=st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=1, max_size=4))
def test_ids_in_order_give_the_same_rows(rows: list[list[int]]) -> None:
    """Ids that are drawn seldom rise along rows of unequal counts, and others take a third way."""
    width = max(1, *map(sum, rows))
    filled = [[number for number, length in enumerate(row, 1) for _ in range(length)] for row in rows]
    ids = torch.tensor([row + [0] * (width - len(row)) for row in filled])
    expected = gathered_rows(ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "FEW_RUNS", 0)
        found = gathered_rows(ids)
    assert torch.equal(found.packed_token_indices, expected.packed_token_indices)
    assert torch.equal(found.cu_seqlens, expected.cu_seqlens)
    assert found.cu_seqlens.dtype == expected.cu_seqlens.dtype
    assert found.max_seqlen == expected.max_seqlen


def _rank(number: int) -> int:
    """Put ids first, then what is none, then padding."""
    return number if number > 0 else 11 + number
