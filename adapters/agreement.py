"""A second encoding of boundaries in one batch or call: checked against the document ids, never merged with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import require_instance, tensor_problems, used_offsets, wrong_offset
from neatpack.adapters.gathered import gathered_flat, gathered_rows
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.segments import INTEGER_DTYPES, Segments, read_together, require_ids_form, scan_array
from neatpack.contracts.capabilities import PositionPolicy, parse_position_policy
from neatpack.contracts.encodings import FLAKwargs, TransformerEngineKwargs, VarlenKernelKwargs
from neatpack.contracts.errors import EncodingError, Problem, ProblemKind

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]

PACKED_SEQ_IDS: Final = "_packed_seq_ids"
ATTENTION_IDS: Final = (PACKED_SEQ_IDS, "attention_document_ids")
IDS: Final = (*ATTENTION_IDS, "document_ids")
"""Where the ids that attention goes by stand, the first that is there: those as packed where there is no policy."""

TOKEN_FIELDS: Final = (*IDS, "seq_idx", "padding_mask", "position_ids", "attention_mask")
FLASH_FIELDS: Final = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
METADATA_FIELDS: Final = ("packed_token_indices", "cu_seqlens", "max_seqlen")
LENGTH_FIELDS: Final = ("seq_lens", "seq_lens_padded")

_KERNEL_FIELDS: Final = frozenset(
    name
    for arguments in (VarlenKernelKwargs, TransformerEngineKwargs, FLAKwargs)
    for name in arguments.__annotations__
    if name.startswith(("cu_seqlens_", "max_seqlen_"))
) | {"cu_seqlens_padded", "packed_seq_params"}
"""Arguments of kernels, whose names do not tell which places they count: they cannot be compared."""

_DENSE_DTYPES: Final = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_UNCLEAR: Final = "is neither 0, which allows, nor -inf or about the dtype's lowest number, which blocks"
_MASKS: Final = ("padding_mask", "attention_mask")
_COUNTS: Final = ("max_length_q", "max_length_k", "max_seqlen")
_RESTART_REMEDY: Final = (
    "Leave positions out, or build them of the ids as packed: build_position_ids(document_ids). A model that reads of "
    'them only how far apart tokens are may declare position_policy = "sequence".'
)
_REMEDY: Final = "Boundaries come from the document ids alone: leave this out, or derive both from the same ids."


@dataclass(frozen=True)
class ScannedIds:
    """The ids of a batch, scanned: those that attention goes by, and those as packed, which may be the same."""

    attention: Segments
    structural: Segments


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
        EncodingError: an entry contradicts the ids, half of an encoding is missing, or `given` is no mapping.
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
    document_ids: Tensor, given: Mapping[str, object], *, field: str, position_policy: PositionPolicy
) -> ScannedIds:
    """Check as `check_agreement` does, and give the structural ids in `given` as well, from the same read.

    Raises:
        DocumentIdsError: ids are malformed.
        EncodingError: an entry contradicts the ids, or half of an encoding is missing.
    """
    require_ids_form(document_ids, field)
    require_instance(given, Mapping, "given", "Give entries of a batch, or arguments of a call, by name.")
    tensors = _readable(document_ids, given)
    ids, *others = read_together(document_ids, *tensors.values())
    segments = scan_array(ids, document_ids.device, field)
    arrays = dict(zip(tensors, others, strict=True))
    if given.get("document_ids") is document_ids:
        arrays["document_ids"] = ids
    host = replace(segments, device=torch.device("cpu"))
    structural = _check_structure(host, ids, arrays)
    _check_positions(host, ids, arrays)
    if position_policy == "document" and "position_ids" in arrays:
        require_restarts(host, arrays["position_ids"])
    for name in ATTENTION_IDS:
        if name in arrays:
            _check_ids(name, ids, arrays[name])
    _check_segment_index(host, ids, arrays)
    _check_mask(segments, ids, given.get("attention_mask"), arrays)
    _check_flash(host, given, arrays)
    _check_metadata(host, given, arrays)
    _check_lengths(host, arrays)
    return ScannedIds(segments, segments if structural is None else replace(structural, device=segments.device))


def refuse_kernel_fields(given: Mapping[str, object]) -> None:
    """Raise where a batch holds arguments of kernels, which cannot be compared with its ids.

    Raises:
        EncodingError: with every such argument.
    """
    message = "is an argument of kernels, whose name does not tell which places it counts"
    remedy = "Leave it out, and derive it from the ids where the kernel is called."
    problems = [
        Problem(name, message, "unsupported", remedy=remedy)
        for name, value in given.items()
        if name in _KERNEL_FIELDS and value is not None
    ]
    if problems:
        raise EncodingError(*problems)


def require_restarts(segments: Segments, positions: Array) -> None:
    """Refuse text positions that go on rising from one document of a row to the next, which not every model takes.

    Args:
        segments: of the ids that attention goes by, or of those as packed.
        positions: integers `[batch, sequence]` or `[1, sequence]`; on several axes they are not looked at.

    Raises:
        EncodingError: positions do not restart.
    """
    if positions.ndim != 2:
        return
    values = np.broadcast_to(positions, (segments.batch, segments.sequence)).ravel()
    documents = segments.documents
    later = np.flatnonzero(documents.ranks)
    lasts, firsts = documents.ends[later - 1] - 1, documents.starts[later]
    risen = values[firsts] > values[lasts]
    if not risen.any():
        return
    # Where policy took the first tokens of a document out, its positions restart at one of those.
    breaks = np.append(True, np.diff(values.astype(np.int64)) != 1)
    origins = np.maximum.accumulate(np.where(breaks, np.arange(values.size), 0))[firsts]
    wrong = firsts[risen & ((origins <= lasts) | (values[origins] > values[lasts]))]
    if wrong.size:
        row, position = divmod(int(wrong[0]), segments.sequence)
        message, value = "does not restart with the document that begins here", values[wrong[0]].item()
        raise EncodingError(Problem("position_ids", message, "disagreement", row, position, value, _RESTART_REMEDY))


def _readable(document_ids: Tensor, given: Mapping[str, object]) -> dict[str, Tensor]:
    """Give the tensors to compare, having checked what can be told without reading them."""
    tensors: dict[str, Tensor] = {}
    for name in (*TOKEN_FIELDS, *FLASH_FIELDS, *METADATA_FIELDS, *LENGTH_FIELDS):
        value = given.get(name)
        dense = name == "attention_mask" and isinstance(value, Tensor) and value.ndim == 4
        if value is None or value is document_ids or name in _COUNTS or dense:
            continue
        problems = tensor_problems(value, name)
        if problems or not isinstance(value, Tensor):
            raise EncodingError(*problems)
        if value.dtype not in INTEGER_DTYPES and not (value.dtype == torch.bool and name in _MASKS):
            raise _error(name, "must hold integers", "dtype", value.dtype)
        if name not in TOKEN_FIELDS and value.dtype not in (torch.int32, torch.int64):
            raise _error(name, "must be int32 or int64", "dtype", value.dtype)
        if value.device != document_ids.device:
            raise _error(name, f"must lie where the document ids lie, on {document_ids.device}", "device", value.device)
        _check_shape(name, tuple(value.shape), tuple(document_ids.shape))
        tensors[name] = value
    return tensors


def _check_shape(name: str, shape: tuple[int, ...], places: tuple[int, ...]) -> None:
    if name == "position_ids":
        fits = shape[-1:] == places[-1:] and (
            shape[-2:] == places if len(shape) == 3 else shape in (places, (1, *places[1:]))
        )
    elif name in TOKEN_FIELDS:
        fits = shape == places
    elif name in LENGTH_FIELDS:
        fits = len(shape) == 2 and shape[0] == places[0]
    else:
        fits = len(shape) == 1 or (name in METADATA_FIELDS and len(shape) == 2 and shape[0] == places[0])
    if not fits:
        raise _error(name, f"does not fit document ids of shape {places}", "shape", shape)


def _check_structure(segments: Segments, ids: Array, arrays: Arrays) -> Segments | None:
    """Compare the ids as packed and the padding mask. Policy may exclude tokens and join documents, no more."""
    structural, padding = arrays.get("document_ids"), arrays.get("padding_mask")
    scanned = segments if structural is ids else None
    if structural is not None and scanned is None:
        scanned = scan_array(structural, segments.device, "document_ids")
        _raise_first("document_ids", (structural == 0) & (ids != 0), structural, "padding that attention sees")
        same = _same_as_before(structural, ids != 0)
        _raise_first(
            "document_ids", same & ~_same_as_before(ids, ids != 0), structural, "a document that attention splits"
        )
    if padding is not None:
        wrong = (padding != 0) & (ids != 0) if structural is None else (padding != 0) != (structural == 0)
        _raise_first("padding_mask", wrong, padding, "marks other places than those of document id 0")
    return scanned


def _check_positions(segments: Segments, ids: Array, arrays: Arrays) -> None:
    """Text positions contradict the ids where they restart inside a document; none that a token has is negative."""
    positions = arrays.get("position_ids")
    if positions is None or positions.ndim != 2:
        return
    positions = np.broadcast_to(positions, ids.shape)
    _raise_first("position_ids", (positions < 0) & (ids != 0), positions, "negative position of a token")
    values = positions.ravel()
    falls = np.zeros(ids.size, np.bool_)
    np.less_equal(values[1:], values[:-1], out=falls[1:])
    falls[segments.bounds[:-1]] = False
    # After a hole a document goes on, and its positions with it.
    again = np.flatnonzero(segments.owners[1:] == segments.owners[:-1])
    lasts, starts = segments.bounds[segments.kept[again] + 1] - 1, segments.bounds[segments.kept[again + 1]]
    falls[starts] = values[starts] <= values[lasts]
    wrong = np.reshape(falls, ids.shape) & (ids != 0)
    _raise_first("position_ids", wrong, positions, "restarts inside a document")


def _check_mask(segments: Segments, ids: Array, given: object, arrays: Arrays) -> None:
    """Compare a 2-D mask, plain or of ids, or a 4-D one at the rows of real tokens: at padding conventions differ."""
    name = "attention_mask"
    if isinstance(given, Tensor) and given.ndim == 4:
        _check_dense_mask(segments, ids, given)
    mask = arrays.get(name)
    if mask is None:
        return
    if mask.dtype == np.bool_ or mask.max() <= 1:
        wrong = (mask != 0) != (ids != 0)
        for hole in segments.holes.tolist():
            wrong.ravel()[segments.bounds[hole] : segments.bounds[hole + 1]] = False
        _raise_first(name, wrong | (mask < 0), mask, "marks other tokens than the ids keep")
    else:
        _check_ids(name, ids, mask)


def _check_ids(name: str, ids: Array, other: Array) -> None:
    """Compare two sets of ids: the same tokens, cut at the same places, under whatever numbers."""
    scan_array(other, torch.device("cpu"), name)
    kept = ids != 0
    wrong = ((other != 0) != kept) | (_same_as_before(other, kept) != _same_as_before(ids, kept))
    _raise_first(name, wrong, other, "marks other documents than the ids")


def _check_segment_index(segments: Segments, ids: Array, arrays: Arrays) -> None:
    """Compare segment numbers at the tokens, and with what stands before a document: at padding conventions differ."""
    numbers, kept = arrays.get("seq_idx"), ids != 0
    if numbers is None:
        return
    wrong = (kept & (numbers < 0)) | (_same_as_before(numbers, kept) != _same_as_before(ids, kept))
    rows, starts = segments.documents.rows, segments.documents.starts
    after = starts[starts % segments.sequence > 0]
    # State would run from padding into the document that follows it.
    wrong.ravel()[after] |= numbers.ravel()[after] == numbers.ravel()[after - 1]
    _raise_first("seq_idx", wrong, numbers, "marks other documents than the ids")
    carried = numbers.ravel()[starts]
    order = np.lexsort((carried, rows))
    again = (np.diff(rows[order]) == 0) & (carried[order][1:] == carried[order][:-1])
    wrong.ravel()[starts[order[1:][again]]] = True
    _raise_first("seq_idx", wrong, numbers, "comes back after another document")


def _check_dense_mask(segments: Segments, ids: Array, mask: Tensor) -> None:
    _require_dense_form(segments, mask)
    additive = mask.is_floating_point()
    seen, hidden = (mask == 0, mask <= torch.finfo(mask.dtype).min / 2) if additive else (mask, ~mask)
    unclear = ~(seen | hidden)
    kept = segments.tensor(ids != 0)[:, None, :, None]
    wrong = ((seen != build_block_causal_mask(segments)) & kept) | unclear
    queries = wrong.any(-1).squeeze(1).cpu().numpy()
    if queries.any():
        row, position = (int(axis[0]) for axis in np.nonzero(queries))
        key = int(wrong[row, 0, position].int().argmax())
        message = _UNCLEAR if unclear[row, 0, position, key] else "shows or hides other tokens than the document so far"
        value = mask[row, 0, position, key].item()
        raise _error("attention_mask", f"{message}, first at key {key}", "disagreement", value, row, position)


def _require_dense_form(segments: Segments, mask: Tensor) -> None:
    name = "attention_mask"
    problems = tensor_problems(mask, name)
    if problems:
        raise EncodingError(*problems)
    shape = (segments.batch, 1, segments.sequence, segments.sequence)
    if tuple(mask.shape) != shape or mask.device != segments.device:
        message = f"must be {shape} on {segments.device} for these ids"
        raise _error(name, message, "shape", (tuple(mask.shape), mask.device))
    if mask.dtype not in _DENSE_DTYPES:
        message = "must be bool, True where attention is allowed, or floating, to be added to scores"
        raise _error(name, message, "dtype", mask.dtype)


def _check_flash(segments: Segments, given: Mapping[str, object], arrays: Arrays) -> None:
    """Each document must be a segment of its own; how padding is cut is the loader's choice."""
    if not _is_given(given, FLASH_FIELDS):
        return
    _require_all(given, FLASH_FIELDS)
    _refuse_holes("cu_seq_lens_q", segments)
    documents, places = segments.documents, segments.batch * segments.sequence
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        offsets = arrays[name]
        position = wrong_offset(offsets, places)
        if position is not None:
            message, value = f"must rise from 0 to batch * sequence = {places}", next(iter(offsets[position:]), None)
            raise _error(name, message, "disagreement", value, position=position)
        cuts = np.unique(offsets)
        before = np.searchsorted(cuts, documents.starts, side="right")
        wrong = np.zeros(places, np.bool_)
        wrong[documents.starts] = (cuts[before - 1] != documents.starts) | (cuts[before] != documents.ends)
        wrong = np.reshape(wrong, (segments.batch, segments.sequence))
        _raise_first(name, wrong, None, "has no segment that is exactly the document that begins here")
    if not np.array_equal(arrays["cu_seq_lens_q"], arrays["cu_seq_lens_k"]):
        raise _error("cu_seq_lens_k", "differs from cu_seq_lens_q", "disagreement")
    for name in ("max_length_q", "max_length_k"):
        _check_longest(name, given[name], int(np.diff(arrays["cu_seq_lens_" + name[-1]]).max()))


