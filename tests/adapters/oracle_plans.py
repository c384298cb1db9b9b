"""What plans of rows may be, in plain Python over lists. It shares no code with neatpack and imports none of it."""

from __future__ import annotations

from collections import Counter

Cut = tuple[int, int, int]
"""A document, the token with which a piece of it begins, and the one before which it ends."""


def tokens_of(pieces: list[Cut]) -> Counter[tuple[int, int]]:
    """Count how often each token of each document occurs."""
    return Counter((document, token) for document, start, stop in pieces for token in range(start, stop))


def all_tokens(counts: list[int]) -> Counter[tuple[int, int]]:
    return tokens_of([(document, 0, count) for document, count in enumerate(counts)])


def best_fit_loads(counts: list[int], capacity: int) -> list[int]:
    """Place document by document, longest first, into the fullest row that has room; give what rows hold, sorted."""
    loads: list[int] = []
    for count in sorted(counts, reverse=True):
        fitting = [row for row, load in enumerate(loads) if load + count <= capacity]
        if fitting:
            loads[max(fitting, key=lambda row: loads[row])] += count
        else:
            loads.append(count)
    return sorted(loads)


def first_fit(counts: list[int], capacity: int, most: int) -> list[list[int]]:
    """Place each document into the first row that has room and holds fewer than `most`."""
    rows: list[list[int]] = []
    for document, count in enumerate(counts):
        for row in rows:
            if len(row) < most and sum(counts[other] for other in row) + count <= capacity:
                row.append(document)
                break
        else:
            rows.append([document])
    return rows


def first_fit_stream(
    counts: list[int], capacity: int, most: int, open_rows: int, *, truncate: bool
) -> list[tuple[int, int, list[Cut], list[Cut]]]:
    """Place documents one by one, with few rows open; give in the order in which rows close: how many documents had
    come by then, the row's number, its pieces, and what was left out of them."""
    opened: list[list[Cut]] = []
    dropped: list[list[Cut]] = []
    still_open: list[int] = []
    closed: list[tuple[int, int, list[Cut], list[Cut]]] = []

    def held(row: int) -> int:
        return sum(stop - start for _, start, stop in opened[row])

    for document, count in enumerate(counts):
        start = 0
        while start < count:
            tokens = min(capacity, count - start)
            fitting = [row for row in still_open if held(row) + tokens <= capacity and len(opened[row]) < most]
            if not fitting:
                opened.append([])
                dropped.append([])
                still_open.append(len(opened) - 1)
                fitting = still_open[-1:]
            opened[fitting[0]].append((document, start, start + tokens))
            start += tokens
            if truncate and start < count:
                dropped[fitting[0]].append((document, start, count))
                start = count
            leaving = [row for row in still_open if held(row) == capacity or len(opened[row]) == most]
            if not leaving and len(still_open) > open_rows:
                leaving = still_open[:1]
            for row in leaving:
                still_open.remove(row)
                closed.append((document + 1, row, opened[row], dropped[row]))
    return closed + [(len(counts), row, opened[row], dropped[row]) for row in still_open]


def wrapped(counts: list[int], capacity: int, most: int) -> list[list[Cut]]:
    """Lay tokens down one by one, and begin a row where the one before is full or holds `most` pieces."""
    rows: list[list[Cut]] = [[]]
    for document, count in enumerate(counts):
        fresh = True
        for token in range(count):
            row = rows[-1]
            if sum(stop - start for _, start, stop in row) == capacity or (fresh and len(row) == most):
                rows.append(row := [])
                fresh = True
            if fresh:
                row.append((document, token, token + 1))
            else:
                row[-1] = (document, row[-1][1], token + 1)
            fresh = False
    return rows


def cut(counts: list[int], capacity: int) -> list[int]:
    """Cut what is longer than a row, rest last."""
    return [min(capacity, count - start) for count in counts for start in range(0, count, capacity)]


def greedy_loads(descending: list[float], ranks: int, most: int) -> list[float]:
    """Give each cost to the rank that has the least so far, and fewer than `most`."""
    taken: list[list[float]] = [[] for _ in range(ranks)]
    for cost in descending:
        min((rank for rank in taken if len(rank) < most), key=sum).append(cost)
    return [sum(rank) for rank in taken]
