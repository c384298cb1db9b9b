"""Targets, weights and sums, token by token in plain Python."""

from __future__ import annotations

from tests.adapters.oracle_runs import order


def targets(tokens: list[list[int]], rows: list[list[int]], depth: int) -> list[list[int]]:
    """Give the token `depth + 1` places further where both are in one document."""
    found: list[list[int]] = []
    for row, ids in zip(tokens, rows, strict=True):
        own = [-100] * len(ids)
        for place, number in enumerate(ids):
            further = place + depth + 1
            if number and further < len(ids) and ids[further] == number:
                own[place] = row[further]
        found.append(own)
    return found


def targets_under_policy(
    labels: list[list[int]],
    attention: list[list[int]],
    rows: list[list[int]],
    depth: int,
    shift: str,
    *,
    inside: bool,
) -> list[list[int]]:
    """Follow each kept token to the label of its target, and ask both whom it is a target of and where it stands."""
    found = [[-100] * len(ids) for ids in rows]
    for own, row, seen, ids in zip(found, labels, attention, rows, strict=True):
        for place in range(len(ids)):
            last, further = place + depth, place + depth + 1
            if last >= len(ids) or not seen[place]:
                continue
            alone = ids[last] not in ids[further:]
            if shift == "document" and ids[last] and alone:
                friends = [other for other, number in zip(seen, ids, strict=True) if number == ids[last] and other]
                allowed = seen[place] in friends
                target, home = row[last], ids[last]
            else:
                allowed = further < len(ids) and seen[further] == seen[place]
                target, home = (row[further if shift == "model" else last], ids[further]) if allowed else (-100, 0)
            if allowed and (not inside or home == ids[place]):
                own[place] = target
    return found


def documents(rows: list[list[int]]) -> list[list[tuple[int, int]]]:
    """Give the `(row, place)` of the tokens of each document, in row order."""
    return [
        [(row, place) for place, other in enumerate(ids) if other == number]
        for row, ids in enumerate(rows)
        for number in order(ids)
    ]


def weights(labels: list[list[int]], rows: list[list[int]], per: str) -> list[list[float]]:
    units = documents(rows)
    if per == "token":
        units = [[place] for unit in units for place in unit]
    elif per == "sequence":
        units = [[place for unit in units for place in unit if place[0] == row] for row in range(len(rows))]
    found = [[0.0] * len(row) for row in rows]
    for unit in units:
        valid = [(row, place) for row, place in unit if labels[row][place] != -100]
        for row, place in valid:
            found[row][place] = 1 / len(valid)
    return found


def remaining(rows: list[list[int]]) -> list[list[int]]:
    """Count places up to the last token of the document that surrounds each place."""
    found = [[0] * len(ids) for ids in rows]
    for row, ids in enumerate(rows):
        for number in order(ids):
            last = len(ids) - 1 - ids[::-1].index(number)
            for place in range(ids.index(number), last + 1):
                found[row][place] = last - place
    return found
