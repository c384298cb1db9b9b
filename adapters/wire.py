"""Pydantic models of what crosses a wire or stands in a recipe file: what a model takes, and how rows are packed.

They are strict: no value is converted, and unknown keys are refused. `read` and `read_json` raise errors of neatpack;
pydantic's own constructors raise pydantic's. Needs pydantic, which nothing else here imports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypedDict, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from typing_extensions import Self

from neatpack.adapters.arguments import INT32_MAX, repeated
from neatpack.adapters.planning import Overlong, PackingMethod, plan_rows
from neatpack.adapters.row_plans import RowPlan
from neatpack.contracts.capabilities import PackedMaskType, PackingCapabilities, PositionPolicy
from neatpack.contracts.errors import CapabilitiesError, PackingError, PlanError, Problem, ProblemKind

__all__ = [
    "WIRE_MODELS",
    "PlanOptions",
    "WireCapabilities",
    "WireModel",
    "WirePackingOptions",
    "json_schemas",
]

Places = Annotated[int, Field(ge=1, le=INT32_MAX)]
"""A number of places or documents that int32 offsets can count."""

_KINDS: Final[Mapping[str, ProblemKind]] = {"missing": "missing", "extra_forbidden": "unsupported"}

_JSON_REMEDY: Final = "Give one JSON object, as str or bytes."
_VALUE_REMEDY: Final = "Give what json_schemas() allows: no value is converted."


class WireModel(BaseModel):
    """What the models here have in common: strict, closed, frozen, and read with errors of neatpack."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", frozen=True, revalidate_instances="always"
    )

    error: ClassVar[type[PackingError]] = PackingError

    @classmethod
    def read(cls, entries: object) -> Self:
        """Read what a recipe file or a message holds.

        Args:
            entries: a mapping of the fields.

        Raises:
            PackingError: a leaf of it, with every field that is missing, unknown, or of another type or value.
        """
        try:
            # Of all mappings, a strict model takes a dict alone.
            given = dict(cast("Mapping[str, object]", entries)) if isinstance(entries, Mapping) else entries
            return cls.model_validate(given)
        except ValidationError as error:
            raise cls.error(*_problems(cls, error)) from error

    @classmethod
    def read_json(cls, text: str | bytes) -> Self:
        """Read JSON.

        Args:
            text: one JSON object.

        Raises:
            PackingError: as `read`, the text is no JSON, or a field stands in it twice.
        """
        try:
            model = cls.model_validate_json(text)
        except ValidationError as error:
            raise cls.error(*_problems(cls, error)) from error
        pairs = cast("list[tuple[str, object]]", json.loads(text, object_pairs_hook=list))
        if twice := repeated(name for name, _ in pairs):
            remedy = "Give each field once."
            raise cls.error(*(Problem(name, "comes more than once", "value", remedy=remedy) for name in twice))
        return model


_METADATA_NAMES: Final = ("requires_packed_sequence_metadata", "return_packed_sequence_metadata")
"""What the two generations of the loader's contract call the same flag."""


def _name_either(schema: dict[str, Any]) -> None:
    """Let a schema have the flag under either name, and not under both, of which pydantic tells the first alone."""
    older, newer = _METADATA_NAMES
    schema["properties"][newer] = schema["properties"][older]
    schema["not"] = {"required": [older, newer]}


