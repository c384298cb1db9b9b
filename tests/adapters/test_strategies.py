"""The strategies draw what they promise: valid where they say so, wrong in the named way, and in every layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    check_agreement,
    document_ids_from_flash_varlen,
    document_ids_from_length_matrix,
    document_ids_from_metadata,
    document_ids_from_row_offsets,
    document_ids_from_segment_index,
    document_ids_from_thd_lengths,
    fla_kwargs,
    is_document_ids,
    real_places,
    segment_ids_from_offsets,
    validate_document_ids,
)
from neatpack.adapters.strategies import (
    BATCH_FAULTS,
    ENCODING_FAULTS,
    ENCODING_NAMES,
    IDS_FAULTS,
    INTEGER_DTYPES,
    BatchFault,
    EncodingFault,
    EncodingName,
    IdsFault,
    PaddingPlaces,
    attention_document_ids,
    contradicting_batches,
    document_ids,
    encodings,
    malformed_document_ids,
    malformed_encodings,
    training_batches,
)
from neatpack.contracts.batch import TrainingBatch, validate_training_batch
from neatpack.contracts.encodings import SegmentIndex
from neatpack.contracts.errors import EncodingError, PackingError
from tests.adapters import oracle
from tests.adapters.properties import listed, rows_of


@given(padding=st.sampled_from(("none", "trailing", "anywhere")), canonical=st.booleans(), data=st.data())
def test_ids_are_valid_and_padded_as_asked(padding: PaddingPlaces, canonical: bool, data: st.DataObject) -> None:
    ids = data.draw(document_ids(padding=padding, canonical=canonical))
    rows = rows_of(ids)
    assert is_document_ids(ids)
    assert len(rows) <= 4
    assert len(rows[0]) <= 16
    assert not oracle.holes(rows)
    if padding == "none":
        assert all(all(row) for row in rows)
    if padding == "trailing":
        assert all(sorted(row, key=lambda number: number == 0) == row for row in rows)
    if canonical:
        assert rows == oracle.canonical(rows)


@given(ids=attention_document_ids())
def test_ids_after_policy_are_valid(ids: Tensor) -> None:
    assert is_document_ids(ids)
    assert ids.shape[0] <= 4
    assert ids.shape[1] <= 16
    assert oracle.returning(rows_of(ids)) is None


@pytest.mark.parametrize("fault", IDS_FAULTS)
@settings(max_examples=25)
@given(data=st.data())
def test_malformed_ids_have_one_problem(fault: IdsFault, data: st.DataObject) -> None:
    assert len({problem.kind for problem in validate_document_ids(data.draw(malformed_document_ids(fault)))}) == 1


@given(ids=malformed_document_ids("negative"))
def test_a_negative_id_splits_no_document(ids: Tensor) -> None:
    assert is_document_ids(ids.masked_fill(ids < 0, 1000))


@given(batch=training_batches(axes=(0, 3)))
def test_batches_are_valid_and_agree_with_themselves(batch: TrainingBatch[Tensor]) -> None:
    assert validate_training_batch(batch) == []
    check_agreement(batch.get("document_ids", batch["labels"]), batch)


@pytest.mark.parametrize("fault", BATCH_FAULTS)
@settings(max_examples=25)
@given(data=st.data())
def test_contradicting_batches_contradict_themselves(fault: BatchFault, data: st.DataObject) -> None:
    batch = data.draw(contradicting_batches(fault))
    with pytest.raises(PackingError):
        check_agreement(batch.get("document_ids", batch["labels"]), batch)


_READ: dict[EncodingName, Callable[[Any, Tensor], Tensor]] = {
    "gathered_rows": lambda rows, _: document_ids_from_metadata(rows.packed_token_indices, rows.cu_seqlens),
    "gathered_flat": lambda flat, ids: _ids_of_tokens(flat.token_indices, flat.cu_seqlens, ids),
    "physical_flat": lambda flat, ids: document_ids_from_flash_varlen(_flash(flat), ids == 0),
    "physical_rows": lambda rows, ids: document_ids_from_row_offsets(rows, ids == 0),
    "thd_lengths": lambda lengths, ids: document_ids_from_thd_lengths(lengths, ids.shape[1]),
    "thd_flat": lambda flat, ids: real_places(flat).view(ids.shape) * ids,
    "length_matrix": lambda matrix, ids: document_ids_from_length_matrix(matrix, ids.shape[1]),
    "segment_index": lambda index, _: document_ids_from_segment_index(index),
    "gathered_states": lambda states, ids: _ids_of_tokens(states.token_indices, fla_kwargs(states)["cu_seqlens"], ids),
    "physical_states": lambda states, ids: _ids_of_places(fla_kwargs(states)["cu_seqlens_cpu"], ids == 0),
}
_TRAILING = document_ids(padding="trailing", canonical=True)


def _flash(flat: Any) -> Any:
    offsets, longest = flat.cu_seqlens, flat.max_seqlen
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}


def _ids_of_tokens(indices: Tensor, offsets: Tensor, ids: Tensor) -> Tensor:
    return document_ids_from_metadata(indices, offsets, (ids.shape[0], ids.shape[1]))


def _ids_of_places(offsets: Tensor, padding: Tensor) -> Tensor:
    """Number the documents of each row by the segments of the padded rows."""
    segments = segment_ids_from_offsets(offsets).view(padding.shape).masked_fill(padding, -1)
    return document_ids_from_segment_index(SegmentIndex(segments))


@pytest.mark.parametrize("name", ENCODING_NAMES)
@settings(max_examples=25)
@given(data=st.data())
def test_encodings_are_those_of_their_ids(name: EncodingName, data: st.DataObject) -> None:
    ids, encoding = data.draw(encodings(name, _TRAILING))
    assert rows_of(_READ[name](encoding, ids)) == rows_of(ids)


@pytest.mark.parametrize("fault", ENCODING_FAULTS)
@settings(max_examples=25)
@given(data=st.data())
def test_malformed_encodings_are_refused(fault: EncodingFault, data: st.DataObject) -> None:
    ids, encoding = data.draw(malformed_encodings(fault, _TRAILING))
    read = {type(data.draw(encodings(name, st.just(ids))).encoding): read for name, read in _READ.items()}
    with pytest.raises(PackingError):
        read[type(encoding)](encoding, ids)


class Difference(NamedTuple):
    """The first number in which a malformed encoding differs from the right one, and how many more there are."""

    field: str
    place: tuple[int, ...]
    was: int | None
    now: int | None
    more: int
    right: Any
    wrong: Any
    batch: int
    sequence: int

    @property
    def row(self) -> list[int]:
        """The numbers among which it stands."""
        values = self.wrong[self.field]
        return list(values[self.place[0]] if len(self.place) > 1 else values)

    @property
    def falls(self) -> bool:
        return any(number > after for number, after in pairwise(self.row))

    @property
    def missing(self) -> set[int]:
        return {*self.right[self.field]} - {*self.wrong[self.field]}

    @property
    def repeated(self) -> int:
        return len(self.row) - len(set(self.row))

    def too_short(self) -> int:
        """How many slots are shorter than what they hold."""
        offsets = (self.right["cu_seqlens"], self.wrong["cu_seqlens_padded"])
        real, padded = ([after - number for number, after in pairwise(each)] for each in offsets)
        return sum(tokens > places for tokens, places in zip(real, padded, strict=True))


_FIELDS: dict[str, bool] = {
    "packed_token_indices": False,
    "cu_seqlens": True,
    "cu_seqlens_padded": True,
    "seq_lens": False,
    "seq_lens_padded": False,
    "lengths": False,
    "seq_idx": True,
}
"""Which fields encodings are made of, and whether -1 at the end of a row is no more than fill."""

_WRONG_IN: dict[EncodingFault, Callable[[Difference], bool]] = {
    "index_outside": lambda d: d.field == "packed_token_indices" and d.was != -1 and int(d.now or 0) >= d.sequence,
    "index_twice": lambda d: d.field == "packed_token_indices" and d.was != -1 and d.now in d.row[: d.place[1]],
    "offsets_fall": lambda d: d.field == "cu_seqlens" and d.more == 1 and d.falls and d.row[-1] == d.was,
    "tokens_uncovered": lambda d: d.field == "cu_seqlens" and d.now == d.row[-1] == int(d.was or 0) - 1,
    "batch_uncovered": lambda d: d.was == d.batch * d.sequence and d.row[-1] == d.now and not d.more,
    "segment_over_rows": lambda d: len(d.missing) == 1 and not sum(d.missing) % d.sequence and not d.falls,
    "row_uncovered": lambda d: d.field == "cu_seqlens" and d.now == d.row[-1] == d.sequence + 1,
    "longer_than_slot": lambda d: (
        d.field == "seq_lens" and d.now == d.right["seq_lens_padded"][d.place[0]][d.place[1]] + 1
    ),
    "slots_uncovered": lambda d: d.field == "seq_lens_padded" and int(d.was or 0) > 0 and d.now == int(d.was or 0) + 1,
    "slot_too_short": lambda d: d.field == "cu_seqlens_padded" and d.too_short() == 1,
    "negative_length": lambda d: d.field == "lengths" and int(d.was or 0) >= 0 > int(d.now or 0),
    "row_too_long": lambda d: d.field == "lengths" and int(d.was or 0) > 0 and d.now == d.sequence + 1,
    "number_returns": lambda d: d.field == "seq_idx" and d.row[-1] == 0 and max(d.row) > 0,
    "stream_uncovered": lambda d: d.field == "cu_seqlens" and d.now == d.row[-1] == int(d.was or 0) - 1,
    "offset_repeats": lambda d: d.field == "cu_seqlens" and not d.missing and not d.falls and d.repeated == 1,
}
_MANY: tuple[EncodingFault, ...] = (
    "offsets_fall", "segment_over_rows", "slot_too_short", "number_returns", "offset_repeats"
)  # fmt: skip
"""Faults for which more than one number has to change."""


def _values(encoding: Any) -> dict[str, Any]:
    """Give the numbers of an encoding as lists, without the fill at the end of rows that only their number makes."""
    found: dict[str, Any] = {name: listed(getattr(encoding, name)) for name in _FIELDS if hasattr(encoding, name)}
    return {name: _without_fill(value) if _FIELDS[name] else value for name, value in found.items()}


def _without_fill(values: Any) -> Any:
    if values and not isinstance(values[0], int):
        return [_without_fill(row) for row in values]
    return values[: max((at + 1 for at, number in enumerate(values) if number != -1), default=0)]


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _differences(right: Any, wrong: Any) -> list[tuple[tuple[int, ...], Any, Any]]:
    if not _is_list(right) and not _is_list(wrong):
        return [((), right, wrong)] if right != wrong else []
    pairs: list[tuple[Any, Any]] = list(zip_longest(right or [], wrong or []))
    return [((at, *place), was, now) for at, pair in enumerate(pairs) for place, was, now in _differences(*pair)]


@pytest.mark.parametrize("fault", ENCODING_FAULTS)
@settings(max_examples=40)
@given(data=st.data())
def test_malformed_encodings_are_wrong_in_the_named_way_alone(fault: EncodingFault, data: st.DataObject) -> None:
    ids, encoding = data.draw(malformed_encodings(fault, _TRAILING))
    drawn = [data.draw(encodings(name, st.just(ids))).encoding for name in ENCODING_NAMES]
    right, wrong = next(_values(each) for each in drawn if type(each) is type(encoding)), _values(encoding)
    (field,) = [name for name in right if right[name] != wrong[name]]
    (place, was, now), *more = _differences(right[field], wrong[field])
    difference = Difference(field, place, was, now, len(more), right, wrong, *ids.shape)
    assert _WRONG_IN[fault](difference)
    assert fault in _MANY or not more


_ASKED_WRONGLY: list[tuple[str, Callable[[], object]]] = [
    ("padding", lambda: document_ids(padding=cast("Any", "left"))),
    ("dtypes", lambda: document_ids(dtypes=())),
    ("dtypes", lambda: document_ids(dtypes=(torch.int64, torch.float32))),
    ("dtypes", lambda: attention_document_ids(dtypes=(torch.bool,))),
    ("dtypes", lambda: document_ids(dtypes=cast("Any", torch.int64))),
    ("max_batch", lambda: document_ids(max_batch=0)),
    ("max_sequence", lambda: attention_document_ids(max_sequence=0)),
    ("max_sequence", lambda: document_ids(max_sequence=128)),
    ("canonical", lambda: document_ids(canonical=cast("Any", 1))),
    ("fault", lambda: malformed_document_ids(cast("Any", "odd"))),
    ("padding", lambda: training_batches(padding=cast("Any", "left"))),
    ("axes", lambda: training_batches(axes=())),
    ("axes", lambda: training_batches(axes=(-1,))),
    ("fault", lambda: contradicting_batches(cast("Any", "odd"))),
    ("name", lambda: encodings(cast("Any", "flat"), _TRAILING)),
    ("document_ids", lambda: encodings("thd_flat", cast("Any", torch.ones(1, 1)))),
    ("fault", lambda: malformed_encodings(cast("Any", "odd"), _TRAILING)),
    ("document_ids", lambda: malformed_encodings("index_twice", cast("Any", None))),
]


@pytest.mark.parametrize(("field", "ask"), _ASKED_WRONGLY)
def test_what_cannot_be_drawn_is_refused_when_it_is_asked_for(field: str, ask: Callable[[], object]) -> None:
    with pytest.raises(EncodingError) as caught:
        ask()
    assert caught.value.problems[0].field == field


@settings(max_examples=10)
@given(ids=document_ids(max_batch=1, max_sequence=300, dtypes=(torch.int16, torch.int64)))
def test_rows_are_as_long_as_their_dtypes_can_number(ids: Tensor) -> None:
    assert is_document_ids(ids)
    assert ids.shape[1] <= 300


def test_a_failing_example_shrinks_to_the_row_that_fails() -> None:
    same = settings(database=None, derandomize=True)
    failing = find(attention_document_ids(), lambda ids: bool(oracle.holes(rows_of(ids))), settings=same)
    assert failing.shape[0] == 1
    assert failing.shape[1] < 6


_LEAST: dict[object, int] = {
    "strided": 50,
    "numbered in any order": 25,
    "with a row of padding": 25,
    "of nothing but padding": 10,
    "with rows that meet in one number": 25,
    "with three documents in a row": 75,
    "with two rows of two documents": 50,
    "with padding between documents": 50,
    "with padding before documents": 75,
    "with a hole": 40,
    "with a hole beside another document": 25,
    **dict.fromkeys(INTEGER_DTYPES, 10),
}
"""In how many of 500 examples each trait is to be seen at least, so that the 100 of a property have it."""


@pytest.mark.parametrize("axes", [0, 3, 4])
def test_each_number_of_axes_that_is_asked_for_is_drawn(axes: int) -> None:
    wanted = (axes,) if axes else ()
    batch = find(training_batches(axes=(0, 3, 4)), lambda batch: batch["position_ids"].shape[:-2] == wanted)
    assert batch["position_ids"].shape[-2:] == batch["input_ids"].shape


def test_negative_ids_are_drawn_beyond_32_bits() -> None:
    assert int(find(malformed_document_ids("negative"), lambda ids: int(ids.min()) < -(2**31)).min()) < -(2**31)


def _traits(ids: Tensor) -> set[object]:
    rows = rows_of(ids)
    documents = [{*row} - {0} for row in rows]
    between = [
        [0 in row[max(one) + 1 : min(other)] for one, other in pairwise(places)]
        for row, places in zip(rows, _places(rows), strict=True)
    ]
    traits = {
        "strided": not ids.is_contiguous(),
        "numbered in any order": rows != oracle.canonical(rows),
        "with a row of padding": len(rows) > 1 and not all(documents),
        "of nothing but padding": not any(documents),
        "with rows that meet in one number": any(a[-1] == b[0] > 0 for a, b in pairwise(rows)),
        "with three documents in a row": any(len(numbers) > 2 for numbers in documents),
        "with two rows of two documents": sum(len(numbers) > 1 for numbers in documents) > 1,
        "with padding between documents": any(map(any, between)),
        "with padding before documents": any(row[0] == 0 and any(row) for row in rows),
        "with a hole": bool(oracle.holes(rows)),
        "with a hole beside another document": any(len(documents[row]) > 1 for row, _ in oracle.holes(rows)),
    }
    return {ids.dtype, *(trait for trait, has in traits.items() if has)}


def _places(rows: list[list[int]]) -> list[list[list[int]]]:
    """Give the places of each document, row by row."""
    found = oracle.documents(rows)
    return [[document.places for document in found if document.row == row] for row in range(len(rows))]


def test_the_hard_inputs_are_among_those_drawn_and_none_is_rare() -> None:
    seen: Counter[object] = Counter()

    @settings(max_examples=500, database=None, derandomize=True, phases=[Phase.generate])
    @given(ids=attention_document_ids())
    def look(ids: Tensor) -> None:
        seen.update(_traits(ids))

    look()
    rare = {trait: seen[trait] for trait, least in _LEAST.items() if seen[trait] < least}
    assert not rare
