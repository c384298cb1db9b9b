"""What the right answers are, in plain Python over lists. It shares no code with neatpack and imports none of it."""

from __future__ import annotations

from typing import NamedTuple

Rows = list[list[int]]


class Document(NamedTuple):
    """One document: its row, its id, and the places of its tokens, holes left out."""

    row: int
    number: int
    places: list[int]


def documents(rows: Rows) -> list[Document]:
    """Group the tokens of each row by id, documents by their first token."""
    found: list[Document] = []
    for row, numbers in enumerate(rows):
        by_number: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            if number:
                by_number.setdefault(number, []).append(place)
        found += [Document(row, number, places) for number, places in by_number.items()]
    return found


def returning(rows: Rows) -> tuple[int, int] | None:
    """Find the first row in which an id comes back after another, and the place where it does."""
    for row, numbers in enumerate(rows):
        done: set[int] = set()
        before = 0
        for place, number in enumerate(numbers):
            if number and number in done and number != before:
                return row, place
            if number:
                done.add(number)
                before = number
    return None


def canonical(rows: Rows) -> Rows:
    """Number documents 1, 2, ... in row order."""
    ids = [[0] * len(numbers) for numbers in rows]
    counts = [0] * len(rows)
    for document in documents(rows):
        counts[document.row] += 1
        for place in document.places:
            ids[document.row][place] = counts[document.row]
    return ids


def holes(rows: Rows) -> set[tuple[int, int]]:
    """Find the zeros between two tokens of one document."""
    found: set[tuple[int, int]] = set()
    for row, _, places in documents(rows):
        found |= {(row, place) for place in range(places[0], places[-1]) if rows[row][place] == 0}
    return found


def lengths(rows: Rows) -> list[int]:
    return [len(document.places) for document in documents(rows)]


def running(counts: list[int]) -> list[int]:
    """Add up: offsets of pieces of these lengths."""
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    return offsets


def row_offsets(rows: Rows, row: int) -> list[int]:
    """Gathered offsets of one row, without fill."""
    return running([len(document.places) for document in documents(rows) if document.row == row])


def kept_places(rows: Rows) -> list[int]:
    """Flat physical places of all tokens of documents."""
    return [
        row * len(numbers) + place for row, numbers in enumerate(rows) for place, number in enumerate(numbers) if number
    ]


def padded_segments(rows: Rows, longest: int | None) -> list[int]:
    """Lengths of the physical segments; padding is cut at `longest`, or not at all where that is None."""
    found: list[int] = []
    for numbers in rows:
        place = 0
        while place < len(numbers):
            end = place
            while end < len(numbers) and numbers[end] == numbers[place]:
                end += 1
            run = end - place
            while numbers[place] == 0 and longest is not None and run > longest:
                found.append(longest)
                run -= longest
            found.append(run)
            place = end
    return found


def positions(rows: Rows, start: int = 0) -> Rows:
    """Count from `start` in each document; a hole uses up its coordinate, padding has 0."""
    found = [[0] * len(numbers) for numbers in rows]
    for document in documents(rows):
        first, last = document.places[0], document.places[-1]
        for place in range(first, last + 1):
            found[document.row][place] = start + place - first
    return found


def visible(rows: Rows, row: int, query: int, key: int, window: int | None = None) -> bool:
    """Decide for one query and one key of a row."""
    if query == key:
        return True
    if rows[row][query] == 0 or rows[row][query] != rows[row][key] or key > query:
        return False
    return window is None or key > query - window


def kept_label(attention: Rows, structural: Rows, row: int, place: int, shift: str, inside: bool = False) -> bool:
    """Decide whether the label at a place stays: its target is one token's next, both in one document."""
    if attention[row][place] == 0:
        return False
    query, target = (place - 1, place) if shift == "model" else (place, place + 1)
    ends = target == len(attention[row]) or structural[row][query] != structural[row][target]
    if shift == "document" and ends:
        return True
    if query < 0 or target == len(attention[row]):
        return False
    if inside and structural[row][query] != structural[row][target]:
        return False
    return attention[row][query] == attention[row][target]


def joined_positions(structural: Rows, coordinates: list[Rows]) -> list[Rows]:
    """Shift each document, on every axis, by the room that earlier ones of its row take."""
    found = [[list(numbers) for numbers in axis] for axis in coordinates]
    for row in range(len(structural)):
        shift = 0
        for document in [each for each in documents(structural) if each.row == row]:
            greatest = max(axis[row][place] for axis in coordinates for place in document.places)
            for axis in found:
                for place in document.places:
                    axis[row][place] += shift
            shift += greatest + 1
    return found


def first_fit(counts: list[int], capacity: int) -> list[list[int]]:
    """Place each document into the first row that has room."""
    rows: list[list[int]] = []
    for document, count in enumerate(counts):
        for row in rows:
            if sum(counts[other] for other in row) + count <= capacity:
                row.append(document)
                break
        else:
            rows.append([document])
    return rows
