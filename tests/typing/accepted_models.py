"""Every way to declare `packed_mask_type` that both type checkers take. The first one is what the docs show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from neatpack import (
    AttentionBackendSelection,
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


class DeclaredLiteral:
    packed_mask_type: Literal["document_ids"] = "document_ids"


class DeclaredMaskType:
    packed_mask_type: PackedMaskType = "document_ids"


class SetInInit:
    def __init__(self) -> None:
        self.packed_mask_type: PackedMaskType = "flash_varlen"


class LiteralSetInInit:
    def __init__(self) -> None:
        self.packed_mask_type: Literal["flash_varlen"] = "flash_varlen"


class FinalInInit:
    def __init__(self) -> None:
        self.packed_mask_type: Final = "block_causal"


class Computed:
    @property
    def packed_mask_type(self) -> PackedMaskType:
        return "document_ids"


@dataclass(frozen=True)
class FrozenDataclass:
    packed_mask_type: PackedMaskType = "document_ids"


class Tuple(NamedTuple):
    packed_mask_type: PackedMaskType = "document_ids"


_literal: type[PackedMaskConsumer] = DeclaredLiteral
_mask_type: type[PackedMaskConsumer] = DeclaredMaskType
_in_init: type[PackedMaskConsumer] = SetInInit
_literal_in_init: type[PackedMaskConsumer] = LiteralSetInInit
_final_in_init: type[PackedMaskConsumer] = FinalInInit
_computed: type[PackedMaskConsumer] = Computed
_frozen: type[PackedMaskConsumer] = FrozenDataclass
_tuple: type[PackedMaskConsumer] = Tuple


@packed_mask_consumer
class Decorated:
    packed_mask_type: Literal["document_ids"] = "document_ids"
    width: int = 8


@packing_metadata_consumer
@packed_mask_consumer
class DecoratedTwice:
    requires_packed_sequence_metadata: bool = True

    def __init__(self) -> None:
        self.packed_mask_type: PackedMaskType = "document_ids"


# The decorator keeps the class's own type.
_width: int = Decorated().width


class Backend:
    attn: str = "te"


class EveryDeclaration:
    packed_mask_type: Literal["flash_varlen"] = "flash_varlen"
    requires_packed_sequence_metadata: bool = False
    uses_native_fa4: bool = False
    uses_hf_attention: bool = True
    uses_thd: bool = False
    position_policy: Literal["sequence"] = "sequence"
    takes_holes: bool = False


_metadata: type[PackingMetadataConsumer] = EveryDeclaration
_native: type[NativeFA4Consumer] = EveryDeclaration
_hf: type[HFAttentionConsumer] = EveryDeclaration
_thd: type[THDConsumer] = EveryDeclaration
_positions: type[PositionPolicyConsumer] = EveryDeclaration
_holes: type[HolesConsumer] = EveryDeclaration
_backend: type[AttentionBackendSelection] = Backend


class OlderContract(NamedTuple):
    packed_mask_type: PackedMaskType
    requires_packed_sequence_metadata: bool


class NewerContract(NamedTuple):
    packed_mask_type: PackedMaskType
    return_packed_sequence_metadata: bool
    return_document_ids: bool
    max_sequence_length: int | None


# A loader's contract of either generation is taken, and so is this package's own.
CONTRACTS = [
    PackingCapabilities.from_contract(OlderContract("document_ids", True)),
    PackingCapabilities.from_contract(NewerContract("document_ids", True, False, None)),
    PackingCapabilities.from_contract(PackingCapabilities("document_ids")),
]
