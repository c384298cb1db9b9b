"""Hypothesis strategies for rows of document ids, as plain lists: their oracles know no tensor."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, cast

import torch
from hypothesis import strategies as st

Rows = list[list[int]]

DTYPES: Final = (torch.int64, torch.int32, torch.int16, torch.uint8)


@st.composite
def rows_of_ids(
    draw: st.DrawFn,
    *,
    holes: bool = False,
    leading: bool = True,
    between: bool = True,
    empty_rows: bool = True,
    longest: int = 6,
    documents: int = 5,
    multiple: int = 1,
) -> Rows:
    """Rows of equal length whose ids are in no order. Some rows begin with the id with which the one before them ends.

    Args:
        draw: hypothesis' own.
        holes: zeros inside documents.
        leading: padding before the first document of a row.
        between: padding after documents that are not the last of their row.
        empty_rows: rows of nothing but padding.
        longest: tokens of a document at most.
        documents: documents of a row at most.
        multiple: what the places of each document and its padding are a multiple of.
    """
    rows: Rows = []
    for _ in range(draw(st.integers(1, 4))):
        numbers = draw(st.lists(st.integers(1, 99), min_size=0 if empty_rows else 1, max_size=documents, unique=True))
        row = [0] * draw(st.integers(0, 3)) if leading and numbers else []
        for number in numbers:
            tokens = [number] * draw(st.integers(1, longest))
            if holes and len(tokens) > 2:
                inside = draw(st.lists(st.integers(1, len(tokens) - 2), max_size=4))
                tokens = [0 if place in inside else token for place, token in enumerate(tokens)]
            padding = draw(st.integers(0, 3)) if between else 0
            padding += -(len(tokens) + padding) % multiple
            row += tokens + [0] * padding
        rows.append(row)
    width = max(1, *map(len, rows)) + draw(st.integers(0, 3))
    width += -width % multiple
    rows = [row + [0] * (width - len(row)) for row in rows]
    if draw(st.booleans()):
        _let_rows_meet(rows)
    return rows


def _let_rows_meet(rows: Rows) -> None:
    """Fill rows from end to end, each with the number first with which the row before it ends."""
    for row in rows:
        kept = [place for place, number in enumerate(row) if number] or [0]
        row[: kept[0]] = [row[kept[0]]] * kept[0]
        row[kept[-1] :] = [row[kept[-1]]] * (len(row) - kept[-1])
    for before, row in pairwise(rows):
        last, first = before[-1], row[0]
        if last and first:
            row[:] = [{last: first, first: last}.get(number, number) for number in row]


def tensor(rows: Rows, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)


def listed(values: torch.Tensor) -> Rows:
    return cast("Rows", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch leaves it without a type
