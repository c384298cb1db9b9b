"""Wire models: closed, strict, there and back, and their errors and schemas."""

from __future__ import annotations

import inspect
import itertools
import json
from collections import ChainMap, UserDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast, get_args

import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from neatpack.adapters.planning import OVERLONG_CHOICES, PACKING_METHODS, plan_rows
from neatpack.adapters.wire import WIRE_MODELS, PlanOptions, WireCapabilities, WirePackingOptions, json_schemas
from neatpack.contracts.capabilities import PACKED_MASK_TYPES, POSITION_POLICIES, PackingCapabilities
from neatpack.contracts.errors import CapabilitiesError, PackingError, PlanError
from tests.adapters.properties import holds_for

_CAPABILITIES = st.builds(
    PackingCapabilities,
    st.sampled_from(PACKED_MASK_TYPES),
    st.booleans(),
    st.booleans(),
    return_document_ids=st.booleans(),
    max_sequence_length=st.none() | st.integers(1, 2**40),
    position_policy=st.sampled_from(POSITION_POLICIES),
    takes_holes=st.booleans(),
)
_OPTIONS = st.fixed_dictionaries(
    {"capacity": st.integers(1, 2**31 - 1)},
    optional={
        "method": st.sampled_from(PACKING_METHODS),
        "overlong": st.sampled_from(OVERLONG_CHOICES),
        "documents_per_row": st.none() | st.integers(1, 2**31 - 1),
    },
)


@holds_for(capabilities=_CAPABILITIES)
def test_capabilities_cross_the_wire_and_come_back(capabilities: PackingCapabilities) -> None:
    text = WireCapabilities.from_core(capabilities).model_dump_json()
    assert WireCapabilities.read_json(text).to_core() == capabilities
    assert WireCapabilities.read(json.loads(text)).to_core() == capabilities


def test_either_generation_of_the_contract_is_read() -> None:
    for name in ("requires_packed_sequence_metadata", "return_packed_sequence_metadata"):
        entries = {"packed_mask_type": "document_ids", name: True}
        assert WireCapabilities.read(entries).to_core() == PackingCapabilities("document_ids", True)
    with pytest.raises(CapabilitiesError, match="return_packed_sequence_metadata"):
        WireCapabilities.read({**entries, "requires_packed_sequence_metadata": True})


@holds_for(options=_OPTIONS)
def test_options_cross_the_wire_and_come_back(options: dict[str, Any]) -> None:
    wire = WirePackingOptions.read(options)
    again = WirePackingOptions.read_json(wire.model_dump_json())
    assert again == wire
    assert {**again.to_core(), **options} == again.to_core()


@pytest.mark.parametrize("mapping", [MappingProxyType, ChainMap, UserDict])
def test_any_mapping_is_read(mapping: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    assert WirePackingOptions.read(mapping({"capacity": 5})) == WirePackingOptions(capacity=5)
    with pytest.raises(PlanError, match="unknown = 1"):
        WirePackingOptions.read(mapping({"capacity": 5, "unknown": 1}))


def test_options_are_the_arguments_of_the_planner_with_its_defaults() -> None:
    _, *parameters = inspect.signature(plan_rows).parameters.values()
    assert [parameter.name for parameter in parameters] == list(WirePackingOptions.model_fields)
    assert list(PlanOptions.__annotations__) == list(WirePackingOptions.model_fields)
    for parameter in parameters:
        field = WirePackingOptions.model_fields[parameter.name]
        assert field.is_required() == (parameter.default is parameter.empty)
        assert field.is_required() or field.default == parameter.default


@holds_for(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12), options=_OPTIONS)
def test_a_plan_by_options_is_the_planners(lengths: list[int], options: dict[str, Any]) -> None:
    options = {**options, "capacity": 1 + options["capacity"] % 40, "overlong": "split"}
    if options.get("documents_per_row"):
        options["documents_per_row"] = 1 + options["documents_per_row"] % 4
    assert WirePackingOptions.read(options).plan(lengths) == plan_rows(lengths, **options)


