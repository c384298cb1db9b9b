"""Hypothesis strategies for document ids, batches and encodings, valid and invalid in named ways. Needs hypothesis.

For the tests of whoever takes or makes packed batches: a model, a loader, a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, cast, get_args

import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.arguments import INTEGER_DTYPES, require_choice, require_count, require_flag, require_instance
from neatpack.adapters.document_ids import canonical_document_ids
from neatpack.adapters.encoding_strategies import (
    ENCODING_FAULTS,
    ENCODING_NAMES,
    Encoded,
    EncodingFault,
    EncodingName,
    encodings,
    malformed_encodings,
)
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.neat_metadata import gathered_rows
from neatpack.adapters.physical import physical_offsets
from neatpack.adapters.positions import build_position_ids
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.errors import EncodingError, Problem

__all__ = [
    "BATCH_FAULTS",
    "ENCODING_FAULTS",
    "ENCODING_NAMES",
    "IDS_FAULTS",
    "INTEGER_DTYPES",
    "PADDING_PLACES",
    "BatchFault",
    "Encoded",
    "EncodingFault",
    "EncodingName",
    "IdsFault",
    "PaddingPlaces",
    "attention_document_ids",
    "contradicting_batches",
    "document_ids",
    "encodings",
    "malformed_document_ids",
    "malformed_encodings",
    "training_batches",
]

PaddingPlaces = Literal["none", "trailing", "anywhere"]
"""Where padding may stand in a row."""

PADDING_PLACES: Final[tuple[PaddingPlaces, ...]] = get_args(PaddingPlaces)

IdsFault = Literal["bool", "float", "rank_1", "rank_3", "no_rows", "no_places", "meta", "negative", "returning"]
"""What may be wrong with document ids."""

IDS_FAULTS: Final[tuple[IdsFault, ...]] = get_args(IdsFault)

BatchFault = Literal[
    "positions_restart", "padding_mask_shifted", "mask_of_ones", "mask_leaks", "offsets_moved", "lengths_joined",
    "metadata_moved",
]  # fmt: skip
"""What may contradict the document ids of a batch."""

BATCH_FAULTS: Final[tuple[BatchFault, ...]] = get_args(BatchFault)


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
    batch, sequence = draw(st.integers(1, max_batch)), draw(st.integers(1, max_sequence))
    rows = [_draw_row(draw, sequence, padding, canonical) for _ in range(batch)]
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
    excluded = draw(st.lists(st.integers(0, ids.numel() - 1), max_size=6))
    kept = torch.ones(ids.numel(), dtype=torch.bool)
    kept[excluded] = False
    return _lay(draw, torch.where(kept.view(ids.shape), ids.to(torch.int64), 0).to(ids.dtype))


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


def training_batches(
    *, padding: PaddingPlaces = "anywhere", axes: tuple[int, ...] = (0,)
) -> st.SearchStrategy[TrainingBatch[Tensor]]:
    """Draw a batch as a loader collates it, with canonical int64 `document_ids` and labels that nobody shifted.

    Args:
        padding: where padding may stand.
        axes: how many position axes to draw from; 0 is plain `[batch, sequence]` text positions. Coordinates of
            several axes are random, nonnegative and local to each document.

    Raises:
        EncodingError: an argument is of another kind.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5)
        ... @given(training_batches())
        ... def check(batch: TrainingBatch[Tensor]) -> None:
        ...     assert batch["input_ids"].shape == batch["labels"].shape
        >>> check()
    """
    ids = document_ids(padding=padding, dtypes=(torch.int64,), canonical=True)
    _require_some(axes, "axes", "Give numbers of position axes, (0,) for text.")
    for count in axes:
        require_count(count, "axes", "Give numbers of position axes, (0,) for text.")
    return _training_batches(ids, axes)


@st.composite
def _training_batches(
    draw: st.DrawFn, document_ids: st.SearchStrategy[Tensor], axes: tuple[int, ...]
) -> TrainingBatch[Tensor]:
    ids = draw(document_ids)
    input_ids = _draw_integers(draw, 100, ids.shape)
    return {
        "input_ids": input_ids,
        "labels": input_ids.masked_fill(ids == 0, -100),
        "position_ids": _draw_positions(draw, ids, draw(st.sampled_from(axes))),
        "padding_mask": ids == 0,
        "document_ids": ids,
    }


def contradicting_batches(fault: BatchFault) -> st.SearchStrategy[TrainingBatch[Tensor]]:
    """Draw a batch with a second encoding that contradicts its document ids in the named way.

    Raises:
        EncodingError: there is no such fault.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5)
        ... @given(contradicting_batches("mask_of_ones"))
        ... def check(batch: TrainingBatch[Tensor]) -> None:
        ...     assert batch["padding_mask"].any() and batch["attention_mask"].all()
        >>> check()
    """
    require_choice(fault, BATCH_FAULTS, "fault")
    return _contradicting_batches(fault)


@st.composite
def _contradicting_batches(draw: st.DrawFn, fault: BatchFault) -> TrainingBatch[Tensor]:
    needs = _CONTRADICTS[fault]
    batch = draw(training_batches().filter(lambda batch: _has(_ids(batch), needs)))
    _contradict(draw, batch, fault)
    return batch


def _require_size(max_batch: object, max_sequence: object, dtypes: object) -> None:
    require_count(max_batch, "max_batch", "Give the most rows.", least=1)
    remedy = f"Give dtypes of integers: {', '.join(map(str, INTEGER_DTYPES))}."
    _require_some(dtypes, "dtypes", remedy)
    for dtype in cast("tuple[object, ...]", dtypes):
        if dtype not in INTEGER_DTYPES:
            raise EncodingError(Problem("dtypes", "must be dtypes of integers", "dtype", value=dtype, remedy=remedy))
    most = min(torch.iinfo(dtype).max for dtype in cast("tuple[torch.dtype, ...]", dtypes))
    remedy = "Give the most places of a row; for more, dtypes that hold as many documents."
    require_count(max_sequence, "max_sequence", remedy, least=1, most=most)


def _require_some(value: object, field: str, remedy: str) -> None:
    require_instance(value, Sequence, field, remedy)
    if not value:
        raise EncodingError(Problem(field, "is empty", "value", value=value, remedy=remedy))


def _draw_row(draw: st.DrawFn, sequence: int, padding: PaddingPlaces, canonical: bool) -> list[int]:
    """Cut a row into runs, and give each run of a document its own number."""
    runs = draw(st.lists(st.integers(1, sequence), max_size=sequence))
    numbers = list(range(1, sequence + 1))
    if not canonical and draw(st.booleans()):
        any_number = st.integers(1, max(_MOST_IDS, sequence))
        numbers = draw(st.lists(any_number, min_size=sequence, max_size=sequence, unique=True))
    row: list[int] = []
    for run, number in zip(runs, numbers, strict=False):
        is_padding = padding == "anywhere" and draw(st.booleans())
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


def _draw_positions(draw: st.DrawFn, ids: Tensor, axes: int) -> Tensor:
    return build_position_ids(ids) if axes == 0 else _draw_integers(draw, 10, (axes, *ids.shape))


def _draw_integers(draw: st.DrawFn, below: int, shape: tuple[int, ...]) -> Tensor:
    """Draw one seed and not every value, which would take most of the time of a test."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    return torch.randint(below, shape, generator=generator)


