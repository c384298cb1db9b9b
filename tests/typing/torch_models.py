"""`nn.Module` answers for every attribute; a model must be rejected all the same when it declares nothing."""

from __future__ import annotations

from typing import Literal

from torch import nn

from neatpack import PackedMaskConsumer, PackingMetadataConsumer, packed_mask_consumer, packing_metadata_consumer


class Declared(nn.Module):
    packed_mask_type: Literal["document_ids"] = "document_ids"


@packing_metadata_consumer
@packed_mask_consumer
class DeclaredInInit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed_mask_type: Literal["flash_varlen"] = "flash_varlen"
        self.requires_packed_sequence_metadata = False


_declared: type[PackedMaskConsumer] = Declared


class Undeclared(nn.Module):
    packed_masktype: Literal["document_ids"] = "document_ids"


_undeclared: type[PackedMaskConsumer] = Undeclared  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_undeclared_metadata: type[PackingMetadataConsumer] = Undeclared  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
_any_module: PackedMaskConsumer = nn.Linear(1, 1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


@packed_mask_consumer  # pyright: ignore[reportArgumentType, reportUntypedClassDecorator]
class Decorated(nn.Module):  # type: ignore[type-var]
    pass
