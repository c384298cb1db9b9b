"""From document ids to every encoding of them, and back, in torch and numpy.

Hypothesis strategies are in `neatpack.adapters.strategies`, which needs hypothesis and is not imported here.
"""

from __future__ import annotations

from neatpack.adapters.agreement import check_agreement
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
from neatpack.adapters.loader_contract import require_supported_packing_contract, resolve_packing_contract
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
from neatpack.adapters.training_batch import adapt_model_inputs, enable_xdoc_attention
from neatpack.adapters.visibility import VisibleSquare, sees, visible_squares
from neatpack.adapters.yielding import apply_packing_contract

__all__ = [
    "PADDING_SEGMENTS",
    "BatchEntry",
    "Documents",
    "PaddingSegments",
    "RowPlan",
    "Segments",
    "VisibleSquare",
    "adapt_model_inputs",
    "apply_packing_contract",
    "as_segments",
    "block_causal_mask_bytes",
    "build_block_causal_mask",
    "build_packed_sequence_metadata",
    "build_position_ids",
    "canonical_document_ids",
    "check_agreement",
    "collate_documents",
    "count_valid_targets",
    "document_ids_from_flash_varlen",
    "document_ids_from_lengths",
    "document_ids_from_metadata",
    "document_ids_from_positions",
    "enable_xdoc_attention",
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
    "require_supported_packing_contract",
    "resolve_packing_contract",
    "scan_segments",
    "sees",
    "unpack",
    "validate_document_ids",
    "visible_squares",
]
