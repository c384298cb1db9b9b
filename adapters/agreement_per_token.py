"""Encodings with an entry per token, held against the document ids: other ids, segment numbers, positions, masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import tensor_problems
from neatpack.adapters.disagreement import Array, disagreement, raise_first
from neatpack.adapters.masks import MASK_DTYPES, build_block_causal_mask
from neatpack.adapters.segments import Segments, scan_array
from neatpack.contracts.errors import EncodingError, Problem

_UNCLEAR: Final = "is neither 0, which allows, nor -inf or about the dtype's lowest number, which blocks"
_RESTART_REMEDY: Final = (
    "Leave positions out, or build them of the ids as packed: build_position_ids(document_ids). A model that reads of "
    'them only how far apart tokens are may declare position_policy = "sequence".'
)


def require_restarts(segments: Segments, positions: Array, remedy: str = _RESTART_REMEDY) -> None:
    """Refuse text positions that go on rising from one document of a row to the next, which not every model takes.

    Args:
        segments: of the ids that attention goes by, or of those as packed.
        positions: integers `[batch, sequence]` or `[1, sequence]`; on several axes they are not looked at.
        remedy: the way out.

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
        raise EncodingError(Problem("position_ids", message, "disagreement", row, position, value, remedy))


def require_policy(attention: Segments, structural: Segments) -> None:
    """Refuse ids as packed of which no policy makes these attention ids: it excludes tokens and joins documents.

    Args:
        attention: the ids that attention goes by.
        structural: those as packed, in the same shape.

    Raises:
        EncodingError: attention sees padding, or splits a document.
    """
    starts = np.union1d(attention.bounds, structural.bounds)[:-1]
    seen, packed = (of.ids[np.searchsorted(of.bounds, starts, side="right") - 1] for of in (attention, structural))
    kept = np.flatnonzero(seen)
    before, after = kept[:-1], kept[1:]
    same = (packed[before] == packed[after]) & (
        starts[before] // attention.sequence == starts[after] // attention.sequence
    )
    faults = {
        "padding that attention sees": kept[packed[kept] == 0],
        "a document that attention splits": after[same & (seen[before] != seen[after])],
    }
    for message, wrong in faults.items():
        if wrong.size:
            row, position = divmod(int(starts[wrong[0]]), attention.sequence)
            raise disagreement("document_ids", message, "disagreement", int(packed[wrong[0]]), row, position)


def check_structure(segments: Segments, ids: Array, arrays: Mapping[str, Array]) -> Segments | None:
    """Compare the ids as packed and the padding mask. Policy may exclude tokens and join documents, no more.

    Raises:
        DocumentIdsError: the other ids are malformed.
        EncodingError: they disagree.
    """
    structural, padding = arrays.get("document_ids"), arrays.get("padding_mask")
    scanned = segments if structural is ids else None
    if structural is not None and scanned is None:
        scanned = scan_array(structural, segments.device, "document_ids")
        require_policy(segments, scanned)
    if padding is not None:
        wrong = (padding != 0) & (ids != 0) if structural is None else (padding != 0) != (structural == 0)
        raise_first("padding_mask", wrong, padding, "marks other places than those of document id 0")
    return scanned


def check_positions(segments: Segments, ids: Array, arrays: Mapping[str, Array]) -> None:
    """Text positions contradict the ids where they restart inside a document; none that a token has is negative.

    Raises:
        EncodingError: they disagree.
    """
    positions = arrays.get("position_ids")
    if positions is None or positions.ndim != 2:
        return
    positions = np.broadcast_to(positions, ids.shape)
    raise_first("position_ids", (positions < 0) & (ids != 0), positions, "negative position of a token")
    values = positions.ravel()
    falls = np.zeros(ids.size, np.bool_)
    np.less_equal(values[1:], values[:-1], out=falls[1:])
    falls[segments.bounds[:-1]] = False
    # After a hole a document goes on, and its positions with it.
    again = np.flatnonzero(segments.owners[1:] == segments.owners[:-1])
    lasts, starts = segments.bounds[segments.kept[again] + 1] - 1, segments.bounds[segments.kept[again + 1]]
    falls[starts] = values[starts] <= values[lasts]
    wrong = np.reshape(falls, ids.shape) & (ids != 0)
    raise_first("position_ids", wrong, positions, "restarts inside a document")


