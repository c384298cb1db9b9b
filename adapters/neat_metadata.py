"""Gathered coordinates row by row: NEAT metadata, from ids and back, and flattened into one stream.

An `attention_mask` here is document ids, or a plain 0/1 or bool mask, which is one document per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import (
    INT32_MAX,
    int_remedy,
    is_count,
    require_flag,
    shown,
    tensor_problems,
    too_many_places,
)
from neatpack.adapters.host_arrays import Integers, read_together, row_places, to_tensor
from neatpack.adapters.indexed_masks import mask_segments, require_documents
from neatpack.adapters.offsets import wrong_offset
from neatpack.adapters.segments import Documents, Segments, as_segments, greatest
from neatpack.adapters.token_tensors import device_problems, integer_rows_problems
from neatpack.contracts.encodings import GatheredRows, PackedSequenceMetadata
from neatpack.contracts.errors import EncodingError, Problem
from neatpack.contracts.fields import UNUSED_OFFSET

_SHORT_ROW: Final = 2**13
"""Up to so many places, to copy the numbers of one row takes less time than to count."""

_LINE: Final = 8
"""Numbers of a cache line."""

_REMEDY: Final = "Pass both as build_packed_sequence_metadata gave them, cut along the same rows as the tokens."


def build_packed_sequence_metadata(
    attention_mask: Tensor | Segments, *, allow_empty: bool = False
) -> PackedSequenceMetadata[Tensor]:
    """Give NEAT metadata: gathered, batch-major, so that a pipeline schedule may cut it along the rows.

    Args:
        attention_mask: any integer dtype or bool, `[batch, sequence]`, 0 at padding.
        allow_empty: accept a batch of nothing but padding, as zero documents.

    Returns:
        `packed_token_indices`, int64 `[batch, sequence]`: the row-local index of each kept token, -1 elsewhere.
        `cu_seqlens`, int32 `[batch, most documents of a row + 1]`: row-local gathered offsets, -1 where unused.
        `max_seqlen`: the tokens of the longest document of the batch.

    Raises:
        DocumentIdsError: the mask is malformed, or all is padding and `allow_empty` is False.
        EncodingError: `allow_empty` is no bool.

    Example:
        >>> metadata = build_packed_sequence_metadata(torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1]]))
        >>> metadata["cu_seqlens"], metadata["max_seqlen"]
        (tensor([[ 0,  2,  3],
                [ 0,  4, -1]], dtype=torch.int32), 4)
    """
    require_flag(allow_empty, "allow_empty")
    segments = mask_segments(attention_mask)
    rows = gathered_rows(segments)
    if not allow_empty:
        require_documents(rows.max_seqlen, "Leave such batches out, or pass allow_empty=True.")
    return {
        "packed_token_indices": rows.packed_token_indices,
        "cu_seqlens": rows.cu_seqlens,
        "max_seqlen": rows.max_seqlen,
    }


def gathered_rows(document_ids: Tensor | Segments) -> GatheredRows[Tensor]:
    """Give the kept tokens of each row, and the offsets of its documents among them.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.

    Returns:
        `packed_token_indices`, int64 `[batch, sequence]`: the row-local place of each kept token, -1 elsewhere.
        `cu_seqlens`, int32 `[batch, most documents of a row + 1]`: row-local gathered offsets, -1 where unused.
        `max_seqlen`: the tokens of the longest document of the batch.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> gathered_rows(torch.tensor([[1, 0, 2, 2]])).packed_token_indices
        tensor([[ 0, -1,  2,  3]])
    """
    segments = as_segments(document_ids)
    indices = _places(segments.batch, segments.sequence)
    flat = indices.ravel()
    for start, stop in segments.blanks:
        flat[start:stop] = UNUSED_OFFSET
    if not segments.in_order:
        offsets, longest = _row_offsets(segments.documents), segments.longest
    elif segments.few is None:
        offsets, longest = _row_offsets_in_order(segments), segments.longest
    else:
        offsets, longest = _row_offsets_of_few(segments.few, segments.batch, segments.sequence)
    return GatheredRows(segments.tensor(indices), segments.tensor(offsets), longest)


def flatten_packed_sequence_metadata(
    packed_token_indices: Tensor, cu_seqlens: Tensor, batch_size: int, sequence_length: int
) -> tuple[Tensor, Tensor]:
    """Turn batch-major NEAT metadata into one gathered stream, after a pipeline schedule has cut the batch.

    Metadata that is flat already is checked and given back, so that it is safe to call this twice.

    Args:
        packed_token_indices: int32 or int64, `[batch, sequence]`, row-local, negative where unused; or `[tokens]`
            indices into the flattened `batch * sequence`. Ascending within each row.
        cu_seqlens: int32 or int64 gathered offsets, `[batch, boundaries]`, row-local, negative after the last one;
            or `[documents + 1]`.
        batch_size: rows of the current microbatch.
        sequence_length: places of a row.

    Returns:
        Flat indices, int64 `[tokens]`, and flat offsets in the dtype of `cu_seqlens`, `[documents + 1]`. A
        microbatch of padding alone gives no token and the offsets `[0]`.

    Raises:
        EncodingError: the two do not belong together, or not to this batch.

    Example:
        >>> indices, offsets = torch.tensor([[0, 1, -1], [0, 1, 2]]), torch.tensor([[0, 2], [0, 3]])
        >>> flatten_packed_sequence_metadata(indices, offsets, batch_size=2, sequence_length=3)
        (tensor([0, 1, 3, 4, 5]), tensor([0, 2, 5]))
    """
    indices, offsets = _flattened(packed_token_indices, cu_seqlens, batch_size, sequence_length)
    if packed_token_indices.ndim == 1:
        return packed_token_indices.to(torch.int64), cu_seqlens
    return to_tensor(indices, packed_token_indices.device), to_tensor(offsets, cu_seqlens.device)


def document_ids_from_metadata(
    packed_token_indices: Tensor, cu_seqlens: Tensor, shape: tuple[int, int] | None = None
) -> Tensor:
    """Find the ids again from NEAT metadata: gathered offsets, and the places of kept tokens.

    Args:
        packed_token_indices: int32 or int64, `[batch, sequence]`, row-local, negative where unused; or, where `shape`
            is given, `[tokens]` indices into the flattened `batch * sequence` as well.
        cu_seqlens: int32 or int64, `[batch, boundaries]`, row-local gathered offsets, negative where unused; or
            `[documents + 1]`.
        shape: `(batch, sequence)` of the tokens; needed for flat metadata, which does not tell where a row ends.

    Returns:
        Canonical ids, int64 `[batch, sequence]`; holes are 0.

    Raises:
        EncodingError: the two do not belong together, or the shape is no pair of ints.

    Example:
        >>> document_ids_from_metadata(torch.tensor([[0, -1, 2, 3]]), torch.tensor([[0, 2, 3]]))
        tensor([[1, 0, 1, 2]])
        >>> document_ids_from_metadata(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 3]), (1, 4))
        tensor([[1, 0, 1, 2]])
    """
    problems = _given_shape_problems(packed_token_indices, shape)
    if problems:
        raise EncodingError(*problems)
    batch, sequence = packed_token_indices.shape if shape is None else shape
    indices, offsets = _flattened(packed_token_indices, cu_seqlens, batch, sequence)
    batch, sequence = int(batch), int(sequence)
    lengths = np.diff(offsets)
    lengths = lengths[lengths > 0]
    rows = indices[np.cumsum(lengths) - lengths] // sequence
    before = np.searchsorted(rows, rows)
    ids = np.zeros(batch * sequence, np.int64)
    ids[indices] = np.repeat(np.arange(1, rows.size + 1) - before, lengths)
    return to_tensor(ids, packed_token_indices.device).view(batch, sequence)


def _flattened(
    packed_token_indices: Tensor, cu_seqlens: Tensor, batch_size: int, sequence_length: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Give on the host what `flatten_packed_sequence_metadata` gives."""
    problems = _metadata_form_problems(packed_token_indices, cu_seqlens, batch_size, sequence_length)
    if problems:
        raise EncodingError(*problems)
    batch_size, sequence_length = int(batch_size), int(sequence_length)
    indices, offsets = read_together(packed_token_indices, cu_seqlens, field="packed_token_indices")
    if indices.ndim == 1:
        _require_flat(indices, offsets, batch_size, sequence_length)
        return indices, offsets
    used = np.cumsum(offsets < 0, axis=1) == 0
    _require_rows(indices, offsets, used, sequence_length)
    rows, places = np.nonzero(indices >= 0)
    flat = indices[rows, places].astype(np.int64) + rows * sequence_length
    lengths = np.diff(offsets.astype(np.int64), axis=1)[used[:, 1:]]
    return flat, np.append(0, np.cumsum(lengths)).astype(offsets.dtype)


