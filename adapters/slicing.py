"""Batches cut: rows into microbatches for a pipeline, tokens into ranks for context parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, cast, get_args

import numpy as np
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from neatpack.adapters.agreement import refuse_kernel_fields
from neatpack.adapters.arguments import require_choice, require_count, tensor_problems
from neatpack.adapters.boundary_fields import FLASH_FIELDS, IDS
from neatpack.adapters.labels import require_label_shift
from neatpack.adapters.loss import mtp_targets
from neatpack.adapters.physical import PaddingSegments, flash_varlen_kwargs, require_padding_segments
from neatpack.adapters.segments import Integers, Segments, as_segments
from neatpack.adapters.thd import padded_lengths, thd_lengths
from neatpack.adapters.token_fields import batch_shape, entries, move_tokens, require_movable, token_axis
from neatpack.adapters.training_batch import require_tensor
from neatpack.contracts.axes import field_axes
from neatpack.contracts.batch import LabelShift, TrainingBatch
from neatpack.contracts.encodings import THDLengths
from neatpack.contracts.errors import BatchError, EncodingError, Problem

ContextLayout = Literal["contiguous", "zigzag"]
"""How places go to ranks: equal pieces of the row, or two of `2 * ranks` chunks of each document."""

CONTEXT_LAYOUTS: Final[tuple[ContextLayout, ...]] = get_args(ContextLayout)

_RULES: Final = field_axes(TrainingBatch)


@dataclass(frozen=True, eq=False)
class ContextShard:
    """The part of a batch that one rank of a context-parallel group holds.

    Attributes:
        batch: its per-token entries, `[batch, sequence // ranks]`. Labels are targets, shifted before the cut. There
            is no `_packed_seq_ids`: boundaries of attention are not those of the part.
        places: int64 `[batch, sequence // ranks]`, the place of each token in the whole row.
        lengths: the documents of the whole rows, in which an attention that exchanges keys between ranks counts.
        continues: bool `[batch]`, whether the first token goes on with a document that began on an earlier rank.
    """

    batch: TrainingBatch[Tensor]
    places: Tensor
    lengths: THDLengths[Tensor]
    continues: Tensor


def split_rows(
    batch: TrainingBatch[Tensor], microbatches: int, *, padding: PaddingSegments = "split"
) -> list[TrainingBatch[Tensor]]:
    """Cut a batch along its rows. What is batch-major is cut, and flat kwargs are derived again for each part.

    Args:
        batch: entries with `batch` among their axes, or, if the batch does not declare them, as first dimension; of
            lists and arrays as well. What else is no tensor goes to each part as it is.
        microbatches: how many parts; their rows differ by one at most, and none is empty.
        padding: how new flat kwargs cut padding, as `flash_varlen_kwargs` takes it.

    Returns:
        New mappings whose tensors are views. A maximum length stays that of the whole batch, as an upper bound.

    Raises:
        BatchError: fewer rows than microbatches, an entry whose rows are not known or not as many, or flat kwargs
            without ids.
        EncodingError: no such `padding`, or an entry is an argument of kernels.
        DocumentIdsError: flat kwargs are to be derived, and the ids are malformed or have a hole.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1], [1, 2], [1, 0]])
        >>> batch = {"input_ids": ids, "labels": ids, "position_ids": ids, "padding_mask": ids == 0}
        >>> [part["input_ids"].tolist() for part in split_rows(batch, 2)]
        [[[1, 1], [1, 2]], [[1, 0]]]
    """
    rows, _ = batch_shape(batch)
    remedy = "Give at most the rows of the batch: no part is empty."
    microbatches = require_count(microbatches, "microbatches", remedy, least=1, most=rows, error=BatchError)
    require_padding_segments(padding)
    _require_cuttable(batch)
    sizes = [rows // microbatches + (part < rows % microbatches) for part in range(microbatches)]
    parts: list[dict[str, object]] = [{} for _ in sizes]
    for name, value in entries(batch).items():
        if name not in FLASH_FIELDS:
            for part, piece in zip(parts, _cut(name, value, sizes), strict=True):
                part[name] = piece
    if any(name in batch for name in FLASH_FIELDS):
        for part, segments in zip(parts, _split_segments(_attention_segments(batch), sizes), strict=True):
            part.update(flash_varlen_kwargs(segments, padding))
    return [cast("TrainingBatch[Tensor]", part) for part in parts]


def pipeline_chunk_dims(batch: TrainingBatch[Tensor]) -> dict[str, int | None]:
    """Tell along which dimension a pipeline schedule cuts each entry of a yielded batch; None where it is no tensor.

    What has None goes to each microbatch as it is: a maximum length stays an upper bound. Without a spec, a schedule
    of torch cuts dimension 0 of every tensor, which of positions of several axes is the axes. A spec of torch (2.13)
    is a dict with an entry for each argument, which torch pairs by order and not by name: `TensorChunkSpec(dim)` for a
    dimension, and for None the class `_Replicate`, which has no public name.

    Args:
        batch: as `apply_packing_contract` leaves it, without flat kwargs.

    Returns:
        A dimension or None for each entry, in the order of the batch. It follows from the contract and the ranks of
        the entries, so that it holds for every batch of a loader.

    Raises:
        BatchError: an entry's rows are not known, it counts over all rows and does not survive a cut, or it is a list
            or an array of numpy's: a schedule cuts tensors alone.
        EncodingError: an entry is an argument of kernels.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1], [1, 2]])
        >>> batch = {"input_ids": ids, "labels": ids, "position_ids": ids.expand(3, 2, 2), "padding_mask": ids == 0}
        >>> batch["max_seqlen"] = 2
        >>> dims = pipeline_chunk_dims(batch)
        >>> dims
        {'input_ids': 0, 'labels': 0, 'position_ids': 1, 'padding_mask': 0, 'max_seqlen': None}
        >>> from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
        >>> spec = {name: _Replicate if dim is None else TensorChunkSpec(dim) for name, dim in dims.items()}
        >>> # ScheduleGPipe(stage, n_microbatches, loss_fn=loss_fn, kwargs_chunk_spec=spec).step(**batch)
    """
    rows, _ = batch_shape(batch)
    _require_cuttable(batch)
    flat = [name for name in FLASH_FIELDS if name in batch]
    if flat:
        message = "counts over all rows of the batch, and does not survive a cut"
        remedy = "Yield the batch without flat=True: a bound model derives it after the cut. Or call split_rows(...)."
        raise BatchError(*(Problem(name, message, "unsupported", remedy=remedy) for name in flat))
    listed = [name for name, value in entries(batch).items() if _is_listed(value)]
    if listed:
        message = "is no tensor, and a schedule cuts nothing else"
        remedy = "Make a tensor of it, or take it out of the batch."
        raise BatchError(*(Problem(name, message, "unsupported", remedy=remedy) for name in listed))
    return {
        name: _row_axis(name, value, rows) if isinstance(value, Tensor) else None
        for name, value in entries(batch).items()
    }


def shard_tokens(
    batch: TrainingBatch[Tensor], rank: int, ranks: int, layout: ContextLayout, *, label_shift: LabelShift
) -> ContextShard:
    """Cut the tokens of each row for one rank of a context-parallel group.

    Labels become targets before the cut, so that the last token of a part is not asked for the wrong one. Boundaries
    come from the attention ids of the whole rows.

    Args:
        batch: per-token entries with ids, without anything that is derived from them.
        rank: from 0 to `ranks - 1`.
        ranks: size of the group.
        layout: "contiguous" or "zigzag"; see `context_places`.
        label_shift: who shifted the labels of `batch`.

    Returns:
        The part of the rank, `[batch, sequence // ranks]`, of new tensors, and what belongs to the whole rows.

    Raises:
        BatchError: there are no ids or labels, or an entry cannot move with the tokens.
        DocumentIdsError: the ids are malformed, have a hole, or a row begins with padding.
        EncodingError: no such layout, rank or `label_shift`, or lengths that the group cannot share.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1]])
        >>> tokens = torch.arange(8)[None]
        >>> batch = {"input_ids": tokens, "labels": tokens, "position_ids": tokens, "padding_mask": ids == 0}
        >>> batch["document_ids"] = ids
        >>> shard = shard_tokens(batch, 0, 2, "zigzag", label_shift="model")
        >>> shard.batch["input_ids"], shard.batch["labels"]
        (tensor([[0, 1, 6, 7]]), tensor([[   1,    2,    7, -100]]))
    """
    require_movable(batch)
    require_label_shift(label_shift)
    segments = _attention_segments(batch)
    places = _places(segments, rank, ranks, layout)
    on_device = segments.tensor(places)
    labels = require_tensor(batch, "labels", "Give them; without targets, they are -100 everywhere.")
    whole = cast("TrainingBatch[Tensor]", {**batch, "labels": mtp_targets(labels, segments, 0, label_shift)})
    part = move_tokens(whole, on_device)
    part.pop("_packed_seq_ids", None)
    return ContextShard(part, on_device, thd_lengths(segments), _continues(segments, places))


def context_places(document_ids: Tensor | Segments, rank: int, ranks: int, layout: ContextLayout) -> Tensor:
    """Give the places, counted within each row, that go to one rank of a context-parallel group.

    "contiguous" gives each rank an equal piece of the row. "zigzag" cuts each document with its padding into
    `2 * ranks` chunks, of which a rank holds one from the front and its mirror from the back, so that all ranks do
    equal work under a causal mask; so do Transformer Engine's partitioned indices.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, which follows documents; without holes.
        rank: from 0 to `ranks - 1`.
        ranks: size of the group.
        layout: "contiguous" or "zigzag".

    Returns:
        int64 `[batch, sequence // ranks]`, ascending within each document.

    Raises:
        DocumentIdsError: the ids are malformed, have a hole, or a row begins with padding.
        EncodingError: no such layout or rank, or a row or document that does not divide among the ranks.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 1, 0, 2, 2, 0, 0]])
        >>> [context_places(ids, rank, 2, "zigzag").tolist() for rank in range(2)]
        [[[0, 3, 4, 7]], [[1, 2, 5, 6]]]
    """
    segments = as_segments(document_ids)
    return segments.tensor(_places(segments, rank, ranks, layout))


def _require_cuttable(batch: TrainingBatch[Tensor]) -> None:
    """Raise where an entry holds tensors of which it does not say along what they are cut."""
    refuse_kernel_fields(entries(batch))
    message, remedy = "holds tensors whose rows are not known", "Leave it out, and derive it after the cut."
    problems = [
        Problem(name, message, "unsupported", value=type(value).__name__, remedy=remedy)
        for name, value in entries(batch).items()
        if not isinstance(value, Tensor) and not _is_listed(value) and _holds_tensors(value)
    ]
    if problems:
        raise BatchError(*problems)


def _holds_tensors(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensors, cast("Mapping[object, object]", value).values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, cast("Sequence[object]", value)))
    return isinstance(value, (Tensor, BlockMask))


def _cut(name: str, value: object, sizes: list[int]) -> Sequence[object]:
    """Cut an entry into parts of so many rows; what has no rows goes to each part."""
    rows = sum(sizes)
    if isinstance(value, Tensor):
        return value.tensor_split(len(sizes), _row_axis(name, value, rows))
    if value is not None and name in _RULES and _RULES[name].axes:
        raise BatchError(*tensor_problems(value, name))
    if not _is_listed(value):
        return [value] * len(sizes)
    per_row = cast("Sequence[object]", value)
    if len(per_row) != rows:
        raise BatchError(_no_rows(name, len(per_row), rows))
    return [per_row[stop - size : stop] for stop, size in zip(accumulate(sizes), sizes, strict=True)]


def _is_listed(value: object) -> bool:
    """Tell whether an entry that is no tensor has entries of its own, one for each row if at all."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _row_axis(name: str, value: Tensor, rows: int) -> int:
    """Tell along which dimension an entry is cut."""
    problems = tensor_problems(value, name, data=False)
    if problems:
        raise BatchError(*problems)
    if name in _RULES:
        named = [axes.names for axes in _RULES[name].axes if len(axes.names) == value.ndim and "batch" in axes.names]
        axis = named[0].index("batch") if named else 0
        known = bool(named)
    else:
        axis, known = 0, value.ndim > 0
    if not known or value.shape[axis] != rows:
        raise BatchError(_no_rows(name, tuple(value.shape), rows))
    return axis


