"""Models that misdeclare themselves: each marked line is an error to the type checker named on it.

A line that carries one mark only is one on which the two checkers differ. Both report a mark that is not needed,
so these files also prove what is accepted.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Final, Literal

from neatpack import (
    HFAttentionConsumer,
    HolesConsumer,
    NativeFA4Consumer,
    PackedMaskConsumer,
    PackedMaskType,
    PackingCapabilities,
    PackingMetadataConsumer,
    PositionPolicyConsumer,
    THDConsumer,
    packed_mask_consumer,
    packing_metadata_consumer,
)


class Unannotated:
    packed_mask_type = "document_ids"


class PlainString:
    packed_mask_type: str = "document_ids"


class MisspelledName:
    packed_masktype: PackedMaskType = "document_ids"


class UnknownLiteral:
    packed_mask_type: Literal["document_id"] = "document_id"


class Method:
    def packed_mask_type(self) -> PackedMaskType:
        return "document_ids"


class Missing:
    pass


class OptionalMaskType:
    packed_mask_type: PackedMaskType | None = None


_unannotated: type[PackedMaskConsumer] = Unannotated  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_plain_string: type[PackedMaskConsumer] = PlainString  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_misspelled_name: type[PackedMaskConsumer] = MisspelledName  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_unknown_literal: type[PackedMaskConsumer] = UnknownLiteral  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_method: type[PackedMaskConsumer] = Method  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_missing: type[PackedMaskConsumer] = Missing  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_optional: type[PackedMaskConsumer] = OptionalMaskType  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


class MisspelledValue:
    packed_mask_type: PackedMaskType = "document_id"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


@packed_mask_consumer  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
class DecoratedPlainString:  # type: ignore[type-var]
    packed_mask_type: str = "document_ids"


@packed_mask_consumer  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
class DecoratedMissing:  # type: ignore[type-var]
    pass


@packing_metadata_consumer  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
class DecoratedNumber:  # type: ignore[type-var]
    requires_packed_sequence_metadata: int = 1


class WrongFlags:
    requires_packed_sequence_metadata: str = "yes"
    uses_native_fa4: None = None
    uses_hf_attention: int = 1
    uses_thd: str = "thd"
    position_policy: Literal["row"] = "row"
    takes_holes: int = 0


_metadata: type[PackingMetadataConsumer] = WrongFlags  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_native: type[NativeFA4Consumer] = WrongFlags  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_hf: type[HFAttentionConsumer] = WrongFlags  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_thd: type[THDConsumer] = WrongFlags  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_positions: type[PositionPolicyConsumer] = WrongFlags  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_holes: type[HolesConsumer] = WrongFlags  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


# Accepted by mypy, rejected by pyright: a class-level Final or ClassVar, and a cached property.
class ClassFinal:
    packed_mask_type: Final = "document_ids"


class ClassVariable:
    packed_mask_type: ClassVar[PackedMaskType] = "document_ids"


class Cached:
    @cached_property
    def packed_mask_type(self) -> PackedMaskType:
        return "document_ids"


_class_final: type[PackedMaskConsumer] = ClassFinal  # pyright: ignore[reportAssignmentType]
_class_variable: type[PackedMaskConsumer] = ClassVariable  # pyright: ignore[reportAssignmentType]
_cached: type[PackedMaskConsumer] = Cached  # pyright: ignore[reportAssignmentType]


class NoContract:
    packed_mask_type: PackedMaskType = "document_ids"


def no_capabilities() -> list[PackingCapabilities]:
    return [
        PackingCapabilities("document_id"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        PackingCapabilities.from_contract(NoContract()),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]
