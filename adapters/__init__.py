"""From document ids to every encoding of them, and back, in torch and numpy.

Hypothesis strategies are in `neatpack.adapters.strategies`, which needs hypothesis and is not imported here.
"""

from __future__ import annotations

from neatpack.adapters.batch_files import BatchEntry, load_batch
from neatpack.adapters.document_ids import (
    canonical_document_ids,
    document_ids_from_lengths,
    document_ids_from_positions,
    is_document_ids,
    parse_document_ids,
    validate_document_ids,
)
from neatpack.adapters.gathered import (
    build_packed_sequence_metadata,
    document_ids_from_metadata,
    flatten_packed_sequence_metadata,
    gathered_flat,
    gathered_rows,
    get_seqlens_in_batch,
    get_unpad_data,
    is_indexed_packed_mask,
)
from neatpack.adapters.labels import count_valid_targets, mask_labels
from neatpack.adapters.masks import block_causal_mask_bytes, build_block_causal_mask
from neatpack.adapters.packing import RowPlan, collate_documents, plan_rows, unpack
from neatpack.adapters.physical import (
    PADDING_SEGMENTS,
    PaddingSegments,
    document_ids_from_flash_varlen,
    flash_varlen_kwargs,
    physical_offsets,
)
from neatpack.adapters.positions import build_position_ids
from neatpack.adapters.segments import Documents, Segments, as_segments, scan_segments
from neatpack.adapters.visibility import VisibleSquare, sees, visible_squares

__all__ = [
    "PADDING_SEGMENTS",
    "BatchEntry",
    "Documents",
    "PaddingSegments",
    "RowPlan",
    "Segments",
    "VisibleSquare",
    "as_segments",
    "block_causal_mask_bytes",
    "build_block_causal_mask",
    "build_packed_sequence_metadata",
    "build_position_ids",
    "canonical_document_ids",
    "collate_documents",
    "count_valid_targets",
    "document_ids_from_flash_varlen",
    "document_ids_from_lengths",
    "document_ids_from_metadata",
    "document_ids_from_positions",
    "flash_varlen_kwargs",
    "flatten_packed_sequence_metadata",
    "gathered_flat",
    "gathered_rows",
    "get_seqlens_in_batch",
    "get_unpad_data",
    "is_document_ids",
    "is_indexed_packed_mask",
    "load_batch",
    "mask_labels",
    "parse_document_ids",
    "physical_offsets",
    "plan_rows",
    "scan_segments",
    "sees",
    "unpack",
    "validate_document_ids",
    "visible_squares",
]
