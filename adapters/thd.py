"""THD: lengths per row and document, real and with each document's own padding, and the stream they describe."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from neatpack.adapters.arguments import INT32_MAX, require_count, require_instance, require_places, require_readable
from neatpack.adapters.host_arrays import Integers, read_together, to_tensor
from neatpack.adapters.layout import require_no_holes, require_padding_after_documents
from neatpack.adapters.offsets import offsets_of, wrong_offset
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.token_tensors import device_problems
from neatpack.contracts.encodings import THDFlat, THDLengths, parse_thd_flat, parse_thd_lengths
from neatpack.contracts.errors import EncodingError, Problem
from neatpack.contracts.fields import UNUSED_LENGTH


def thd_lengths(document_ids: Tensor | Segments) -> THDLengths[Tensor]:
    """Give the tokens of each document of each row, and its places with the padding that follows it.

    The padding after the last document of a row is counted with it, so that padded lengths cover the row. A row
    of nothing but padding has no document, and counts as padding throughout. Names and fill are those of NeMo
    AutoModel's THD batches.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, which follows a document; without holes.

    Returns:
        `seq_lens` and `seq_lens_padded`, int64 `[batch, most documents of a row]`, -1000 where unused.

    Raises:
        DocumentIdsError: the ids are malformed, have a hole, or a row begins with padding.

    Example:
        >>> lengths = thd_lengths(torch.tensor([[1, 1, 1, 0, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]]))
        >>> lengths.seq_lens, lengths.seq_lens_padded
        (tensor([[    3,     2],
                [    8, -1000]]), tensor([[    4,     4],
                [    8, -1000]]))
    """
    segments = as_segments(document_ids)
    documents = segments.documents
    shape = (segments.batch, max(int(documents.counts.max()), 1))
    real, padded = np.full(shape, UNUSED_LENGTH, np.int64), np.full(shape, UNUSED_LENGTH, np.int64)
    real[documents.rows, documents.ranks] = documents.lengths
    padded[documents.rows, documents.ranks] = padded_lengths(segments)
    return THDLengths(segments.tensor(real), segments.tensor(padded))


def padded_lengths(segments: Segments) -> Integers:
    """Give the places of each document and the padding that follows it, `[documents]`.

    Raises:
        DocumentIdsError: the ids have a hole, or a row begins with padding.
    """
    require_no_holes(segments)
    require_padding_after_documents(segments)
    documents = segments.documents
    ends = (documents.rows + 1) * segments.sequence
    same_row = documents.rows[1:] == documents.rows[:-1]
    ends[:-1][same_row] = documents.starts[1:][same_row]
    return ends - documents.starts


def document_ids_from_thd_lengths(lengths: THDLengths[Tensor], sequence_length: int) -> Tensor:
    """Find the ids again from THD lengths.

    Args:
        lengths: real and padded lengths, negative where unused.
        sequence_length: places of a row.

    Returns:
        Canonical ids, int64 `[batch, sequence_length]`.

    Raises:
        EncodingError: real and padded lengths do not belong together, or do not cover the rows.

    Example:
        >>> ids = torch.tensor([[1, 1, 1, 0, 2, 2, 0, 0]])
        >>> document_ids_from_thd_lengths(thd_lengths(ids), 8)
        tensor([[1, 1, 1, 0, 2, 2, 0, 0]])
    """
    real, padded = _read_lengths(lengths, sequence_length)
    sequence_length = int(sequence_length)
    numbers = np.cumsum(real > 0, axis=1)
    pieces = np.stack([real, padded - real], axis=-1)
    named = np.stack([numbers, np.zeros_like(numbers)], axis=-1)
    rest = sequence_length - padded.sum(axis=1)
    pieces = np.hstack([np.reshape(pieces, (len(pieces), -1)), rest[:, None]])
    named = np.hstack([np.reshape(named, (len(named), -1)), np.zeros((len(named), 1), np.int64)])
    ids = np.repeat(named.ravel(), pieces.ravel())
    return to_tensor(ids, lengths.seq_lens.device).view(-1, sequence_length)


def thd_flat(document_ids: Tensor | Segments) -> THDFlat[Tensor]:
    """Give the offsets of the flattened batch, real and padded, as Transformer Engine and Megatron take them.

    A row of nothing but padding becomes a document of no token, so that the rows after it stay in their places.

    Args:
        document_ids: as `thd_lengths`.

    Returns:
        `cu_seqlens`, int32 `[documents + 1]`: tokens alone. `cu_seqlens_padded`, the same size: places, up to
        `batch * sequence`. `max_seqlen`: the longest document with its padding. `real_tokens` and `total_tokens`.

    Raises:
        DocumentIdsError: as `thd_lengths`.

    Example:
        >>> flat = thd_flat(torch.tensor([[1, 1, 1, 0], [1, 2, 2, 2]]))
        >>> flat.cu_seqlens.tolist(), flat.cu_seqlens_padded.tolist(), flat.pad_between_seqs
        ([0, 3, 4, 7], [0, 4, 5, 8], True)
    """
    segments = as_segments(document_ids)
    documents = segments.documents
    empty = np.flatnonzero(documents.counts == 0)
    places = np.searchsorted(documents.rows, empty)
    real = np.insert(documents.lengths, places, 0)
    padded = np.insert(padded_lengths(segments), places, segments.sequence)
    return _flat(real, padded, segments.device)


def flatten_thd_lengths(lengths: THDLengths[Tensor], sequence_length: int) -> THDFlat[Tensor]:
    """Turn lengths per row into offsets of one stream, after a pipeline schedule has cut the batch.

    Args:
        lengths: real and padded lengths, negative where unused.
        sequence_length: places of a row.

    Returns:
        As `thd_flat`.

    Raises:
        EncodingError: real and padded lengths do not belong together, or do not cover the rows.

    Example:
        >>> lengths = THDLengths(torch.tensor([[3, -1000], [1, 3]]), torch.tensor([[4, -1000], [1, 3]]))
        >>> flatten_thd_lengths(lengths, 4).cu_seqlens_padded
        tensor([0, 4, 5, 8], dtype=torch.int32)
    """
    real, padded = _read_lengths(lengths, sequence_length)
    empty = padded.sum(axis=1) == 0
    padded[empty, 0] = sequence_length
    used = padded > 0
    return _flat(real[used], padded[used], lengths.seq_lens.device)


def real_places(flat: THDFlat[Tensor], total_tokens: int | None = None) -> Tensor:
    """Mark the physical places of a THD stream that hold a token, and no padding of a document or beyond the last.

    Args:
        flat: offsets, real and padded.
        total_tokens: places of the stream; by default `flat.total_tokens`.

    Returns:
        bool `[total_tokens]`.

    Raises:
        EncodingError: offsets do not start at 0, or fall, a document has more tokens than its slot, or the slots go
            beyond `total_tokens`.

    Example:
        >>> real_places(thd_flat(torch.tensor([[1, 1, 1, 0, 2, 2]]))).int().tolist()
        [1, 1, 1, 0, 1, 1]
    """
    require_thd_flat(flat)
    require_readable(cu_seqlens=flat.cu_seqlens, cu_seqlens_padded=flat.cu_seqlens_padded)
    read = read_together(flat.cu_seqlens, flat.cu_seqlens_padded, field="cu_seqlens")
    offsets, slots = (array.astype(np.int64) for array in read)
    _require_rising(cu_seqlens=offsets, cu_seqlens_padded=slots)
    real, padded = np.diff(offsets), np.diff(slots)
    remedy = "Give the places of the stream, or None for flat.total_tokens."
    total = require_count(flat.total_tokens if total_tokens is None else total_tokens, "total_tokens", remedy)
    _require_fitting("cu_seqlens", real, padded)
    if slots[-1] > total:
        message = f"must be at least {slots[-1]}, the last padded offset"
        raise EncodingError(Problem("total_tokens", message, "disagreement", value=total, remedy=remedy))
    pieces = np.append(np.stack([real, padded - real], axis=-1).ravel(), total - slots[-1])
    marks = np.append(np.tile([True, False], real.size), False)
    return to_tensor(np.repeat(marks, pieces), flat.cu_seqlens.device)


def _flat(real: Integers, padded: Integers, device: torch.device) -> THDFlat[Tensor]:
    return THDFlat(
        to_tensor(offsets_of(real), device),
        to_tensor(offsets_of(padded), device),
        int(padded.max()),
        int(real.sum()),
        int(padded.sum()),
    )


def _require_rising(**offsets: Integers) -> None:
    for field, values in offsets.items():
        position = wrong_offset(values, int(values[-1]) if values.size else 0)
        if position is not None:
            message, remedy = "must start at 0 and never fall", "Give offsets as thd_flat does, from 0 on."
            value = int(values[position]) if values.size else None
            raise EncodingError(Problem(field, message, "value", position=position, value=value, remedy=remedy))


def require_thd_flat(flat: object) -> None:
    """Raise unless a value is a `THDFlat` that holds what it should.

    Raises:
        EncodingError: it is none.
    """
    require_instance(flat, THDFlat, "flat", "Call thd_flat(document_ids), or flatten_thd_lengths(...).")
    parse_thd_flat(flat)


def _read_lengths(lengths: THDLengths[Tensor], sequence_length: int) -> tuple[Integers, Integers]:
    """Read both lengths, 0 where unused, or name the row or document that is wrong."""
    require_instance(lengths, THDLengths, "lengths", "Give THDLengths(seq_lens, seq_lens_padded).")
    parse_thd_lengths(lengths)
    require_readable(seq_lens=lengths.seq_lens, seq_lens_padded=lengths.seq_lens_padded)
    problems = device_problems(lengths.seq_lens_padded, lengths.seq_lens.device, "seq_lens_padded", "seq_lens lies")
    if problems:
        raise EncodingError(*problems)
    batch, columns = lengths.seq_lens.shape
    require_places(batch, sequence_length)
    if not columns:
        remedy = "Give one column at least: -1000 where a row has no document."
        raise EncodingError(Problem("seq_lens", "has no column", "shape", value=(batch, 0), remedy=remedy))
    real, padded = read_together(lengths.seq_lens, lengths.seq_lens_padded, field="seq_lens")
    unused = real < 0
    differ = np.argwhere(unused != (padded < 0))
    if differ.size:
        row, document = (int(index) for index in differ[0])
        message = f"document {document} is unused in one of seq_lens and seq_lens_padded alone"
        value = (int(real[row, document]), int(padded[row, document]))
        remedy = "Count each document in one column of both, and fill the others of both with -1000."
        raise EncodingError(Problem("seq_lens_padded", message, "disagreement", row, value=value, remedy=remedy))
    real, padded = np.where(unused, 0, real), np.where(unused, 0, padded)
    _require_fitting("seq_lens", real, padded)
    covered = padded.sum(axis=1)
    short = np.flatnonzero((covered != sequence_length) & ~unused.all(axis=1))
    if short.size:
        row = int(short[0])
        message = f"must cover the {sequence_length} places of the row"
        remedy = "Count each place of a row once: padding with the document before it."
        raise EncodingError(Problem("seq_lens_padded", message, "value", row, value=int(covered[row]), remedy=remedy))
    return real, padded


def _require_fitting(field: str, real: Integers, padded: Integers) -> None:
    """Raise at the first document, of a row or of the stream, that has more tokens than its slot has places."""
    wrong = np.argwhere((real < 0) | (real > padded) | (padded > INT32_MAX))
    if wrong.size:
        *row, document = place = tuple(wrong[0].tolist())
        slot, value = int(padded[place]), int(real[place])
        message = f"document {document} does not fit the {slot} places of its slot"
        if slot > INT32_MAX:
            message = f"document {document} has a slot of {slot} places, past int32"
        remedy = "Count its tokens in one, and in the other these and the padding that follows them."
        problem = Problem(field, message, "disagreement", row[0] if row else None, value=value, remedy=remedy)
        raise EncodingError(problem)
