"""Reading one forward call of a bound model: its document ids, and whatever else it says about boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn

from neatpack.adapters.agreement import scan_agreeing
from neatpack.adapters.agreement_of_offsets import check_thd_offsets
from neatpack.adapters.boundary_fields import FLASH_FIELDS, IDS, METADATA_FIELDS, PACKED_SEQ_IDS
from neatpack.adapters.layout import KEEPING_HOLES, require_no_holes
from neatpack.adapters.neat_metadata import document_ids_from_metadata
from neatpack.adapters.segments import Segments
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BoundariesMissingError, EncodingError, Problem
from neatpack.kernels_bridge.models import positional_arguments

ATTENTION_MASK: Final = "attention_mask"
THD_OFFSETS: Final = (
    "cu_seqlens",
    "cu_seqlens_padded",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "cu_seqlens_q_padded",
    "cu_seqlens_kv_padded",
)
"""Offsets of THD, real or padded, as frameworks call them; `cu_seqlens` is one where no token indices came with it."""

_TOKENS: Final = ("input_ids", "inputs_embeds")


@dataclass(frozen=True, eq=False)
class PackedCall:
    """One forward call of a bound model, from which a consumer derives what its attention needs.

    Attributes:
        document_ids: as they came, `[batch, sequence]`.
        segments: what the one scan of them found; functions of `neatpack.adapters` take it in their place.
        structural: the same of the ids as packed, where the call brought them as `document_ids`; positions count these.
        capabilities: what the model was configured to take.
        arguments: the call's other arguments by name, boundaries taken out.
    """

    document_ids: Tensor
    segments: Segments
    structural: Segments
    capabilities: PackingCapabilities
    arguments: Mapping[str, object]


def name_arguments(
    model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Give positional arguments their names, from the first that holds tokens, or could hold boundaries, on.

    The rest stay positional, so that a forward with positional-only or `*args` parameters is called as before.
    """
    names = positional_arguments(model)[: len(args)]
    boundaries = {*_TOKENS, PACKED_SEQ_IDS, ATTENTION_MASK, "position_ids", *FLASH_FIELDS, *METADATA_FIELDS}
    first = next((place for place, name in enumerate(names) if name in boundaries), len(args))
    moved = dict(zip(names[first:], args[first:], strict=False))
    twice = next((name for name in moved if name in kwargs), None)
    if len(args) > len(names) > first or twice is not None:
        field = twice or names[first]
        remedy = "Pass boundaries once, and by keyword."
        raise EncodingError(Problem(field, "was given by position, and not only so", "disagreement", remedy=remedy))
    return args[:first], {**kwargs, **moved}


def read_call(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    capabilities: PackingCapabilities,
) -> PackedCall | None:
    """Read the boundaries of a call and check everything that repeats them.

    Args:
        model: the bound module.
        args: positional arguments, as `name_arguments` leaves them.
        kwargs: keyword arguments.
        capabilities: what the model was configured to take.

    Returns:
        The call; None where it holds no ids of any kind: in eval mode, or where the boundaries come in THD form alone.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole that the model does not take.
        EncodingError: the ids do not fit the tokens, or something else in the call contradicts them.
        BoundariesMissingError: there are no ids, and the model is in training mode; or there are those of a batch that
            was not given its last step.
    """
    given = {name: value for name, value in kwargs.items() if value is not None}
    tokens = _tokens(model, args, given)
    thd = is_thd(given)
    if capabilities.uses_native_fa4 and (thd or given.get("qkv_format") == "thd"):
        message = "native FlashAttention-4 takes no pre-packed THD, nor offsets without packed_token_indices"
        remedy = "Pass batched rows with _packed_seq_ids."
        raise EncodingError(Problem("cu_seqlens", message, "unsupported", remedy=remedy))
    ids = _given_ids(given, tokens)
    if ids is None:
        _require_none_expected(model, given, thd)
        return None
    taken = {PACKED_SEQ_IDS, ATTENTION_MASK, *FLASH_FIELDS, *(METADATA_FIELDS[:1] if thd else METADATA_FIELDS)}
    rest = {name: value for name, value in kwargs.items() if name not in taken}
    _check_tokens(ids, tokens)
    compared = {name: value for name, value in given.items() if name in taken or name not in METADATA_FIELDS}
    scanned = scan_agreeing(ids, compared, field=PACKED_SEQ_IDS, position_policy=capabilities.position_policy)
    if not capabilities.takes_holes:
        require_no_holes(scanned.attention, PACKED_SEQ_IDS, remedy=KEEPING_HOLES)
    offsets = {name: value for name in THD_OFFSETS if isinstance(value := rest.get(name), Tensor)}
    if offsets:
        check_thd_offsets(scanned.attention, offsets)
    return PackedCall(ids, scanned.attention, scanned.structural, capabilities, rest)


