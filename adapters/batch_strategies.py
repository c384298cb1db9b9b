"""Hypothesis strategies for collated batches, valid and invalid in named ways. Part of `strategies`."""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.arguments import require_choice, require_count
from neatpack.adapters.document_ids import canonical_document_ids
from neatpack.adapters.id_strategies import PaddingPlaces, document_ids, require_some
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.neat_metadata import gathered_rows
from neatpack.adapters.physical import physical_offsets
from neatpack.adapters.positions import build_position_ids
from neatpack.contracts.batch import TrainingBatch

BatchFault = Literal[
    "positions_restart", "padding_mask_shifted", "mask_of_ones", "mask_leaks", "offsets_moved", "lengths_joined",
    "metadata_moved",
]  # fmt: skip
"""What may contradict the document ids of a batch."""

BATCH_FAULTS: Final[tuple[BatchFault, ...]] = get_args(BatchFault)


def training_batches(
    *, padding: PaddingPlaces = "anywhere", axes: tuple[int, ...] = (0,)
) -> st.SearchStrategy[TrainingBatch[Tensor]]:
    """Draw a batch as a loader collates it, with canonical int64 `document_ids` and labels that nobody shifted.

    Args:
        padding: where padding may stand.
        axes: how many position axes to draw from; 0 is plain `[batch, sequence]` text positions. Coordinates of
            several axes are random, nonnegative and local to each document.

    Raises:
        EncodingError: an argument is of another kind.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5)
        ... @given(training_batches())
        ... def check(batch: TrainingBatch[Tensor]) -> None:
        ...     assert batch["input_ids"].shape == batch["labels"].shape
        >>> check()
    """
    ids = document_ids(padding=padding, dtypes=(torch.int64,), canonical=True)
    require_some(axes, "axes", "Give numbers of position axes, (0,) for text.")
    for count in axes:
        require_count(count, "axes", "Give numbers of position axes, (0,) for text.")
    return _training_batches(ids, axes)


@st.composite
def _training_batches(
    draw: st.DrawFn, document_ids: st.SearchStrategy[Tensor], axes: tuple[int, ...]
) -> TrainingBatch[Tensor]:
    ids = draw(document_ids)
    input_ids = _draw_integers(draw, 100, ids.shape)
    count = draw(st.sampled_from(axes))
    return {
        "input_ids": input_ids,
        "labels": input_ids.masked_fill(ids == 0, -100),
        "position_ids": _draw_integers(draw, 10, (count, *ids.shape)) if count else build_position_ids(ids),
        "padding_mask": ids == 0,
        "document_ids": ids,
    }


def contradicting_batches(fault: BatchFault) -> st.SearchStrategy[TrainingBatch[Tensor]]:
    """Draw a batch with a second encoding that contradicts its document ids in the named way.

    Raises:
        EncodingError: there is no such fault.

    Example:
        >>> from hypothesis import given, settings
        >>> @settings(max_examples=5)
        ... @given(contradicting_batches("mask_of_ones"))
        ... def check(batch: TrainingBatch[Tensor]) -> None:
        ...     assert batch["padding_mask"].any() and batch["attention_mask"].all()
        >>> check()
    """
    require_choice(fault, BATCH_FAULTS, "fault")
    return _contradicting_batches(fault)


@st.composite
def _contradicting_batches(draw: st.DrawFn, fault: BatchFault) -> TrainingBatch[Tensor]:
    needs = _CONTRADICTS[fault]
    batch = draw(training_batches().filter(lambda batch: _has(_ids(batch), needs)))
    _contradict(draw, batch, fault)
    return batch


def _draw_integers(draw: st.DrawFn, below: int, shape: tuple[int, ...]) -> Tensor:
    """Draw one seed and not every value, which would take most of the time of a test."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    return torch.randint(below, shape, generator=generator)


_CONTRADICTS: Final[dict[BatchFault, Literal["any", "padding", "long", "two"]]] = {
    "positions_restart": "long",
    "padding_mask_shifted": "any",
    "mask_of_ones": "padding",
    "mask_leaks": "two",
    "offsets_moved": "long",
    "lengths_joined": "two",
    "metadata_moved": "two",
}
"""What the ids must hold, so that the fault is one."""


def _ids(batch: TrainingBatch[Tensor]) -> Tensor:
    return batch.get("document_ids", batch["input_ids"])


def _draw_inside(draw: st.DrawFn, ids: Tensor) -> tuple[int, int]:
    """Draw a token that is not the first of its document."""
    places = [(row, place) for row, numbers in enumerate(ids.numpy()) for place in range(1, len(numbers))]
    inside = [(row, place) for row, place in places if ids[row, place] == ids[row, place - 1] != 0]
    return draw(st.sampled_from(inside))


def _has(ids: Tensor, what: Literal["any", "padding", "long", "two"]) -> bool:
    inside, two = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] > 0), (ids > 1).any()
    return {"any": True, "padding": bool((ids == 0).any()), "long": bool(inside.any()), "two": bool(two)}[what]


def _contradict(draw: st.DrawFn, batch: TrainingBatch[Tensor], fault: BatchFault) -> None:
    ids = _ids(batch)
    if fault == "positions_restart":
        row, place = _draw_inside(draw, ids)
        positions = batch["position_ids"].clone()
        positions[row, place] = positions[row, place - 1]
        batch["position_ids"] = positions
    elif fault == "padding_mask_shifted":
        row, place = (draw(st.integers(0, size - 1)) for size in ids.shape)
        mask = batch["padding_mask"].clone()
        mask[row, place] = ~mask[row, place]
        batch["padding_mask"] = mask
    elif fault == "mask_of_ones":
        batch["attention_mask"] = torch.ones_like(ids)
    elif fault == "mask_leaks":
        batch["attention_mask"] = build_block_causal_mask((ids > 0).long())
    else:
        _contradict_offsets(draw, batch, ids, fault)


def _contradict_offsets(draw: st.DrawFn, batch: TrainingBatch[Tensor], ids: Tensor, fault: BatchFault) -> None:
    if fault == "offsets_moved":
        row, place = _draw_inside(draw, ids)
        offsets = physical_offsets(ids, "run").cu_seqlens
        cut = torch.tensor([row * ids.shape[1] + place], dtype=torch.int32)
        batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = torch.cat([offsets, cut]).sort().values
        batch["max_length_q"] = batch["max_length_k"] = ids.numel()
    elif fault == "lengths_joined":
        batch["seq_lens"] = (ids > 0).sum(1, keepdim=True)
    else:
        metadata = gathered_rows(canonical_document_ids((ids > 0).long()))
        batch["packed_token_indices"] = metadata.packed_token_indices
        batch["cu_seqlens"] = metadata.cu_seqlens
        batch["max_seqlen"] = ids.shape[1]