def _returning(draw: st.DrawFn) -> Tensor:
    before, between, after = (draw(st.integers(1, 4)) for _ in range(3))
    hole = draw(st.integers(0, 2))
    row = [1] * before + [0] * hole + [2] * between + [0] * hole + [1] * after
    rows = [[0] * len(row)] * draw(st.integers(0, 2))
    return torch.tensor([*rows, row])


def _negative(draw: st.DrawFn, ids: Tensor) -> Tensor:
    ids = ids.clone(memory_format=torch.contiguous_format)
    ids.view(-1)[draw(st.integers(0, ids.numel() - 1))] = draw(st.integers(-(2**40), -1))
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

_CONTRADICTS: Final[dict[BatchFault, Literal["any", "padding", "long", "two"]]] = {
    "positions_restart": "long",
    "padding_mask_shifted": "any",
    "mask_of_ones": "padding",
    "mask_leaks": "two",
    "offsets_moved": "long",
    "lengths_joined": "two",
    "metadata_moved": "two",
}
"""What the ids must hold, so that the fault is one."""


def _ids(batch: TrainingBatch[Tensor]) -> Tensor:
    return batch.get("document_ids", batch["input_ids"])


def _draw_inside(draw: st.DrawFn, ids: Tensor) -> tuple[int, int]:
    """Draw a token that is not the first of its document."""
    places = [(row, place) for row, numbers in enumerate(ids.numpy()) for place in range(1, len(numbers))]
    inside = [(row, place) for row, place in places if ids[row, place] == ids[row, place - 1] != 0]
    return draw(st.sampled_from(inside))


def _has(ids: Tensor, what: Literal["any", "padding", "long", "two"]) -> bool:
    inside, two = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] > 0), (ids > 1).any()
    return {"any": True, "padding": bool((ids == 0).any()), "long": bool(inside.any()), "two": bool(two)}[what]


def _contradict(draw: st.DrawFn, batch: TrainingBatch[Tensor], fault: BatchFault) -> None:
    ids = _ids(batch)
    if fault == "positions_restart":
        row, place = _draw_inside(draw, ids)
        positions = batch["position_ids"].clone()
        positions[row, place] = positions[row, place - 1]
        batch["position_ids"] = positions
    elif fault == "padding_mask_shifted":
        row, place = (draw(st.integers(0, size - 1)) for size in ids.shape)
        mask = batch["padding_mask"].clone()
        mask[row, place] = ~mask[row, place]
        batch["padding_mask"] = mask
    elif fault == "mask_of_ones":
        batch["attention_mask"] = torch.ones_like(ids)
    elif fault == "mask_leaks":
        batch["attention_mask"] = build_block_causal_mask((ids > 0).long())
    else:
        _contradict_offsets(draw, batch, ids, fault)


def _contradict_offsets(draw: st.DrawFn, batch: TrainingBatch[Tensor], ids: Tensor, fault: BatchFault) -> None:
    if fault == "offsets_moved":
        row, place = _draw_inside(draw, ids)
        offsets = physical_offsets(ids, "run").cu_seqlens
        cut = torch.tensor([row * ids.shape[1] + place], dtype=torch.int32)
        batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = torch.cat([offsets, cut]).sort().values
        batch["max_length_q"] = batch["max_length_k"] = ids.numel()
    elif fault == "lengths_joined":
        batch["seq_lens"] = (ids > 0).sum(1, keepdim=True)
    else:
        metadata = gathered_rows(canonical_document_ids((ids > 0).long()))
        batch["packed_token_indices"] = metadata.packed_token_indices
        batch["cu_seqlens"] = metadata.cu_seqlens
        batch["max_seqlen"] = ids.shape[1]
