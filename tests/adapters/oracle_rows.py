"""Row-local offsets and lengths, row by row in plain Python."""

from __future__ import annotations

from itertools import pairwise

from tests.adapters.oracle_runs import order, runs


def row_offsets(rows: list[list[int]], split: bool) -> tuple[list[list[int]], list[int]]:
    """Give the offsets of each row, the row length repeated up to the fullest row's count, and the longest segment."""
    longest = max([1] + [row.count(number) for row in rows for number in order(row)])
    offsets: list[list[int]] = []
    for row in rows:
        own = [0]
        for number, start, stop in runs(row):
            step = longest if split and number == 0 else stop - start
            own += [*range(start + step, stop, step), stop]
        offsets.append(own)
    most = max(map(len, offsets))
    longest_per_row = [max(stop - start for start, stop in pairwise(own)) for own in offsets]
    return [own + [len(rows[0])] * (most - len(own)) for own in offsets], longest_per_row


def length_matrix(rows: list[list[int]]) -> list[list[int]]:
    lengths = [[row.count(number) for number in order(row)] for row in rows]
    most = max(1, *map(len, lengths))
    return [own + [0] * (most - len(own)) for own in lengths]
