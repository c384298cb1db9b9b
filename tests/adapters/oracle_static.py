"""What fixed shapes change, in plain Python: where padding is cut, what the tail holds, and which place is told."""

from __future__ import annotations

from tests.adapters.oracle_runs import order, runs


def physical_offsets(rows: list[list[int]], longest: int) -> list[int]:
    """Cut documents where they end, and padding every `longest` places."""
    width, offsets = len(rows[0]), [0]
    for row, ids in enumerate(rows):
        for number, start, stop in runs(ids):
            step = stop - start if number else longest
            offsets += [row * width + cut for cut in (*range(start + step, stop, step), stop)]
    return offsets


def tail_offsets(rows: list[list[int]], longest: int) -> list[int]:
    """Give the offsets of the segments that hold the places left out, after those of the tokens."""
    places = len(rows) * len(rows[0])
    kept = sum(number != 0 for row in rows for number in row)
    return [*range(kept + longest, places, longest), places] if kept < places else []


def first_fault(rows: list[list[int]], documents: int, longest: int) -> tuple[str, int, int, int] | None:
    """Give the first place of the batch at which an id is wrong or begins what exceeds a bound."""
    for row, ids in enumerate(rows):
        begun: list[int] = []
        latest = 0
        for place, number in enumerate(ids):
            if number < 0:
                return "NEGATIVE_ID", row, place, number
            if number in (0, latest):
                continue
            if number in begun:
                return "RETURNING_ID", row, place, number
            begun.append(number)
            latest = number
            if len(begun) > documents:
                return "TOO_MANY_DOCUMENTS", row, place, number
            if own_tokens(ids[place:]) > longest:
                return "TOO_LONG", row, place, number
    return None


def own_tokens(ids: list[int]) -> int:
    """Count the tokens of the document that begins first, up to where another one begins."""
    others = [place for place, number in enumerate(ids) if number > 0 and number != ids[0]]
    return ids[: min(others, default=len(ids))].count(ids[0])


def longest(rows: list[list[int]]) -> int:
    return max([1] + [row.count(number) for row in rows for number in order(row)])


def most(rows: list[list[int]]) -> int:
    return max([1] + [len(order(row)) for row in rows])