@pytest.mark.parametrize(
    ("field", "kind", "entries"),
    [
        ("packed_mask_type", "missing", {}),
        ("packed_mask_type", "value", {"packed_mask_type": "document_id"}),
        ("uses_native_fa4", "type", {"packed_mask_type": "document_ids", "uses_native_fa4": 1}),
        ("uses_native_fa4", "type", {"packed_mask_type": "document_ids", "uses_native_fa4": "true"}),
        ("max_sequence_length", "type", {"packed_mask_type": "document_ids", "max_sequence_length": "4096"}),
        ("max_sequence_length", "value", {"packed_mask_type": "document_ids", "max_sequence_length": 0}),
        ("max_sequence_length", "type", {"packed_mask_type": "document_ids", "max_sequence_length": True}),
        ("max_sequence_length", "type", {"packed_mask_type": "document_ids", "max_sequence_length": 8.0}),
        ("mask", "unsupported", {"packed_mask_type": "document_ids", "mask": None}),
        ("WireCapabilities", "type", None),
        ("WireCapabilities", "type", [1]),
    ],
)
def test_what_a_file_holds_wrongly_is_named(field: str, kind: str, entries: object) -> None:
    text = json.dumps(entries)
    for read, given_entries in ((WireCapabilities.read, entries), (WireCapabilities.read_json, text)):
        with pytest.raises(CapabilitiesError) as caught:
            read(cast("Any", given_entries))
        assert [(problem.field, problem.kind) for problem in caught.value.problems] == [(field, kind)]
        assert all(problem.remedy for problem in caught.value.problems)


@pytest.mark.parametrize("text", [5, None, "{", ""])
def test_what_is_no_json_is_called_so(text: Any) -> None:
    with pytest.raises(CapabilitiesError, match=r"JSON.*\. Give one JSON object, as str or bytes\.$"):
        WireCapabilities.read_json(text)


_WRONG: Any = {
    WireCapabilities: {
        "packed_mask_type": [None, "document_id", ["document_ids"]],
        "requires_packed_sequence_metadata": [None, 1, "true"],
        "uses_native_fa4": [None, 0, "no"],
        "return_document_ids": [None, 1.0],
        "max_sequence_length": [0, -1, True, "8", 8.0],
        "position_policy": [None, "row", True],
        "takes_holes": [None, 1, "no"],
    },
    WirePackingOptions: {
        "capacity": [None, 0, 2**31, True, "8", 8.0],
        "method": [None, "greedy", 1],
        "overlong": [None, "cut", False],
        "documents_per_row": [0, 2**31, "4", 4.0, True],
    },
}


@holds_for(
    model=st.sampled_from(list(WIRE_MODELS)),
    options=_OPTIONS,
    capabilities=_CAPABILITIES,
    unknown=st.none() | st.sampled_from(["mask", "Capacity", "tokens", ""]),
    data=st.data(),
)
def test_every_field_that_is_wrong_or_unknown_is_named_and_no_other(
    model: Any, options: dict[str, Any], capabilities: PackingCapabilities, unknown: str | None, data: st.DataObject
) -> None:
    right = options if model is WirePackingOptions else WireCapabilities.from_core(capabilities).model_dump()
    wrong = {
        field: data.draw(st.sampled_from(values)) for field, values in _WRONG[model].items() if data.draw(st.booleans())
    }
    entries = {**right, **wrong, **({} if unknown is None else {unknown: 1})}
    named: set[str] = {*wrong, *([] if unknown is None else [unknown])}
    ways: list[tuple[Any, object]] = [(model.read, entries), (model.read_json, json.dumps(entries))]
    for read, given_entries in ways:
        if not named:
            read(given_entries)
            continue
        with pytest.raises(model.error) as caught:
            read(given_entries)
        assert {problem.field for problem in caught.value.problems} == {name or model.__name__ for name in named}
        kinds = {problem.field: problem.kind for problem in caught.value.problems}
        assert all((kind == "unsupported") == (field not in wrong) for field, kind in kinds.items())


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        WirePackingOptions.read({"capacity": 0, "method": "greedy", "tokens": 3, "documents_per_row": 2**31})
    assert [problem.field for problem in caught.value.problems] == ["capacity", "method", "documents_per_row", "tokens"]
    assert "capacity, method, overlong, documents_per_row" in caught.value.problems[-1].remedy


def test_a_long_value_is_shown_cut_to_80_characters() -> None:
    for length in (79, 80, 81, 500):
        value = "x" * (length - 2)
        with pytest.raises(PlanError) as caught:
            WirePackingOptions.read({"capacity": 8, "method": value})
        whole = f"'{value}'"
        shown = caught.value.problems[0].value
        assert shown == whole if length <= 80 else shown == f"'{'x' * 76}..."


