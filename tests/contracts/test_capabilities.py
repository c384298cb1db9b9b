"""What a model needs from its loader: values checked, both generations read, stages combined."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import neatpack.contracts as core
from neatpack.contracts import (
    PACKED_MASK_TYPES,
    POSITION_POLICIES,
    CapabilitiesError,
    LegacyPackedSequenceContract,
    PackedMaskType,
    PackedSequenceContract,
    PackingCapabilities,
)

limits = st.none() | st.integers(1, 1 << 20)


@st.composite
def capabilities(draw: st.DrawFn, mask_type: str | None = None) -> PackingCapabilities:
    chosen: Any = mask_type or draw(st.sampled_from(PACKED_MASK_TYPES))
    return PackingCapabilities(
        chosen,
        draw(st.booleans()),
        draw(st.booleans()),
        return_document_ids=draw(st.booleans()),
        max_sequence_length=draw(limits),
        position_policy=draw(st.sampled_from(POSITION_POLICIES)),
        takes_holes=draw(st.booleans()),
    )


stages = st.sampled_from(PACKED_MASK_TYPES).flatmap(
    lambda mask_type: st.lists(capabilities(mask_type), min_size=1, max_size=5)
)


def test_the_positional_signature() -> None:
    plain = PackingCapabilities("block_causal")
    assert dataclasses.astuple(plain)[:3] == ("block_causal", False, False)
    assert PackingCapabilities("document_ids", True, True) == PackingCapabilities(
        packed_mask_type="document_ids", requires_packed_sequence_metadata=True, uses_native_fa4=True
    )
    fields = {field.name: field for field in dataclasses.fields(plain)}
    keyword_only = ["return_document_ids", "max_sequence_length", "position_policy", "takes_holes"]
    assert [name for name, field in fields.items() if field.kw_only] == keyword_only
    assert plain.position_policy == "document"
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.packed_mask_type = "document_ids"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("packed_mask_type", "document_id"),
        ("packed_mask_type", None),
        ("packed_mask_type", ["document_ids"]),
        ("requires_packed_sequence_metadata", "no"),
        ("requires_packed_sequence_metadata", 1),
        ("uses_native_fa4", None),
        ("return_document_ids", 0),
        ("max_sequence_length", 0),
        ("max_sequence_length", -5),
        ("max_sequence_length", True),
        ("max_sequence_length", 2048.0),
        ("position_policy", "row"),
        ("position_policy", None),
        ("position_policy", ["sequence"]),
        ("takes_holes", None),
        ("takes_holes", 0),
        ("takes_holes", "no"),
    ],
)
def test_declarations_are_checked_by_value(field: str, value: object) -> None:
    values: dict[str, Any] = {"packed_mask_type": "document_ids", field: value}
    with pytest.raises(CapabilitiesError) as caught:
        PackingCapabilities(**values)
    assert [problem.field for problem in caught.value.problems] == [field]
    assert repr(value) in str(caught.value)
    contract = SimpleNamespace(**{"requires_packed_sequence_metadata": False, **values})
    assert not core.is_packed_sequence_contract(contract)
    with pytest.raises(CapabilitiesError):
        core.parse_packing_capabilities(contract)


@given(capabilities())
def test_capabilities_are_contracts_of_both_generations(needs: PackingCapabilities) -> None:
    assert isinstance(needs, PackedSequenceContract)
    assert isinstance(needs, LegacyPackedSequenceContract)
    assert core.parse_packed_sequence_contract(needs) is needs
    assert core.parse_packing_capabilities(needs) is needs
    assert core.validate_packing_capabilities(needs) == []
    assert core.is_packing_capabilities(needs)
    assert needs.return_packed_sequence_metadata is needs.requires_packed_sequence_metadata


@given(capabilities())
def test_either_generation_reads_as_the_same_needs(needs: PackingCapabilities) -> None:
    newer = SimpleNamespace(
        packed_mask_type=needs.packed_mask_type,
        return_packed_sequence_metadata=needs.return_packed_sequence_metadata,
        return_document_ids=needs.return_document_ids,
        max_sequence_length=needs.max_sequence_length,
    )
    holes = needs.packed_mask_type != "flash_varlen"
    plain = dataclasses.replace(needs, uses_native_fa4=False, position_policy="document", takes_holes=holes)
    assert core.parse_packing_capabilities(newer) == plain
    newer.position_policy, newer.takes_holes = needs.position_policy, needs.takes_holes
    assert core.parse_packing_capabilities(newer) == dataclasses.replace(needs, uses_native_fa4=False)
    older = SimpleNamespace(
        packed_mask_type=needs.packed_mask_type,
        requires_packed_sequence_metadata=needs.requires_packed_sequence_metadata,
    )
    assert core.parse_packing_capabilities(older) == PackingCapabilities(
        needs.packed_mask_type, needs.requires_packed_sequence_metadata
    )


@pytest.mark.parametrize("mask_type", PACKED_MASK_TYPES)
def test_offsets_over_padded_rows_take_no_holes_whatever_was_said(mask_type: PackedMaskType) -> None:
    takes = [PackingCapabilities(mask_type, takes_holes=said).takes_holes for said in (True, False)]
    assert [PackingCapabilities(mask_type).takes_holes, False] == takes
    assert takes[0] is (mask_type != "flash_varlen")
    with pytest.raises(CapabilitiesError, match="takes_holes = 'no': must be a bool"):
        PackingCapabilities(mask_type, takes_holes="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("flag", [[], {}, None, 1, "no"])
def test_a_flag_under_either_name_is_a_bool(flag: object) -> None:
    for newer, older in ((flag, False), (True, flag), (flag, flag)):
        contract = SimpleNamespace(
            packed_mask_type="document_ids",
            return_packed_sequence_metadata=newer,
            requires_packed_sequence_metadata=older,
        )
        problems = core.validate_packed_sequence_contract(contract)
        assert {problem.message for problem in problems} == {"must be a bool"}
        assert len(problems) == 1 + (newer is older)


def test_a_contract_that_contradicts_its_older_name_is_refused() -> None:
    contract = SimpleNamespace(
        packed_mask_type="document_ids", return_packed_sequence_metadata=True, requires_packed_sequence_metadata=False
    )
    with pytest.raises(CapabilitiesError, match="return_packed_sequence_metadata = True: contradicts"):
        core.parse_packed_sequence_contract(contract)


def test_a_contract_is_not_yet_capabilities() -> None:
    contract = SimpleNamespace(packed_mask_type="document_ids", requires_packed_sequence_metadata=False)
    assert core.validate_packing_capabilities(contract) == []
    assert not core.is_packing_capabilities(contract)
    assert len(core.validate_packing_capabilities(SimpleNamespace(packed_mask_type="causal"))) == 2


@pytest.mark.parametrize("value", [None, 3, object(), {}])
def test_what_is_no_contract_at_all_is_one_problem(value: object) -> None:
    with pytest.raises(
        CapabilitiesError, match=r"contract = \w+: declares nothing. Pass what configure_packing returned"
    ):
        core.parse_packed_sequence_contract(value)


def test_a_contract_that_says_nothing_of_metadata_is_refused() -> None:
    with pytest.raises(CapabilitiesError, match="return_packed_sequence_metadata: missing"):
        core.parse_packed_sequence_contract(SimpleNamespace(packed_mask_type="document_ids"))


@given(stages, st.randoms())
def test_combining_needs_what_any_stage_needs(needs: list[PackingCapabilities], random: Any) -> None:
    combined = PackingCapabilities.combine(needs)
    bounds = [need.max_sequence_length for need in needs if need.max_sequence_length]
    assert combined.packed_mask_type == needs[0].packed_mask_type
    for name in ("requires_packed_sequence_metadata", "uses_native_fa4", "return_document_ids"):
        assert getattr(combined, name) == (True in [getattr(need, name) for need in needs])
    assert combined.max_sequence_length == (sorted(bounds)[0] if bounds else None)
    assert (combined.position_policy == "document") == ("document" in [need.position_policy for need in needs])
    assert combined.takes_holes == (False not in [need.takes_holes for need in needs])
    shuffled = list(needs)
    random.shuffle(shuffled)
    assert PackingCapabilities.combine(shuffled) == combined
    assert PackingCapabilities.combine([combined, *needs]) == combined


@given(stages, capabilities(), st.data())
def test_stages_with_different_mask_types_are_refused(
    needs: list[PackingCapabilities], other: PackingCapabilities, data: st.DataObject
) -> None:
    if other.packed_mask_type == needs[0].packed_mask_type:
        return
    place = data.draw(st.integers(1, len(needs)))
    with pytest.raises(CapabilitiesError) as caught:
        PackingCapabilities.combine([*needs[:place], other, *needs[place:]])
    assert f"stage {place} takes '{other.packed_mask_type}'" in str(caught.value)
    assert repr(needs[0].packed_mask_type) in str(caught.value)


def test_combining_nothing_is_refused() -> None:
    with pytest.raises(CapabilitiesError, match="no stage"):
        PackingCapabilities.combine([])


def test_mask_types() -> None:
    assert PACKED_MASK_TYPES == ("block_causal", "document_ids", "flash_varlen")
    assert all(core.parse_packed_mask_type(name) is name for name in PACKED_MASK_TYPES)
    with pytest.raises(CapabilitiesError, match="'block_causal', 'document_ids', 'flash_varlen'"):
        core.parse_packed_mask_type("blockcausal")


def test_position_policies() -> None:
    assert POSITION_POLICIES == ("document", "sequence")
    assert all(core.parse_position_policy(name) is name for name in POSITION_POLICIES)
    with pytest.raises(CapabilitiesError, match="'document' or 'sequence'"):
        core.parse_position_policy("sequences")
