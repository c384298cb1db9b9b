"""The three checks of every concept agree with the axes in the types, whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import neatpack.contracts as core
from neatpack.contracts import BatchError, EncodingError, PackingError, Problem, field_axes
from tests.contracts.fakes import FakeTensor, value_for


@dataclass(frozen=True)
class Concept:
    """A class of the core with its three checks."""

    owner: type
    error: type[PackingError]
    validate: Callable[[object], list[Problem]]
    is_: Callable[[object], bool]
    parse: Callable[[object], object]


def concept(owner: type, name: str, error: type[PackingError] = EncodingError) -> Concept:
    return Concept(owner, error, *(getattr(core, f"{check}_{name}") for check in ("validate", "is", "parse")))


CONCEPTS = [
    concept(core.GatheredRows, "gathered_rows"),
    concept(core.GatheredFlat, "gathered_flat"),
    concept(core.PhysicalFlat, "physical_flat"),
    concept(core.PhysicalRows, "physical_rows"),
    concept(core.THDLengths, "thd_lengths"),
    concept(core.THDFlat, "thd_flat"),
    concept(core.LengthMatrix, "length_matrix"),
    concept(core.SegmentIndex, "segment_index"),
    concept(core.PackedSequenceMetadata, "packed_sequence_metadata"),
    concept(core.FlashVarlenKwargs, "flash_varlen_kwargs"),
    concept(core.TrainingBatch, "training_batch", BatchError),
]
each_concept = pytest.mark.parametrize("concept", CONCEPTS, ids=lambda concept: concept.owner.__name__)

DIMENSIONS = sorted(
    {
        name
        for concept in CONCEPTS
        for rule in field_axes(concept.owner).values()
        for axes in rule.axes
        for name in axes.names
        if not name.isdecimal()
    }
)
# Distinct sizes, so that a dimension read in the wrong place cannot pass by luck.
sizes_of_dimensions = st.lists(st.integers(2, 60), min_size=len(DIMENSIONS), max_size=len(DIMENSIONS), unique=True).map(
    lambda sizes: dict(zip(DIMENSIONS, sizes, strict=True))
)


def build(concept: Concept, values: dict[str, object]) -> Any:
    return concept.owner(**values) if is_dataclass(concept.owner) else values


def valid_values(concept: Concept, sizes: dict[str, int], form: int = 0) -> dict[str, object]:
    return {name: value_for(rule, sizes, form) for name, rule in field_axes(concept.owner).items()}


def assert_refused(concept: Concept, values: dict[str, object], field: str, kind: str) -> None:
    value = build(concept, values)
    before = dict(values)
    assert (field, kind) in {(problem.field, problem.kind) for problem in concept.validate(value)}
    assert not concept.is_(value)
    with pytest.raises(concept.error) as caught:
        concept.parse(value)
    assert list(caught.value.problems) == concept.validate(value)
    assert field in str(caught.value)
    assert values == before


@each_concept
@given(sizes=sizes_of_dimensions, form=st.integers(0, 2))
def test_what_the_axes_accept_is_accepted_and_returned_as_it_is(
    concept: Concept, sizes: dict[str, int], form: int
) -> None:
    value = build(concept, valid_values(concept, sizes, form))
    assert concept.validate(value) == []
    assert concept.is_(value)
    assert concept.parse(value) is value


@each_concept
@given(sizes=sizes_of_dimensions, data=st.data())
def test_one_wrong_field_is_refused_by_its_name(concept: Concept, sizes: dict[str, int], data: st.DataObject) -> None:
    values = valid_values(concept, sizes)
    field = data.draw(st.sampled_from(sorted(values)))
    good = values[field]
    if isinstance(good, FakeTensor):
        bad, kind = data.draw(
            st.sampled_from(
                [
                    (FakeTensor((*good.shape, 1, 1, 1), good.dtype), "rank"),
                    (FakeTensor(good.shape, "complex64"), "dtype"),
                    ([1, 2, 3], "type"),
                    (FakeTensor, "type"),
                ]
            )
        )
    else:
        bad, kind = data.draw(
            st.sampled_from([(2.5, "type"), (True, "type"), (FakeTensor((), "int64"), "type"), (-1, "value")])
        )
    assert_refused(concept, {**values, field: bad}, field, kind)


@each_concept
@given(sizes=sizes_of_dimensions, data=st.data())
def test_a_missing_required_field_is_named(concept: Concept, sizes: dict[str, int], data: st.DataObject) -> None:
    required = sorted(name for name, rule in field_axes(concept.owner).items() if rule.required)
    if is_dataclass(concept.owner):
        return  # its constructor refuses first
    field = data.draw(st.sampled_from(required))
    values = valid_values(concept, sizes)
    del values[field]
    assert_refused(concept, values, field, "missing")


@given(sizes=sizes_of_dimensions, data=st.data())
def test_sizes_along_an_axis_of_the_same_name_must_agree(sizes: dict[str, int], data: st.DataObject) -> None:
    batch = CONCEPTS[-1]
    values = valid_values(batch, sizes)
    field = data.draw(st.sampled_from(["labels", "position_ids", "padding_mask", "document_ids", "_packed_seq_ids"]))
    rows, width = sizes["batch"], sizes["sequence"]
    shape = data.draw(st.sampled_from([(rows + 1, width), (rows, width - 1), (width, rows)]))
    good = values[field]
    assert isinstance(good, FakeTensor)
    values[field] = FakeTensor(shape, good.dtype)
    assert_refused(batch, values, field, "shape")
    problem = next(problem for problem in batch.validate(values) if problem.field == field)
    assert "input_ids" in problem.message


def test_a_fixed_size_is_checked() -> None:
    batch = CONCEPTS[-1]
    values = valid_values(batch, dict.fromkeys(DIMENSIONS, 4))
    values["attention_mask"] = FakeTensor((4, 2, 4, 4), "bool")
    assert_refused(batch, values, "attention_mask", "shape")


def test_optional_fields_may_be_absent_and_unknown_ones_present() -> None:
    rules = field_axes(core.TrainingBatch)
    sizes = dict.fromkeys(DIMENSIONS, 3)
    values: dict[str, object] = {name: value_for(rule, sizes) for name, rule in rules.items() if rule.required}
    assert core.is_training_batch({**values, "pixel_values": object()})


@each_concept
@pytest.mark.parametrize("value", [None, 3, "cu_seqlens", [], object()])
def test_another_type_is_refused(concept: Concept, value: object) -> None:
    assert not concept.is_(value)
    name = concept.owner.__name__
    sort = "an instance" if is_dataclass(concept.owner) else "a mapping with the keys"
    with pytest.raises(concept.error, match=f"must be {sort} of {name}"):
        concept.parse(value)


def test_a_batch_without_documents_is_legal() -> None:
    empty = FakeTensor((1,), "int32")
    assert core.is_physical_flat(core.PhysicalFlat(empty, 0))


def test_every_problem_is_reported_at_once() -> None:
    problems = core.validate_flash_varlen_kwargs({"cu_seq_lens_q": FakeTensor((3,), "int64"), "max_length_q": 1.0})
    assert [(problem.field, problem.kind) for problem in problems] == [
        ("cu_seq_lens_q", "dtype"),
        ("cu_seq_lens_k", "missing"),
        ("max_length_q", "type"),
        ("max_length_k", "missing"),
    ]