def _no_rows(name: str, found: object, rows: int) -> Problem:
    message = f"has no dimension of {rows} rows along which to cut it"
    remedy = "Take it out of the batch, and cut it yourself."
    return Problem(name, message, "shape", value=found, remedy=remedy)


def _attention_segments(batch: TrainingBatch[Tensor]) -> Segments:
    """Scan the ids that attention goes by."""
    shape = batch_shape(batch)
    for name in IDS:
        ids = entries(batch).get(name)
        if isinstance(ids, Tensor):
            if token_axis(name, ids, shape) is None:
                message = f"must have the shape of input_ids, {shape}"
                remedy = "Cut and pad ids together with the tokens that they belong to."
                raise BatchError(Problem(name, message, "shape", value=tuple(ids.shape), remedy=remedy))
            return as_segments(ids, field=name)
    raise BatchError(Problem("document_ids", "the batch has no ids", "missing", remedy="Supply document_ids."))


def _split_segments(segments: Segments, sizes: list[int]) -> list[Segments]:
    """Cut scanned ids along the rows, without another look at the device."""
    parts: list[Segments] = []
    first = 0
    for size in sizes:
        start, stop = (int(np.searchsorted(segments.bounds, row * segments.sequence)) for row in (first, first + size))
        bounds = segments.bounds[start : stop + 1] - first * segments.sequence
        parts.append(Segments(size, segments.sequence, segments.device, bounds, segments.ids[start:stop]))
        first += size
    return parts


