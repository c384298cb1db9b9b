"""Runs and documents of a row, token by token, in plain Python."""

from __future__ import annotations


def runs(row: list[int]) -> list[tuple[int, int, int]]:
    """Give `(id, start, stop)` of each run of equal ids."""
    found: list[tuple[int, int, int]] = []
    for place, number in enumerate(row):
        if found and found[-1][0] == number:
            found[-1] = (number, found[-1][1], place + 1)
        else:
            found.append((number, place, place + 1))
    return found


def order(row: list[int]) -> list[int]:
    """Give the ids of a row in the order in which they first stand there."""
    return list(dict.fromkeys(number for number in row if number))


def canonical(rows: list[list[int]]) -> list[list[int]]:
    """Number the documents of each row 1, 2, ..."""
    return [[order(row).index(number) + 1 if number else 0 for number in row] for row in rows]
