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


def first_fault(
    rows: list[list[int]],
    documents: int,
    longest: int,
    *,
    holes: bool = True,
    leading: bool = True,
    counted: bool = False,
) -> tuple[str, int, int, int] | None:
    """Give the first place of the batch at which an id is wrong, or begins what exceeds a bound.

    The encoding has holes, has padding before documents, and counts the documents of each row, or does not.
    """
    for row, ids in enumerate(rows):
        for place, number in enumerate(ids):
            before = ids[:place]
            begun = order(before)
            first = number != 0 and number not in begun
            broken = {
                "NEGATIVE_ID": number < 0,
                "RETURNING_ID": number in begun and number != begun[-1],
                "HOLE": not holes and number in begun and before[-1] == 0,
                "LEADING_PADDING": not leading and number == 0 and not begun and any(ids),
                "TOO_MANY_DOCUMENTS": counted and first and len(begun) == documents,
                "TOO_LONG": first and ids.count(number) > longest,
            }
            for rule, is_broken in broken.items():
                if is_broken:
                    return rule, row, place, number
    return None


def longest(rows: list[list[int]]) -> int:
    return max([1] + [row.count(number) for row in rows for number in order(row)])


def most(rows: list[list[int]]) -> int:
    return max([1] + [len(order(row)) for row in rows])
