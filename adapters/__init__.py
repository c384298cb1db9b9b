"""From document ids to every encoding of them, and back, in torch and numpy.

Hypothesis strategies are in `neatpack.adapters.strategies`, which needs hypothesis and is not imported here.
"""

from __future__ import annotations

from neatpack.adapters.agreement import check_agreement
from neatpack.adapters.agreement_of_offsets import check_thd_offsets
from neatpack.adapters.alignment import aligned_length, document_multiple, pad_documents, pad_rows
from neatpack.adapters.attention_cost import AttentionCost
from neatpack.adapters.balancing import balance_rows, resume_rows
from neatpack.adapters.batch_files import BatchEntry, load_batch
from neatpack.adapters.batch_output import convert_batch_output
from neatpack.adapters.block_mask import build_block_mask, mask_function
from neatpack.adapters.collation import collate_documents
from neatpack.adapters.context_parallel import (
    CONTEXT_LAYOUTS,
    ContextLayout,
    ContextShard,
    context_places,
    shard_tokens,
)
from neatpack.adapters.document_ids import (
    canonical_document_ids,
    document_ids_from_lengths,
    document_ids_from_positions,
    is_document_ids,
    parse_document_ids,
    validate_document_ids,
)
from neatpack.adapters.document_rows import DocumentRows, document_rows, joined_row
from neatpack.adapters.gathered import (
    document_lengths,
    gathered_flat,
    get_seqlens_in_batch,
    get_unpad_data,
    host_offsets,
)
from neatpack.adapters.indexed_masks import document_ids_from_attention_mask, is_indexed_packed_mask
from neatpack.adapters.kernel_arguments import (
    farthest_element,
    fla_kwargs,
    needs_int64_indices,
    packed_seq_params_kwargs,
    transformer_engine_kwargs,
    varlen_kernel_kwargs,
    window_size,
)
from neatpack.adapters.labels import count_valid_targets, mask_labels
from neatpack.adapters.layer_masks import LayerView, build_layer_masks, layer_masks_bytes
from neatpack.adapters.length_matrix import document_ids_from_length_matrix, length_matrix
from neatpack.adapters.loader_contract import require_supported_packing_contract, resolve_packing_contract
from neatpack.adapters.loss import loss_weights, mtp_targets
from neatpack.adapters.masks import block_causal_mask_bytes, build_block_causal_mask
from neatpack.adapters.neat_metadata import (
    build_packed_sequence_metadata,
    document_ids_from_metadata,
    flatten_packed_sequence_metadata,
    gathered_rows,
)
from neatpack.adapters.physical import (
    PADDING_SEGMENTS,
    PaddingSegments,
    document_ids_from_flash_varlen,
    flash_varlen_kwargs,
    physical_offsets,
    physical_offsets_from_positions,
)
from neatpack.adapters.physical_rows import document_ids_from_row_offsets, row_offsets
from neatpack.adapters.planning import OVERLONG_CHOICES, PACKING_METHODS, Overlong, PackingMethod, plan_rows
from neatpack.adapters.positions import build_position_ids, repeat_on_axes, tokens_remaining
from neatpack.adapters.rank_plans import REMAINDERS, RankPlan, RankPlanState, Remainder
from neatpack.adapters.recurrent import (
    document_ids_from_segment_index,
    gathered_states,
    joined_segment_index,
    physical_states,
    segment_ids_from_offsets,
    segment_index,
)
from neatpack.adapters.reductions import reduce_by_document
from neatpack.adapters.row_plans import PADDING_ROW, Piece, RowPlan, RowPlanState
from neatpack.adapters.row_streams import RowStream, RowStreamState, StreamedRow, StreamedRowState
from neatpack.adapters.seen_keys import count_seen_keys
from neatpack.adapters.segments import Documents, Segments, as_segments, scan_segments
from neatpack.adapters.slicing import pipeline_chunk_dims, split_rows
from neatpack.adapters.spans import RowSpan, Spans, mark_spans, place_spans
from neatpack.adapters.static import (
    static_gathered_flat,
    static_gathered_rows,
    static_physical_offsets,
    static_position_ids,
    static_segment_index,
    static_thd_lengths,
)
from neatpack.adapters.static_masks import static_block_causal_mask, static_block_mask
from neatpack.adapters.static_scan import StaticBounds, StaticScan, scan_static
from neatpack.adapters.static_status import StaticRule, raise_if_invalid
from neatpack.adapters.thd import document_ids_from_thd_lengths, flatten_thd_lengths, real_places, thd_flat, thd_lengths
from neatpack.adapters.token_boundaries import SpecialTokens, document_ids_from_tokens
from neatpack.adapters.token_fields import take_places
from neatpack.adapters.training_batch import adapt_model_inputs, enable_xdoc_attention
from neatpack.adapters.unpacking import unpack
from neatpack.adapters.visibility import VisibleSquare, seen_range, sees, visible_squares
from neatpack.adapters.yielding import apply_packing_contract

