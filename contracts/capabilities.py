"""What a model needs from its loader, in both generations of the loader's contract."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, cast, get_args

from typing_extensions import TypeIs, runtime_checkable

from neatpack.contracts.errors import CapabilitiesError, Problem

PackedMaskType = Literal["block_causal", "document_ids", "flash_varlen"]
"""How the model learns who may attend to whom: a 4-D mask, document ids, or flash varlen kwargs."""

PACKED_MASK_TYPES: Final[tuple[PackedMaskType, ...]] = get_args(PackedMaskType)

PositionPolicy = Literal["document", "sequence"]
"""Where text positions restart: in each document, or in each row alone, so that they run on over its documents."""

POSITION_POLICIES: Final[tuple[PositionPolicy, ...]] = get_args(PositionPolicy)


@runtime_checkable
class PackedSequenceContract(Protocol):
    """What a loader is asked to emit, as newer loaders spell it."""

    @property
    def packed_mask_type(self) -> PackedMaskType:
        """How the model learns who may attend to whom."""
        ...

    @property
    def return_packed_sequence_metadata(self) -> bool:
        """Whether the batch must hold NEAT metadata."""
        ...

    @property
    def return_document_ids(self) -> bool:
        """Whether the batch must hold the structural document ids."""
        ...

    @property
    def max_sequence_length(self) -> int | None:
        """The longest row in tokens, or None for no limit."""
        ...


@runtime_checkable
class LegacyPackedSequenceContract(Protocol):
    """What a loader is asked to emit, as NeMo AutoModel 0.5 to 0.7 spell it."""

    @property
    def packed_mask_type(self) -> PackedMaskType:
        """How the model learns who may attend to whom."""
        ...

    @property
    def requires_packed_sequence_metadata(self) -> bool:
        """Whether the batch must hold NEAT metadata."""
        ...


AnyPackedSequenceContract: TypeAlias = PackedSequenceContract | LegacyPackedSequenceContract
"""Either generation; functions that take a contract take both."""


@dataclass(frozen=True)
class PackingCapabilities:
    """What a model needs from its loader. It satisfies both generations of the loader's contract.

    Attributes:
        packed_mask_type: how the model learns who may attend to whom.
        requires_packed_sequence_metadata: whether it reads NEAT metadata (gathered indices and offsets).
        uses_native_fa4: whether its attention calls FlashAttention-4 itself.
        return_document_ids: whether it also reads the structural document ids, before any policy.
        max_sequence_length: the longest row it takes, in tokens; None where it sets no limit.
        position_policy: where text positions restart. With "sequence" those that run on are taken as well; they are for
            models that read no more of positions than how far apart two tokens are.
        takes_holes: whether ids may have holes: zeros inside a document. False with "flash_varlen", whatever was said,
            since offsets over padded rows cannot express one.

    Raises:
        CapabilitiesError: a value is of the wrong type, or no such mask type or policy exists.

    Example:
        >>> PackingCapabilities("document_ids", requires_packed_sequence_metadata=True).return_packed_sequence_metadata
        True
    """

    packed_mask_type: PackedMaskType
    requires_packed_sequence_metadata: bool = False
    uses_native_fa4: bool = False
    return_document_ids: bool = field(default=False, kw_only=True)
    max_sequence_length: int | None = field(default=None, kw_only=True)
    position_policy: PositionPolicy = field(default="document", kw_only=True)
    takes_holes: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        problems = _mask_type_problems(self.packed_mask_type)
        for name in ("requires_packed_sequence_metadata", "uses_native_fa4", "return_document_ids", "takes_holes"):
            problems += flag_problems(name, getattr(self, name))
        problems += _length_problems(self.max_sequence_length) + validate_position_policy(self.position_policy)
        if problems:
            raise CapabilitiesError(*problems)
        if self.packed_mask_type == "flash_varlen":
            object.__setattr__(self, "takes_holes", False)

    @property
    def return_packed_sequence_metadata(self) -> bool:
        """The newer name of `requires_packed_sequence_metadata`."""
        return self.requires_packed_sequence_metadata

    @classmethod
    def from_contract(cls, contract: AnyPackedSequenceContract) -> PackingCapabilities:
        """Read a loader's contract of either generation.

        Raises:
            CapabilitiesError: with everything that keeps `contract` from being one.

        Example:
            >>> from typing import NamedTuple
            >>> class LoaderContract(NamedTuple):
            ...     packed_mask_type: PackedMaskType = "flash_varlen"
            ...     requires_packed_sequence_metadata: bool = False
            >>> PackingCapabilities.from_contract(LoaderContract()).packed_mask_type
            'flash_varlen'
        """
        return parse_packing_capabilities(contract)

    @classmethod
    def combine(cls, stages: Iterable[AnyPackedSequenceContract]) -> PackingCapabilities:
        """Join what the pipeline stages of one model need from the batch that they share.

        Mask types must be equal. Metadata, native FlashAttention-4 and document ids are needed if any stage needs
        them; the shortest of the row limits holds. Positions may run on, and ids have holes, if every stage
        takes such.

        Raises:
            CapabilitiesError: there is no stage, or mask types differ.

        Example:
            >>> plain = PackingCapabilities("document_ids")
            >>> recurrent = PackingCapabilities("document_ids", requires_packed_sequence_metadata=True)
            >>> PackingCapabilities.combine([plain, recurrent]).requires_packed_sequence_metadata
            True
        """
        needs = [cls.from_contract(stage) for stage in stages]
        if not needs:
            raise CapabilitiesError(Problem("stages", "no stage was given", "missing", remedy="Pass at least one."))
        _require_equal_mask_types([need.packed_mask_type for need in needs])
        limits = [need.max_sequence_length for need in needs if need.max_sequence_length is not None]
        return cls(
            needs[0].packed_mask_type,
            any(need.requires_packed_sequence_metadata for need in needs),
            any(need.uses_native_fa4 for need in needs),
            return_document_ids=any(need.return_document_ids for need in needs),
            max_sequence_length=min(limits, default=None),
            position_policy="sequence" if all(need.position_policy == "sequence" for need in needs) else "document",
            takes_holes=all(need.takes_holes for need in needs),
        )


def validate_packed_mask_type(value: object) -> list[Problem]:
    """List what keeps `value` from being a packed mask type.

    Example:
        >>> [(problem.message, problem.value) for problem in validate_packed_mask_type("causal")]
        [('is no packed mask type', "'causal'")]
    """
    return _mask_type_problems(value)


def is_packed_mask_type(value: object) -> TypeIs[PackedMaskType]:
    """Tell whether `value` is one of the packed mask types.

    Example:
        >>> is_packed_mask_type("document_ids"), is_packed_mask_type("document_id")
        (True, False)
    """
    return not _mask_type_problems(value)


def parse_packed_mask_type(value: object) -> PackedMaskType:
    """Return `value` if it is a packed mask type.

    Raises:
        CapabilitiesError: it is not; the mask types are named.

    Example:
        >>> parse_packed_mask_type("document_ids")
        'document_ids'
    """
    problems = _mask_type_problems(value)
    if problems:
        raise CapabilitiesError(*problems)
    return cast("PackedMaskType", value)


def validate_position_policy(value: object) -> list[Problem]:
    """List what keeps `value` from being a position policy.

    Example:
        >>> [problem.value for problem in validate_position_policy("row")]
        ["'row'"]
    """
    if isinstance(value, str) and value in POSITION_POLICIES:
        return []
    known = " or ".join(repr(name) for name in POSITION_POLICIES)
    remedy = f'Declare {known}, for example `position_policy: Literal["sequence"] = "sequence"`.'
    return [Problem("position_policy", "is no position policy", "value", value=repr(value), remedy=remedy)]


def is_position_policy(value: object) -> TypeIs[PositionPolicy]:
    """Tell whether `value` is one of the position policies.

    Example:
        >>> is_position_policy("sequence"), is_position_policy("row")
        (True, False)
    """
    return not validate_position_policy(value)


def parse_position_policy(value: object) -> PositionPolicy:
    """Return `value` if it is a position policy.

    Raises:
        CapabilitiesError: it is not.

    Example:
        >>> parse_position_policy("sequence")
        'sequence'
    """
    problems = validate_position_policy(value)
    if problems:
        raise CapabilitiesError(*problems)
    return cast("PositionPolicy", value)


def validate_packed_sequence_contract(value: object) -> list[Problem]:
    """List what keeps `value` from being a loader's contract of either generation. Values are checked, not names.

    Example:
        >>> [problem.message for problem in validate_packed_sequence_contract(object())]
        ['declares nothing']
    """
    if isinstance(value, type):
        remedy = f"Give an instance, {value.__name__}(...)."
        return [Problem("contract", "is a class", "type", value=value.__name__, remedy=remedy)]
    spellings = ("return_packed_sequence_metadata", "requires_packed_sequence_metadata")
    present = [name for name in spellings if hasattr(value, name)]
    if not present and not hasattr(value, "packed_mask_type"):
        remedy = "Pass what configure_packing returned, or PackingCapabilities(...)."
        return [Problem("contract", "declares nothing", "type", value=type(value).__name__, remedy=remedy)]
    problems = _mask_type_problems(getattr(value, "packed_mask_type", None))
    if not present:
        remedy = f"Declare `{spellings[0]}: bool = False`."
        problems.append(Problem(spellings[0], "missing", "missing", remedy=remedy))
    for name in (*present, "return_document_ids", "uses_native_fa4", "takes_holes"):
        problems += flag_problems(name, getattr(value, name, False))
    told = [flag for name in present if isinstance(flag := getattr(value, name), bool)]
    if len(set(told)) > 1:
        message, remedy = f"contradicts {present[1]}, its older name", "Declare one of the two, or both alike."
        problems.append(Problem(present[0], message, "disagreement", value=told[0], remedy=remedy))
    problems += validate_position_policy(getattr(value, "position_policy", "document"))
    return problems + _length_problems(getattr(value, "max_sequence_length", None))


def is_packed_sequence_contract(value: object) -> TypeIs[AnyPackedSequenceContract]:
    """Tell whether `value` is a loader's contract of either generation, values included.

    Example:
        >>> is_packed_sequence_contract(PackingCapabilities("document_ids")), is_packed_sequence_contract(None)
        (True, False)
    """
    return not validate_packed_sequence_contract(value)


def parse_packed_sequence_contract(value: object) -> AnyPackedSequenceContract:
    """Return `value` if it is a loader's contract of either generation.

    Raises:
        CapabilitiesError: with every problem found.

    Example:
        >>> parse_packed_sequence_contract(PackingCapabilities("document_ids")).packed_mask_type
        'document_ids'
    """
    problems = validate_packed_sequence_contract(value)
    if problems:
        raise CapabilitiesError(*problems)
    return cast("AnyPackedSequenceContract", value)


def validate_packing_capabilities(value: object) -> list[Problem]:
    """List what keeps `value` from being read as `PackingCapabilities`.

    Example:
        >>> validate_packing_capabilities(PackingCapabilities("document_ids"))
        []
    """
    return [] if isinstance(value, PackingCapabilities) else validate_packed_sequence_contract(value)


def is_packing_capabilities(value: object) -> TypeIs[PackingCapabilities]:
    """Tell whether `value` is a `PackingCapabilities`; those are valid from their construction on.

    Example:
        >>> is_packing_capabilities(PackingCapabilities("document_ids"))
        True
    """
    return isinstance(value, PackingCapabilities)


def parse_packing_capabilities(value: object) -> PackingCapabilities:
    """Read capabilities from a `PackingCapabilities` or from a contract of either generation.

    Raises:
        CapabilitiesError: with every problem found.

    Example:
        >>> parse_packing_capabilities(PackingCapabilities("flash_varlen")).packed_mask_type
        'flash_varlen'
    """
    if isinstance(value, PackingCapabilities):
        return value
    contract = parse_packed_sequence_contract(value)
    metadata = getattr(
        contract,
        "return_packed_sequence_metadata",
        getattr(contract, "requires_packed_sequence_metadata", False),
    )
    return PackingCapabilities(
        contract.packed_mask_type,
        metadata,
        getattr(contract, "uses_native_fa4", False),
        return_document_ids=getattr(contract, "return_document_ids", False),
        max_sequence_length=getattr(contract, "max_sequence_length", None),
        position_policy=getattr(contract, "position_policy", "document"),
        takes_holes=getattr(contract, "takes_holes", True),
    )


def _mask_type_problems(value: object) -> list[Problem]:
    if isinstance(value, str) and value in PACKED_MASK_TYPES:
        return []
    known = ", ".join(repr(name) for name in PACKED_MASK_TYPES)
    remedy = f'Declare one of {known}, for example `packed_mask_type: Literal["document_ids"] = "document_ids"`.'
    return [Problem("packed_mask_type", "is no packed mask type", "value", value=repr(value), remedy=remedy)]


def flag_problems(name: str, value: object) -> list[Problem]:
    """List what keeps `value` from being the flag `name` of a declaration: anything but a bool."""
    if isinstance(value, bool):
        return []
    return [Problem(name, "must be a bool", "type", value=repr(value), remedy=f"Declare `{name}: bool = False`.")]


def _length_problems(value: object) -> list[Problem]:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return []
    remedy = "Give the row limit in tokens, or None for no limit."
    return [Problem("max_sequence_length", "must be a positive int or None", "value", value=repr(value), remedy=remedy)]


def _require_equal_mask_types(mask_types: list[PackedMaskType]) -> None:
    stage = next((stage for stage, mask_type in enumerate(mask_types) if mask_type != mask_types[0]), None)
    if stage is not None:
        message = f"stage {stage} takes {mask_types[stage]!r}, but stage 0 takes {mask_types[0]!r}"
        remedy = "All stages of a model share one batch: build them with one attention implementation."
        raise CapabilitiesError(Problem("packed_mask_type", message, "disagreement", remedy=remedy))