def _check_metadata(segments: Segments, given: Mapping[str, object], arrays: Arrays) -> None:
    if not _is_given(given, METADATA_FIELDS):
        return
    _require_all(given, METADATA_FIELDS[:2])
    indices, offsets = arrays["packed_token_indices"], arrays["cu_seqlens"]
    if indices.ndim != offsets.ndim:
        raise _error("cu_seqlens", "must be batch-major or flat as packed_token_indices are", "shape", offsets.shape)
    if indices.ndim == 1:
        flat = gathered_flat(segments)
        expected, bounds = flat.token_indices.numpy(), [flat.cu_seqlens.numpy()]
    else:
        rows = gathered_rows(segments)
        expected, bounds = rows.packed_token_indices.numpy(), list(rows.cu_seqlens.numpy())
    name, message = "packed_token_indices", "names other tokens than the ids keep"
    if indices.shape != expected.shape:
        raise _error(name, message, "shape", indices.shape)
    _raise_first(name, np.maximum(indices, -1) != expected, indices, message)
    for row, (found, wanted) in enumerate(zip(np.atleast_2d(offsets), bounds, strict=True)):
        used = used_offsets(found)
        if used is None or not np.array_equal(np.unique(used), wanted[wanted >= 0]):
            message = "cuts the kept tokens elsewhere than the ids do"
            raise _error("cu_seqlens", message, "disagreement", found.tolist(), row)
    if given.get("max_seqlen") is not None:
        _check_longest("max_seqlen", given["max_seqlen"], segments.documents.longest)


