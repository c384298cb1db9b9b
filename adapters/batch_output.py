"""Batches in the format in which they leave the loader: as rows, or in THD with the lengths of every document."""

from __future__ import annotations

from typing import cast

import numpy as np
from torch import Tensor

from neatpack.adapters.agreement import scan_agreeing
from neatpack.adapters.arguments import require_choice, require_flag
from neatpack.adapters.batch_entries import refuse_kernel_fields, require_batch, require_structure
from neatpack.adapters.boundary_fields import FLASH_FIELDS, IDS, METADATA_FIELDS
from neatpack.adapters.layout import (
    AS_ROWS,
    OF_JOINED,
    require_no_holes,
    require_padding_after_documents,
    require_trailing_padding,
)
from neatpack.adapters.segments import Segments
from neatpack.adapters.thd import thd_lengths
from neatpack.contracts.batch import BATCH_OUTPUT_FORMATS, BatchOutputFormat, TrainingBatch
from neatpack.contracts.errors import BatchError, DocumentIdsError, Problem


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
        EncodingError: an entry contradicts them, or is an argument of a kernel.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 2, 0]])
        >>> batch = {"input_ids": ids, "labels": ids, "padding_mask": ids == 0, "document_ids": ids}
        >>> batch["position_ids"] = torch.tensor([[0, 1, 0, 0]])
        >>> convert_batch_output(batch, "thd")["seq_lens_padded"]
        tensor([[2, 2]])
    """
    require_choice(output_format, BATCH_OUTPUT_FORMATS, "output_format", error=BatchError)
    require_flag(padded_documents, "padded_documents", error=BatchError)
    require_batch(batch)
    if output_format == "batched":
        return batch
    segments, field = _attention_segments(batch)
    if padded_documents:
        require_padding_after_documents(segments, field)
    else:
        remedy = (
            "Keep it at the end of the row, where pad_documents(batch, 1) moves it; where documents are padded one by "
            "one, say padded_documents=True." + _before_derived(batch)
        )
        require_trailing_padding(segments, field, remedy)
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
    """Scan the ids that attention goes by, which have no hole."""
    given = cast("dict[str, object]", batch)
    field = next((name for name in IDS if given.get(name) is not None), None)
    if field is None:
        remedy = "Supply document_ids, of which adapt_model_inputs makes them."
        raise BatchError(Problem("attention_document_ids", "the batch has no ids", "missing", remedy=remedy))
    require_structure(batch)
    refuse_kernel_fields(given)
    ids = cast("Tensor", given[field])
    scanned = scan_agreeing(ids, given, field=field, position_policy="sequence")
    require_no_holes(scanned.attention, field, scanned.tokens, OF_JOINED + AS_ROWS + _before_derived(batch))
    return scanned.attention, field


def _before_derived(batch: TrainingBatch[Tensor]) -> str:
    """Say when padding can still be moved, where a batch holds entries that do not move with the tokens."""
    is_derived = any(batch.get(name) is not None for name in (*METADATA_FIELDS, *FLASH_FIELDS))
    return " Padding moves before apply_packing_contract(...), which derives from it." if is_derived else ""