def is_thd(given: Mapping[str, object]) -> bool:
    """Tell whether a call's boundaries come as those of one stream of THD, and not as NEAT metadata."""
    return "packed_token_indices" not in given and ("cu_seqlens" in given or given.get("qkv_format") == "thd")


def _given_ids(given: Mapping[str, object], tokens: Mapping[str, Tensor]) -> Tensor | None:
    """Give the ids of a call; NEAT metadata alone holds them as well, flat or not."""
    ids = given.get(PACKED_SEQ_IDS)
    if ids is None and "packed_token_indices" in given:
        indices, offsets = given["packed_token_indices"], given.get("cu_seqlens")
        if not isinstance(indices, Tensor) or not isinstance(offsets, Tensor):
            remedy = "Pass both, or _packed_seq_ids alone."
            message = "must come with packed_token_indices, both as tensors"
            raise EncodingError(Problem("cu_seqlens", message, "missing", remedy=remedy))
        shapes = [(value.shape[0], value.shape[1]) for value in tokens.values() if value.ndim > 1]
        return document_ids_from_metadata(indices, offsets, shapes[0] if shapes and indices.ndim == 1 else None)
    if ids is None or isinstance(ids, Tensor):
        return ids
    remedy = "Pass the batch's ids, int64 [batch, sequence]."
    raise EncodingError(Problem(PACKED_SEQ_IDS, "must be a tensor", "type", value=type(ids).__name__, remedy=remedy))


def _tokens(model: nn.Module, args: tuple[object, ...], given: Mapping[str, object]) -> Mapping[str, Tensor]:
    named = {**dict(zip(positional_arguments(model), args, strict=False)), **given}
    return {name: value for name in _TOKENS if isinstance(value := named.get(name), Tensor)}


def _check_tokens(ids: Tensor, tokens: Mapping[str, Tensor]) -> None:
    for name, value in tokens.items():
        if tuple(value.shape[:2]) != tuple(ids.shape):
            message = f"must be [batch, sequence] like {name}, {tuple(value.shape[:2])}"
            remedy = "Cut and pad ids together with the tokens that they belong to."
            raise EncodingError(Problem(PACKED_SEQ_IDS, message, "shape", value=tuple(ids.shape), remedy=remedy))
        if value.device != ids.device:
            message = f"must lie where {name} lies, on {value.device}"
            remedy = f"Move it: {PACKED_SEQ_IDS}.to(...)."
            raise EncodingError(Problem(PACKED_SEQ_IDS, message, "device", value=ids.device, remedy=remedy))


def _require_none_expected(model: nn.Module, given: Mapping[str, object], thd: bool) -> None:
    """Raise unless a call may do without the ids that a bound model takes."""
    beside = next((name for name in IDS if name in given), None)
    if thd or (beside is None and not model.training):
        return
    message = "missing from a forward in training mode"
    remedy = (
        "Pass the batch's int64 [batch, sequence] ids with every training step, made if need be as by "
        "document_ids_from_positions(...), or run what is not packed inside `with get_binding(model).suspended():`."
    )
    if beside is not None:
        message = f"missing beside {beside}"
        remedy = "Give the batch its last step: apply_packing_contract(batch, contract)."
    raise BoundariesMissingError(Problem(PACKED_SEQ_IDS, message, "missing", remedy=remedy))