@pytest.mark.parametrize("text", ["", "{", "nan", b"\xff", '{"capacity": 1e400}', '{"capacity": 5} {}'])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(PackingError):
        WirePackingOptions.read_json(text)


@pytest.mark.parametrize("encode", [str, str.encode])
def test_a_field_that_stands_there_twice_is_refused(encode: Callable[[str], str | bytes]) -> None:
    with pytest.raises(PlanError) as caught:
        WirePackingOptions.read_json(encode('{"capacity": 8, "method": "wrap", "capacity": 4, "method": "wrap"}'))
    assert [problem.field for problem in caught.value.problems] == ["capacity", "method"]
    with pytest.raises(CapabilitiesError, match="packed_mask_type: comes more than once"):
        WireCapabilities.read_json('{"packed_mask_type": "document_ids", "packed_mask_type": "flash_varlen"}')


@pytest.mark.parametrize("model", WIRE_MODELS)
def test_what_was_made_without_a_check_is_checked_when_it_is_read(model: Any) -> None:
    with pytest.raises(PackingError):
        model.read(model.model_construct(packed_mask_type="causal", capacity=0))


def test_a_model_cannot_be_changed() -> None:
    wire = WirePackingOptions.read({"capacity": 8})
    with pytest.raises(ValidationError):
        wire.capacity = 9


def test_the_schemas_say_what_the_models_take() -> None:
    schemas: Any = json_schemas()
    assert set(schemas) == {model.__name__ for model in WIRE_MODELS}
    for schema in schemas.values():
        assert schema["additionalProperties"] is False
        json.dumps(schema)
    packing, capabilities = schemas["WirePackingOptions"], schemas["WireCapabilities"]
    assert (packing["required"], capabilities["required"]) == (["capacity"], ["packed_mask_type"])
    assert packing["properties"]["method"]["enum"] == list(PACKING_METHODS)
    assert packing["properties"]["capacity"]["minimum"] == 1
    assert capabilities["properties"]["packed_mask_type"]["enum"] == list(PACKED_MASK_TYPES)
    assert list(get_args(WireCapabilities.model_fields["packed_mask_type"].annotation)) == list(PACKED_MASK_TYPES)


_LEAST: Any = {WireCapabilities: {"packed_mask_type": "document_ids"}, WirePackingOptions: {"capacity": 8}}
_NAMES: Any = {model: [*model.model_fields, "return_packed_sequence_metadata", "mask"] for model in WIRE_MODELS}
_VALUES = [None, True, 0, 8, 2**31, "8", "sequence", "flash_varlen", "wrap", "split"]


@pytest.mark.parametrize("model", WIRE_MODELS)
def test_a_schema_allows_what_its_model_reads_and_nothing_else(model: Any) -> None:
    schema, allowed = json_schemas()[model.__name__], 0
    for names in itertools.combinations_with_replacement(_NAMES[model], 2):
        for values in itertools.product(_VALUES, repeat=2):
            entries = {**_LEAST[model], **dict(zip(names, values, strict=True))}
            try:
                model.read(entries)
                is_read = True
            except model.error:
                is_read = False
            assert allows(schema, entries) == is_read, entries
            allowed += is_read
    assert allowed


def allows(schema: Any, value: Any) -> bool:
    """Tell whether a schema allows a value, by the words of JSON Schema that stand in ours."""
    types = {"object": dict, "boolean": bool, "integer": int, "string": str, "null": type(None)}
    words: dict[str, Callable[[Any], bool]] = {
        "type": lambda name: type(value) is types[name],
        "enum": lambda values: value in values,
        "minimum": lambda least: type(value) is not int or value >= least,
        "maximum": lambda most: type(value) is not int or value <= most,
        "anyOf": lambda schemas: any(allows(each, value) for each in schemas),
        "not": lambda other: not allows(other, value),
        "required": lambda names: set(names) <= set(value),
        "properties": lambda fields: all(allows(fields[name], value[name]) for name in fields if name in value),
        "additionalProperties": lambda allowed: allowed or set(value) <= set(schema["properties"]),
    }
    said = {word: what for word, what in schema.items() if word not in ("$schema", "title", "description", "default")}
    return all(words[word](what) for word, what in said.items())
