"""THD: lengths per row and document, real and with each document's own padding, and the stream they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.agreement import scan_agreeing
from neatpack.adapters.arguments import (
    INT32_MAX,
    is_choice,
    require_batch,
    require_count,
    require_flag,
    require_instance,
    require_places,
    require_readable,
    tensor_problems,
    used_offsets,
)
from neatpack.adapters.boundary_fields import IDS
from neatpack.adapters.layout import require_no_holes, require_padding_after_documents, require_trailing_padding
from neatpack.adapters.segments import (
    INTEGER_DTYPES,
    Integers,
    Segments,
    as_segments,
    read_together,
    to_tensor,
)
from neatpack.adapters.training_batch import require_structure
from neatpack.contracts.batch import BATCH_OUTPUT_FORMATS, BatchOutputFormat, TrainingBatch
from neatpack.contracts.encodings import (
    PackedSeqParamsKwargs,
    THDFlat,
    THDLengths,
    TransformerEngineKwargs,
    parse_thd_flat,
    parse_thd_lengths,
)
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError, Problem
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


def check_thd_offsets(document_ids: Tensor | Segments, given: Mapping[str, Tensor]) -> None:
    """Check offsets of a THD stream, gathered or physical, against the ids that came with them, in one read.

    Offsets may count real tokens alone, or places: then each document is a segment that ends with its last token or
    with the padding after it, and never beyond its row. Consumers pair offsets by their columns, so a document has the
    same one in all.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.
        given: offsets by the name that errors call them, `[boundaries]` or `[1, boundaries]`, negative where unused.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: offsets are no integers, of another shape, fall, cut elsewhere than the ids, or have a document
            in another column.

    Example:
        >>> check_thd_offsets(torch.tensor([[1, 1, 2, 0]]), {"cu_seqlens": torch.tensor([0, 2, 4])})
        >>> check_thd_offsets(torch.tensor([[1, 1, 2, 0]]), {"cu_seqlens": torch.tensor([0, 3, 4])})
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.EncodingError: cu_seqlens = [0, 3, 4]: cuts elsewhere than the document ids do. \
Boundaries come from the document ids alone: leave this out, or derive both from the same ids.
    """
    segments = as_segments(document_ids)
    require_instance(given, Mapping, "given", "Give a dict of offsets by their names.")
    for field, offsets in given.items():
        problems = tensor_problems(offsets, field)
        if problems:
            raise EncodingError(*problems)
        if (
            offsets.ndim not in (1, 2)
            or (offsets.ndim == 2 and len(offsets) != 1)
            or offsets.dtype not in INTEGER_DTYPES
        ):
            message, form = "must be integers [boundaries]", (tuple(offsets.shape), offsets.dtype)
            remedy = "Give the offsets of one stream."
            raise EncodingError(Problem(field, message, "shape", value=form, remedy=remedy))
    columns: dict[str, Integers] = {}
    for field, found in zip(given, read_together(*given.values()), strict=True):
        own = _columns(used_offsets(found.ravel()), segments)
        if own is None:
            raise _disagreement(field, "cuts elsewhere than the document ids do", found)
        columns[field] = own
        first = next(iter(columns))
        if not np.array_equal(own, columns[first]):
            raise _disagreement(field, f"has documents in other columns than {first}", found)


def _disagreement(field: str, message: str, found: Integers) -> EncodingError:
    remedy = "Boundaries come from the document ids alone: leave this out, or derive both from the same ids."
    return EncodingError(Problem(field, message, "disagreement", value=found.ravel().tolist(), remedy=remedy))


def _columns(cuts: Integers | None, segments: Segments) -> Integers | None:
    """Give the column of each document among offsets of tokens or of places; None where they cut elsewhere."""
    if cuts is None:
        return None
    documents = segments.documents
    if np.array_equal(np.unique(cuts), _offsets(documents.lengths)):
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


def real_places(flat: THDFlat[Tensor], total_tokens: int | None = None) -> Tensor:
    """Mark the physical places of a THD stream that hold a token, and no padding of a document or beyond the last.

    Args:
        flat: offsets, real and padded.
        total_tokens: places of the stream; by default `flat.total_tokens`.

    Returns:
        bool `[total_tokens]`.

    Raises:
        EncodingError: offsets do not start at 0, a document has more tokens than its slot, or the slots go beyond
            `total_tokens`.

    Example:
        >>> real_places(thd_flat(torch.tensor([[1, 1, 1, 0, 2, 2]]))).int().tolist()
        [1, 1, 1, 0, 1, 1]
    """
    _require_flat(flat)
    require_readable(cu_seqlens=flat.cu_seqlens, cu_seqlens_padded=flat.cu_seqlens_padded)
    offsets, slots = (array.astype(np.int64) for array in read_together(flat.cu_seqlens, flat.cu_seqlens_padded))
    _require_starts(cu_seqlens=offsets, cu_seqlens_padded=slots)
    real, padded = np.diff(offsets), np.diff(slots)
    remedy = "Give the places of the stream, or None for flat.total_tokens."
    total = flat.total_tokens if total_tokens is None else require_count(total_tokens, "total_tokens", remedy)
    _require_fitting(real, padded)
    if slots[-1] > total:
        message = f"must be at least {slots[-1]}, the last padded offset"
        raise EncodingError(Problem("total_tokens", message, "disagreement", value=total, remedy=remedy))
    pieces = np.append(np.stack([real, padded - real], axis=-1).ravel(), total - slots[-1])
    marks = np.append(np.tile([True, False], real.size), False)
    return to_tensor(np.repeat(marks, pieces), flat.cu_seqlens.device)


def transformer_engine_kwargs(flat: THDFlat[Tensor]) -> TransformerEngineKwargs[Tensor]:
    """Give the arguments by which Transformer Engine's attention learns the documents of a flattened batch.

    Args:
        flat: offsets, real and padded.

    Raises:
        EncodingError: the offsets are no `THDFlat`.

    Example:
        >>> kwargs = transformer_engine_kwargs(thd_flat(torch.tensor([[1, 1, 2, 2, 3]])))
        >>> kwargs["cu_seqlens_q_padded"].tolist(), kwargs["max_seqlen_q"], kwargs["pad_between_seqs"]
        ([0, 2, 4, 5], 2, False)
    """
    _require_flat(flat)
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": flat.cu_seqlens,
        "cu_seqlens_kv": flat.cu_seqlens,
        "cu_seqlens_q_padded": flat.cu_seqlens_padded,
        "cu_seqlens_kv_padded": flat.cu_seqlens_padded,
        "max_seqlen_q": flat.max_seqlen,
        "max_seqlen_kv": flat.max_seqlen,
        "pad_between_seqs": flat.pad_between_seqs,
    }


def packed_seq_params_kwargs(flat: THDFlat[Tensor]) -> PackedSeqParamsKwargs[Tensor]:
    """Give the arguments of Megatron's `PackedSeqParams`; its recurrent layers number documents by `total_tokens`.

    Args:
        flat: offsets, real and padded.

    Raises:
        EncodingError: the offsets are no `THDFlat`.

    Example:
        >>> packed_seq_params_kwargs(thd_flat(torch.tensor([[1, 1, 2, 0]])))["total_tokens"]
        4
    """
    return {**transformer_engine_kwargs(flat), "total_tokens": flat.total_tokens}


def convert_batch_output(
    batch: TrainingBatch[Tensor], output_format: BatchOutputFormat, *, padded_documents: bool = False
) -> TrainingBatch[Tensor]:
    """Add the lengths of every document to a batch that leaves in THD format; a batched one stays as it is.

    Boundaries are those of the attention ids, which `apply_packing_contract` leaves as `_packed_seq_ids`, or of the
    document ids where a batch has no others. Positions are never rebuilt, and labels stay: `mask_labels`, or
    `apply_packing_contract` before this, takes targets across boundaries out.

    Args:
        batch: a batch with ids, `[batch, sequence]`.
        output_format: "batched" or "thd".
        padded_documents: accept padding after each document, as `pad_documents` leaves it, and not at the end of
            rows alone.

    Returns:
        The same mapping; for "thd" with `seq_lens` and `seq_lens_padded`, int64 `[batch, most documents of a row]`,
        -1000 where unused, and `qkv_format`.

    Raises:
        BatchError: no such format, a batch without ids, with misshapen entries or whose entries cannot be replaced, or
            `padded_documents` that is no bool.
        DocumentIdsError: the ids are malformed, have a hole, padding elsewhere, or a row without any token.
        EncodingError: other ids or the padding mask of the batch contradict them.

    Example:
        >>> ids = torch.tensor([[1, 1, 2, 0]])
        >>> batch = {"input_ids": ids, "labels": ids, "position_ids": ids, "padding_mask": ids == 0}
        >>> batch["document_ids"] = ids
        >>> convert_batch_output(batch, "thd")["seq_lens_padded"]
        tensor([[2, 2]])
    """
    if not is_choice(output_format, BATCH_OUTPUT_FORMATS):
        remedy = f"Give one of {', '.join(map(repr, BATCH_OUTPUT_FORMATS))}."
        problem = Problem("output_format", "is no batch format", "value", value=repr(output_format), remedy=remedy)
        raise BatchError(problem)
    require_flag(padded_documents, "padded_documents", error=BatchError)
    require_batch(batch)
    if output_format == "batched":
        return batch
    segments, field = _attention_segments(batch)
    if not padded_documents:
        require_trailing_padding(segments, field)
    empty = np.flatnonzero(segments.documents.counts == 0)
    if empty.size:
        message = "the row holds no token"
        remedy = "Leave such rows out of a THD batch."
        raise DocumentIdsError(Problem(field, message, "value", int(empty[0]), remedy=remedy))
    lengths = thd_lengths(segments)
    batch["seq_lens"] = lengths.seq_lens
    batch["seq_lens_padded"] = lengths.seq_lens_padded
    batch["qkv_format"] = "thd"
    return batch


def _attention_segments(batch: TrainingBatch[Tensor]) -> tuple[Segments, str]:
    """Scan the ids that attention goes by, and refuse tokens of a document that policy took out."""
    given = cast("dict[str, object]", batch)
    field = next((name for name in IDS if given.get(name) is not None), None)
    if field is None:
        remedy = "Run adapt_model_inputs first."
        raise BatchError(Problem("attention_document_ids", "the batch has no ids", "missing", remedy=remedy))
    require_structure(batch)
    compared = {name: given.get(name) for name in (*IDS, "padding_mask")}
    ids = cast("Tensor", given[field])
    scanned = scan_agreeing(ids, compared, field=field, position_policy="sequence")
    kept, packed = (np.repeat(each.ids != 0, each.lengths) for each in (scanned.attention, scanned.structural))
    taken_out = np.flatnonzero(packed & ~kept)
    if taken_out.size:
        row, position = divmod(int(taken_out[0]), scanned.attention.sequence)
        message = "a hole: policy took out a token of a document, which lengths cannot express"
        remedy = "Use NEAT metadata, which leaves holes out."
        raise DocumentIdsError(Problem(field, message, "unsupported", row, position, 0, remedy))
    return scanned.attention, field


def _flat(real: Integers, padded: Integers, device: torch.device) -> THDFlat[Tensor]:
    return THDFlat(
        to_tensor(_offsets(real), device),
        to_tensor(_offsets(padded), device),
        int(padded.max()),
        int(real.sum()),
        int(padded.sum()),
    )


def _offsets(lengths: Integers) -> npt.NDArray[np.int32]:
    offsets = np.zeros(lengths.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _require_starts(**offsets: Integers) -> None:
    for field, values in offsets.items():
        if values[:1].tolist() != [0]:
            remedy = "Give offsets as thd_flat does, from 0 on."
            value = values[0] if values.size else None
            raise EncodingError(Problem(field, "must start at 0", "value", position=0, value=value, remedy=remedy))


def _require_flat(flat: object) -> None:
    require_instance(flat, THDFlat, "flat", "Call thd_flat(document_ids), or flatten_thd_lengths(...).")
    parse_thd_flat(flat)


def _read_lengths(lengths: THDLengths[Tensor], sequence_length: int) -> tuple[Integers, Integers]:
    """Read both lengths, 0 where unused, or name the row or document that is wrong."""
    parse_thd_lengths(lengths)
    require_readable(seq_lens=lengths.seq_lens, seq_lens_padded=lengths.seq_lens_padded)
    if lengths.seq_lens.device != lengths.seq_lens_padded.device:
        message = f"must lie where seq_lens lies, on {lengths.seq_lens.device}"
        device, remedy = lengths.seq_lens_padded.device, "Move it: seq_lens_padded.to(...)."
        raise EncodingError(Problem("seq_lens_padded", message, "device", value=device, remedy=remedy))
    require_places(lengths.seq_lens.shape[0], sequence_length)
    real, padded = read_together(lengths.seq_lens, lengths.seq_lens_padded)
    unused = real < 0
    differ = np.argwhere(unused != (padded < 0))
    if differ.size:
        row, document = (int(index) for index in differ[0])
        message = f"document {document} is unused in one of seq_lens and seq_lens_padded alone"
        value = (int(real[row, document]), int(padded[row, document]))
        remedy = "Count each document in one column of both, and fill the others of both with -1000."
        raise EncodingError(Problem("seq_lens_padded", message, "disagreement", row, value=value, remedy=remedy))
    real, padded = np.where(unused, 0, real), np.where(unused, 0, padded)
    _require_fitting(real, padded)
    covered = padded.sum(axis=1)
    short = np.flatnonzero((covered != sequence_length) & ~unused.all(axis=1))
    if short.size:
        row = int(short[0])
        message = f"must cover the {sequence_length} places of the row"
        remedy = "Count the padding after the last document of a row with it."
        raise EncodingError(Problem("seq_lens_padded", message, "value", row, value=int(covered[row]), remedy=remedy))
    return real, padded


def _require_fitting(real: Integers, padded: Integers) -> None:
    wrong = np.argwhere((real < 0) | (real > padded) | (padded > INT32_MAX))
    if wrong.size:
        *row, document = (int(index) for index in wrong[0])
        index = tuple(wrong[0])
        slot, value = int(padded[index]), int(real[index])
        message = f"document {document} does not fit the {slot} places of its slot"
        if slot > INT32_MAX:
            message = f"document {document} has a slot of {slot} places, past int32"
        remedy = "Count its tokens in one, and in the other these and the padding that follows them."
        raise EncodingError(
            Problem("seq_lens", message, "disagreement", row[0] if row else None, value=value, remedy=remedy)
        )