def _places(batch: int, sequence: int) -> Integers:
    """Number the places of each row from 0."""
    if batch == 1:
        return np.array(row_places(sequence)[None]) if sequence <= _SHORT_ROW else np.arange(sequence)[None]
    places = np.empty((batch, sequence), np.int64)
    # Memory is copied many times slower where the target begins less than a cache line after the source, whole pages
    # left aside. Rows of whole lines never do; others are written by addition.
    added = batch if sequence % _LINE else 1
    np.add(row_places(sequence), 0, out=places[:added])
    places[added:] = places[0]
    return places


def _row_offsets(documents: Documents) -> npt.NDArray[np.int32]:
    """Give the offsets of the documents of each row."""
    used = np.arange(int(documents.counts.max())) < documents.counts[:, None]
    offsets = np.zeros((used.shape[0], used.shape[1] + 1), np.int32)
    offsets[:, 1:][used] = documents.lengths
    np.cumsum(offsets, axis=1, dtype=np.int32, out=offsets)
    offsets[:, 1:][~used] = UNUSED_OFFSET
    return offsets


def _row_offsets_in_order(segments: Segments) -> npt.NDArray[np.int32]:
    """Do the same for runs in order: with padding at the end of rows alone, a token has one place in both counts."""
    heads = segments.row_bounds
    counts = heads[1:] - heads[:-1] - (segments.ids.take(heads[1:] - 1) == 0)
    column = np.arange(greatest(counts) + 1)
    places = segments.bounds.take(heads[:-1, None] + column, mode="clip")
    offsets = np.subtract(places, places[:, :1], dtype=np.int32)
    offsets[column > counts[:, None]] = UNUSED_OFFSET
    return offsets


