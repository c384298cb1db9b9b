"""The axes in the types are complete, say the same everywhere, and are what the documentation shows."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
from typing_extensions import get_type_hints

import neatpack.contracts as core
from neatpack.contracts import Axes, axes_table, field_axes
from neatpack.contracts.axes import DtypeRule

ENCODINGS = [
    core.GatheredRows,
    core.GatheredFlat,
    core.PhysicalFlat,
    core.PhysicalRows,
    core.THDLengths,
    core.LengthMatrix,
    core.SegmentIndex,
    core.THDFlat,
    core.GatheredStates,
    core.PhysicalStates,
]
KWARGS = [core.PackedSequenceMetadata, core.FlashVarlenKwargs]


@pytest.mark.parametrize("owner", [*ENCODINGS, *KWARGS])
def test_every_field_of_an_encoding_says_what_it_holds(owner: type) -> None:
    rules = field_axes(owner)
    assert list(rules) == list(get_type_hints(owner))
    for rule in rules.values():
        assert rule.count is not None or all(axes.unit and axes.names for axes in rule.axes)


def test_the_batch_leaves_only_names_of_formats_unannotated() -> None:
    assert set(get_type_hints(core.TrainingBatch)) - set(field_axes(core.TrainingBatch)) == {"qkv_format"}


def test_the_view_is_the_batch_made_read_only() -> None:
    assert field_axes(core.TrainingBatchView) == field_axes(core.TrainingBatch)
    assert vars(core.TrainingBatchView)["__readonly_keys__"] == set(get_type_hints(core.TrainingBatch))
    assert vars(core.TrainingBatch)["__readonly_keys__"] == frozenset()


def test_the_three_encodings_called_cu_seqlens_differ_in_type() -> None:
    gathered_rows = field_axes(core.GatheredRows)["cu_seqlens"].axes
    gathered_flat = field_axes(core.GatheredFlat)["cu_seqlens"].axes
    physical_flat = field_axes(core.PhysicalFlat)["cu_seqlens"].axes
    physical_rows = field_axes(core.PhysicalRows)["cu_seqlens"].axes
    assert len({gathered_rows, gathered_flat, physical_flat, physical_rows}) == 4


def test_encodings_and_the_kwargs_they_become_carry_the_same_axes() -> None:
    assert field_axes(core.PackedSequenceMetadata) == field_axes(core.GatheredRows)
    offsets = field_axes(core.PhysicalFlat)["cu_seqlens"]
    kwargs = field_axes(core.FlashVarlenKwargs)
    assert kwargs["cu_seq_lens_q"] == kwargs["cu_seq_lens_k"] == offsets


@pytest.mark.parametrize("owner", ENCODINGS)
def test_encodings_are_frozen(owner: type) -> None:
    instance = owner(**dict.fromkeys((field.name for field in dataclasses.fields(owner)), 0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(instance, dataclasses.fields(owner)[0].name, 1)


@pytest.mark.parametrize(
    ("rule", "accepted", "refused"),
    [
        ("int64", ["int64"], ["int32", "bool", "uint64"]),
        ("int32", ["int32"], ["int64", "uint32"]),
        ("integer", ["uint8", "int8", "int16", "int32", "int64"], ["bool", "float32"]),
        ("bool", ["bool"], ["uint8", "int64"]),
        ("floating", ["float16", "bfloat16", "float32", "float64"], ["int64", "bool", "complex64"]),
        ("mask", ["bool", "bfloat16"], ["int64"]),
        ("any", ["bool", "float8_e4m3fn", "str"], []),
    ],
)
def test_dtype_rules(rule: DtypeRule, accepted: list[str], refused: list[str]) -> None:
    axes = Axes("tokens", dtype=rule)
    assert all(axes.accepts_dtype(name) for name in accepted)
    assert not any(axes.accepts_dtype(name) for name in refused)


def test_every_dtype_rule_is_covered_above() -> None:
    covered = {"int64", "int32", "integer", "bool", "floating", "mask", "any"}
    assert covered == set(get_args(DtypeRule))


def test_the_table_shows_every_field() -> None:
    table = axes_table(core.TrainingBatch)
    assert all(f"| `{name}` |" in table for name in field_axes(core.TrainingBatch))
    assert "bool [batch, 1, sequence, sequence]" not in table
    assert "bool or floating [batch, 1, sequence, sequence]" in table
