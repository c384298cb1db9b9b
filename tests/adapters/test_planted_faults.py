"""Each property catches the faults that it is there for: one is planted, and the property must fail."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
import torch
from torch import Tensor

from neatpack.adapters import (
    agreement,
    agreement_per_token,
    balancing,
    best_fit,
    collation,
    document_ids,
    first_fit,
    gathered,
    indexed_masks,
    kernel_arguments,
    labels,
    layer_masks,
    loader_contract,
    masks,
    neat_metadata,
    physical,
    plan_states,
    planning,
    positions,
    row_plans,
    row_streams,
    segments,
    spans,
    token_boundaries,
    token_fields,
    training_batch,
    unpacking,
    visibility,
    wire,
    yielding,
)
from neatpack.adapters.attention_cost import AttentionCost
from neatpack.adapters.rank_plans import RankPlan
from neatpack.adapters.row_plans import RowPlan
from neatpack.adapters.segments import Documents, Segments
from neatpack.contracts import capabilities
from tests.adapters import (
    faults,
    test_kernel_arguments,
    test_layer_masks,
    test_loader_contract,
    test_plan_states,
    test_r01_ids,
    test_r02_agreement,
    test_r02_corruptions,
    test_r03_r04_r05_r06_encodings,
    test_r07_slices,
    test_r08_positions,
    test_r09_ownership,
    test_r10_labels,
    test_r14_r15_packing,
    test_r14_ranks,
    test_row_streams,
    test_spans,
    test_token_boundaries,
    test_visibility_and_masks,
    test_wire,
)
from tests.adapters.faults import after, before, given, held, instead, returns, swap
from tests.adapters.planted import Fault, cases, properties_of, require_noticed
from tests.adapters.properties import run_property

_RULES: Final = (
    test_kernel_arguments,
    test_layer_masks,
    test_loader_contract,
    test_plan_states,
    test_r01_ids,
    test_r02_agreement,
    test_r02_corruptions,
    test_r03_r04_r05_r06_encodings,
    test_r07_slices,
    test_r08_positions,
    test_r09_ownership,
    test_r10_labels,
    test_r14_r15_packing,
    test_r14_ranks,
    test_row_streams,
    test_spans,
    test_token_boundaries,
    test_visibility_and_masks,
    test_wire,
)


_FAULTS: Final[dict[str, list[Fault]]] = {
    "test_the_scan_finds_the_documents": [
        Fault("rows joined", segments, "_find_runs", swap(faults.rows_joined)),
        Fault("last document lost", Segments, "documents", held(faults.last_document_lost)),
        Fault("hole split", Segments, "documents", swap(property(faults.holes_split))),
    ],
    "test_canonical_numbers_go_up_in_row_order": [
        Fault("numbers from 0", Documents, "ranks", held(lambda ranks: ranks - 1)),
        Fault("numbers run on over rows", Documents, "ranks", held(lambda ranks: np.arange(len(ranks)))),
    ],
    "test_an_id_that_returns_is_named": [Fault("ids may return", segments, "_return_problems", returns([]))],
    "test_malformed_ids_are_refused": [
        Fault("values unchecked", segments, "_value_problems", returns([])),
        Fault("forms unchecked", segments, "_form_problems", returns([])),
    ],
    "test_no_width_of_ids_changes_a_length": [
        Fault("lengths wrap at int8", segments, "_find_runs", faults.scanned_as(np.int8)),
        Fault("lengths wrap at uint8", segments, "_find_runs", faults.scanned_as(np.uint8)),
    ],
    "test_ids_come_back_from_positions_and_padding": [
        Fault("padding taken for documents", document_ids, "read_together", after(faults.last_unread)),
    ],
    "test_a_contradiction_is_refused_and_nothing_changes": [
        Fault("nothing raises", agreement_per_token, "raise_first", returns(None)),
        *(
            Fault(f"{name} does nothing", agreement, name, returns(None))
            for name in ("check_positions", "check_mask", "check_flash", "check_metadata", "check_lengths")
        ),
    ],
    "test_a_contradiction_is_refused_where_thd_is_the_last_step": [
        Fault(f"{name} does nothing", agreement, name, returns(None))
        for name in ("check_positions", "check_mask", "check_flash", "check_metadata", "check_lengths")
    ],
    "test_a_plain_mask_may_keep_whatever_policy_took_out": [
        Fault("masks unheeded", agreement, "check_mask", returns(None)),
        Fault("ids as packed unheeded", agreement, "check_mask", faults.without_ids_as_packed),
    ],
    "test_an_encoding_that_is_wrong_in_one_place_is_refused": [
        Fault("dense masks unheeded", agreement_per_token, "_check_dense_mask", returns(None)),
        *(
            Fault(f"{name} does nothing", agreement, name, returns(None))
            for name in (
                "check_ids",
                "check_segment_index",
                "check_positions",
                "check_structure",
                "check_flash",
                "check_metadata",
                "check_lengths",
            )
        ),
    ],
    "test_so_is_one_that_can_express_holes_beside_some": [
        Fault("dense masks unheeded", agreement_per_token, "_check_dense_mask", returns(None)),
        Fault("hole split", Segments, "documents", swap(property(faults.holes_split))),
    ],
    "test_positions_that_restart_agree_wherever_they_start_and_whatever_is_excluded": [
        Fault("excluded tokens unheeded", agreement, "require_restarts", swap(faults.restarts_where_kept)),
        Fault("restarts at 0 alone", agreement, "require_restarts", swap(faults.restarts_at_zero)),
    ],
    "test_positions_that_run_on_are_refused_unless_that_was_declared": [
        Fault("run on unseen", agreement, "require_restarts", returns(None)),
        Fault("documents unheeded", Documents, "ranks", held(np.zeros_like)),
        Fault("declared in vain", agreement, "scan_agreeing", given(position_policy="document")),
    ],
    "test_gathered_rows_hold_kept_tokens_only": [
        Fault("padding gathered", neat_metadata, "UNUSED_OFFSET", swap(0)),
        Fault("hole split", Segments, "documents", swap(property(faults.holes_split))),
    ],
    "test_the_gathered_stream_holds_every_document_once": [
        Fault("rows joined", segments, "_find_runs", swap(faults.rows_joined)),
        Fault("offsets one too far", gathered, "offsets_of", after(lambda offsets: offsets + 1)),
    ],
    "test_flattening_rows_gives_the_stream": [
        Fault("flat refused", neat_metadata, "_require_flat", swap(faults.refuses))
    ],
    "test_physical_segments_cover_the_batch": [
        Fault("padding whole", physical, "_cut", swap(faults.uncut)),
        Fault("padding cut one too long", physical, "_cut", faults.cut_too_long),
        Fault("last segment lost", physical, "_cut", after(lambda bounds: bounds[:-1])),
    ],
    "test_padding_is_cut_at_the_given_length_and_documents_are_not": [
        Fault("documents cut", physical, "_cut", faults.cut_everywhere),
        Fault("padding cut one too long", physical, "_cut", faults.cut_too_long),
    ],
    "test_no_segment_joins_rows_or_documents_or_padding": [
        Fault("rows joined", segments, "_find_runs", swap(faults.rows_joined)),
    ],
    "test_the_work_of_padding_grows_linearly": [Fault("padding whole", physical, "_cut", swap(faults.uncut))],
    "test_holes_are_kept_where_gathered_and_refused_where_physical": [
        Fault("holes pass", physical, "require_no_holes", returns(None)),
        Fault("holes taken for padding", Segments, "holes", held(lambda holes: holes[:0])),
    ],
    "test_ids_come_back_from_gathered_rows": [
        Fault("offsets one too low", neat_metadata, "read_together", after(faults.first_offset_moved)),
    ],
    "test_ids_come_back_from_physical_offsets_and_padding": [
        Fault("padding taken for documents", physical, "read_together", after(faults.last_unread)),
    ],
    "test_a_longest_below_a_segment_is_refused": [
        Fault("longest unread", physical, "_require_longest", returns(None)),
        Fault("upper bounds refused", physical, "_require_longest", swap(faults.refuses)),
    ],
    "test_a_segment_that_holds_tokens_and_padding_is_refused": [
        Fault("mask unread", physical, "read_together", after(faults.last_unread)),
    ],
    "test_ids_come_back_from_lengths": [
        Fault("rows backwards", document_ids, "_length_problems", swap(faults.lengths_backwards)),
    ],
    "test_cutting_rows_and_deriving_commute": [
        Fault("offsets of the batch", neat_metadata, "gathered_rows", after(faults.one_row_further)),
    ],
    "test_the_contract_alone_fixes_the_keys": [
        Fault("keys by data", yielding, "build_packed_sequence_metadata", after(faults.only_with_documents)),
        Fault("ids not shipped", yielding, "PACKED_SEQ_IDS", swap("packed_ids")),
    ],
    "test_nothing_is_derived_that_the_contract_does_not_ask_for": [
        Fault("a mask for nobody", yielding, "_contract_fields", instead(faults.mask_for_nobody)),
    ],
    "test_what_is_shipped_is_what_its_builder_gives": [
        Fault("padding whole", yielding, "flash_varlen_kwargs", faults.padding_runs_whole),
    ],
    "test_positions_restart_in_each_document": [
        Fault("holes uncounted", test_r08_positions, "build_position_ids", swap(faults.holes_uncounted)),
        Fault("positions run on", positions, "as_segments", before(faults.all_one)),
        Fault("padding counted", Segments, "padding", held(lambda padding: padding[:0])),
    ],
    "test_joined_documents_are_shifted_on_every_axis": [
        Fault("shifted by count", training_batch, "_joined_shift", swap(faults.joined_by_count)),
    ],
    "test_excluded_tokens_become_holes_and_keep_their_coordinates": [
        Fault("not shifted", training_batch, "_joined_shift", after(np.zeros_like)),
        Fault("seen again when joined", training_batch, "require_tensor", instead(faults.as_packed)),
    ],
    "test_tokens_excluded_once_stay_excluded": [
        Fault("seen again", test_r08_positions, "adapt_model_inputs", before(faults.without_policy)),
    ],
    "test_no_derivation_writes_to_the_ids": [
        Fault("written in place", segments, "read_on_host", faults.written_in_place),
    ],
    "test_no_tensor_of_a_batch_is_written_to": [
        Fault("written when joined", training_batch, "read_together", faults.written_in_place),
        Fault("written when checked", agreement, "read_together", faults.written_in_place),
        Fault("labels filled in place", Tensor, "masked_fill", swap(Tensor.masked_fill_)),
        Fault("ids filled in place", training_batch, "_require_eligibility", faults.filled_beforehand),
    ],
    "test_no_function_of_a_batch_writes_to_what_it_holds": [
        Fault("labels filled in place", Tensor, "masked_fill", swap(Tensor.masked_fill_)),
        Fault("written when read", token_fields, "_as_signed", before(Tensor.zero_)),
        Fault("moved in place", token_fields, "batch_shape", before(faults.emptied)),
    ],
    "test_results_share_no_memory_with_the_ids": [
        Fault("labels filled in place", Tensor, "masked_fill", swap(Tensor.masked_fill_)),
    ],
    "test_what_is_written_to_a_result_is_not_read_again": [
        Fault("lengths lent and not copied", np, "array", swap(np.asarray)),
    ],
    "test_no_target_crosses_a_boundary": [
        Fault("model taken for stream", labels, "_crossing", faults.taken_for("model", "stream")),
        Fault("stream taken for document", labels, "_crossing", faults.taken_for("stream", "document")),
        Fault("document taken for stream", labels, "_crossing", faults.taken_for("document", "stream")),
    ],
    "test_ids_as_packed_of_which_no_policy_makes_the_others_are_refused": [
        Fault("any ids", labels, "require_policy", returns(None)),
        Fault("no ids", labels, "require_policy", swap(faults.refuses)),
    ],
    "test_the_same_pairs_are_trained_whoever_shifts": [
        Fault("all pairs trained", labels, "_crossing", after(torch.zeros_like)),
    ],
    "test_policy_decides_which_targets_stay": [
        Fault("joined targets cut", yielding, "mask_labels", given(inside_documents=True)),
        Fault("structure unheeded", yielding, "mask_labels", given(document_ids=None)),
    ],
    "test_labels_of_a_batch_that_is_yielded_twice_are_those_of_once": [
        Fault("joined over padding", agreement, "_cut_at_padding", swap(faults.by_attention)),
    ],
    "test_a_plan_places_every_token_once_or_names_it": [
        Fault("best fit unbounded", planning, "best_fit", faults.unbounded),
        Fault("first fit unbounded", planning, "first_fit", faults.unbounded),
        Fault("a piece lost", planning, "_split", after(faults.last_piece_lost)),
        Fault("dropped misnamed", planning, "Piece", swap(faults.from_its_start)),
        Fault("all in one row", planning, "_place", swap(faults.all_in_one_row)),
    ],
    "test_best_fit_fills_rows_as_placing_one_by_one_does": [
        Fault("the most room taken", best_fit, "_lowest", swap(faults.highest)),
        Fault("rows by length", best_fit, "_by_opener", swap(faults.as_dealt)),
        Fault("first fit", planning, "best_fit", swap(first_fit.first_fit)),
    ],
    "test_first_fit_takes_the_first_row_with_room": [
        Fault("room not taken", first_fit.Rooms, "take", returns(0)),
        Fault("first row unused", first_fit.Rooms, "take", after(lambda row: row + 1)),
        Fault("unbounded", planning, "first_fit", faults.unbounded),
    ],
    "test_a_stream_places_each_document_into_the_first_open_row_and_reads_no_further": [
        Fault("first row unused", first_fit.Rooms, "take", faults.next_row_taken),
        Fault("no row closes before the end", row_streams.RowStream, "_is_full", returns(False)),
        Fault("closed rows taken again", row_streams.RowStream, "_close", faults.room_left_behind),
        Fault("a row lost in the new tree", row_streams.RowStream, "_seat", faults.last_row_unseated),
        Fault("drops misnamed", row_streams, "Piece", swap(faults.from_its_start)),
    ],
    "test_with_rows_enough_a_stream_gives_the_rows_of_a_list": [
        Fault("bound forgotten", row_streams, "require_row_limits", after(lambda limits: (limits[0], 10**6))),
        Fault("rows numbered anew", row_streams, "StreamedRow", faults.numbered_from_one),
    ],
    "test_a_stream_goes_on_from_any_row": [
        Fault("closed rows forgotten", row_streams.RowStream, "state", after(lambda state: {**state, "closed": []})),
        Fault("open rows forgotten", row_streams.RowStream, "state", after(lambda state: {**state, "open": []})),
        Fault("documents come again", row_streams.RowStream, "state", faults.one_document_less),
    ],
    "test_a_document_that_is_refused_leaves_the_others_as_they_were": [
        Fault("counted before it is read", row_streams.RowStream, "_read", faults.counted_first),
    ],
    "test_documents_keep_the_numbers_that_the_caller_gives_them": [
        Fault("keys of the stream", row_streams.RowStream, "_read", faults.keys_by_count),
    ],
    "test_wrapping_cuts_only_where_a_row_ends": [
        Fault("unbounded", planning, "_row_ends", faults.unbounded),
        Fault("documents shortened", planning, "_wrap", faults.documents_shortened),
    ],
    "test_a_plan_comes_back_from_its_state": [
        Fault("cuts forgotten", RowPlan, "state", after(lambda state: {**state, "cut": []})),
        Fault("drops forgotten", RowPlan, "state", after(lambda state: {**state, "dropped": []})),
    ],
    "test_collation_places_every_token_once_and_unpacking_returns_it": [
        Fault("keys of rows", collation, "_per_row", after(faults.keys_of_rows)),
        Fault("keys backwards", unpacking, "_groups", after(lambda groups: groups[::-1])),
        Fault("pieces backwards", unpacking, "_groups", after(lambda groups: [group[::-1] for group in groups])),
        Fault("positions run on", collation, "_positions", after(faults.counted_on)),
        Fault("another token at padding", collation, "_fill", faults.padded_with_ones),
    ],
    "test_chosen_rows_are_collated_as_all_are": [
        Fault("rows in order", collation, "_row_numbers", after(np.sort)),
        Fault("all rows", collation, "_row_numbers", swap(faults.all_rows)),
    ],
    "test_unpacking_survives_a_cut_along_the_rows": [Fault("row order", unpacking, "_groups", after(sorted))],
    "test_keys_name_the_documents_of_moved_tokens_or_the_move_is_refused": [
        Fault("any order", token_fields, "_require_order", returns(None)),
    ],
    "test_pieces_are_joined_whatever_the_order_of_the_rows": [
        Fault("missing pieces pass", unpacking, "_require_whole", returns(None)),
        Fault("pieces backwards", unpacking, "_groups", after(lambda groups: [group[::-1] for group in groups])),
    ],
    "test_pieces_go_on_behind_what_the_plan_dropped": [
        Fault("dropped pieces awaited", unpacking, "_after_dropped", swap(faults.dropped_pieces_awaited)),
        Fault("missing pieces pass", unpacking, "_require_placed", returns(None)),
    ],
    "test_starts_in_other_columns_than_the_keys_are_refused": [
        Fault("columns unheeded", unpacking, "_require_same_columns", returns(None)),
    ],
    "test_by_the_plan_any_missing_piece_is_seen": [
        Fault("plan unheeded", unpacking, "_require_placed", returns(None)),
        Fault("dropped tokens awaited", RowPlan, "placed_tokens", swap(property(lambda plan: plan.lengths))),
    ],
    "test_ranks_share_every_token_and_take_as_many_rows": [
        Fault("a row dealt twice", balancing, "_deal_step", after(lambda dealt: dealt[:1] * len(dealt))),
        Fault("all in one row", balancing, "_even_out", swap(faults.all_in_the_first)),
        Fault("drawn anew", balancing, "_drawn_order", swap(faults.drawn_anew)),
        Fault("the fullest carried", RowPlan, "row_tokens", held(np.negative)),
    ],
    "test_a_rank_has_padding_alone_in_a_step_only_where_rows_are_fewer_than_ranks_in_all_steps": [
        Fault("groups as drawn", balancing, "_spread_padded", swap(faults.as_drawn)),
    ],
    "test_the_balance_that_is_reported_is_that_of_the_rows": [
        Fault("pieces joined", AttentionCost, "of", swap(faults.cost_of_tokens)),
        Fault("the fastest told", RankPlan, "loads", held(np.negative)),
    ],
    "test_rows_of_a_step_cost_alike_and_go_to_the_rank_with_the_least_to_do": [
        Fault("costs unheeded", balancing, "row_costs", after(np.zeros_like)),
        Fault("dealt in turn", balancing, "_deal_step", swap(faults.dealt_in_turn)),
    ],
    "test_no_row_takes_more_pieces_than_the_fullest_row_of_the_plan": [
        Fault("bound forgotten", balancing, "_Room", after(lambda room: room._replace(pieces=room.tokens))),
    ],
    "test_resuming_loses_and_repeats_nothing": [
        Fault("steps come back", RankPlan, "state", faults.nothing_done),
        Fault("carried rows forgotten", RankPlan, "state", after(lambda state: {**state, "carried": []})),
    ],
    "test_what_is_left_is_dealt_to_others_as_a_plan_of_its_own": [
        Fault("seed forgotten", RankPlan, "state", after(lambda state: {**state, "seed": 0})),
        Fault("remainder of before", balancing, "require_remainder", after(lambda _: "carry")),
    ],
    "test_unpacking_leaves_holes_and_padding_out": [
        Fault("holes returned", segments, "scan_array", after(faults.holes_as_tokens)),
    ],
    "test_the_mask_shows_each_document_so_far": [
        Fault("later tokens seen", masks, "fill_visible", swap(faults.later_tokens_seen)),
        Fault("window one short", masks, "fill_visible", swap(faults.window_one_short)),
        Fault("holes seen", Segments, "holes", held(lambda holes: holes[:0])),
        Fault("squares from the row's start", masks, "visible_squares", faults.squares_from(0, 0)),
    ],
    "test_the_width_of_places_changes_nothing_that_is_seen": [
        Fault("distances wrap", visibility, "_signed", swap(faults.as_it_came)),
        Fault("window one short", visibility, "require_window", after(lambda window: window and max(window - 1, 1))),
    ],
    "test_each_type_of_layer_gets_the_mask_of_its_view": [
        Fault("chunks of the row", masks, "visible_squares", given(chunk=None)),
        Fault("window one short", masks, "fill_visible", swap(faults.window_one_short)),
        Fault("window lost in chunks", layer_masks, "build_block_causal_mask", instead(faults.window_lost_in_chunks)),
    ],
    "test_each_token_is_in_the_document_that_the_special_tokens_say": [
        Fault("padding taken for documents", token_boundaries, "read_together", after(faults.last_unread)),
        Fault("pads are tokens", token_boundaries, "_outside", after(np.zeros_like)),
        Fault("pads are padding", token_boundaries, "_behind", after(np.ones_like)),
    ],
    "test_a_span_names_the_same_tokens_in_its_row": [
        Fault("one place too long", spans, "RowSpan", after(lambda span: span._replace(stop=span.stop + 1))),
        Fault("rows joined", segments, "_find_runs", swap(faults.rows_joined)),
    ],
    "test_seeing_pair_by_pair_is_the_mask": [
        Fault("padding sees padding", test_visibility_and_masks, "sees", instead(faults.padding_sees_padding)),
    ],
    "test_an_additive_mask_says_the_same": [Fault("inverted", Tensor, "masked_fill_", faults.filled_elsewhere)],
    "test_nothing_is_seen_outside_the_squares_but_the_diagonal": [
        Fault("squares too small", test_visibility_and_masks, "visible_squares", faults.squares_from(1, -1)),
    ],
    "test_both_sides_get_the_offsets_of_the_stream": [
        Fault("keys one longer", test_kernel_arguments, "varlen_kernel_kwargs", after(faults.keys_one_longer)),
        Fault("keys from elsewhere", test_kernel_arguments, "varlen_kernel_kwargs", after(faults.keys_from_elsewhere)),
    ],
    "test_a_window_lets_a_kernel_see_as_many_keys_as_the_model_counts": [
        Fault("the query counted twice", test_kernel_arguments, "window_size", after(faults.query_counted_twice)),
        Fault("later keys unseen", test_kernel_arguments, "window_size", given(causal=True)),
    ],
    "test_32_bits_are_enough_where_no_element_lies_farther": [
        Fault("sizes for last entries", test_kernel_arguments, "farthest_element", swap(faults.one_entry_too_far)),
        Fault("unsigned indices", kernel_arguments, "INT32_MAX", swap(2**32 - 1)),
        Fault("from the last that fits", kernel_arguments, "INT32_MAX", swap(2**31 - 2)),
    ],
    "test_lengths_and_their_offsets_on_the_host": [
        Fault("last document lost", Segments, "documents", held(faults.last_document_lost)),
        Fault("offsets of the device", test_kernel_arguments, "host_offsets", after(torch.tensor)),
    ],
    "test_a_mask_that_numbers_documents_is_read_as_ids": [
        Fault("documents joined", indexed_masks, "mask_segments", before(faults.all_one)),
        Fault("numbers not canonical", indexed_masks, "canonical_document_ids", after(lambda ids: 2 * ids)),
    ],
    "test_physical_encodings_cannot_express_every_policy": [
        Fault("any policy", loader_contract, "_require_contiguous", returns(None)),
        Fault("joined documents pass", loader_contract, "_require_contiguous", given(joined=False)),
        Fault("joined documents never pass", loader_contract, "_require_contiguous", given(joined=True)),
        Fault("holes pass", loader_contract, "_require_contiguous", given(eligibility=False)),
        Fault(
            "takes_holes is not read",
            capabilities,
            "parse_packing_capabilities",
            after(faults.capabilities_without("takes_holes")),
        ),
    ],
    "test_lengths_cannot_express_every_policy_either": [
        Fault("any policy", loader_contract, "_require_contiguous", returns(None)),
    ],
    "test_rows_longer_than_the_contract_allows_are_refused_before_the_first_batch": [
        Fault("any length", loader_contract, "_require_room", returns(None)),
    ],
    "test_labels_are_shifted_once": [
        Fault("any shift", loader_contract, "_require_one_shift", returns(None)),
        Fault("stream taken for model", loader_contract, "_require_one_shift", before(lambda _: "model")),
    ],
    "test_capabilities_cross_the_wire_and_come_back": [
        Fault(f"{field} is lost", wire.WireCapabilities, "to_core", after(faults.capabilities_without(field)))
        for field in (
            *("uses_native_fa4", "return_document_ids", "max_sequence_length", "position_policy", "takes_holes"),
        )
    ],
    "test_a_value_of_another_type_is_named": [Fault("bools are ints", row_plans, "read_numbers", faults.bools_as_ints)],
    "test_keys_that_are_missing_or_unknown_are_named": [
        Fault("any keys will do", plan_states, "read_entries", swap(faults.first_of)),
    ],
    "test_a_state_of_another_kind_is_named_with_what_reads_it": [
        Fault("no class has a reader", plan_states, "get_args", returns(())),
    ],
    "test_options_cross_the_wire_and_come_back": [
        Fault("defaults come back", wire.WirePackingOptions, "to_core", after(faults.default_options)),
    ],
    "test_a_plan_by_options_is_the_planners": [
        Fault("another planner", wire, "plan_rows", given(method="wrap")),
        Fault("bound forgotten", wire, "plan_rows", given(documents_per_row=None)),
    ],
    "test_every_field_that_is_wrong_or_unknown_is_named_and_no_other": [
        Fault("unknown keys pass", wire.WireModel, "read", swap(classmethod(faults.read_what_is_known))),
        Fault("values converted", wire.WireModel, "read", swap(classmethod(faults.read_loosely))),
        Fault("one problem told", wire, "_problems", after(lambda problems: problems[:1])),
        Fault("unknown taken for wrong", wire, "_KINDS", swap({})),
    ],
}
"""For each property, the faults that it has to notice."""


@pytest.mark.parametrize(("name", "fault"), cases(_FAULTS))
def test_a_planted_fault_is_noticed(name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    require_noticed(name, fault, monkeypatch)


@pytest.mark.parametrize("name", _FAULTS)
def test_without_a_fault_the_property_holds(name: str) -> None:
    run_property(name, max_examples=15)


def test_every_property_has_a_fault() -> None:
    assert properties_of(*_RULES) == set(_FAULTS)