def _check_lengths(segments: Segments, arrays: Arrays) -> None:
    """Compare THD lengths: the real ones with the documents, the padded ones with where those begin and end."""
    given = [name for name in LENGTH_FIELDS if name in arrays]
    if given:
        _refuse_holes(given[0], segments)
    documents = segments.documents
    heads = np.cumsum(documents.counts) - documents.counts
    for name in given:
        for row, lengths in enumerate(arrays[name]):
            these = slice(heads[row], heads[row] + documents.counts[row])
            starts, ends = (at[these] - row * segments.sequence for at in (documents.starts, documents.ends))
            found = lengths[lengths > 0]
            stops = np.cumsum(found)
            real = name == "seq_lens" and np.array_equal(found, ends - starts)
            padded = name == "seq_lens_padded" and np.array_equal(stops - found, starts)
            if not real and not (padded and (stops >= ends).all() and (stops <= segments.sequence).all()):
                raise _error(name, "counts other documents than the ids do", "disagreement", lengths.tolist(), row)
    if len(given) > 1:
        _require_pairs(*(arrays[name] for name in given))


def _require_pairs(real: Array, padded: Array) -> None:
    """Raise where a document does not have the same column in both lengths: consumers pair them by it."""
    name, message = "seq_lens_padded", "does not count each document in the column in which seq_lens does"
    if real.shape != padded.shape:
        raise _error(name, message, "shape", padded.shape)
    wrong = np.flatnonzero(((real > 0) != (padded > 0)).any(axis=1))
    if wrong.size:
        row = int(wrong[0])
        raise _error(name, message, "disagreement", padded[row].tolist(), row)


