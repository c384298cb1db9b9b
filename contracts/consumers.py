"""How the author of a model declares what it consumes: structural Protocols, checked by mypy and pyright.

Nothing is inherited. A model is a consumer if it has the attribute, with the right type and value:

    class MyModel(nn.Module):
        packed_mask_type: Literal["document_ids"] = "document_ids"

    _: type[PackedMaskConsumer] = MyModel      # one line, and a misspelling is a type error

The members are read-only properties of precise types. `nn.Module.__getattr__` would satisfy a member of type
`object`, so none has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from typing_extensions import runtime_checkable

from neatpack.contracts.capabilities import PackedMaskType, PositionPolicy, flag_problems, validate_packed_mask_type
from neatpack.contracts.errors import CapabilitiesError, Problem


@runtime_checkable
class PackedMaskConsumer(Protocol):
    """A model that owns its masking, and says in which form it learns the boundaries."""

    @property
    def packed_mask_type(self) -> PackedMaskType:
        """How the model learns who may attend to whom."""
        ...


@runtime_checkable
class PackingMetadataConsumer(Protocol):
    """A model that reads NEAT metadata, to gather tokens or to reset a recurrent state."""

    @property
    def requires_packed_sequence_metadata(self) -> bool:
        """Whether the model reads NEAT metadata."""
        ...


@runtime_checkable
class NativeFA4Consumer(Protocol):
    """A model whose attention layers call FlashAttention-4 themselves."""

    @property
    def uses_native_fa4(self) -> bool:
        """Whether the attention layers call FlashAttention-4."""
        ...


@runtime_checkable
class THDConsumer(Protocol):
    """A model whose attention takes its documents as lengths of one stream: Transformer Engine, Megatron."""

    @property
    def uses_thd(self) -> bool:
        """Whether the attention layers take lengths."""
        ...


@runtime_checkable
class HFAttentionConsumer(Protocol):
    """A model whose attention is dispatched by its Hugging Face config, and not by `backend.attn`."""

    @property
    def uses_hf_attention(self) -> bool:
        """Whether the Hugging Face config rules."""
        ...


@runtime_checkable
class PositionPolicyConsumer(Protocol):
    """A model that says whether text positions have to restart in each document, or may run on over a row."""

    @property
    def position_policy(self) -> PositionPolicy:
        """Where positions restart."""
        ...


@runtime_checkable
class HolesConsumer(Protocol):
    """A model that says whether ids may have holes: zeros inside a document, at tokens that a loader excluded."""

    @property
    def takes_holes(self) -> bool:
        """Whether ids may have holes."""
        ...


@runtime_checkable
class AttentionBackendSelection(Protocol):
    """The `backend` of a built model: which attention it was built with."""

    @property
    def attn(self) -> str:
        """The name of the selected attention."""
        ...


MaskModelT = TypeVar("MaskModelT", bound=type[PackedMaskConsumer])
MetadataModelT = TypeVar("MetadataModelT", bound=type[PackingMetadataConsumer])


def packed_mask_consumer(model: MaskModelT) -> MaskModelT:
    """Class decorator: the type checker rejects the class unless it is a `PackedMaskConsumer`.

    A plain class attribute is checked at run time as well; what a property or `__init__` gives is not known yet.

    Raises:
        CapabilitiesError: the class attribute names no packed mask type.

    Example:
        >>> from typing import Literal
        >>> @packed_mask_consumer
        ... class MyModel:
        ...     packed_mask_type: Literal["document_ids"] = "document_ids"
    """
    _check_class_attribute(model, "packed_mask_type", validate_packed_mask_type)
    return model


def packing_metadata_consumer(model: MetadataModelT) -> MetadataModelT:
    """Class decorator: the type checker rejects the class unless it is a `PackingMetadataConsumer`.

    A plain class attribute is checked at run time as well; what a property or `__init__` gives is not known yet.

    Raises:
        CapabilitiesError: the class attribute is no bool.

    Example:
        >>> @packing_metadata_consumer
        ... class MyModel:
        ...     requires_packed_sequence_metadata: bool = True
    """
    name = "requires_packed_sequence_metadata"
    _check_class_attribute(model, name, partial(flag_problems, name))
    return model


def _check_class_attribute(model: type[object], name: str, validate: Callable[[object], list[Problem]]) -> None:
    """Refuse a str or bool that is wrong; anything else may be a place for what `__init__` sets."""
    value: object = inspect.getattr_static(model, name, None)
    problems = validate(value) if isinstance(value, (str, bool)) else []
    if problems:
        raise CapabilitiesError(*problems)
