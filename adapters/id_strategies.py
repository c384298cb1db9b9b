"""Hypothesis strategies for document ids, valid and invalid in named ways. Part of `strategies`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, cast, get_args

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.arguments import INTEGER_DTYPES, require_choice, require_count, require_flag, require_instance
from neatpack.contracts.errors import EncodingError, Problem

PaddingPlaces = Literal["none", "trailing", "anywhere"]
"""Where padding may stand in a row."""

PADDING_PLACES: Final[tuple[PaddingPlaces, ...]] = get_args(PaddingPlaces)

IdsFault = Literal["bool", "float", "rank_1", "rank_3", "no_rows", "no_places", "meta", "negative", "returning"]
"""What may be wrong with document ids."""

IDS_FAULTS: Final[tuple[IdsFault, ...]] = get_args(IdsFault)


_MOST_IDS: Final = 127
"""Ids are drawn up to the greatest that every integer dtype can hold, or in longer rows up to the length of the row."""


def document_ids(
    *,
    max_batch: int = 4,
    max_sequence: int = 16,
    padding: PaddingPlaces = "anywhere",
    dtypes: tuple[torch.dtype, ...] = INTEGER_DTYPES,
    canonical: bool = False,
) -> st.SearchStrategy[Tensor]:
    """Draw ids as packed: `[batch, sequence]`, each document one run, contiguous in memory or not.

    Args:
        max_batch: the most rows.
        max_sequence: the most places of a row, at most the greatest number that each dtype can hold.
        padding: where zeros may stand.
        dtypes: which dtypes to draw from.
        canonical: number documents 1, 2, ... in row order; otherwise numbers have gaps and any order.

    Raises:
        EncodingError: an argument is of another kind.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5)
        ... @given(document_ids(padding="trailing"))
        ... def check(ids: Tensor) -> None:
        ...     assert ids.ndim == 2 and not ids.is_floating_point()
        >>> check()
    """
    _require_size(max_batch, max_sequence, dtypes)
    require_choice(padding, PADDING_PLACES, "padding")
    require_flag(canonical, "canonical")
    return _document_ids(max_batch, max_sequence, padding, dtypes, canonical)


@st.composite
def _document_ids(
    draw: st.DrawFn,
    max_batch: int,
    max_sequence: int,
    padding: PaddingPlaces,
    dtypes: tuple[torch.dtype, ...],
    canonical: bool,
) -> Tensor:
    sequence = draw(st.integers(1, max_sequence))
    # A list, so that a failing example loses the rows that do not matter.
    rows = draw(st.lists(_row(sequence, padding, canonical), min_size=1, max_size=max_batch))
    if not canonical and draw(st.booleans()):
        _let_rows_meet(rows)
    return _lay(draw, torch.tensor(rows).to(draw(st.sampled_from(dtypes))))


def attention_document_ids(
    *,
    max_batch: int = 4,
    max_sequence: int = 16,
    dtypes: tuple[torch.dtype, ...] = INTEGER_DTYPES,
) -> st.SearchStrategy[Tensor]:
    """Draw ids after policy: like `document_ids`, with tokens of some documents set to 0.

    Raises:
        EncodingError: an argument is of another kind.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5)
        ... @given(attention_document_ids())
        ... def check(ids: Tensor) -> None:
        ...     assert ids.ndim == 2
        >>> check()
    """
    return _attention_document_ids(document_ids(max_batch=max_batch, max_sequence=max_sequence, dtypes=dtypes))


@st.composite
def _attention_document_ids(draw: st.DrawFn, as_packed: st.SearchStrategy[Tensor]) -> Tensor:
    ids = draw(as_packed)
    tokens = np.argwhere(ids.to(torch.int64).numpy()).tolist()
    kept = torch.ones(ids.shape, dtype=torch.bool)
    for row, place in draw(st.lists(st.sampled_from(tokens), max_size=6)) if tokens else ():
        kept[row, place] = False
    return _lay(draw, torch.where(kept, ids.to(torch.int64), 0).to(ids.dtype))


def malformed_document_ids(fault: IdsFault) -> st.SearchStrategy[Tensor]:
    """Draw ids that are wrong in the named way and in no other.

    Raises:
        EncodingError: there is no such fault.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5)
        ... @given(malformed_document_ids("returning"))
        ... def check(ids: Tensor) -> None:
        ...     assert ids[-1, 0] == ids[-1, -1] == 1
        >>> check()
    """
    require_choice(fault, IDS_FAULTS, "fault")
    return _malformed_document_ids(fault)


@st.composite
def _malformed_document_ids(draw: st.DrawFn, fault: IdsFault) -> Tensor:
    if fault == "returning":
        return _returning(draw)
    ids = draw(document_ids(dtypes=(torch.int64,)))
    return _MALFORM[fault](draw, ids)


def _require_size(max_batch: object, max_sequence: object, dtypes: object) -> None:
    require_count(max_batch, "max_batch", "Give the most rows.", least=1)
    remedy = f"Give dtypes of integers: {', '.join(map(str, INTEGER_DTYPES))}."
    require_some(dtypes, "dtypes", remedy)
    for dtype in cast("tuple[object, ...]", dtypes):
        if not isinstance(dtype, torch.dtype) or dtype not in INTEGER_DTYPES:
            raise EncodingError(Problem("dtypes", "must be dtypes of integers", "dtype", value=dtype, remedy=remedy))
    most = min(torch.iinfo(dtype).max for dtype in cast("tuple[torch.dtype, ...]", dtypes))
    remedy = "Give the most places of a row; for more, dtypes that hold as many documents."
    require_count(max_sequence, "max_sequence", remedy, least=1, most=most)


def require_some(value: object, field: str, remedy: str) -> None:
    """Raise unless an argument is a sequence that is not empty.

    Raises:
        EncodingError: it is something else.
    """
    require_instance(value, Sequence, field, remedy)
    if not value:
        raise EncodingError(Problem(field, "is empty", "value", value=value, remedy=remedy))


@st.composite
def _row(draw: st.DrawFn, sequence: int, padding: PaddingPlaces, canonical: bool) -> list[int]:
    """Cut a row into runs, and give each run of a document its own number."""
    # Were runs always drawn up to the length of the row, few rows would hold more than one document.
    longest = -(-sequence // draw(st.integers(1, 4)))
    runs = draw(st.lists(st.integers(1, longest), min_size=int(padding == "anywhere"), max_size=sequence))
    numbers = list(range(1, sequence + 1))
    if not canonical and draw(st.booleans()):
        any_number = st.integers(1, max(_MOST_IDS, sequence))
        numbers = draw(st.lists(any_number, min_size=sequence, max_size=sequence, unique=True))
    row: list[int] = []
    for run, number in zip(runs, numbers, strict=False):
        is_padding = padding == "anywhere" and draw(st.sampled_from((False, False, True)))
        row += [0 if is_padding else number] * run
    fill = numbers[len(runs)] if padding == "none" and len(row) < sequence else 0
    row = (row + [fill] * sequence)[:sequence]
    return _renumber(row) if canonical else row


def _let_rows_meet(rows: list[list[int]]) -> None:
    """Begin each row with the number with which the row before it ends, which must not join the two."""
    for before, row in pairwise(rows):
        last, first = before[-1], row[0]
        if last and first:
            row[:] = [{last: first, first: last}.get(number, number) for number in row]


def _renumber(row: list[int]) -> list[int]:
    seen = dict.fromkeys(number for number in row if number)
    new = {number: rank for rank, number in enumerate(seen, start=1)}
    return [new.get(number, 0) for number in row]


def _lay(draw: st.DrawFn, ids: Tensor) -> Tensor:
    """Give the same ids in one of several memory layouts."""
    layout = draw(st.sampled_from(("contiguous", "transposed", "strided")))
    if layout == "transposed":
        return ids.t().contiguous().t()
    if layout == "strided":
        wide = torch.zeros(ids.shape[0], 2 * ids.shape[1] + 1, dtype=ids.dtype)
        wide[:, 1::2] = ids
        return wide[:, 1::2]
    return ids


def _returning(draw: st.DrawFn) -> Tensor:
    before, between, after = (draw(st.integers(1, 4)) for _ in range(3))
    hole = draw(st.integers(0, 2))
    row = [1] * before + [0] * hole + [2] * between + [0] * hole + [1] * after
    rows = [[0] * len(row)] * draw(st.integers(0, 2))
    return torch.tensor([*rows, row])


def _negative(draw: st.DrawFn, ids: Tensor) -> Tensor:
    ids = ids.clone(memory_format=torch.contiguous_format)
    # Inside a run, it would make the document one that comes back.
    opens = np.diff(ids.numpy(), prepend=-1).ravel().nonzero()[0].tolist()
    ids.view(-1)[draw(st.sampled_from(opens))] = draw(st.integers(-(2**40), -1))
    return ids


_MALFORM: Final[dict[IdsFault, Callable[[st.DrawFn, Tensor], Tensor]]] = {
    "bool": lambda _, ids: ids != 0,
    "float": lambda draw, ids: ids.to(draw(st.sampled_from((torch.float32, torch.bfloat16, torch.float64)))),
    "rank_1": lambda _, ids: ids[0],
    "rank_3": lambda draw, ids: ids.unsqueeze(draw(st.integers(0, 2))),
    "no_rows": lambda _, ids: ids[:0],
    "no_places": lambda _, ids: ids[:, :0],
    "meta": lambda _, ids: ids.to("meta"),
    "negative": _negative,
}