class WireCapabilities(WireModel):
    """`PackingCapabilities` on the wire. The newer name of the metadata flag is read as well, in place of the older.

    Example:
        >>> wire = WireCapabilities.read({"packed_mask_type": "document_ids", "max_sequence_length": 4096})
        >>> wire.to_core()
        PackingCapabilities(packed_mask_type='document_ids', requires_packed_sequence_metadata=False, \
uses_native_fa4=False, return_document_ids=False, max_sequence_length=4096, position_policy='document', \
takes_holes=True)
        >>> WireCapabilities.read({"packed_mask_type": "document_ids", "mask": "causal"})
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.CapabilitiesError: mask = 'causal': extra inputs are not permitted. Known are \
packed_mask_type, requires_packed_sequence_metadata, uses_native_fa4, return_document_ids, max_sequence_length, \
position_policy, takes_holes.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_name_either)

    error: ClassVar[type[PackingError]] = CapabilitiesError

    packed_mask_type: PackedMaskType
    requires_packed_sequence_metadata: Annotated[bool, Field(validation_alias=AliasChoices(*_METADATA_NAMES))] = False
    uses_native_fa4: bool = False
    return_document_ids: bool = False
    max_sequence_length: Annotated[int, Field(ge=1)] | None = None
    position_policy: PositionPolicy = "document"
    takes_holes: bool = True

    @classmethod
    def from_core(cls, capabilities: PackingCapabilities) -> Self:
        """Give what crosses the wire for a model.

        Raises:
            CapabilitiesError: it is no packing contract.
        """
        core = PackingCapabilities.from_contract(capabilities)
        return cls.read({name: getattr(core, name) for name in cls.model_fields})

    def to_core(self) -> PackingCapabilities:
        """Give the core's own class."""
        return PackingCapabilities(
            self.packed_mask_type,
            self.requires_packed_sequence_metadata,
            self.uses_native_fa4,
            return_document_ids=self.return_document_ids,
            max_sequence_length=self.max_sequence_length,
            position_policy=self.position_policy,
            takes_holes=self.takes_holes,
        )


class PlanOptions(TypedDict):
    """The arguments of `plan_rows` beside the lengths."""

    capacity: int
    method: PackingMethod
    overlong: Overlong
    documents_per_row: int | None


class WirePackingOptions(WireModel):
    """How rows are packed: the arguments of `plan_rows` on the wire.

    Example:
        >>> options = WirePackingOptions.read_json('{"capacity": 5, "overlong": "split"}')
        >>> options.plan([3, 7, 2]).piece_lengths.tolist()
        [3, 2, 5, 2]
        >>> WirePackingOptions.read({"capacity": "5"})
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.PlanError: capacity = '5': input should be a valid integer. Give what json_schemas() \
allows: no value is converted.
    """

    error: ClassVar[type[PackingError]] = PlanError

    capacity: Places
    method: PackingMethod = "best_fit"
    overlong: Overlong = "refuse"
    documents_per_row: Places | None = None

    def to_core(self) -> PlanOptions:
        """Give the arguments of `plan_rows`."""
        return {
            "capacity": self.capacity,
            "method": self.method,
            "overlong": self.overlong,
            "documents_per_row": self.documents_per_row,
        }

    def plan(self, lengths: Sequence[int]) -> RowPlan:
        """Plan rows as these options say.

        Raises:
            PlanError: as `plan_rows`.
        """
        return plan_rows(lengths, **self.to_core())


WIRE_MODELS: Final[tuple[type[WireModel], ...]] = (WireCapabilities, WirePackingOptions)


def json_schemas() -> dict[str, dict[str, JsonValue]]:
    """Give the JSON schema of each model, by its name, as JSON Schema 2020-12.

    Example:
        >>> json_schemas()["WirePackingOptions"]["required"]
        ['capacity']
    """
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {model.__name__: {**dialect, **model.model_json_schema()} for model in WIRE_MODELS}


def _problems(model: type[WireModel], error: ValidationError) -> list[Problem]:
    """Tell what pydantic found, field by field."""
    known = f"Known are {', '.join(model.model_fields)}."
    return [
        Problem(
            ".".join(map(str, found["loc"])) or model.__name__,
            _uncapitalized(found["msg"]),
            _KINDS.get(found["type"], "type" if found["type"].endswith("_type") else "value"),
            value=None if found["type"] == "missing" else _shown(found["input"]),
            remedy=_remedy(found["type"], known),
        )
        for found in error.errors(include_url=False)
    ]


def _remedy(found: str, known: str) -> str:
    if found in _KINDS:
        return known
    return _JSON_REMEDY if found.startswith("json") else _VALUE_REMEDY


def _uncapitalized(message: str) -> str:
    return message if message[1:2].isupper() else message[:1].lower() + message[1:]


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