def _row_offsets_of_few(
    runs: Sequence[tuple[int, int, int]], batch: int, sequence: int
) -> tuple[npt.NDArray[np.int32], int]:
    """Do the same for few runs in order, each of which is a document or padding, and give the longest document."""
    rows: list[list[int]] = [[0] for _ in range(batch)]
    longest = 0
    for number, start, stop in runs:
        if number:
            row = start // sequence
            rows[row].append(stop - row * sequence)
            if stop - start > longest:  # Half the time of `max`.
                longest = stop - start
    width = max(map(len, rows))
    for offsets in rows:
        offsets += [UNUSED_OFFSET] * (width - len(offsets))
    return np.array(rows, np.int32), longest


def _given_shape_problems(indices: object, shape: tuple[int, int] | None) -> list[Problem]:
    """List what keeps rows and places of a row from being known."""
    if shape is not None:
        remedy = "Give (batch, sequence)."
        is_pair = isinstance(cast("object", shape), tuple) and [is_count(size) for size in shape] == [True, True]
        return [] if is_pair else [Problem("shape", "must be a pair of ints", "type", value=repr(shape), remedy=remedy)]
    if isinstance(indices, Tensor) and indices.ndim == 1:
        remedy = "Pass shape=(batch, sequence): flat indices do not tell where a row ends."
        return [Problem("shape", "is missing, which flat metadata needs", "missing", remedy=remedy)]
    return integer_rows_problems(indices, "packed_token_indices")


def _metadata_form_problems(indices: object, offsets: object, batch: int, sequence: int) -> list[Problem]:
    problems: list[Problem] = []
    for field, value in (("packed_token_indices", indices), ("cu_seqlens", offsets)):
        wrong = tensor_problems(value, field)
        if not wrong and isinstance(value, Tensor) and value.dtype not in (torch.int32, torch.int64):
            remedy = f"Convert it: {field}.long()."
            wrong = [Problem(field, "must be int32 or int64", "dtype", value=value.dtype, remedy=remedy)]
        problems += wrong
    for field, value in (("batch_size", batch), ("sequence_length", sequence)):
        if not is_count(value):
            remedy = int_remedy(value, "Give the rows and the places of the microbatch: tokens.shape.")
            problems.append(Problem(field, "must be an int of at least 0", "value", value=shown(value), remedy=remedy))
    if problems or not isinstance(indices, Tensor) or not isinstance(offsets, Tensor):
        return problems
    problems = device_problems(offsets, indices.device, "cu_seqlens", "packed_token_indices lies")
    if problems:
        return problems
    batch, sequence = int(batch), int(sequence)
    if batch * sequence > INT32_MAX:
        return [too_many_places("packed_token_indices", (batch, sequence))]
    return _metadata_shape_problems(tuple(indices.shape), tuple(offsets.shape), batch, sequence)


