"""Failures that users of other packages have reported in public, each reduced to a small input and its right answer.

A line of `reports.jsonl` names the report, an operation, what is given, and what is expected: `not_` begins the name of
a wrong answer, and `error` says that nothing could be right. The table below maps each operation to public functions.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor

from neatpack.adapters import (
    AttentionCost,
    Remainder,
    RowPlan,
    StaticBounds,
    aligned_length,
    balance_rows,
    block_causal_mask_bytes,
    build_block_causal_mask,
    build_block_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    check_agreement,
    context_places,
    count_seen_keys,
    count_valid_targets,
    document_ids_from_flash_varlen,
    document_ids_from_length_matrix,
    document_ids_from_lengths,
    document_ids_from_metadata,
    document_ids_from_positions,
    document_ids_from_segment_index,
    document_ids_from_tokens,
    document_lengths,
    document_multiple,
    farthest_element,
    fla_kwargs,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    gathered_flat,
    gathered_states,
    host_offsets,
    length_matrix,
    mask_labels,
    mtp_targets,
    needs_int64_indices,
    packed_seq_params_kwargs,
    pad_documents,
    pad_rows,
    physical_offsets,
    place_spans,
    plan_rows,
    raise_if_invalid,
    real_places,
    reduce_by_document,
    repeat_on_axes,
    require_supported_packing_contract,
    scan_segments,
    sees,
    segment_ids_from_offsets,
    segment_index,
    shard_tokens,
    split_rows,
    static_physical_offsets,
    thd_flat,
    transformer_engine_kwargs,
    varlen_kernel_kwargs,
    window_size,
)
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.encodings import LengthMatrix, SegmentIndex, THDFlat
from neatpack.contracts.errors import PackingError

Given = dict[str, Any]
Answer = dict[str, object]


def _listed(tensor: Tensor) -> Any:
    values = cast("Any", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]
    if tensor.dtype != torch.bool:
        return values
    return cast("Any", tensor.int().tolist())  # pyright: ignore[reportUnknownMemberType]


def _rows(lengths: list[int], places: int | None = None) -> Tensor:
    return document_ids_from_lengths([lengths], sum(lengths) if places is None else places)


def _padded_rows(lengths: list[int], slots: list[int], total: int | None = None) -> Tensor:
    row = [number for index, (tokens, slot) in enumerate(zip(lengths, slots, strict=True), start=1)
           for number in [index] * tokens + [0] * (slot - tokens)]  # fmt: skip
    return torch.tensor([row + [0] * ((total or len(row)) - len(row))])


def _batch(ids: Tensor, tokens: Tensor | None = None) -> TrainingBatch[Tensor]:
    tokens = torch.arange(ids.numel()).view(ids.shape) if tokens is None else tokens
    return {
        "input_ids": tokens,
        "labels": tokens,
        "position_ids": build_position_ids(ids),
        "padding_mask": ids == 0,
        "document_ids": ids,
    }


def _described(ids: Tensor, position_start: int = 0) -> Answer:
    """Whatever is told of ids in one of the reports."""
    flat, with_padding = gathered_flat(ids), physical_offsets(ids, "run")
    return {
        "lengths": _listed(document_lengths(ids)),
        "num_documents": document_lengths(ids).numel(),
        "cu_seqlens": _listed(flat.cu_seqlens),
        "max_seqlen": flat.max_seqlen,
        "total_tokens": flat.token_indices.numel(),
        "indices": _listed(flat.token_indices),
        "flat_batch": int(flat.cu_seqlens.ndim == flat.token_indices.ndim == 1),
        "position_ids": _listed(build_position_ids(ids, position_start)),
        "segment_ids": _listed(segment_index(ids).seq_idx),
        "pad_mask": [[number == 0 for number in row] for row in _listed(ids)],
        "cu_seqlens_with_pad_segments": _listed(with_padding.cu_seqlens),
        "segment_is_pad": [number == 0 for number in scan_segments(ids).ids.tolist()],
    }


def _segments(given: Given) -> Answer:
    ids = torch.tensor(given["document_ids"])
    if "raw_ids" in given:
        raw = SegmentIndex(torch.tensor(given["raw_ids"], dtype=torch.int32))
        assert torch.equal(document_ids_from_segment_index(raw), ids)
    return _described(ids, given.get("position_start", 0))


def _segments_from_lengths(given: Given) -> Answer:
    rows = [given["lengths"]] if isinstance(given["lengths"][0], int) else given["lengths"]
    return _described(document_ids_from_lengths(rows, given.get("row_length", max(map(sum, rows)))))


def _padding(given: Given, shape: torch.Size) -> Tensor:
    """Padding as one of the reports tells it: by a mask of either kind, or as so many places at the end of each row."""
    if "pad_mask" in given:
        return torch.tensor(given["pad_mask"])
    if "attention_mask" in given:
        return torch.tensor(given["attention_mask"]) == 0
    tail = torch.tensor(given.get("tail_pad", 0)).view(-1, 1)
    return (torch.arange(shape[-1]) >= shape[-1] - tail).expand(shape[-2:])


def _segments_from_positions(given: Given) -> Answer:
    positions = torch.tensor(given["position_ids"])
    positions = positions[None] if positions.ndim == 1 else positions
    ids = document_ids_from_positions(positions, _padding(given, positions.shape))
    return {**_described(ids), "first_segment_position_offset": int(positions[0, 0])}


def _segments_with_axes(given: Given) -> Answer:
    ids = torch.tensor(given["document_ids"])
    check_agreement(ids, {"position_ids": torch.tensor(given["position_ids"])})
    return _described(ids)


def _segments_from_tokens(given: Given) -> Answer:
    tokens = torch.tensor(given["tokens"])
    special: dict[str, Any] = {f"{name}_token_id": given.get(f"{name}_id") for name in ("eos", "bos", "pad")}
    told = given.keys() & {"pad_mask", "attention_mask", "tail_pad"}
    mask = _padding(given, tokens.shape) if told else None
    return _described(document_ids_from_tokens(tokens, padding_mask=mask, **special))


def _mask(given: Given) -> Answer:
    return _allowed(torch.tensor(given["document_ids"]), given)


def _allowed(ids: Tensor, given: Given) -> Answer:
    """Who sees whom in each row, or in the only one."""
    window, places = given.get("window"), torch.arange(ids.shape[1])
    if given.get("causal", True):
        seen = build_block_causal_mask(ids, window=window)[:, 0]
    else:
        seen = sees(ids[:, :, None], ids[:, None], places[:, None], places, window=window, causal=False)
    return {"allowed": _listed(seen if len(ids) > 1 else seen[0])}


def _mask_from_positions(given: Given) -> Answer:
    positions = torch.tensor(given["position_ids"])
    mask = ~_padding(given, positions.shape)
    ids = document_ids_from_positions(positions, ~mask)
    check_agreement(ids, {"attention_mask": mask})
    return {**_described(ids), **_allowed(ids, given)}


def _mask_additive(given: Given) -> Answer:
    ids = torch.tensor(given["document_ids"])
    mask = build_block_causal_mask(ids, torch.float32, blocked=-math.inf)
    expected_words = [[f"{value:g}" for value in row] for row in _listed(mask[0, 0])]
    assert bool((build_block_causal_mask(ids, torch.float32)[0, 0] <= 0).all())
    return {"additive": expected_words}


def _kwargs(given: Given) -> Answer:
    slots = given["padded_lengths"] if "padded_lengths" in given else given["lengths"]
    ids = _padded_rows(given["lengths"], slots)
    kwargs: dict[str, Callable[[], object]] = {
        "flash_attn_varlen": lambda: varlen_kernel_kwargs(gathered_flat(ids)),
        "hf_flash": lambda: flash_varlen_kwargs(ids),
        "megatron_thd": lambda: packed_seq_params_kwargs(thd_flat(ids)),
        "megatron_thd_cp": lambda: packed_seq_params_kwargs(thd_flat(ids)),
        "transformer_engine": lambda: transformer_engine_kwargs(thd_flat(ids)),
        "fla": lambda: fla_kwargs(gathered_states(ids)),
    }
    found = cast("dict[str, object]", kwargs[given["consumer"]]())
    return {name: _listed(value) if isinstance(value, Tensor) else value for name, value in found.items()}


def _length_matrix(given: Given) -> Answer:
    matrix = length_matrix(torch.tensor(given["document_ids"])).lengths
    return {"doc_lens": _listed(matrix), "max_doc_lens": _listed(matrix.amax(1))}


def _labels(given: Given) -> Answer:
    ids, tokens = torch.tensor(given["document_ids"]), torch.tensor(given["tokens"])
    if given["shift"] == "model":
        return {"labels": _listed(mask_labels(tokens, ids, "model"))}
    return {"labels": _listed(mtp_targets(tokens, ids, 0, "model"))}


def _loss_count(given: Given) -> Answer:
    ids = torch.tensor(given["document_ids"])
    labels = torch.tensor(given["labels"]) if "labels" in given else torch.ones_like(ids)
    return {"valid_targets": int(count_valid_targets(mask_labels(labels, ids, given.get("shift", "model"))))}


def _global_mean(given: Given) -> Answer:
    """One document per microbatch with as many targets as the report counts; its last one has all of the loss."""
    losses, counts = 0.0, 0
    for part in given["micro_batches"]:
        ids = _rows([part["count"] + 1])
        labels = mask_labels(torch.ones_like(ids), ids, "model")
        per_token = torch.zeros(ids.shape)
        per_token[0, -1] = part["loss_sum"]
        losses += float(reduce_by_document(per_token, ids, "sum").sum())
        counts += int(count_valid_targets(labels))
    return {"mean": losses / counts}


def _spans(given: Given) -> Answer:
    spans = [[tuple(span) for span in own] for own in given["spans"]]
    return {"spans": [[span.start, span.stop] for span in place_spans(_rows(given["lengths"]), cast("Any", spans))]}


def _runtime_padding(given: Given) -> Answer:
    """A stream that is shifted by one has one label less than tokens: what runs is aligned, not what is stored."""
    runs = given["stored_length"] - 1
    padded = aligned_length(runs, given["multiple"])
    return {"runtime_length": runs, "padded_runtime_length": padded, "padded_stored_length": padded + 1}


def _context_zigzag(given: Given) -> Answer:
    ids = _rows(given["lengths"])
    ranks = given["cp"]
    ids = cast("Any", pad_documents(_batch(ids), document_multiple(ranks)))["document_ids"]
    flat = thd_flat(ids)
    return {
        "padded_lengths": _listed(flat.cu_seqlens_padded.diff()),
        "cu_seqlens": _listed(flat.cu_seqlens),
        "cu_seqlens_padded": _listed(flat.cu_seqlens_padded),
        "pad_between_seqs": flat.pad_between_seqs,
        "valid_token_mask": _listed(real_places(flat)),
        "rank_positions": [_listed(context_places(ids, rank, ranks, "zigzag")[0]) for rank in range(ranks)],
    }


def _context_contiguous(given: Given) -> Answer:
    ranks = given["cp"]
    batch = pad_rows(_batch(_rows(given["lengths"])), ranks)
    shards = [shard_tokens(batch, rank, ranks, "contiguous", label_shift="model") for rank in range(ranks)]
    return {
        "ranks": [
            {
                "cu_seqlens_local": _listed(gathered_flat(cast("Any", shard.batch)["document_ids"]).cu_seqlens),
                "starts_mid_document": bool(shard.continues[0]),
            }
            for shard in shards
        ]
    }


def _context_labels(given: Given) -> Answer:
    ranks = given["cp"]
    batch = pad_documents(_batch(_rows(given["lengths"]), torch.tensor([given["tokens"]])), document_multiple(ranks))
    parts = [shard_tokens(batch, rank, ranks, "zigzag", label_shift="model").batch for rank in range(ranks)]
    return {
        "rank_tokens": [_listed(part["input_ids"][0]) for part in parts],
        "rank_labels": [_listed(part["labels"][0]) for part in parts],
    }


def _slots(given: Given) -> Answer:
    flat = thd_flat(_padded_rows(given["lengths"], given["padded_lengths"], given["total"]))
    return {"cu_seqlens": _listed(flat.cu_seqlens), "cu_seqlens_padded": _listed(flat.cu_seqlens_padded)}


def _valid_places(given: Given) -> Answer:
    real, slots = (torch.tensor(given[name], dtype=torch.int32) for name in ("cu_seqlens", "cu_seqlens_padded"))
    flat = THDFlat(real, slots, int(slots.diff(append=slots[-1:]).max()), int(real[-1]), int(slots[-1]))
    return {"valid": _listed(real_places(flat, given["total"])), "start_rows": _listed(flat.cu_seqlens_padded[:-1])}


def _trimmed(given: Given) -> Answer:
    """What ends the offsets, negative numbers or the last one again, is no document."""
    offsets = torch.tensor([given["cu_seqlens"]])
    return _described(document_ids_from_metadata(torch.arange(int(offsets.max()))[None], offsets))


def _aligned_total(given: Given) -> Answer:
    tokens = sum(given["lengths"])
    total = aligned_length(tokens, given["multiple"])
    ids = _rows(given["lengths"], total)
    numbered = len(given["lengths"]) + (total > tokens)
    assert int(segment_index(ids, "numbered").seq_idx[0, -1]) == numbered - 1
    return {**_described(ids), "total": total, "pad_tokens": total - tokens}


def _row_work(given: Given) -> Answer:
    ids, causal = torch.tensor(given["document_ids"]), given.get("causal", True)
    return {"visible": _listed(count_seen_keys(ids, window=given.get("window"), causal=causal)[0])}


def _pipeline_split(given: Given) -> Answer:
    ids = torch.tensor(given["document_ids"])
    parts = split_rows(_batch(ids), given["microbatches"])
    flats = [gathered_flat(cast("Any", part)["document_ids"]) for part in parts]
    return {"microbatches": [{"cu_seqlens": _listed(flat.cu_seqlens), "max_seqlen": flat.max_seqlen} for flat in flats]}


def _round_trip(given: Given) -> Answer:
    ids = _rows(given["lengths"])
    metadata = build_packed_sequence_metadata(ids)
    again = document_ids_from_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"])
    return {**_described(ids), "equal_after_roundtrip": torch.equal(again, ids)}


def _segment_numbers(given: Given) -> Answer:
    ids = _rows(given["lengths"])
    return {
        "seq_idx": _listed(segment_index(ids).seq_idx[0]),
        "reset_positions": _listed(gathered_states(ids).cu_seqlens[:-1]),
        "conv_taps": _listed(count_seen_keys(ids, window=given.get("conv_width"))[0]),
    }


def _segment_numbers_of_slots(given: Given) -> Answer:
    offsets = torch.tensor(given["cu_seqlens_padded"])
    return {"seq_idx": _listed(segment_ids_from_offsets(offsets, given.get("total_tokens")))}


def _chunk_resets(given: Given) -> Answer:
    offsets: list[int] = _listed(gathered_states(_rows(given["lengths"])).cu_seqlens)
    return {"cu_seqlens": offsets, "resets_inside_chunks": [each for each in offsets[:-1] if each % given["chunk"]]}


def _targets_ahead(given: Given) -> Answer:
    slots = given["padded_lengths"] if "padded_lengths" in given else given["lengths"]
    ids = _padded_rows(given["lengths"], slots)
    return {"targets": _listed(mtp_targets(torch.tensor([given["tokens"]]), ids, given["depth"], "model")[0])}


def _types(given: Given) -> Answer:
    ids = _rows(given["lengths"])
    kwargs = flash_varlen_kwargs(ids)
    offsets = host_offsets(ids)
    return {
        "cu_seqlens_dtype": str(kwargs["cu_seq_lens_q"].dtype).removeprefix("torch."),
        "cu_seqlens_ndim": kwargs["cu_seq_lens_q"].ndim,
        "max_seqlen": kwargs["max_length_q"],
        "max_seqlen_type": type(kwargs["max_length_q"]).__name__,
        "host_offsets": list(offsets),
        "host_offsets_type": f"{type(offsets).__name__}[{type(offsets[0]).__name__}]",
        "seq_idx_dtype": str(segment_index(ids).seq_idx.dtype).removeprefix("torch."),
        "position_ids_dtype": str(build_position_ids(ids).dtype).removeprefix("torch."),
        "labels_dtype": str(mask_labels(ids, ids, "model").dtype).removeprefix("torch."),
    }


def _static(given: Given) -> Answer:
    documents = given.get("max_documents", len(given["lengths"]))
    bounds = StaticBounds(documents, documents, given["static_max"])
    flat, status = static_physical_offsets(_rows(given["lengths"]), bounds)
    raise_if_invalid(status)
    return {"cu_seqlens": _listed(flat.cu_seqlens), "max_seqlen": flat.max_seqlen, "ok": True}


def _mask_bytes(given: Given) -> Answer:
    size = block_causal_mask_bytes(given["batch"], given["seq"])
    return {"dense_bytes": size * given["bytes_per_entry"]}


def _block_mask(given: Given) -> Answer:
    mask = build_block_mask(_rows(given["lengths"]), block_size=given["block"], causal=given["causal"])
    full = mask.full_kv_num_blocks
    assert full is not None
    return {"kv_blocks_per_q_block": _listed((mask.kv_num_blocks + full)[0, 0])}


def _without_empty(given: Given) -> Answer:
    lengths = torch.tensor([given["lengths"]], dtype=torch.int32)
    # A row has a place, if only for padding.
    ids = document_ids_from_length_matrix(LengthMatrix(lengths), max(sum(given["lengths"]), 1))
    return {**_described(ids), "kept": _listed(lengths[0].nonzero()[:, 0])}


def _without_repeats(given: Given) -> Answer:
    offsets = torch.tensor(given["cu_seqlens"], dtype=torch.int32)
    longest = int(offsets.diff().max())
    kwargs: Any = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}
    no_padding = torch.zeros(1, int(offsets[-1]), dtype=torch.bool)
    return _described(document_ids_from_flash_varlen(kwargs, no_padding))


def _targets_per_document(given: Given) -> Answer:
    """A document of no token stands in no row; it has no targets, and the others have theirs under their own number."""
    lengths = given["lengths"]
    kept = [document for document, length in enumerate(lengths) if length]
    ids = _rows([lengths[document] for document in kept], max(sum(lengths), 1))
    targets = reduce_by_document(mask_labels(torch.ones_like(ids), ids, "model") != -100, ids, "sum")
    counts = dict(zip(kept, _listed(targets), strict=True))
    return {"targets": [counts.get(document, 0) for document in range(len(lengths))]}


def _index_width(given: Given) -> Answer:
    shape, strides = (given["max_row"] + 1, 1), (given["row_stride"], 1)
    return {"max_offset": farthest_element(shape, strides), "needs_int64": needs_int64_indices(shape, strides)}


def _text_on_axes(given: Given) -> Answer:
    positions = repeat_on_axes(build_position_ids(_rows(given["lengths"])), 4)
    return {"shape": list(positions.shape), "rows": _listed(positions[:, 0])}


def _positions_from_lengths(given: Given) -> Answer:
    matrix = LengthMatrix(torch.tensor(given["doc_lens"], dtype=torch.int32))
    return {"position_ids": _listed(build_position_ids(document_ids_from_length_matrix(matrix, given["row_length"])))}


def _overlong(given: Given) -> Answer:
    plan = plan_rows(given["lengths"], given["capacity"], overlong=given["policy"].replace("error", "refuse"))
    pieces = sorted(piece for row in plan.pieces for piece in row)
    return {
        "lengths": [piece.stop - piece.start for piece in pieces],
        "dropped_tokens": sum(piece.stop - piece.start for piece in plan.dropped),
    }


def _fill(given: Given) -> Answer:
    lengths = [length for row in given["bins"] for length in row]
    numbers = iter(range(len(lengths)))
    rows = [[next(numbers) for _ in row] for row in given["bins"]]
    plan = RowPlan.from_rows(rows, lengths, given["capacity"])
    return {"real_tokens": plan.tokens, "slots": len(plan) * plan.capacity, "efficiency": plan.fill}


def _window(given: Given) -> Answer:
    return {"window_size": list(window_size(given["window"], causal=given.get("causal", True)))}


def _frozen(given: Given) -> Answer:
    ids = _rows(given["lengths"])
    once, twice = gathered_flat(ids), gathered_flat(ids)
    try:
        once.max_seqlen = 0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
        refused = False
    except FrozenInstanceError:
        refused = True
    return {"second_build_equal": torch.equal(once.cu_seqlens, twice.cu_seqlens), "mutation_error": refused}


def _pickled(given: Given) -> Answer:
    flat = gathered_flat(torch.tensor(given["document_ids"]))
    again = pickle.loads(pickle.dumps(flat))  # noqa: S301 - its own
    same = torch.equal(again.cu_seqlens, flat.cu_seqlens) and torch.equal(again.token_indices, flat.token_indices)
    return {"equal_after_pickle": same and again.max_seqlen == flat.max_seqlen}


def _reject(given: Given) -> Answer:
    refusals: dict[str, Callable[[Given], object]] = {
        "document_ids": _segments,
        "position_ids": _positions_of_another_length,
        "cu_seqlens": _offsets_of_another_total,
        "labels": lambda given: require_supported_packing_contract(
            PackingCapabilities("document_ids"),
            label_shift="model" if given["shift_state"] == "model" else "document",
            model_shifts_labels=given["consumer_shifts"],
        ),
        "lengths": lambda given: document_ids_from_lengths([given["lengths"]], given.get("row_width", 8)),
        "batch": lambda given: fla_kwargs(gathered_states(torch.tensor([[1] * 4, [1] * 4])), rows=given["batch"]),
        "max_seqlen": _static,
        "pad_mask": lambda given: _segments_of_mask(torch.tensor(given["pad_mask"])),
        "text_position_ids": lambda given: document_ids_from_positions(
            torch.zeros(given["rows"], 1, 4, dtype=torch.int64)
        ),
    }
    refusals[given["field"]](given)
    return {}


def _segments_of_mask(padding_mask: Tensor) -> object:
    return document_ids_from_positions(torch.arange(padding_mask.shape[1]).expand_as(padding_mask), padding_mask)


def _offsets_of_another_total(given: Given) -> object:
    tokens = torch.arange(given.get("total_tokens", max(given["cu_seqlens"])))
    return flatten_packed_sequence_metadata(tokens, torch.tensor(given["cu_seqlens"]), 1, tokens.numel())


def _positions_of_another_length(given: Given) -> object:
    if "document_ids" in given:
        ids, positions = torch.tensor(given["document_ids"]), torch.tensor(given["position_ids"])
    else:
        ids = torch.ones(1, given["token_len"], dtype=torch.int64)
        positions = torch.arange(given["position_len"])[None]
    return check_agreement(ids, {"position_ids": positions})


def _dealt_to_ranks(given: Given) -> Answer:
    remainders: dict[str, Remainder] = {"pad": "pad", "drop": "carry"}
    remainder = remainders[given["policy"]]
    rows = plan_rows([1] * given["num_bins"], 1)
    plan = balance_rows(rows, given["ranks"], cost=AttentionCost(1.0, 1.0), remainder=remainder)
    (taken,) = {len(plan.rank_rows(rank)) for rank in range(given["ranks"])}
    return {
        "bins_per_rank": taken,
        "pad_bins": int((plan.steps < 0).sum()),
        "dropped_bins": len(plan.carried),
    }


_OPERATIONS: Final[dict[str, Callable[[Given], Answer]]] = {
    "align_total": _aligned_total,
    "block_mask": _block_mask,
    "capacity": _static,
    "chunk_splits": _chunk_resets,
    "cp_contiguous": _context_contiguous,
    "cp_labels": _context_labels,
    "cp_zigzag": _context_zigzag,
    "dedup_offsets": _without_repeats,
    "doc_lens_matrix": _length_matrix,
    "drop_empty": _without_empty,
    "efficiency": _fill,
    "global_mean": _global_mean,
    "immutable": _frozen,
    "index_width": _index_width,
    "kwargs": _kwargs,
    "labels": _labels,
    "loss_count": _loss_count,
    "mask": _mask,
    "mask_additive": _mask_additive,
    "mask_bytes": _mask_bytes,
    "mask_from_position_ids": _mask_from_positions,
    "mrope4_text": _text_on_axes,
    "mtp_targets": _targets_ahead,
    "mtp_targets_padded": _targets_ahead,
    "offset_spans": _spans,
    "overflow": _overlong,
    "pickle": _pickled,
    "positions_from_doc_lens": _positions_from_lengths,
    "pp_split": _pipeline_split,
    "rank_bins": _dealt_to_ranks,
    "reject": _reject,
    "roundtrip": _round_trip,
    "row_work": _row_work,
    "runtime_pad": _runtime_padding,
    "segments": _segments,
    "segments_from_lengths": _segments_from_lengths,
    "segments_from_mrope": _segments_with_axes,
    "segments_from_position_ids": _segments_from_positions,
    "segments_from_tokens": _segments_from_tokens,
    "seq_idx": _segment_numbers,
    "seq_idx_padded": _segment_numbers_of_slots,
    "static_max": _static,
    "targets_per_document": _targets_per_document,
    "thd_pad": _slots,
    "thd_valid_mask": _valid_places,
    "trim_cu": _trimmed,
    "types": _types,
    "window_kwargs": _window,
}
"""What each operation of the reports is here."""

_BY_PARAMETER: Final = {
    "A12": "padding of the matrix is 0 there and in `LengthMatrix`; THD lengths have -1000",
    "B05": "positions of one row alone are given as [1, sequence]",
    "B08": 'padding is cut by default; `padding="run"` keeps one segment a run',
    "C03": 'padding is cut by default; `padding="run"` keeps one segment a run',
    "M04": "an additive mask holds the lowest finite number by default; `blocked=-math.inf` holds infinity",
    "Q02a": 'longer documents are refused by default; `overlong="truncate"` names what it drops',
    "Q06": 'no row is padding alone by default; `remainder="pad"` adds such rows',
    "Q07": 'rows that are left over are spread by default; `remainder="carry"` names them, and drops none',
    "S08": "padding of id -1 is a segment index there, read by `document_ids_from_segment_index`",
}
"""Lines whose expectation is not what a function gives by default, and what meets it."""

_ELSEWHERE: Final = {
    "E19": "which backend attention runs on is decided when a model is configured",
    "F03": "a stage of a pipeline without boundaries raises in the attention of its bound model",
}
"""Lines that speak of a model and not of its batch, and where they are decided."""


_SAYS: Final = {
    "A05b": r"position_ids = \(1, 11\): does not fit document ids of shape \(1, 10\)",
    "B03b": r"cu_seqlens\[position 3\] = 12: must start at zero, never fall, and end at the number of token indices, 4",
    "D08b": "label_shift = 'document': labels would be shifted twice",
    "E14": r"lengths\[row 0\] = 8: documents of the row need more than 6 places",
    "G12b": "rows = 2: must be an int from 1 to 1",
    "I02b": r"document_ids\[row 0, position 0\] = 1: the document that begins here is longer than the bound",
    "M07": "padding_mask = torch.int64: must be a bool tensor",
    "P06": r"position_ids = \(3, 1, 4\): must be \[batch, sequence\]",
    "P11": r"position_ids = \(1, 2061\): does not fit document ids of shape \(1, 2048\)",
}
"""Lines that expect an error, and what the error says: a refusal for another reason is none of these."""


def _load() -> list[dict[str, Any]]:
    lines = Path(__file__).with_name("reports.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


_REPORTS: Final = _load()


@pytest.mark.parametrize(
    "report",
    [report for report in _REPORTS if report["id"] not in _ELSEWHERE],
    ids=lambda report: f"{report['operation']}-{report['id']}",
)
def test_report(report: dict[str, Any]) -> None:
    operation, given, expected = _OPERATIONS[report["operation"]], report["given"], dict(report["expected"])
    if expected.pop("error", False):
        with pytest.raises(PackingError, match=_SAYS[report["id"]]):
            operation(given)
        return
    found = operation(given)
    for name, value in expected.items():
        if name.startswith("not_"):
            assert found[name.removeprefix("not_")] != value
        else:
            assert found[name] == value, name


_ALIKE: Final[list[tuple[str, Given, Answer]]] = [
    ("chunk_splits", {"lengths": [5, 6], "chunk": 4}, {"resets_inside_chunks": [5]}),
    ("drop_empty", {"lengths": [0, 0]}, {"lengths": [], "cu_seqlens": [0], "kept": []}),
    ("align_total", {"lengths": [5, 3], "multiple": 4}, {"total": 8, "pad_tokens": 0, "cu_seqlens": [0, 5, 8]}),
    ("efficiency", {"bins": [[5, 3], [4]], "capacity": 10}, {"real_tokens": 12, "slots": 20, "efficiency": 0.6}),
    ("global_mean", {"micro_batches": [{"loss_sum": 6.0, "count": 3}, {"loss_sum": 0.0, "count": 0}]}, {"mean": 2.0}),
    ("targets_per_document", {"lengths": [0, 0]}, {"targets": [0, 0]}),
    ("trim_cu", {"cu_seqlens": [0, 4, 8, -1, -1]}, {"cu_seqlens": [0, 4, 8], "num_documents": 2}),
    ("trim_cu", {"cu_seqlens": [0, 4, 8, 8]}, {"cu_seqlens": [0, 4, 8], "num_documents": 2}),
    ("segments_from_lengths", {"lengths": [[2, 1], [3]], "row_length": 4}, {"indices": [0, 1, 2, 4, 5, 6]}),
    (
        "segments_from_position_ids",
        {"position_ids": [[3, 4, 0, 0], [0, 1, 2, 0]], "tail_pad": 1},
        {"lengths": [2, 1, 3], "cu_seqlens_with_pad_segments": [0, 2, 3, 4, 7, 8]},
    ),
    (
        "segments_from_position_ids",
        {"position_ids": [[0, 1, 2, 3], [0, 1, 0, 0]], "tail_pad": [0, 2]},
        {"lengths": [4, 2], "cu_seqlens": [0, 4, 6]},
    ),
    (
        "segments_from_position_ids",
        {"position_ids": [[1, 1, 0, 1], [1, 1, 1, 1]], "attention_mask": [[0, 0, 1, 1], [0, 0, 0, 0]]},
        {"lengths": [2], "indices": [2, 3], "cu_seqlens_with_pad_segments": [0, 2, 4, 8]},
    ),
    (
        "segments_from_tokens",
        {"tokens": [[0, 0, 5, 9, 0, 6, 9, 0]], "eos_id": 9, "pad_id": 0},
        {"lengths": [2, 2], "indices": [2, 3, 5, 6], "position_ids": [[0, 0, 0, 1, 0, 0, 1, 0]]},
    ),
    (
        "segments_from_tokens",
        {"tokens": [[5, 9, 9, 9]], "eos_id": 9, "pad_mask": [[False, False, True, True]]},
        {"lengths": [2], "pad_mask": [[False, False, True, True]]},
    ),
    (
        "segments_from_tokens",
        {"tokens": [[5, 9, 7, 9, 9]], "eos_id": 9, "pad_id": 9, "tail_pad": 1},
        {"lengths": [2, 2], "cu_seqlens": [0, 2, 4]},
    ),
    (
        "segments_from_tokens",
        {"tokens": [[1, 4, 9, 1, 5, 8, 6]], "eos_id": [8, 9], "bos_id": 1},
        {"lengths": [3, 3, 1]},
    ),
    ("kwargs", {"lengths": [3, 2], "consumer": "fla"}, {"cu_seqlens": [0, 3, 5], "cu_seqlens_cpu": [0, 3, 5]}),
    (
        "kwargs",
        {"lengths": [3, 2], "consumer": "transformer_engine"},
        {"cu_seqlens_q_padded": [0, 3, 5], "max_seqlen_kv": 3, "pad_between_seqs": False},
    ),
    ("segments_from_tokens", {"tokens": [[4, 9, 9, 5], [6, 7, 8, 6]], "eos_id": 9}, {"lengths": [2, 1, 1, 4]}),
    ("segments", {"document_ids": [[1, 1, 2, 0]], "position_start": 2}, {"position_ids": [[2, 3, 2, 0]]}),
    ("overflow", {"lengths": [], "capacity": 4, "policy": "error"}, {"lengths": [], "dropped_tokens": 0}),
    ("rank_bins", {"num_bins": 0, "ranks": 2, "policy": "pad"}, {"bins_per_rank": 0, "pad_bins": 0}),
    ("loss_count", {"document_ids": [[0, 1, 1, 2]], "labels": [[7, 7, -100, 7]]}, {"valid_targets": 0}),
    ("loss_count", {"document_ids": [[1, 1, 2, 2]], "labels": [[5, 6, 7, 8]], "shift": "stream"}, {"valid_targets": 2}),
    ("thd_valid_mask", {"cu_seqlens": [0], "cu_seqlens_padded": [0], "total": 2}, {"valid": [0, 0]}),
    (
        "thd_valid_mask",
        {"cu_seqlens": [0, 1, 1, 3], "cu_seqlens_padded": [0, 2, 4, 7], "total": 8},
        {"valid": [1, 0, 0, 0, 1, 1, 0, 0], "start_rows": [0, 2, 4]},
    ),
    ("seq_idx_padded", {"cu_seqlens_padded": [0, 2, 2, 4]}, {"seq_idx": [0, 0, 2, 2]}),
    ("seq_idx_padded", {"cu_seqlens_padded": [0, 2, 5], "total_tokens": 7}, {"seq_idx": [0, 0, 1, 1, 1, 2, 2]}),
    (
        "segments",
        {"document_ids": [[3, 3, 1], [1, 1, 1]]},
        {"lengths": [2, 1, 3], "segment_ids": [[0, 0, 1], [0, 0, 0]]},
    ),
    ("segments", {"document_ids": [[0, 0]]}, {"cu_seqlens": [0], "max_seqlen": 0, "num_documents": 0, "indices": []}),
    ("segments_from_lengths", {"lengths": [3, 2], "row_length": 6}, {"lengths": [3, 2], "cu_seqlens": [0, 3, 5]}),
    ("mask", {"document_ids": [[1, 1], [1, 2]]}, {"allowed": [[[1, 0], [1, 1]], [[1, 0], [0, 1]]]}),
    ("mask", {"document_ids": [[1, 0, 1]]}, {"allowed": [[1, 0, 0], [0, 1, 0], [1, 0, 1]]}),
    (
        "mask_from_position_ids",
        {"position_ids": [[0, 1, 0]], "causal": False},
        {"allowed": [[1, 1, 0], [1, 1, 0], [0, 0, 1]]},
    ),
    (
        "kwargs",
        {"lengths": [2, 3], "padded_lengths": [4, 4], "consumer": "megatron_thd_cp"},
        {"cu_seqlens_q": [0, 2, 5], "cu_seqlens_q_padded": [0, 4, 8], "pad_between_seqs": True, "max_seqlen_q": 4},
    ),
    ("cp_zigzag", {"lengths": [9], "cp": 4}, {"rank_positions": [[i, i + 1, 14 - i, 15 - i] for i in (0, 2, 4, 6)]}),
    ("mtp_targets", {"lengths": [5], "tokens": [1, 2, 3, 4, 5], "depth": 3}, {"targets": [5, -100, -100, -100, -100]}),
    ("mtp_targets", {"lengths": [3], "tokens": [1, 2, 3], "depth": 5}, {"targets": [-100, -100, -100]}),
    ("block_mask", {"lengths": [3, 5], "block": 2, "causal": True}, {"kv_blocks_per_q_block": [1, 2, 2, 3]}),
    ("cp_zigzag", {"lengths": [1], "cp": 2}, {"padded_lengths": [4], "rank_positions": [[0, 3], [1, 2]]}),
    (
        "cp_labels",
        {"lengths": [4, 4], "tokens": [0, 1, 2, 3, 4, 5, 6, 7], "cp": 2},
        {"rank_tokens": [[0, 3, 4, 7], [1, 2, 5, 6]], "rank_labels": [[1, -100, 5, -100], [2, 3, 6, 7]]},
    ),
    (
        "cp_labels",
        {"lengths": [3, 1], "tokens": [5, 6, 7, 8], "cp": 2},
        {"rank_tokens": [[5, 0, 8, 0], [6, 7, 0, 0]], "rank_labels": [[6, -100, -100, -100], [7, -100, -100, -100]]},
    ),
    (
        "cp_contiguous",
        {"lengths": [2, 3], "cp": 3},
        {
            "ranks": [
                {"cu_seqlens_local": [0, 2], "starts_mid_document": False},
                {"cu_seqlens_local": [0, 2], "starts_mid_document": False},
                {"cu_seqlens_local": [0, 1], "starts_mid_document": True},
            ]
        },
    ),
    (
        "cp_contiguous",
        {"lengths": [2], "cp": 3},
        {
            "ranks": [
                {"cu_seqlens_local": [0, 1], "starts_mid_document": False},
                {"cu_seqlens_local": [0, 1], "starts_mid_document": True},
                {"cu_seqlens_local": [0], "starts_mid_document": False},
            ]
        },
    ),
    ("row_work", {"document_ids": [[1, 1, 0, 2]]}, {"visible": [1, 2, 1, 1]}),
    ("row_work", {"document_ids": [[1, 1, 1, 2]], "window": 2, "causal": False}, {"visible": [2, 3, 2, 1]}),
    ("window_kwargs", {"window": 128, "causal": False}, {"window_size": [127, 127]}),
    (
        "mask_from_position_ids",
        {"position_ids": [[0, 1, 0, 0]], "attention_mask": [[1, 1, 1, 0]]},
        {"allowed": [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], "lengths": [2, 1]},
    ),
    (
        "mask",
        {"document_ids": [[1, 1, 1, 2, 0]], "window": 2, "causal": False},
        {"allowed": [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]},
    ),
    (
        "pp_split",
        {"document_ids": [[1, 2], [0, 0]], "microbatches": 2},
        {"microbatches": [{"cu_seqlens": [0, 1, 2], "max_seqlen": 1}, {"cu_seqlens": [0], "max_seqlen": 0}]},
    ),
]
"""Inputs of the same kinds as in the reports, at the edges that those leave out."""


@pytest.mark.parametrize(("operation", "given", "expected"), _ALIKE)
def test_inputs_like_those_of_the_reports(operation: str, given: Given, expected: Answer) -> None:
    found = _OPERATIONS[operation](given)
    assert {name: found[name] for name in expected} == expected


_REFUSED_ALIKE: Final[list[tuple[str, Given, str]]] = [
    ("overflow", {"lengths": [4], "capacity": 3, "policy": "error"}, "is longer than a row of 3 places"),
    ("reject", {"field": "lengths", "lengths": [-1, 3]}, "must be a positive int"),
    ("reject", {"field": "cu_seqlens", "cu_seqlens": [0, 4, 3]}, "never fall"),
    ("reject", {"field": "cu_seqlens", "cu_seqlens": [1, 4]}, "must start at zero"),
    ("reject", {"field": "document_ids", "document_ids": [[1, -2]]}, "negative id"),
    ("segments_from_position_ids", {"position_ids": [[[0, 1]], [[0, 1]], [[0, 0]]]}, "must be \\[batch, sequence"),
    ("segments_from_tokens", {"tokens": [[4, 9]], "eos_id": None}, "no token tells documents apart"),
    ("thd_valid_mask", {"cu_seqlens": [0, 5], "cu_seqlens_padded": [0, 4], "total": 4}, "does not fit the 4 places"),
    ("thd_valid_mask", {"cu_seqlens": [0, 2], "cu_seqlens_padded": [0, 4], "total": 3}, "must be at least 4"),
    ("thd_valid_mask", {"cu_seqlens": [0, 2, 3], "cu_seqlens_padded": [0, 4], "total": 4}, "but cu_seqlens has 3"),
    ("seq_idx_padded", {"cu_seqlens_padded": [0, 4, 8], "total_tokens": 6}, "must be from 8, the last offset"),
    ("positions_from_doc_lens", {"doc_lens": [[2, 3]], "row_length": 4}, "need more than 4 places"),
    ("mtp_targets", {"lengths": [2], "tokens": [1, 2], "depth": -1}, "depth = -1: must be an int from 0"),
    ("window_kwargs", {"window": 0}, "must be an int from 1"),
    ("offset_spans", {"lengths": [2], "spans": [[[0, 3]]]}, "has 2 tokens, and this is no span"),
    ("pp_split", {"document_ids": [[1, 1]], "microbatches": 2}, "microbatches"),
    ("reject", {"field": "labels", "shift_state": "model", "consumer_shifts": False}, "would never be shifted"),
    ("reject", {"field": "cu_seqlens", "cu_seqlens": [0, 4], "total_tokens": 8}, "end at the number of token indices"),
    ("reject", {"field": "pad_mask", "pad_mask": [[0, 1]]}, "must be a bool tensor"),
    ("reject", {"field": "document_ids", "document_ids": [[1, 2, 1]]}, "id comes back after another id"),
    ("reject", {"field": "document_ids", "document_ids": [[True, False]]}, "must hold integers"),
    ("static_max", {"lengths": [1, 1], "max_documents": 1, "static_max": 2}, "more segments than the bound"),
    ("segments_from_tokens", {"tokens": [[4, 9]], "eos_id": 9, "pad_id": 9}, "the padding of a row cannot be told"),
    ("segments_from_tokens", {"tokens": [[4, 5, 6]], "eos_id": 9}, "neither the token that ends a document"),
]


@pytest.mark.parametrize(("operation", "given", "message"), _REFUSED_ALIKE)
def test_inputs_like_those_that_nothing_could_be_right_for(operation: str, given: Given, message: str) -> None:
    with pytest.raises(PackingError, match=message):
        _OPERATIONS[operation](given)


def test_the_table_names_every_operation_and_no_other() -> None:
    operations = {report["operation"] for report in _REPORTS if report["id"] not in _ELSEWHERE}
    assert operations == set(_OPERATIONS)


def test_the_lines_that_are_named_are_there() -> None:
    assert {report["id"] for report in _REPORTS} >= {*_BY_PARAMETER, *_ELSEWHERE}