def _refuse_holes(name: str, segments: Segments) -> None:
    if segments.holes.size:
        row, position = segments.locate(int(segments.holes[0]))
        raise _error(name, "cannot express the hole in a document here", "disagreement", None, row, position)


def _same_as_before(ids: Array, kept: Array) -> npt.NDArray[np.bool_]:
    """Mark the kept tokens whose id is that of the kept token before them in their row."""
    tokens = np.flatnonzero(kept.ravel())
    values, rows = ids.ravel()[tokens], tokens // ids.shape[1]
    same = np.zeros(ids.size, np.bool_)
    same[tokens[1:]] = (values[1:] == values[:-1]) & (rows[1:] == rows[:-1])
    return np.reshape(same, ids.shape)


def _check_longest(name: str, value: object, longest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < longest:
        raise _error(name, f"must be a Python int of at least {longest}, the longest segment", "disagreement", value)


def _is_given(given: Mapping[str, object], names: tuple[str, ...]) -> bool:
    return any(given.get(name) is not None for name in names)


def _require_all(given: Mapping[str, object], names: tuple[str, ...]) -> None:
    for name in names:
        if given.get(name) is None:
            raise _error(name, f"is missing: {', '.join(names)} come together", "missing")


def _raise_first(name: str, wrong: npt.NDArray[np.bool_], values: Array | None, message: str) -> None:
    """Raise at the first place of rows or of one stream that is wrong, if there is one."""
    if wrong.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        *row, position = place
        value = None if values is None else values[place].item()
        raise _error(name, message, "disagreement", value, row[0] if row else None, position)


def _error(
    name: str,
    message: str,
    kind: ProblemKind,
    value: object = None,
    row: int | None = None,
    position: int | None = None,
) -> EncodingError:
    return EncodingError(Problem(name, message, kind, row, position, value, _REMEDY))