__all__ = [
    "CONTEXT_LAYOUTS",
    "OVERLONG_CHOICES",
    "PACKING_METHODS",
    "PADDING_ROW",
    "PADDING_SEGMENTS",
    "REMAINDERS",
    "AttentionCost",
    "BatchEntry",
    "ContextLayout",
    "ContextShard",
    "DocumentRows",
    "Documents",
    "LayerView",
    "Overlong",
    "PackingMethod",
    "PaddingSegments",
    "Piece",
    "RankPlan",
    "RankPlanState",
    "Remainder",
    "RowPlan",
    "RowPlanState",
    "RowSpan",
    "RowStream",
    "RowStreamState",
    "Segments",
    "Spans",
    "SpecialTokens",
    "StaticBounds",
    "StaticRule",
    "StaticScan",
    "StreamedRow",
    "StreamedRowState",
    "VisibleSquare",
    "adapt_model_inputs",
    "aligned_length",
    "apply_packing_contract",
    "as_segments",
    "balance_rows",
    "block_causal_mask_bytes",
    "build_block_causal_mask",
    "build_block_mask",
    "build_layer_masks",
    "build_packed_sequence_metadata",
    "build_position_ids",
    "canonical_document_ids",
    "check_agreement",
    "check_thd_offsets",
    "collate_documents",
    "context_places",
    "convert_batch_output",
    "count_seen_keys",
    "count_valid_targets",
    "document_ids_from_attention_mask",
    "document_ids_from_flash_varlen",
    "document_ids_from_length_matrix",
    "document_ids_from_lengths",
    "document_ids_from_metadata",
    "document_ids_from_positions",
    "document_ids_from_row_offsets",
    "document_ids_from_segment_index",
    "document_ids_from_thd_lengths",
    "document_ids_from_tokens",
    "document_lengths",
    "document_multiple",
    "document_rows",
    "enable_xdoc_attention",
    "farthest_element",
    "fla_kwargs",
    "flash_varlen_kwargs",
    "flatten_packed_sequence_metadata",
    "flatten_thd_lengths",
    "gathered_flat",
    "gathered_rows",
    "gathered_states",
    "get_seqlens_in_batch",
    "get_unpad_data",
    "host_offsets",
    "is_document_ids",
    "is_indexed_packed_mask",
    "joined_row",
    "joined_segment_index",
    "layer_masks_bytes",
    "length_matrix",
    "load_batch",
    "loss_weights",
    "mark_spans",
    "mask_function",
    "mask_labels",
    "mtp_targets",
    "needs_int64_indices",
    "packed_seq_params_kwargs",
    "pad_documents",
    "pad_rows",
    "parse_document_ids",
    "physical_offsets",
    "physical_offsets_from_positions",
    "physical_states",
    "pipeline_chunk_dims",
    "place_spans",
    "plan_rows",
    "raise_if_invalid",
    "real_places",
    "reduce_by_document",
    "repeat_on_axes",
    "require_supported_packing_contract",
    "resolve_packing_contract",
    "resume_rows",
    "row_offsets",
    "scan_segments",
    "scan_static",
    "seen_range",
    "sees",
    "segment_ids_from_offsets",
    "segment_index",
    "shard_tokens",
    "split_rows",
    "static_block_causal_mask",
    "static_block_mask",
    "static_gathered_flat",
    "static_gathered_rows",
    "static_physical_offsets",
    "static_position_ids",
    "static_segment_index",
    "static_thd_lengths",
    "take_places",
    "thd_flat",
    "thd_lengths",
    "tokens_remaining",
    "transformer_engine_kwargs",
    "unpack",
    "validate_document_ids",
    "varlen_kernel_kwargs",
    "visible_squares",
    "window_size",
]
