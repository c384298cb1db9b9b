"""Parts of rows, place by place in plain Python."""

from __future__ import annotations

from tests.adapters.oracle_runs import order


def zigzag(row: list[int], ranks: int) -> list[list[int]]:
    """Deal the chunks of each document and its padding to the ranks, there and back, and give each rank's places."""
    starts = [row.index(number) for number in order(row)] or [0]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for start, stop in zip(starts, [*starts, len(row)][1:], strict=True):
        size = (stop - start) // (2 * ranks)
        for chunk, rank in enumerate([*range(ranks), *reversed(range(ranks))]):
            dealt[rank] += range(start + chunk * size, start + (chunk + 1) * size)
    return dealt


def contiguous(row: list[int], ranks: int) -> list[list[int]]:
    size = len(row) // ranks
    return [list(range(rank * size, (rank + 1) * size)) for rank in range(ranks)]


def padded_documents(row: list[int], multiple: int) -> list[int]:
    """Lay the documents of a row end to end, each padded to a multiple."""
    laid: list[int] = []
    for number in order(row):
        count = row.count(number)
        laid += [number] * count + [0] * (-count % multiple)
    return laid