def _places(segments: Segments, rank: int, ranks: int, layout: ContextLayout) -> Integers:
    require_choice(layout, CONTEXT_LAYOUTS, "layout")
    ranks = require_count(ranks, "ranks", "Give the size of the group.", least=1)
    rank = require_count(rank, "rank", "Ranks of a group count from 0.", most=ranks - 1)
    padded = padded_lengths(segments)
    if layout == "zigzag" and ranks > 1:  # One rank takes all, of whatever length.
        return _zigzag(segments, padded, rank, ranks)
    if segments.sequence % ranks:
        remedy = f"Pad the rows: pad_rows(batch, {ranks})."
        message = f"rows of {segments.sequence} places do not divide among {ranks} ranks"
        raise EncodingError(Problem("document_ids", message, "shape", value=segments.sequence, remedy=remedy))
    size = segments.sequence // ranks
    return np.tile(np.arange(rank * size, (rank + 1) * size), (segments.batch, 1))


def _zigzag(segments: Segments, padded: Integers, rank: int, ranks: int) -> Integers:
    """Give the row-local places of chunk `rank` and of its mirror, slot by slot; rows of padding are slots as well."""
    documents = segments.documents
    empty = np.flatnonzero(documents.counts == 0)
    at = np.searchsorted(documents.rows, empty)
    starts = np.insert(documents.starts % segments.sequence, at, 0)
    lengths = np.insert(padded, at, segments.sequence)
    wrong = np.flatnonzero(lengths % (2 * ranks))
    if wrong.size:
        slot = int(wrong[0])
        row = int(np.insert(documents.rows, at, empty)[slot])
        message = f"a document with its padding takes {lengths[slot]} places, no multiple of 2 * ranks = {2 * ranks}"
        remedy = f"Pad each document: pad_documents(batch, {2 * ranks})."
        position = int(starts[slot])
        problem = Problem("document_ids", message, "shape", row, position, int(lengths[slot]), remedy)
        raise EncodingError(problem)
    chunks = lengths // (2 * ranks)
    begins = np.stack([starts + rank * chunks, starts + (2 * ranks - 1 - rank) * chunks], axis=-1).ravel()
    sizes = np.repeat(chunks, 2)
    places: Integers = np.arange(int(sizes.sum())) + np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
    return np.reshape(places, (segments.batch, -1))


def _continues(segments: Segments, places: Integers) -> Tensor:
    """Mark the rows whose part begins inside a document."""
    first = places[:, 0] + np.arange(segments.batch) * segments.sequence
    run = np.searchsorted(segments.bounds, first, side="right") - 1
    return segments.tensor((segments.ids[run] != 0) & (segments.bounds[run] < first))