def _metadata_shape_problems(
    indices: tuple[int, ...], offsets: tuple[int, ...], batch: int, sequence: int
) -> list[Problem]:
    remedy = "Cut metadata and tokens along the same rows, and flatten after the cut."
    if len(indices) == 1 and len(offsets) == 1:
        if offsets[0] < 1:
            return [Problem("cu_seqlens", "must start at zero", "shape", value=offsets, remedy=remedy)]
        return []
    if indices != (batch, sequence):
        message = f"must be [tokens], or [batch, sequence] = {(batch, sequence)} as the tokens are"
        return [Problem("packed_token_indices", message, "shape", value=indices, remedy=remedy)]
    if len(offsets) != 2 or offsets[0] != batch or offsets[1] < 1:
        message = f"must be [{batch}, boundaries], with at least one boundary"
        return [Problem("cu_seqlens", message, "shape", value=offsets, remedy=remedy)]
    return []


def _require_flat(indices: npt.NDArray[Any], offsets: npt.NDArray[Any], batch: int, sequence: int) -> None:
    """Check flat metadata: offsets cover the indices, indices ascend within the batch, no document leaves its row."""
    place = wrong_offset(offsets, indices.size)
    if place is not None:
        message = f"must start at zero, never fall, and end at the number of token indices, {indices.size}"
        value = int(offsets[place])
        raise EncodingError(Problem("cu_seqlens", message, "value", position=place, value=value, remedy=_REMEDY))
    wrong = np.ones(indices.size, np.bool_)
    wrong[1:] = indices[1:] <= indices[:-1]
    wrong[:1] = indices[:1] < 0
    wrong |= indices >= batch * sequence
    if bool(wrong.any()):
        position = int(np.argmax(wrong))
        message = f"must ascend from 0 to below batch * sequence = {batch * sequence}"
        value = int(indices[position])
        problem = Problem("packed_token_indices", message, "value", position=position, value=value, remedy=_REMEDY)
        raise EncodingError(problem)
    filled = np.flatnonzero(np.diff(offsets))
    first, last = indices[offsets[filled]], indices[offsets[filled + 1] - 1]
    crossing = np.flatnonzero(first // sequence != last // sequence)
    if crossing.size:
        document = int(filled[crossing[0]])
        message = f"document {document} continues into the next row"
        remedy = "Add a boundary where each row ends."
        row = int(first[crossing[0]] // sequence)
        raise EncodingError(Problem("cu_seqlens", message, "value", row, document, remedy=remedy))


def _require_rows(
    indices: npt.NDArray[Any], offsets: npt.NDArray[Any], used: npt.NDArray[np.bool_], sequence: int
) -> None:
    """Check batch-major metadata row by row, and name the first entry that is wrong."""
    last = np.array(used)
    last[:, :-1] &= ~used[:, 1:]
    faults: dict[str, npt.NDArray[np.bool_]] = {
        "must start at zero": (offsets != 0) & (np.arange(offsets.shape[1]) == 0),
        "has a boundary after an unused one": (offsets >= 0) & ~used,
        "must never fall": (np.diff(offsets, axis=1, prepend=0) < 0) & used,
        "must end at the number of kept tokens of the row": last & (offsets != (indices >= 0).sum(axis=1)[:, None]),
    }
    for message, wrong in faults.items():
        _refuse("cu_seqlens", offsets, wrong, message)
    greatest = np.maximum.accumulate(indices, axis=1)
    wrong = indices >= sequence
    wrong[:, 1:] |= (indices[:, 1:] >= 0) & (indices[:, 1:] <= greatest[:, :-1])
    message = f"must ascend within the row and stay below its length, {sequence}"
    _refuse("packed_token_indices", indices, wrong, message)


def _refuse(field: str, entries: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], message: str) -> None:
    if bool(wrong.any()):
        row, position = (int(axis[0]) for axis in np.nonzero(wrong))
        value = int(entries[row, position])
        raise EncodingError(Problem(field, message, "value", row, position, value, _REMEDY))
