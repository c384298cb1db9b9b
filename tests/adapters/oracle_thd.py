"""THD lengths and the padded stream, document by document in plain Python."""

from __future__ import annotations

from itertools import accumulate

from tests.adapters.oracle_runs import order


def slots(row: list[int]) -> list[tuple[int, int]]:
    """Give the tokens of each document, and its places up to the next document or the end of the row."""
    numbers = order(row)
    starts = [row.index(number) for number in numbers]
    stops = [*starts, len(row)][1:]
    return [(row.count(number), stop - start) for number, start, stop in zip(numbers, starts, stops, strict=True)]


def thd_lengths(rows: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    found = [slots(row) for row in rows]
    most = max(1, *map(len, found))
    filled = [own + [(-1000, -1000)] * (most - len(own)) for own in found]
    return [[real for real, _ in own] for own in filled], [[padded for _, padded in own] for own in filled]


def thd_flat(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Give the real and the padded offsets; a row of padding is a document of no token."""
    found = [slot for row in rows for slot in slots(row) or [(0, len(row))]]
    return [*accumulate([0, *(real for real, _ in found)])], [*accumulate([0, *(padded for _, padded in found)])]
