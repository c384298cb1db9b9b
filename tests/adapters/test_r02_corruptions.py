"""Rule 2: a second encoding that is wrong in one place is refused, whichever encoding, place and value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    build_block_causal_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    check_agreement,
    flash_varlen_kwargs,
    segment_index,
    thd_lengths,
)
from neatpack.contracts.errors import PackingError
from tests.adapters import layouts, oracle
from tests.adapters.layouts import Rows
from tests.adapters.properties import holds_for


class Fault(NamedTuple):
    """What is wrong: an entry that holds another value at one place."""

    entry: str
    place: tuple[int, ...]
    value: float


Faults: TypeAlias = Iterator[Fault]


def _places(rows: Rows) -> Iterator[tuple[int, int, int]]:
    for row, numbers in enumerate(rows):
        yield from ((row, place, number) for place, number in enumerate(numbers))


def _of_bool_mask(rows: Rows, _: Any) -> Faults:
    for row, place, number in _places(rows):
        for key in range(len(rows[row]) if number else 0):
            yield Fault("attention_mask", (row, 0, place, key), not oracle.visible(rows, row, place, key))


def _of_additive_mask(rows: Rows, _: Any) -> Faults:
    for row, place, _number in _places(rows):
        for key in range(len(rows[row])):
            for value in (float("nan"), float("inf"), 0.5, -1e4):
                yield Fault("attention_mask", (row, 0, place, key), value)


def _of_ids(rows: Rows, _: Any) -> Faults:
    for row, place, number in _places(rows):
        others = {*rows[row], -3, 0 if number else 1000} - {number}
        yield from (Fault("_packed_seq_ids", (row, place), other) for other in others)


def _of_segment_index(rows: Rows, entries: Any) -> Faults:
    index = layouts.listed(entries["seq_idx"])
    for row, _, places in oracle.documents(rows):
        carried = {index[row][place] for place, number in enumerate(rows[row]) if number} | {-1}
        for place in places:
            yield from (Fault("seq_idx", (row, place), other) for other in carried - {index[row][place]})


def _of_positions(rows: Rows, _: Any) -> Faults:
    for row, _number, places in oracle.documents(rows):
        yield from (Fault("position_ids", (row, place), -1) for place in places)
        yield from (Fault("position_ids", (row, place), 0) for place in places[1:])


def _of_padding(rows: Rows, _: Any) -> Faults:
    for row, place, number in _places(rows):
        yield Fault("padding_mask", (row, place), bool(number))


def _of_counts(*names: str) -> Callable[[Rows, Any], Faults]:
    """Count one more, one less, nothing, or leave out what is counted."""

    def faults(_rows: Rows, entries: Any) -> Faults:
        for name in names:
            values = entries[name].reshape(-1, entries[name].shape[-1])
            for row, counts in enumerate(layouts.listed(values)):
                for column, right in enumerate(counts):
                    place = (row, column) if entries[name].ndim > 1 else (column,)
                    for wrong in {right + 1, right - 1, 0, -1} - {right}:
                        if _counts_otherwise(name, counts, right, wrong):
                            yield Fault(name, place, wrong)

    return faults


def _counts_otherwise(name: str, counts: list[int], right: int, wrong: int) -> bool:
    """Unused places may hold any negative number, no length, or the last offset again; padding may stay uncounted."""
    nothing = {"cu_seqlens": max(counts), "seq_lens": 0, "seq_lens_padded": 0}.get(name)
    if right < 0 and (wrong < 0 or wrong == nothing):
        return False
    return name != "seq_lens_padded" or wrong != right - 1


_ENCODINGS: Final[dict[str, tuple[Callable[[Tensor], Mapping[str, Any]], Callable[[Rows, Any], Faults]]]] = {
    "bool mask": (lambda ids: {"attention_mask": build_block_causal_mask(ids)}, _of_bool_mask),
    "additive mask": (lambda ids: {"attention_mask": build_block_causal_mask(ids, torch.float32)}, _of_additive_mask),
    "ids": (lambda ids: {"_packed_seq_ids": ids}, _of_ids),
    "segment index": (lambda ids: {"seq_idx": segment_index(ids).seq_idx}, _of_segment_index),
    "positions": (lambda ids: {"position_ids": build_position_ids(ids)}, _of_positions),
    "padding": (lambda ids: {"document_ids": ids, "padding_mask": ids == 0}, _of_padding),
    "flash": (flash_varlen_kwargs, _of_counts("cu_seq_lens_q", "cu_seq_lens_k")),
    "metadata": (
        lambda ids: build_packed_sequence_metadata(ids, allow_empty=True),
        _of_counts("packed_token_indices", "cu_seqlens"),
    ),
    "lengths": (lambda ids: vars(thd_lengths(ids)), _of_counts("seq_lens", "seq_lens_padded")),
}
_GATHERED: Final = ("bool mask", "additive mask", "ids", "positions", "padding", "metadata")


def _is_wrong_there(name: str, rows: Rows, data: st.DataObject) -> None:
    derive, faults = _ENCODINGS[name]
    ids = layouts.tensor(rows)
    entries = derive(ids)
    check_agreement(ids, entries)
    found = list(faults(rows, entries))
    if not found:
        return
    fault = data.draw(st.sampled_from(found))
    wrong = entries[fault.entry].clone()
    wrong[fault.place] = fault.value
    with pytest.raises(PackingError) as caught:
        check_agreement(ids, {**entries, fault.entry: wrong})
    assert caught.value.problems[0].remedy


@holds_for(
    rows=layouts.rows_of_ids(leading=False, longest=4, documents=3),
    name=st.sampled_from(sorted(_ENCODINGS)),
    data=st.data(),
)
def test_an_encoding_that_is_wrong_in_one_place_is_refused(rows: Rows, name: str, data: st.DataObject) -> None:
    _is_wrong_there(name, rows, data)


@holds_for(
    rows=layouts.rows_of_ids(holes=True, longest=4, documents=3), name=st.sampled_from(_GATHERED), data=st.data()
)
def test_so_is_one_that_can_express_holes_beside_some(rows: Rows, name: str, data: st.DataObject) -> None:
    _is_wrong_there(name, rows, data)
