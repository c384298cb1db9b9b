"""The strategies draw what they promise: valid where they say so, wrong in the named way, and in every layout."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
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
    is_document_ids,
    real_places,
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
from neatpack.contracts.errors import PackingError
from tests.adapters import oracle
from tests.adapters.properties import rows_of


@given(padding=st.sampled_from(("none", "trailing", "anywhere")), canonical=st.booleans(), data=st.data())
def test_ids_are_valid_and_padded_as_asked(padding: PaddingPlaces, canonical: bool, data: st.DataObject) -> None:
    ids = data.draw(document_ids(padding=padding, canonical=canonical))
    rows = rows_of(ids)
    assert is_document_ids(ids)
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
    assert oracle.returning(rows_of(ids)) is None


@pytest.mark.parametrize("fault", IDS_FAULTS)
@settings(max_examples=25)
@given(data=st.data())
def test_malformed_ids_have_one_problem(fault: IdsFault, data: st.DataObject) -> None:
    assert len({problem.kind for problem in validate_document_ids(data.draw(malformed_document_ids(fault)))}) == 1


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
    "physical_flat": lambda flat, ids: document_ids_from_flash_varlen(_flash(flat), ids == 0),
    "physical_rows": lambda rows, ids: document_ids_from_row_offsets(rows, ids == 0),
    "thd_lengths": lambda lengths, ids: document_ids_from_thd_lengths(lengths, ids.shape[1]),
    "thd_flat": lambda flat, ids: real_places(flat).view(ids.shape) * ids,
    "length_matrix": lambda matrix, ids: document_ids_from_length_matrix(matrix, ids.shape[1]),
    "segment_index": lambda index, _: document_ids_from_segment_index(index),
}
_TRAILING = document_ids(padding="trailing", canonical=True)


def _flash(flat: Any) -> Any:
    offsets, longest = flat.cu_seqlens, flat.max_seqlen
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}


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


def test_the_hard_inputs_are_among_those_drawn() -> None:
    seen: set[object] = set()

    @settings(max_examples=400, database=None, derandomize=True, phases=[Phase.generate])
    @given(ids=attention_document_ids())
    def look(ids: Tensor) -> None:
        rows = rows_of(ids)
        traits = {
            "strided": not ids.is_contiguous(),
            "numbered in any order": rows != oracle.canonical(rows),
            "with a row of padding": len(rows) > 1 and any(not any(row) for row in rows),
            "of nothing but padding": not any(map(any, rows)),
            "with rows that meet in one number": any(a[-1] == b[0] > 0 for a, b in pairwise(rows)),
            "with a hole": bool(oracle.holes(rows)),
            ids.dtype: True,
        }
        seen.update(trait for trait, has in traits.items() if has)

    look()
    assert seen >= {
        "strided",
        "numbered in any order",
        "with a row of padding",
        "of nothing but padding",
        "with rows that meet in one number",
        "with a hole",
        *INTEGER_DTYPES,
    }
