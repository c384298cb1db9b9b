"""Properties of further encodings, of cuts, of targets and of fixed shapes catch the faults that are planted."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
import pytest
import torch

from neatpack.adapters import (
    agreement,
    agreement_of_offsets,
    alignment,
    block_mask,
    context_parallel,
    kernel_arguments,
    loss,
    neat_metadata,
    physical,
    physical_rows,
    recurrent,
    reductions,
    seen_keys,
    segments,
    slicing,
    static,
    static_masks,
    thd,
    token_fields,
    visible_blocks,
)
from neatpack.adapters.document_rows import DocumentRows
from neatpack.adapters.segments import Documents, Segments
from neatpack.adapters.static_scan import StaticScan
from tests.adapters import (
    faults,
    test_alignment,
    test_batch_output,
    test_block_mask,
    test_context_parallel,
    test_document_rows,
    test_few_and_many_runs,
    test_loss,
    test_offsets_from_positions,
    test_r02_thd_offsets,
    test_recurrent,
    test_reductions,
    test_rows,
    test_seen_keys,
    test_slicing,
    test_static,
    test_static_masks,
    test_static_scan,
    test_static_status,
    test_thd,
)
from tests.adapters.faults import after, before, given, held, instead, returns, swap
from tests.adapters.planted import Fault, cases, properties_of, require_noticed
from tests.adapters.properties import run_property

_DOCUMENT_ROWS: Final[Any] = sys.modules["neatpack.adapters.document_rows"]
"""The module, whose name is that of its function as well."""

_MODULES: Final = (
    test_alignment,
    test_batch_output,
    test_block_mask,
    test_context_parallel,
    test_document_rows,
    test_few_and_many_runs,
    test_loss,
    test_offsets_from_positions,
    test_r02_thd_offsets,
    test_recurrent,
    test_reductions,
    test_rows,
    test_slicing,
    test_static,
    test_static_masks,
    test_static_scan,
    test_static_status,
    test_thd,
    test_seen_keys,
)

_WIDER: Final = instead(faults.window_one_wider)

_FAULTS: Final[dict[str, list[Fault]]] = {
    "test_targets_from_labels_that_nobody_shifted": [
        Fault("boundaries of the depth before", loss, "_pairs", instead(faults.of_the_depth_before)),
        Fault("rows joined", segments, "_find_runs", swap(faults.rows_joined)),
    ],
    "test_targets_from_labels_shifted_along_the_row": [
        Fault("boundaries crossed", loss, "_pairs", after(np.ones_like)),
    ],
    "test_targets_from_labels_shifted_inside_documents": [
        Fault("own last target lost", loss, "_pairs", instead(faults.none_shifted)),
    ],
    "test_depth_zero_is_the_masked_labels": [
        Fault("own last target everywhere", loss, "_pairs", instead(faults.all_shifted))
    ],
    "test_targets_under_policy": [
        Fault("joined documents unheeded", test_loss, "mtp_targets", given(inside_documents=False)),
        Fault("structure unheeded", test_loss, "mtp_targets", given(document_ids=None)),
    ],
    "test_weights": [
        Fault("counted from one", loss, "reduce_by_document", after(lambda counts: counts + 1)),
        Fault("places without a target weighed", loss, "IGNORED_LABEL", swap(-1)),
    ],
    "test_values_per_document": [
        Fault("mean over holes", Segments, "documents", held(faults.spans_for_lengths)),
        Fault("padding in the first", Segments, "owners_of_places", instead(faults.owned_by_the_first)),
    ],
    "test_sums_of_integers_wrap_as_those_of_torch_and_means_never": [
        Fault("summed in float64", reductions, "_wide", returns(torch.float64)),
    ],
    "test_zigzag_deals_every_document_to_all_ranks": [
        Fault("chunks of the opposite rank", context_parallel, "_zigzag", instead(faults.other_half)),
        Fault("places backwards", context_parallel, "_zigzag", after(lambda places: places[:, ::-1])),
    ],
    "test_contiguous_parts_are_pieces_of_the_row": [
        Fault("the next rank's", context_parallel, "_places", instead(faults.next_rank)),
    ],
    "test_parts_train_what_each_document_trains_alone": [
        Fault("labels unshifted", context_parallel, "mtp_targets", swap(faults.unshifted)),
    ],
    "test_parts_make_up_the_batch": [
        Fault("labels unshifted", context_parallel, "mtp_targets", swap(faults.unshifted)),
        Fault("every part continues", context_parallel, "_continues", after(torch.ones_like)),
    ],
    "test_a_pipeline_schedule_cuts_as_the_dimensions_say": [
        Fault("axes taken for rows", slicing, "_row_axis", returns(0)),
    ],
    "test_microbatches_are_the_rows_and_derive_for_themselves": [
        Fault("offsets of the batch", slicing, "_split_segments", swap(faults.whole_for_each)),
    ],
    "test_what_has_one_entry_a_row_is_cut_with_the_rows": [
        Fault("lists to each part whole", slicing, "_is_listed", returns(False)),
    ],
    "test_gathered_rows_are_those_without_bounds": [
        Fault("filled with zeros", static, "static_gathered_rows", after(faults.filled_with_zeros)),
    ],
    "test_the_gathered_stream_is_that_without_bounds": [
        Fault("padding kept", StaticScan, "kept", swap(property(faults.padding_as_kept))),
        Fault("a tail of padding", static, "static_gathered_flat", given(tail="padding")),
    ],
    "test_the_tail_of_a_stream_holds_the_places_left_out": [
        Fault("no tail", static, "static_gathered_flat", instead(faults.without_its_tail)),
    ],
    "test_physical_offsets_are_those_without_bounds": [
        Fault("cut from the row's start", static, "_cut", instead(faults.cut_from_the_start_of_the_row)),
        Fault("rows joined", StaticScan, "begins_run", after(faults.going_on_from_the_row_before)),
        Fault("holes in all rows", StaticScan, "resumed", after(torch.ones_like)),
    ],
    "test_lengths_are_those_without_bounds": [Fault("another fill", static, "UNUSED_LENGTH", swap(-1))],
    "test_segment_numbers_are_those_without_bounds": [
        Fault("returning ids everywhere", StaticScan, "returning", after(torch.ones_like)),
    ],
    "test_positions_are_those_without_bounds": [
        Fault("positions run on", StaticScan, "spans", after(faults.from_the_start_of_the_row)),
    ],
    "test_a_scan_serves_several_encodings": [
        Fault("another scan", static, "as_scan", instead(faults.of_another_scan)),
    ],
    "test_the_first_fault_is_told_alike_by_all": [
        Fault("returning ids pass", StaticScan, "returning", after(torch.zeros_like)),
        Fault("holes pass", StaticScan, "resumed", after(torch.zeros_like)),
        Fault("lengths of the first row", static, "as_scan", after(faults.long_by_the_first_row)),
    ],
    "test_a_tail_hides_no_fault": [
        Fault("told everywhere", static, "pad", instead(faults.told_where_a_place_is_left_out)),
        Fault("never told", static, "pad", after(torch.zeros_like)),
    ],
    "test_what_is_told_is_raised": [Fault("nothing raises", test_static_status, "raise_if_invalid", returns(None))],
    "test_dense_masks_are_those_without_bounds": [Fault("window one wider", static_masks, "sees", _WIDER)],
    "test_block_masks_are_those_without_bounds": [
        Fault("window one wider", static_masks, "seen_range", _WIDER),
        Fault("all tokens one document", static_masks, "mask_function", before(torch.ones_like)),
        Fault("tokens in every block", static_masks, "_tokens_of_blocks", after(faults.a_token_in_every_block)),
    ],
    "test_malformed_ids_are_told_whatever_the_blocks": [
        Fault("all is valid", static_masks, "first_fault", after(torch.zeros_like)),
    ],
    "test_all_tensors_are_those_of_torch": [
        Fault("window one wider", visible_blocks, "seen_range", _WIDER),
        Fault("last block whole", visible_blocks, "_block_bounds", instead(faults.over_the_end_of_the_row)),
        Fault("holes seen", Segments, "kept", held(faults.first_run_alone)),
    ],
    "test_without_holes_as_well": [
        Fault("window one wider", visible_blocks, "seen_range", _WIDER),
        Fault("last block whole", visible_blocks, "_block_bounds", instead(faults.over_the_end_of_the_row)),
    ],
    "test_the_mask_function_says_who_sees_whom": [
        Fault("padding sees padding", block_mask, "sees", instead(faults.padding_sees_padding)),
    ],
    "test_a_mask_comes_back_from_pickling_and_copying": [
        Fault("padding sees padding", block_mask, "sees", instead(faults.padding_sees_padding)),
    ],
    "test_lengths_and_the_way_back": [
        Fault("another fill", thd, "UNUSED_LENGTH", swap(-1)),
        Fault("padding uncounted", thd, "padded_lengths", swap(faults.lengths_alone)),
    ],
    "test_the_stream_from_ids_and_from_lengths": [
        Fault("padding uncounted", thd, "_flat", instead(faults.places_uncounted)),
        Fault("offsets one too far", thd, "offsets_of", after(lambda offsets: offsets + 1)),
    ],
    "test_cut_along_rows_then_flattened": [
        Fault("padding uncounted", thd, "_flat", instead(faults.places_uncounted)),
    ],
    "test_a_thd_batch_gains_its_lengths_and_loses_nothing": [
        Fault("padding uncounted", thd, "padded_lengths", swap(faults.lengths_alone)),
    ],
    "test_offsets_of_thd_are_compared_with_the_ids": [
        Fault("cut anywhere", agreement_of_offsets, "_cuts_places", returns(True)),
        Fault("tokens alone", agreement_of_offsets, "_cuts_places", returns(False)),
        Fault("first offset named", agreement_of_offsets, "_first_wrong", returns(0)),
        Fault("places named as tokens", agreement_of_offsets, "_first_wrong_of_places", returns(0)),
    ],
    "test_offsets_that_are_paired_have_each_document_in_one_column": [
        Fault("columns unheeded", agreement_of_offsets, "_columns", after(np.zeros_like)),
    ],
    "test_segment_index_and_the_way_back": [
        Fault("numbers run on over rows", Segments, "rows", held(np.zeros_like)),
        Fault("padding unmarked", recurrent, "padding_mask_problems", swap(faults.refuses)),
    ],
    "test_gathered_restarts": [
        Fault("hole split", Segments, "documents", swap(property(faults.holes_split))),
        Fault("rows joined", segments, "_find_runs", swap(faults.rows_joined)),
    ],
    "test_physical_restarts": [
        Fault("last segment lost", recurrent, "physical_bounds", after(faults.without_the_last_segment)),
    ],
    "test_no_segment_is_without_a_token": [
        Fault("last offset twice", recurrent, "gathered_flat", after(faults.last_offset_twice)),
    ],
    "test_offsets_for_fla_rise_from_zero": [Fault("any offsets", kernel_arguments, "_require_rising", returns(None))],
    "test_segment_ids_from_offsets": [
        Fault("offsets one too far", recurrent, "read_offsets", after(lambda offsets: offsets + 1)),
    ],
    "test_row_offsets": [
        Fault("rows joined", segments, "_find_runs", swap(faults.rows_joined)),
        Fault("longest of the batch", test_rows, "row_offsets", after(faults.longest_of_the_batch)),
    ],
    "test_ids_come_back_from_row_offsets": [
        Fault("padding taken for documents", physical_rows, "read_together", after(faults.last_unread)),
    ],
    "test_ids_come_back_where_padding_is_folded_into_the_document_before_it": [
        Fault("longest unread", physical_rows, "_require_longest", returns(None)),
    ],
    "test_cut_along_rows_then_derived_is_derived_then_cut": [
        Fault("longest of the batch", test_rows, "row_offsets", after(faults.longest_of_the_batch)),
    ],
    "test_length_matrix_and_back": [
        Fault("documents numbered over rows", Documents, "ranks", held(lambda ranks: np.arange(len(ranks)))),
    ],
    "test_documents_are_padded_one_by_one": [
        Fault("padded to no multiple", alignment, "_padded_places", instead(faults.to_no_multiple)),
        Fault("another fill", token_fields, "_fill", returns(0)),
    ],
    "test_padding_that_the_mask_knows_separates_documents_that_attention_joins": [
        Fault("joined over padding", agreement, "_cut_at_padding", swap(faults.by_attention)),
    ],
    "test_ids_and_tokens_of_any_width_are_moved_alike": [
        Fault("as they are", token_fields, "SIGNED_DTYPES", swap(dict[torch.dtype, torch.dtype]())),
    ],
    "test_every_slot_of_a_padded_batch_is_a_multiple": [
        Fault("padded to no multiple", alignment, "_padded_places", instead(faults.to_no_multiple)),
    ],
    "test_rows_planned_with_lengths_rounded_up_do_not_outgrow_the_plan": [
        Fault("a multiple too many", alignment, "_padded_places", instead(faults.one_multiple_more)),
    ],
    "test_rows_are_padded_at_their_end": [Fault("another fill", token_fields, "_fill", returns(0))],
    "test_documents_get_rows_of_their_own_and_go_back": [
        Fault("documents in their order", _DOCUMENT_ROWS, "_checked_groups", after(lambda groups: groups[::-1])),
        Fault("no fill", DocumentRows, "is_padded", returns(False)),
    ],
    "test_all_rows_in_one": [
        Fault(
            "padding put back",
            test_document_rows,
            "joined_row",
            after(faults.padding_taken_back),
        ),
    ],
    "test_counts_are_the_row_sums_of_the_mask": [Fault("window one wider", seen_keys, "seen_range", _WIDER)],
    "test_documents_of_known_lengths_are_found": [
        Fault(
            "rows joined",
            physical,
            "bounds_of",
            instead(faults.of_one_row),
        ),
    ],
    "test_ids_in_order_give_the_same_rows": [
        Fault("no offset", neat_metadata, "_row_offsets_in_order", after(np.zeros_like)),
    ],
    "test_ids_of_any_bits_are_told_apart": [
        Fault("-0.0 and NaN unheeded", segments, "_floats_told", returns(True)),
        Fault("NaN unheeded", segments, "_INFINITY_BITS", swap(2**64 - 1)),
    ],
    "test_bounds_are_the_flags_and_the_heads_of_rows": [
        Fault("rows joined", test_few_and_many_runs, "bounds_of", after(lambda bounds: bounds[1:])),
    ],
    "test_ids_are_in_order_where_they_rise_along_their_row_with_zeros_at_its_end": [
        Fault("few in any order", segments, "_few_in_order", returns(True)),
        Fault("many in any order", segments, "_in_order", returns(True)),
    ],
}
"""For each property, the faults that it has to notice."""


@pytest.mark.parametrize(("name", "fault"), cases(_FAULTS))
def test_a_planted_fault_is_noticed(name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    require_noticed(name, fault, monkeypatch)


@pytest.mark.parametrize("name", _FAULTS)
def test_without_a_fault_the_property_holds(name: str) -> None:
    run_property(name, max_examples=5)


def test_every_property_has_a_fault() -> None:
    assert properties_of(*_MODULES) == set(_FAULTS)
