"""Documents and rows padded to multiples, as context and tensor parallelism ask for."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from neatpack.adapters.agreement import scan_batch
from neatpack.adapters.arguments import INT32_MAX, require_count, require_pad_token
from neatpack.adapters.batch_entries import batch_shape
from neatpack.adapters.layout import require_no_holes
from neatpack.adapters.segments import Segments
from neatpack.adapters.token_fields import move_tokens, require_movable
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.errors import BatchError, EncodingError, Problem


def aligned_length(length: int, multiple: int) -> int:
    """Round a length up to a multiple.

    Labels that are shifted make a sequence one token shorter, and it is the length that runs which is to be aligned.

    Raises:
        EncodingError: the multiple is no positive int, or the length no int of at least 0.

    Example:
        >>> aligned_length(17, 8), aligned_length(24, 8)
        (24, 24)
    """
    length = require_count(length, "length", "Give the places of a row.")
    multiple = _checked_multiple(multiple)
    return length + -length % multiple


def document_multiple(context_parallel: int = 1, tensor_parallel: int = 1) -> int:
    """Give what the places of each document must be a multiple of.

    Zigzag context parallelism cuts each document into `2 * context_parallel` chunks, and sequence parallelism cuts
    the tokens of a context-parallel rank among `tensor_parallel` ranks.

    Raises:
        EncodingError: a size is no positive int.

    Example:
        >>> document_multiple(context_parallel=2), document_multiple(2, 4), document_multiple(tensor_parallel=3)
        (4, 8, 3)
    """
    remedy = "Give the size of the group, 1 for none."
    context_parallel = require_count(context_parallel, "context_parallel", remedy, least=1)
    tensor_parallel = require_count(tensor_parallel, "tensor_parallel", remedy, least=1)
    chunks = 2 * context_parallel if context_parallel > 1 else 1
    return math.lcm(chunks, context_parallel * tensor_parallel)


def pad_documents(batch: TrainingBatch[Tensor], multiple: int, *, pad_token_id: int = 0) -> TrainingBatch[Tensor]:
    """Pad each document of each row to a multiple, and the rows to one length, which is a multiple as well.

    Padding that was there is left out first, so that documents are padded for themselves. Real tokens keep their
    labels and positions. Without `document_ids`, the padding mask tells where padding separates joined documents.

    Args:
        batch: per-token entries with ids, `document_ids` or else those that attention goes by; without holes, and
            without anything that is derived from ids.
        multiple: as `document_multiple` gives it.
        pad_token_id: what `input_ids` holds at padding.

    Returns:
        A new batch, `[batch, new sequence]`, in which padding has document id 0.

    Raises:
        BatchError: there are no ids, an entry cannot move with the tokens, or `pad_token_id` is no int.
        DocumentIdsError: the ids are malformed, or have a hole.
        EncodingError: the multiple is no positive int, or makes more places than int32 counts, or ids, padding mask
            and positions of the batch contradict one another.

    Example:
        >>> ids = torch.tensor([[1, 1, 1, 2, 0]])
        >>> positions = torch.tensor([[0, 1, 2, 0, 0]])
        >>> batch = {"input_ids": ids + 9, "labels": ids, "position_ids": positions, "padding_mask": ids == 0}
        >>> batch["document_ids"] = ids
        >>> pad_documents(batch, 2)["document_ids"]
        tensor([[1, 1, 1, 0, 2, 0]])
    """
    multiple = _checked_multiple(multiple)
    require_pad_token(pad_token_id, BatchError)
    require_movable(batch)
    scanned, field = scan_batch(batch)
    segments = scanned.packed  # Tokens that policy takes out are still tokens.
    remedy = "Give the ids as packed, document_ids without zeros between tokens: what policy took out stays a token."
    require_no_holes(segments, "document_ids" if "document_ids" in batch else field, scanned.tokens, remedy)
    return move_tokens(batch, segments.tensor(_padded_places(segments, multiple)), pad_token_id=pad_token_id)


def pad_rows(batch: TrainingBatch[Tensor], multiple: int, *, pad_token_id: int = 0) -> TrainingBatch[Tensor]:
    """Pad each row at its end to a multiple of places.

    Args:
        batch: per-token entries, without anything that is derived from ids.
        multiple: what the new length is a multiple of.
        pad_token_id: what `input_ids` holds at padding.

    Returns:
        A new batch, `[batch, new sequence]`, in which new padding has document id 0.

    Raises:
        BatchError: an entry cannot move with the tokens, or `pad_token_id` is no int.
        EncodingError: the multiple is no positive int, or makes more places than int32 counts.

    Example:
        >>> ids = torch.tensor([[1, 1, 2]])
        >>> batch = {"input_ids": ids, "labels": ids, "position_ids": ids, "padding_mask": ids == 0}
        >>> pad_rows(batch, 4)["padding_mask"]
        tensor([[False, False, False,  True]])
    """
    require_pad_token(pad_token_id, BatchError)
    rows, sequence = batch_shape(batch)
    aligned = aligned_length(sequence, multiple)
    _require_countable(rows, aligned, multiple)
    places = torch.arange(aligned, device=batch["input_ids"].device)
    return move_tokens(batch, places.where(places < sequence, -1).expand(rows, -1), pad_token_id=pad_token_id)


def _checked_multiple(multiple: object) -> int:
    return require_count(multiple, "multiple", "Call document_multiple(...), or give 1.", least=1)


def _padded_places(segments: Segments, multiple: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Give for each new place the place that it takes in its row, -1 at padding; `[batch, new sequence]`."""
    documents = segments.documents
    padded = documents.lengths + -documents.lengths % multiple
    ends = np.cumsum(padded)
    heads = np.arange(ends.size) - documents.ranks
    begins = ends - padded - (ends - padded)[heads]
    sequence = max(int((begins + padded).max(initial=0)), multiple)
    _require_countable(segments.batch, sequence, multiple)
    within = np.arange(int(documents.lengths.sum()))
    within -= np.repeat(np.cumsum(documents.lengths) - documents.lengths, documents.lengths)
    targets = np.repeat(documents.rows * sequence + begins, documents.lengths) + within
    places = np.full((segments.batch, sequence), -1, np.int64)
    origins = documents.starts - documents.rows * segments.sequence
    np.put(places, targets, np.repeat(origins, documents.lengths) + within)
    return places


def _require_countable(batch: int, sequence: int, multiple: int) -> None:
    if batch * sequence > INT32_MAX:
        message = f"padded rows have more places than int32 offsets can count, {INT32_MAX}"
        remedy = "Give a smaller multiple, or cut the batch along its rows."
        raise EncodingError(Problem("multiple", message, "value", value=multiple, remedy=remedy))