def check_mask(segments: Segments, ids: Array, given: object, arrays: Mapping[str, Array]) -> None:
    """Compare a 2-D mask, plain or of ids, or a 4-D one at the rows of real tokens: at padding conventions differ.

    Raises:
        DocumentIdsError: the other ids are malformed.
        EncodingError: they disagree.
    """
    name = "attention_mask"
    if isinstance(given, Tensor) and given.ndim == 4:
        _check_dense_mask(segments, ids, given)
    mask = arrays.get(name)
    if mask is None:
        return
    if mask.dtype == np.bool_ or mask.max() <= 1:
        # At a hole either is right: tokens that policy took out, and what stands inside a document.
        taken_out = (arrays.get("document_ids", ids) != 0) & (ids == 0)
        wrong = ((mask != 0) != (ids != 0)) & ~taken_out
        for hole in segments.holes.tolist():
            wrong.ravel()[segments.bounds[hole] : segments.bounds[hole + 1]] = False
        raise_first(name, wrong | (mask < 0), mask, "marks other tokens than the ids keep")
    else:
        check_ids(name, ids, mask)


def check_ids(name: str, ids: Array, other: Array) -> None:
    """Compare two sets of ids: the same tokens, cut at the same places, under whatever numbers.

    Raises:
        DocumentIdsError: the other ids are malformed.
        EncodingError: they disagree.
    """
    scan_array(other, torch.device("cpu"), name)
    kept = ids != 0
    wrong = ((other != 0) != kept) | (_same_as_before(other, kept) != _same_as_before(ids, kept))
    raise_first(name, wrong, other, "marks other documents than the ids")


def check_segment_index(segments: Segments, ids: Array, arrays: Mapping[str, Array]) -> None:
    """Compare segment numbers at the tokens, and with what stands before a document: at padding conventions differ.

    Raises:
        EncodingError: they disagree.
    """
    numbers, kept = arrays.get("seq_idx"), ids != 0
    if numbers is None:
        return
    wrong = (kept & (numbers < 0)) | (_same_as_before(numbers, kept) != _same_as_before(ids, kept))
    rows, starts = segments.documents.rows, segments.documents.starts
    after = starts[starts % segments.sequence > 0]
    # State would run from padding into the document that follows it.
    wrong.ravel()[after] |= numbers.ravel()[after] == numbers.ravel()[after - 1]
    raise_first("seq_idx", wrong, numbers, "marks other documents than the ids")
    carried = numbers.ravel()[starts]
    order = np.lexsort((carried, rows))
    again = (np.diff(rows[order]) == 0) & (carried[order][1:] == carried[order][:-1])
    wrong.ravel()[starts[order[1:][again]]] = True
    raise_first("seq_idx", wrong, numbers, "comes back after another document")


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
        raise disagreement("attention_mask", f"{message}, first at key {key}", "disagreement", value, row, position)


def _require_dense_form(segments: Segments, mask: Tensor) -> None:
    name = "attention_mask"
    problems = tensor_problems(mask, name)
    if problems:
        raise EncodingError(*problems)
    shape = (segments.batch, 1, segments.sequence, segments.sequence)
    if tuple(mask.shape) != shape or mask.device != segments.device:
        message = f"must be {shape} on {segments.device} for these ids"
        raise disagreement(name, message, "shape", (tuple(mask.shape), mask.device))
    if mask.dtype not in MASK_DTYPES:
        message = "must be bool, True where attention is allowed, or floating, to be added to scores"
        raise disagreement(name, message, "dtype", mask.dtype)


def _same_as_before(ids: Array, kept: Array) -> npt.NDArray[np.bool_]:
    """Mark the kept tokens whose id is that of the kept token before them in their row."""
    tokens = np.flatnonzero(kept.ravel())
    values, rows = ids.ravel()[tokens], tokens // ids.shape[1]
    same = np.zeros(ids.size, np.bool_)
    same[tokens[1:]] = (values[1:] == values[:-1]) & (rows[1:] == rows[:-1])
    return np.reshape(same, ids.shape)
