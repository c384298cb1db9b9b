"""Encodings by offsets and lengths, held against the document ids: flash varlen kwargs, NEAT metadata, THD lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from neatpack.adapters.arguments import INTEGER_DTYPES, require_instance, tensor_problems
from neatpack.adapters.boundary_fields import FLASH_FIELDS, LENGTH_FIELDS, METADATA_FIELDS
from neatpack.adapters.disagreement import LEAVE_OUT, Array, disagreement, raise_first
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.neat_metadata import gathered_rows
from neatpack.adapters.offsets import offsets_of, used_offsets, wrong_offset
from neatpack.adapters.segments import Segments, scan_beside
from neatpack.contracts.errors import EncodingError, Problem


def check_flash(segments: Segments, given: Mapping[str, object], arrays: Mapping[str, Array]) -> None:
    """Each document must be a segment of its own; how padding is cut is the loader's choice.

    Raises:
        EncodingError: a document is none, offsets do not cover the batch, or one of the four is missing.
    """
    if not _is_given(given, FLASH_FIELDS):
        return
    _require_all(given, FLASH_FIELDS)
    name, offsets = "cu_seq_lens_q", arrays["cu_seq_lens_q"]
    _refuse_holes(name, segments)
    documents, places = segments.documents, segments.batch * segments.sequence
    position = wrong_offset(offsets, places)
    if position is not None:
        message, value = f"must rise from 0 to batch * sequence = {places}", next(iter(offsets[position:]), None)
        raise disagreement(name, message, "disagreement", value, position=position)
    cuts = np.unique(offsets)
    before = np.searchsorted(cuts, documents.starts, side="right")
    wrong = np.zeros(places, np.bool_)
    wrong[documents.starts] = (cuts[before - 1] != documents.starts) | (cuts[before] != documents.ends)
    wrong = np.reshape(wrong, (segments.batch, segments.sequence))
    raise_first(name, wrong, None, "has no segment that is exactly the document that begins here")
    keys = arrays["cu_seq_lens_k"]
    _require_same("cu_seq_lens_k", f"differs from {name}", None, keys, np.arange(keys.size), offsets)
    longest = int(np.diff(offsets).max())
    for name in ("max_length_q", "max_length_k"):
        _check_longest(name, given[name], longest)


def check_metadata(segments: Segments, given: Mapping[str, object], arrays: Mapping[str, Array]) -> None:
    """Both parts of NEAT metadata must be those of the ids, batch-major or flat, up to unused entries.

    Raises:
        EncodingError: they differ, or one of them is missing.
    """
    if not _is_given(given, METADATA_FIELDS):
        return
    _require_all(given, METADATA_FIELDS[:2])
    indices, offsets = arrays["packed_token_indices"], arrays["cu_seqlens"]
    if indices.ndim != offsets.ndim:
        message = "must be batch-major or flat as packed_token_indices are"
        raise disagreement("cu_seqlens", message, "shape", offsets.shape)
    if indices.ndim == 1:
        flat = gathered_flat(segments)
        expected, bounds = flat.token_indices.numpy(), [flat.cu_seqlens.numpy()]
    else:
        rows = gathered_rows(segments)
        expected, bounds = rows.packed_token_indices.numpy(), list(rows.cu_seqlens.numpy())
    name, message = "packed_token_indices", "names other tokens than the ids keep"
    if indices.shape != expected.shape:
        raise disagreement(name, message, "shape", indices.shape)
    raise_first(name, np.maximum(indices, -1) != expected, indices, message)
    message = "cuts the kept tokens elsewhere than the ids do"
    for row, (found, wanted) in enumerate(zip(np.atleast_2d(offsets), bounds, strict=True)):
        # Boundaries may repeat, and any negative number is fill.
        filled = np.maximum(found, -1)
        columns = np.flatnonzero(np.diff(filled, prepend=-2))
        wanted = np.append(wanted[wanted >= 0], filled[filled < 0][:1])
        _require_same("cu_seqlens", message, row if offsets.ndim > 1 else None, found, columns, wanted)
    if given.get("max_seqlen") is not None:
        _check_longest("max_seqlen", given["max_seqlen"], segments.documents.longest)


def check_lengths(segments: Segments, arrays: Mapping[str, Array]) -> None:
    """Compare THD lengths: the real ones with the documents, the padded ones with where those begin, to the row's end.

    Raises:
        EncodingError: they differ, a document has a hole, or the two do not pair by column.
    """
    given = [name for name in LENGTH_FIELDS if name in arrays]
    if given:
        _refuse_holes(given[0], segments)
    documents = segments.documents
    heads = np.cumsum(documents.counts) - documents.counts
    for name in given:
        for row, lengths in enumerate(arrays[name]):
            these = slice(heads[row], heads[row] + documents.counts[row])
            starts, ends = (at[these] - row * segments.sequence for at in (documents.starts, documents.ends))
            slots = np.diff(np.append(starts, segments.sequence))
            slots[:1] *= starts[:1] == 0  # Padding before the first document is in no slot: no lengths are right.
            wanted = ends - starts if name == "seq_lens" else slots
            message = "counts other documents than the ids do"
            _require_same(name, message, row, lengths, np.flatnonzero(lengths > 0), wanted)
    if len(given) > 1:
        _require_pairs(*(arrays[name] for name in given))


def check_thd_offsets(document_ids: Tensor | Segments, given: Mapping[str, Tensor]) -> None:
    """Check offsets of a THD stream, gathered or physical, against the ids that came with them.

    Offsets may count real tokens alone, or places: then each document is a segment that ends with its last token or
    with the padding after it, and never beyond its row. Consumers pair offsets by their columns, so a document has the
    same one in all. Ids and offsets are read from their device together.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.
        given: offsets by the name that errors call them, `[boundaries]` or `[1, boundaries]`, negative where unused.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: offsets are no integers, of another shape, fall, cut elsewhere than the ids, or have a document
            in another column.

    Example:
        >>> import torch
        >>> check_thd_offsets(torch.tensor([[1, 1, 2, 0]]), {"cu_seqlens": torch.tensor([0, 2, 4])})
        >>> check_thd_offsets(torch.tensor([[1, 1, 2, 0]]), {"cu_seqlens": torch.tensor([0, 3, 4])})
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.EncodingError: cu_seqlens[position 1] = 3: cuts elsewhere than the document ids do. \
Boundaries come from the document ids alone: leave this out, or derive both from the same ids.
    """
    require_instance(given, Mapping, "given", "Give a dict of offsets by their names.")
    for field, offsets in given.items():
        _require_stream(field, offsets)
    segments, read = scan_beside(document_ids, *given.values())
    columns: dict[str, Integers] = {}
    for field, found in zip(given, read, strict=True):
        stream = found.ravel()
        own = _columns(used_offsets(stream), segments)
        if own is None:
            raise _wrong(field, "cuts elsewhere than the document ids do", stream, _first_wrong(stream, segments))
        columns[field] = own
        first = next(iter(columns))
        moved = own[own != columns[first]]
        if moved.size:
            raise _wrong(field, f"has documents in other columns than {first}", stream, int(moved[0]))


def _require_stream(field: str, offsets: Tensor) -> None:
    problems = tensor_problems(offsets, field)
    if not problems and (
        not offsets.ndim or offsets.shape[:-1] not in ((), (1,)) or offsets.dtype not in INTEGER_DTYPES
    ):
        message, form = "must be integers [boundaries]", (tuple(offsets.shape), offsets.dtype)
        problems = [Problem(field, message, "shape", value=form, remedy="Give the offsets of one stream.")]
    if problems:
        raise EncodingError(*problems)


def _wrong(field: str, message: str, offsets: Array, position: int) -> EncodingError:
    value = next(iter(offsets[position:].tolist()), None)
    return EncodingError(Problem(field, message, "disagreement", None, position, value, LEAVE_OUT))


def _first_wrong(offsets: Array, segments: Segments) -> int:
    """Give the index of the first offset with which no right ones begin, be they of tokens or of places."""
    breaks = np.append(False, offsets[1:] < offsets[:-1])[: offsets.size] | (offsets < 0)
    stop = int(breaks.argmax()) if breaks.any() else offsets.size
    used = offsets[:stop].astype(np.int64)
    wrong = max(_first_wrong_of_tokens(used, segments), _first_wrong_of_places(used, segments))
    if wrong <= stop:
        return wrong
    return stop + int((offsets[stop:] >= 0).argmax())  # What goes on behind offsets that are all there.


def _first_wrong_of_tokens(used: Integers, segments: Segments) -> int:
    """Give it for offsets that count tokens: their number where all are right, and one more where none is missing."""
    right = offsets_of(segments.documents.lengths).astype(np.int64)
    indices = np.searchsorted(right, used)
    wrong = (right[np.minimum(indices, right.size - 1)] != used) | (np.diff(indices, prepend=-1) > 1)
    if wrong.any():
        return int(wrong.argmax())
    return used.size + int(used.size > 0 and used[-1] == right[-1])


def _first_wrong_of_places(used: Integers, segments: Segments) -> int:
    """Give it for offsets that count places; 0 where a document has a hole, which those cannot express."""
    if segments.holes.size:
        return 0
    starts, ends = segments.documents.starts, segments.documents.ends
    before = np.append(0, used)[:-1]
    over_a_start = np.searchsorted(starts, used) > np.searchsorted(starts, before, side="right")
    inside = np.searchsorted(starts, used) > np.searchsorted(ends, used, side="right")
    over_a_row = np.isin(before, starts) & (used > before - before % segments.sequence + segments.sequence)
    wrong = over_a_start | inside | over_a_row | (used > segments.batch * segments.sequence)
    wrong[:1] |= used[:1] != 0
    if wrong.any():
        return int(wrong.argmax())
    return used.size + int(used.size > 0 and used[-1] >= ends.max(initial=0))


def _columns(cuts: Integers | None, segments: Segments) -> Integers | None:
    """Give the column of each document among offsets of tokens or of places; None where they cut elsewhere."""
    if cuts is None:
        return None
    documents = segments.documents
    if np.array_equal(np.unique(cuts), offsets_of(documents.lengths)):
        return np.searchsorted(cuts, np.cumsum(documents.lengths) - documents.lengths, side="right") - 1
    return np.searchsorted(cuts, documents.starts, side="right") - 1 if _cuts_places(cuts, segments) else None


def _cuts_places(cuts: Integers, segments: Segments) -> bool:
    """Whether every document is a segment, with or without the padding that follows it in its row."""
    documents = segments.documents
    if not cuts.size or cuts[0] != 0 or segments.holes.size or cuts[-1] > segments.batch * segments.sequence:
        return False
    latest = (documents.rows + 1) * segments.sequence
    latest[:-1] = np.minimum(latest[:-1], documents.starts[1:])
    after = np.searchsorted(cuts, documents.starts, side="right")
    if (after == cuts.size).any():
        return False
    opens, closes = cuts[after - 1], cuts[after]
    return bool((opens == documents.starts).all() and ((closes >= documents.ends) & (closes <= latest)).all())


def _require_pairs(real: Array, padded: Array) -> None:
    """Raise where a document does not have the same column in both lengths: consumers pair them by it."""
    name, message = "seq_lens_padded", "does not count each document in the column in which seq_lens does"
    if real.shape != padded.shape:
        raise disagreement(name, message, "shape", padded.shape)
    raise_first(name, (real > 0) != (padded > 0), padded, message)


def _require_same(name: str, message: str, row: int | None, entries: Array, columns: Integers, wanted: Array) -> None:
    """Raise at the first of the entries in these columns that is another than the wanted one; -1 is any fill."""
    size = min(columns.size, wanted.size)
    differ = np.append(np.maximum(entries[columns[:size]], -1) != wanted[:size], columns.size != wanted.size)
    if differ.any():
        position = int(np.append(columns, entries.size)[differ.argmax()])
        raise disagreement(name, message, "disagreement", next(iter(entries[position:].tolist()), None), row, position)


def _refuse_holes(name: str, segments: Segments) -> None:
    if segments.holes.size:
        row, position = segments.locate(int(segments.holes[0]))
        raise disagreement(name, "cannot express the hole in a document here", "disagreement", None, row, position)


def _check_longest(name: str, value: object, longest: int) -> None:
    message = f"must be a Python int of at least {longest}, the longest segment"
    if isinstance(value, bool) or not isinstance(value, int):
        raise disagreement(name, message, "disagreement", type(value).__name__)
    if value < longest:
        raise disagreement(name, message, "disagreement", value)


def _is_given(given: Mapping[str, object], names: tuple[str, ...]) -> bool:
    return any(given.get(name) is not None for name in names)


def _require_all(given: Mapping[str, object], names: tuple[str, ...]) -> None:
    for name in names:
        if given.get(name) is None:
            raise disagreement(name, f"is missing: {', '.join(names)} come together", "missing")
