"""Batches cut along their rows into microbatches, by ourselves or by a pipeline schedule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import numpy as np
from torch import Tensor

from neatpack.adapters.agreement import scan_batch
from neatpack.adapters.arguments import require_choice, require_count, tensor_problems
from neatpack.adapters.batch_entries import (
    FIELD_RULES,
    batch_shape,
    entries,
    holds_tensors,
    refuse_kernel_fields,
    require_structure,
)
from neatpack.adapters.boundary_fields import FLASH_FIELDS
from neatpack.adapters.physical import PADDING_SEGMENTS, PaddingSegments, flash_varlen_kwargs
from neatpack.adapters.segments import Segments
from neatpack.adapters.token_fields import lists_batches
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.errors import BatchError, Problem


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
        EncodingError: no such `padding`, an entry is an argument of kernels, or there are flat kwargs, and these, the
            padding mask or positions contradict the ids.
        DocumentIdsError: flat kwargs are to be derived, and the ids are malformed.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1], [1, 2], [1, 0]])
        >>> batch = {"input_ids": ids, "labels": ids, "position_ids": ids, "padding_mask": ids == 0}
        >>> [part["input_ids"].tolist() for part in split_rows(batch, 2)]
        [[[1, 1], [1, 2]], [[1, 0]]]
    """
    rows, places = batch_shape(batch)
    if not rows:
        remedy = "Leave such batches out."
        raise BatchError(Problem("input_ids", "has no row to cut", "shape", value=(rows, places), remedy=remedy))
    remedy = "Give at most the rows of the batch: no part is empty."
    microbatches = require_count(microbatches, "microbatches", remedy, least=1, most=rows, error=BatchError)
    require_choice(padding, PADDING_SEGMENTS, "padding")
    _require_cuttable(batch)
    flat = _flat_kwargs(batch)
    sizes = [rows // microbatches + (part < rows % microbatches) for part in range(microbatches)]
    parts: list[dict[str, object]] = [{} for _ in sizes]
    for name, value in entries(batch).items():
        if name not in flat:
            for part, piece in zip(parts, _cut(name, value, sizes), strict=True):
                part[name] = piece
    if flat:
        scanned, _ = scan_batch(batch, *FLASH_FIELDS)
        for part, segments in zip(parts, _split_segments(scanned.attention, sizes), strict=True):
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
    flat = _flat_kwargs(batch)
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


def _flat_kwargs(batch: TrainingBatch[Tensor]) -> list[str]:
    """List the entries that count over all rows of the batch."""
    return [name for name in FLASH_FIELDS if entries(batch).get(name) is not None]


def _require_cuttable(batch: TrainingBatch[Tensor]) -> None:
    """Raise where an entry holds tensors of which it does not say along what they are cut."""
    refuse_kernel_fields(entries(batch))
    shape = batch_shape(batch)
    message, remedy = "holds tensors whose rows are not known", "Leave it out, and derive it after the cut."
    problems = [
        Problem(name, message, "unsupported", value=type(value).__name__, remedy=remedy)
        for name, value in entries(batch).items()
        if not isinstance(value, Tensor)
        and holds_tensors(value)
        and (not _is_listed(value) or lists_batches(value, shape))
    ]
    if problems:
        raise BatchError(*problems)


def _cut(name: str, value: object, sizes: list[int]) -> Sequence[object]:
    """Cut an entry into parts of so many rows; what has no rows goes to each part."""
    rows = sum(sizes)
    if isinstance(value, Tensor):
        return value.tensor_split(len(sizes), _row_axis(name, value, rows))
    if value is not None and name in FIELD_RULES and FIELD_RULES[name].axes:
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
    axis = 0 if value.ndim else None
    if name in FIELD_RULES:
        if FIELD_RULES[name].count is not None:
            require_structure(cast("TrainingBatch[Tensor]", {name: value}))
        forms = (axes.names for axes in FIELD_RULES[name].axes if len(axes.names) == value.ndim)
        axis = next((names.index("batch") for names in forms if "batch" in names), None)
    if axis is None or value.shape[axis] != rows:
        raise BatchError(_no_rows(name, tuple(value.shape), rows))
    return axis


def _no_rows(name: str, found: object, rows: int) -> Problem:
    message = f"has no dimension of {rows} rows along which to cut it"
    remedy = "Take it out of the batch, and cut it yourself."
    return Problem(name, message, "shape", value=found, remedy=remedy)


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
