"""Which entries of a batch hold one value per token, and the one function that moves all of them to other places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import INTEGER_DTYPES, SIGNED_DTYPES, require_pad_token, tensor_problems
from neatpack.adapters.batch_entries import FIELD_RULES, batch_shape, entries, holds_tensors, refuse_kernel_fields
from neatpack.adapters.boundary_fields import FLASH_FIELDS, LENGTH_FIELDS, METADATA_FIELDS
from neatpack.adapters.host_arrays import Integers, read_on_host
from neatpack.adapters.token_tensors import device_problems, dtype_problems, holds
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.errors import BatchError, Problem
from neatpack.contracts.fields import IGNORED_LABEL
from neatpack.contracts.tensors import is_dense

_DERIVED: Final = (*METADATA_FIELDS, *FLASH_FIELDS, *LENGTH_FIELDS)
"""Entries that are derived from ids, and speak of places or lengths: they do not move with the tokens."""

_NOT_MOVED: Final = (*_DERIVED, "attention_mask", "seq_idx")
"""And those whose numbers at new padding would have to follow from the documents around it."""

PER_DOCUMENT: Final = ("document_keys", "document_starts")
"""Entries of the documents of each row, which stay as they are when tokens move."""

_LABELS: Final = "labels"
"""How the names of all entries of targets end: `labels`, `shift_labels`, `mtp_labels`."""


def token_axis(name: str, value: Tensor, shape: tuple[int, int]) -> int | None:
    """Tell which dimension of an entry is `batch`, where the next one is `sequence`; None where it is not per token.

    Entries that the batch declares go by their declared axes, others by their shape: `[batch, sequence, ...]`.

    Example:
        >>> token_axis("position_ids", torch.zeros(3, 2, 8), (2, 8)), token_axis("rewards", torch.zeros(2), (2, 8))
        (1, None)
    """
    if name in _DERIVED:
        return None
    axis: int | None = 0
    if name in FIELD_RULES:
        forms = (axes.names for axes in FIELD_RULES[name].axes if len(axes.names) == value.ndim)
        per_token = (names for names in forms if names.count("batch") == names.count("sequence") == 1)
        axis = next((names.index("batch") for names in per_token), None)
    return None if axis is None or tuple(value.shape[axis : axis + 2]) != shape else axis


def take_places(batch: TrainingBatch[Tensor], places: Tensor, *, pad_token_id: int = 0) -> TrainingBatch[Tensor]:
    """Move every per-token entry to other places of its row.

    Args:
        batch: a batch whose tensors are per token, but for `document_keys` and `document_starts`. What is derived from
            ids, `seq_idx` among it, is made after the move.
        places: int64, `[batch, new sequence]`: for each new place the place in the same row that it takes, or -1
            where it is padding. It is read once from its device. Beside `document_keys`, which name documents in the
            order in which they stand, places rise along each row.
        pad_token_id: what `input_ids` holds at new padding. Labels, which are `labels` and all integers whose name
            ends so, hold -100 there, `padding_mask` True, the others 0.

    Returns:
        A new batch with new tensors. What holds no value per token, such as a list of names, stays as it is.

    Raises:
        BatchError: an entry is neither per token nor known to stay, so that it cannot be moved, or is per token and
            no tensor; `places` are not places of these rows, or change an order that `document_keys` name; or
            `pad_token_id` is no int.
        EncodingError: an entry is an argument of kernels.

    Example:
        >>> ids = torch.tensor([[1, 1, 2]])
        >>> batch = {"input_ids": ids + 9, "labels": ids, "position_ids": ids, "padding_mask": ids == 0}
        >>> moved = take_places(batch, torch.tensor([[0, 1, -1, 2]]))
        >>> moved["input_ids"], moved["labels"]
        (tensor([[10, 10,  0, 11]]), tensor([[   1,    1, -100,    2]]))
    """
    require_pad_token(pad_token_id, BatchError)
    found = _read_places(places, batch_shape(batch), batch["input_ids"].device)
    if entries(batch).get("document_keys") is not None:
        _require_order(found)
    return move_tokens(batch, places, pad_token_id=pad_token_id)


def move_tokens(batch: TrainingBatch[Tensor], places: Tensor, *, pad_token_id: int = 0) -> TrainingBatch[Tensor]:
    """Move as `take_places` does, without a check of the places, for which they would be read from their device.

    Raises:
        BatchError: an entry cannot be moved, or its dtype cannot hold what stands at padding.
    """
    require_movable(batch)
    _require_fills(batch, pad_token_id)
    shape = batch_shape(batch)
    rows = torch.arange(shape[0], device=places.device)[:, None]
    flat = (places.clamp(min=0) + rows * shape[1]).flatten()
    moved: dict[str, object] = {}
    for name, value in entries(batch).items():
        if not isinstance(value, Tensor) or name in PER_DOCUMENT:
            moved[name] = value
            continue
        axis = cast("int", token_axis(name, value, shape))
        rest = value.shape[axis + 2 :]
        taken = _as_signed(value).flatten(axis, axis + 1).index_select(axis, flat)
        taken = taken.view(*value.shape[:axis], *places.shape, *rest)
        new = (places < 0).view(*places.shape, *[1] * len(rest))
        fill = _fill(name, value, pad_token_id)
        if value.dtype in SIGNED_DTYPES:
            fill = int(_as_signed(torch.tensor(fill, dtype=value.dtype, device="cpu")))
            moved[name] = taken.masked_fill(new, fill).view(value.dtype)
        else:
            moved[name] = taken.masked_fill(new, fill)
    return cast("TrainingBatch[Tensor]", moved)


def _as_signed(value: Tensor) -> Tensor:
    """Give a tensor whose values torch moves: of unsigned dtypes the bits, of all others itself."""
    return value.view(SIGNED_DTYPES[value.dtype]) if value.dtype in SIGNED_DTYPES else value


def require_movable(batch: TrainingBatch[Tensor]) -> None:
    """Raise where an entry cannot move with the tokens, before anything is derived.

    Raises:
        BatchError: with every such entry.
        EncodingError: an entry is an argument of kernels.
    """
    shape = batch_shape(batch)
    refuse_kernel_fields(entries(batch))
    problems = [
        problem
        for name, value in entries(batch).items()
        if _speaks_of_tokens(name, value, shape)
        for problem in _movable_problems(name, value, shape, batch["input_ids"].device)
    ]
    if problems:
        raise BatchError(*problems)


def _fill(name: str, value: Tensor, pad_token_id: int) -> int:
    """Give what an entry holds at padding: where it names targets, none."""
    if name == "input_ids":
        return pad_token_id
    if name == _LABELS or (str(name).endswith(_LABELS) and value.dtype in INTEGER_DTYPES):
        return IGNORED_LABEL
    return int(name == "padding_mask")


def _require_fills(batch: TrainingBatch[Tensor], pad_token_id: int) -> None:
    problems: list[Problem] = []
    for name, value in entries(batch).items():
        if not isinstance(value, Tensor) or name in PER_DOCUMENT:
            continue
        fill = _fill(name, value, pad_token_id)
        if not holds(value.dtype, fill):
            message, remedy = f"cannot hold {fill}, which stands at padding", f"Convert it: {name}.long()."
            problems.append(Problem(name, message, "dtype", value=value.dtype, remedy=remedy))
    if problems:
        raise BatchError(*problems)


def _speaks_of_tokens(name: str, value: object, shape: tuple[int, int]) -> bool:
    """Tell whether an entry cannot stay as it is while the tokens move."""
    if name in _DERIVED:
        return True
    if isinstance(value, Tensor):
        return name not in PER_DOCUMENT
    if _is_converted(name, value, shape):
        return True
    # Another list has an entry per row, if at all; masks, alone or in a dict, are of the places as they were.
    return not isinstance(value, Sequence) and holds_tensors(value)


def _is_converted(name: str, value: object, shape: tuple[int, int]) -> bool:
    """Tell whether an entry that is no tensor ought to be one."""
    if _is_per_token(value, shape):
        return True
    return value is not None and name in FIELD_RULES and bool(FIELD_RULES[name].axes)


def _is_per_token(value: object, shape: tuple[int, int]) -> bool:
    """Tell whether an array or a list that is no tensor has an entry per token."""
    if isinstance(value, np.ndarray):
        return _sizes(cast("object", value))[:2] == shape
    if not isinstance(value, (list, tuple)):
        return False
    sizes = [_sizes(each) for each in cast("Sequence[object]", value)]
    is_rows = len(sizes) == shape[0] and all(each[:1] == shape[1:] for each in sizes)
    return is_rows or lists_batches(cast("object", value), shape)


def lists_batches(value: object, shape: tuple[int, int]) -> bool:
    """Tell whether a list has all rows in one of its tensors, such as targets of each depth, and no entry per row."""
    return isinstance(value, (list, tuple)) and any(
        _sizes(each)[:2] == shape for each in cast("Sequence[object]", value)
    )


def _sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, (Tensor, np.ndarray)):
        return tuple(cast("npt.NDArray[Any]", value).shape) if is_dense(cast("object", value)) else ()  # Nested: none.
    return (len(cast("Sequence[object]", value)),) if isinstance(value, (list, tuple)) else ()


def _movable_problems(name: str, value: object, shape: tuple[int, int], device: torch.device) -> list[Problem]:
    """List what keeps an entry from moving with the tokens."""
    converted = not isinstance(value, Tensor) and name not in _NOT_MOVED and _is_converted(name, value, shape)
    if converted or not is_dense(value):
        return tensor_problems(value, name)
    if isinstance(value, Tensor) and (problems := tensor_problems(value, name, data=False)):
        return problems
    if name == "seq_idx" or not isinstance(value, Tensor) or token_axis(name, value, shape) is None:
        return [_immovable(name, value)]
    problems = [] if value.dtype in SIGNED_DTYPES else dtype_problems(name, value)
    return device_problems(value, device, name, "input_ids lies") or problems


def _read_places(places: object, shape: tuple[int, int], device: torch.device) -> Integers:
    problem = partial(Problem, "places", remedy="Give for each new place one of the row, from 0, or -1 for padding.")
    if not isinstance(places, Tensor) or places.dtype != torch.int64 or not is_dense(places):
        found = places.dtype if isinstance(places, Tensor) else type(places).__name__
        raise BatchError(problem("must be a dense int64 tensor", "dtype", value=found))
    if places.ndim != 2 or places.shape[0] != shape[0]:
        raise BatchError(problem(f"must be [{shape[0]}, new sequence]", "shape", value=tuple(places.shape)))
    if not shape[1]:
        remedy = "Leave such batches out."
        raise BatchError(Problem("input_ids", "has no place to take", "shape", value=shape, remedy=remedy))
    if places.device != device or device.type == "meta":
        raise BatchError(problem("must lie where input_ids lies, with data", "device", value=places.device))
    read = read_on_host(places, "places")
    wrong = np.argwhere((read < -1) | (read >= shape[1]))
    if wrong.size:
        row, position = (int(axis) for axis in wrong[0])
        message = f"must be from -1 to {shape[1] - 1}"
        raise BatchError(problem(message, "value", row, position, int(read[row, position])))
    return read


def _require_order(places: Integers) -> None:
    """Raise where tokens would not stand in their order, so that keys would name other documents than their own."""
    highest = np.maximum.accumulate(np.pad(places, ((0, 0), (1, 0)), constant_values=-1), axis=1)[:, :-1]
    wrong = np.argwhere((places >= 0) & (places <= highest))
    if wrong.size:
        row, position = (int(axis) for axis in wrong[0])
        message = "does not rise along the row, in whose order document_keys name documents"
        remedy = "Keep tokens in their order, or take document_keys and document_starts out of the batch."
        value = int(places[row, position])
        raise BatchError(Problem("places", message, "disagreement", row, position, value, remedy))


def _immovable(name: str, value: object) -> Problem:
    found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if name in _NOT_MOVED:
        message = "is derived from the ids, and does not move with the tokens"
        remedy = "Move the tokens first, and derive afterwards."
        return Problem(name, message, "unsupported", value=found, remedy=remedy)
    remedy = "Take it out of the batch, and move it yourself."
    return Problem(name, "is not per token, [batch, sequence, ...]", "shape", value=found, remedy=remedy)
