"""Segment numbers and restarts, place by place in plain Python."""

from __future__ import annotations

from itertools import accumulate

from tests.adapters.oracle_runs import order, runs


def segment_index(rows: list[list[int]], numbered: bool) -> list[list[int]]:
    if not numbered:
        return [[order(row).index(number) if number else -1 for number in row] for row in rows]
    return [[count for count, (_, start, stop) in enumerate(runs(row)) for _ in range(start, stop)] for row in rows]


def gathered_restarts(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Give the flat places of kept tokens, and the offsets of the documents among them."""
    width = len(rows[0])
    places = [row * width + place for row, ids in enumerate(rows) for place in range(width) if ids[place]]
    lengths = [ids.count(number) for ids in rows for number in order(ids)]
    return places, [*accumulate([0, *lengths])]


def physical_restarts(rows: list[list[int]]) -> list[int]:
    """Give the offsets of all runs of the flattened rows."""
    return [*accumulate([0, *(stop - start for row in rows for _, start, stop in runs(row))])]
