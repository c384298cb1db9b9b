"""A second encoding of boundaries in one batch or call: checked against the document ids, never merged with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from neatpack.adapters.agreement_of_offsets import check_flash, check_lengths, check_metadata
from neatpack.adapters.agreement_per_token import (
    check_ids,
    check_mask,
    check_positions,
    check_segment_index,
    check_structure,
    require_restarts,
)
from neatpack.adapters.arguments import INTEGER_DTYPES, require_instance, tensor_problems
from neatpack.adapters.batch_entries import batch_shape, entries, given_ids, refuse_kernel_fields
from neatpack.adapters.boundary_fields import (
    ATTENTION_IDS,
    FLASH_FIELDS,
    IDS,
    LENGTH_FIELDS,
    METADATA_FIELDS,
    TOKEN_FIELDS,
)
from neatpack.adapters.disagreement import Array, disagreement
from neatpack.adapters.host_arrays import read_together
from neatpack.adapters.segments import Segments, require_ids_form, scan_array
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PositionPolicy, parse_position_policy
from neatpack.contracts.errors import BatchError, EncodingError, Problem

_MASKS: Final = ("padding_mask", "attention_mask")
_COUNTS: Final = ("max_length_q", "max_length_k", "max_seqlen")


@dataclass(frozen=True)
class ScannedIds:
    """The ids of a batch, scanned.

    Attributes:
        attention: those that attention goes by.
        structural: those as packed, or the same where a batch has no others.
        tokens: `[batch, sequence]`, 0 where no token stands, by the ids as packed or else by the padding mask; None
            where a batch has neither.
    """

    attention: Segments
    structural: Segments
    tokens: Array | None

    @cached_property
    def packed(self) -> Segments:
        """Those as packed; where a batch has no others, those of attention, which end where padding begins."""
        return _cut_at_padding(self) if self.structural is self.attention else self.structural


def check_agreement(
    document_ids: Tensor,
    given: Mapping[str, object],
    *,
    field: str = "document_ids",
    position_policy: PositionPolicy = "document",
) -> Segments:
    """Scan the ids that attention goes by, and check everything beside them that speaks of boundaries.

    All is read from its device together, in one read; a dense 4-D mask takes one more.

    Args:
        document_ids: the attention ids, any integer dtype, `[batch, sequence]`.
        given: entries of a batch, or arguments of a call, by name. These are checked where present and not None:
            `document_ids` (the structural ids), `_packed_seq_ids` and `attention_document_ids` (the attention ids
            again), `seq_idx`, `padding_mask`, `position_ids`, `attention_mask`, flash varlen kwargs, NEAT metadata,
            and the lengths of THD. Positions of several axes are checked for shape alone, and a maximum may be an
            upper bound. An additive mask holds 0 where attention is allowed, and -inf or about the lowest number of
            its dtype elsewhere: of biases it does not tell who sees whom, so they are refused. Arguments of kernels,
            such as `cu_seqlens_q`, do not tell which places they count, and are refused.
        field: what errors call `document_ids`.
        position_policy: what the model declares: "document" where text positions have to restart in each document, at
            whatever number; "sequence" where they may run on as well.

    Returns:
        The scanned attention ids.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: an entry contradicts the ids, a part of NEAT metadata or of flash varlen kwargs is missing, or
            `given` is no mapping.
        CapabilitiesError: no such `position_policy`.

    Example:
        >>> ids = torch.tensor([[1, 1, 2, 2]])
        >>> check_agreement(ids, {"position_ids": torch.tensor([[0, 1, 0, 1]])}).ids
        array([1, 2])
        >>> check_agreement(ids, {"position_ids": torch.tensor([[0, 1, 0, 0]])})
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.EncodingError: position_ids[row 0, position 3] = 0: restarts inside a document. \
Boundaries come from the document ids alone: leave this out, or derive both from the same ids.
    """
    policy = parse_position_policy(position_policy)
    scanned = scan_agreeing(document_ids, given, field=field, position_policy=policy)
    refuse_kernel_fields(given)
    return scanned.attention


def scan_agreeing(
    document_ids: Tensor,
    given: Mapping[str, object],
    *,
    field: str,
    position_policy: PositionPolicy,
    may_exclude: bool = False,
) -> ScannedIds:
    """Check as `check_agreement` does, and give the structural ids in `given` as well, from the same read.

    With `may_exclude`, `document_ids` are those as packed, of which the attention ids in `given` may lack tokens.

    Raises:
        DocumentIdsError: ids are malformed.
        EncodingError: an entry contradicts the ids, or half of an encoding is missing.
    """
    require_ids_form(document_ids, field)
    require_instance(given, Mapping, "given", "Give entries of a batch, or arguments of a call, by name.")
    tensors = _readable(document_ids, given)
    ids, *others = read_together(document_ids, *tensors.values(), field=field)
    segments = scan_array(ids, document_ids.device, field)
    arrays = dict(zip(tensors, others, strict=True))
    if given.get("document_ids") is document_ids:
        arrays["document_ids"] = ids
    host = replace(segments, device=torch.device("cpu"))
    structural = check_structure(host, ids, arrays)
    check_positions(host, ids, arrays)
    if position_policy == "document" and "position_ids" in arrays:
        require_restarts(host, arrays["position_ids"])
    for name in ATTENTION_IDS:
        if name in arrays:
            kept = np.where(arrays[name] != 0, ids, 0) if may_exclude else ids
            check_ids(name, kept, arrays[name])
    check_segment_index(host, ids, arrays)
    check_mask(segments, ids, given.get("attention_mask"), arrays)
    check_flash(host, given, arrays)
    check_metadata(host, given, arrays)
    check_lengths(host, arrays)
    structural = segments if structural is None else replace(structural, device=segments.device)
    return ScannedIds(segments, structural, _tokens(arrays))


def scan_batch(batch: TrainingBatch[Tensor], *others: str) -> tuple[ScannedIds, str]:
    """Scan the ids of a batch, and check its padding mask, positions and entries of other names against them.

    Returns:
        The scanned ids, and the name of those that attention goes by.

    Raises:
        BatchError: it has no ids, or they have not the shape of the tokens.
        DocumentIdsError: ids are malformed.
        EncodingError: an entry contradicts them.
    """
    shape = batch_shape(batch)
    field, ids = next(iter(given_ids(batch, IDS).items()))
    if tuple(ids.shape) != shape:
        message = f"must have the shape of input_ids, {shape}"
        remedy = "Cut and pad ids together with the tokens that they belong to."
        raise BatchError(Problem(field, message, "shape", value=tuple(ids.shape), remedy=remedy))
    given = {name: entries(batch).get(name) for name in (*IDS, "padding_mask", "position_ids", *others)}
    return scan_agreeing(ids, given, field=field, position_policy="sequence"), field


def _cut_at_padding(scanned: ScannedIds) -> Segments:
    """Give ids for those as packed, which are not there: of what the attention ids join, padding separates documents.

    A hole separates none.
    """
    segments = scanned.attention
    if scanned.tokens is None or not segments.holes.size:
        return segments
    is_padding = scanned.tokens.ravel()[segments.bounds[segments.holes]] == 0
    cuts = np.zeros(segments.ids.size, np.int64)
    cuts[segments.holes[is_padding]] = 1
    numbers = np.zeros_like(segments.ids)
    numbers[segments.kept] = segments.owners + 1 + np.cumsum(cuts)[segments.kept]
    return replace(segments, ids=numbers)


def _tokens(arrays: Mapping[str, Array]) -> Array | None:
    if "document_ids" in arrays:
        return arrays["document_ids"]
    return arrays["padding_mask"] == 0 if "padding_mask" in arrays else None


def _readable(document_ids: Tensor, given: Mapping[str, object]) -> dict[str, Tensor]:
    """Give the tensors to compare, having checked what can be told without reading them."""
    tensors: dict[str, Tensor] = {}
    for name in (*TOKEN_FIELDS, *FLASH_FIELDS, *METADATA_FIELDS, *LENGTH_FIELDS):
        value = given.get(name)
        dense = name == "attention_mask" and isinstance(value, Tensor) and value.ndim == 4
        are_ids = value is document_ids and name in (*IDS, "attention_mask")
        if value is None or are_ids or name in _COUNTS or dense:
            continue
        problems = tensor_problems(value, name)
        if problems or not isinstance(value, Tensor):
            raise EncodingError(*problems)
        if value.dtype not in INTEGER_DTYPES and not (value.dtype == torch.bool and name in _MASKS):
            raise disagreement(name, "must hold integers", "dtype", value.dtype)
        if name not in TOKEN_FIELDS and value.dtype not in (torch.int32, torch.int64):
            raise disagreement(name, "must be int32 or int64", "dtype", value.dtype)
        if value.device != document_ids.device:
            message = f"must lie where the document ids lie, on {document_ids.device}"
            raise disagreement(name, message, "device", value.device)
        _check_shape(name, tuple(value.shape), tuple(document_ids.shape))
        tensors[name] = value
    return tensors


def _check_shape(name: str, shape: tuple[int, ...], places: tuple[int, ...]) -> None:
    if name == "position_ids":
        fits = shape[-2:] == places if len(shape) == 3 else shape in (places, (1, *places[1:]))
    elif name in TOKEN_FIELDS:
        fits = shape == places
    elif name in LENGTH_FIELDS:
        fits = len(shape) == 2 and shape[0] == places[0]
    else:
        fits = len(shape) == 1 or (name in METADATA_FIELDS and len(shape) == 2 and shape[0] == places[0])
    if not fits:
        raise disagreement(name, f"does not fit document ids of shape {places}", "shape", shape)
