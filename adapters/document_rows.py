"""Other rows for the tokens of a packed batch, one document each or all in one, and values per token put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neatpack.adapters.arguments import (
    INT64_MAX,
    INT64_MIN,
    is_count,
    require_count,
    require_instance,
    require_list,
    tensor_problems,
)
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.layout import require_no_holes
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.token_tensors import device_problems, dtype_problems, holds
from neatpack.contracts.errors import BatchError, PlanError, Problem


@dataclass(frozen=True, eq=False)
class DocumentRows:
    """Where the tokens of a packed batch go when they get other rows, in one batch or in several.

    Attributes:
        shape: rows and places of the packed batch.
        lengths: of each batch the length of each of its rows, on the host.
        places: of each batch, int64 `[rows, longest]`: the flat place in the packed batch that each place takes,
            0 where `padding` is True.
        padding: of each batch, bool `[rows, longest]`.
        sources: int64 `[batch * sequence]`: for each place of the packed batch its index in all batches laid end to
            end, 0 where it is in no document.
        in_no_document: bool `[batch * sequence]`.
    """

    shape: tuple[int, int]
    lengths: tuple[Integers, ...]
    places: tuple[Tensor, ...]
    padding: tuple[Tensor, ...]
    sources: Tensor
    in_no_document: Tensor

    def is_padded(self, batch: int) -> bool:
        """Tell whether the rows of a batch differ in length. Nothing is read from a device.

        Raises:
            BatchError: there is no such batch.
        """
        remedy = "Give the index of a batch, from 0."
        batch = require_count(batch, "batch", remedy, most=len(self.places) - 1, error=BatchError)
        return bool((self.lengths[batch] != self.places[batch].shape[1]).any())

    def take(self, values: Tensor, batch: int, *, axis: int = 0, fill: int = 0) -> Tensor:
        """Give the values of one batch, each in its row.

        Args:
            values: `[..., batch, sequence, ...]` of the packed batch.
            batch: index of the batch.
            axis: which dimension of `values` is the packed batch's rows.
            fill: what stands after the end of a row.

        Raises:
            BatchError: the two dimensions are not those of the packed batch, torch moves no values of this dtype, the
                dtype cannot hold `fill`, or there is no such batch or axis.
        """
        is_padded = self.is_padded(batch)
        axis = require_count(axis, "axis", "Give a dimension of the values, from 0.", error=BatchError)
        _require_values("values", values, axis, self.shape, self.sources.device)
        _require_fill(fill, values.dtype)
        places, padding = self.places[batch], self.padding[batch]
        taken = values.flatten(axis, axis + 1).index_select(axis, places.flatten())
        taken = taken.view(*values.shape[:axis], *places.shape, *values.shape[axis + 2 :])
        if not is_padded:
            return taken
        return taken.masked_fill_(padding.view(*padding.shape, *[1] * (values.ndim - axis - 2)), fill)

    def put_back(self, parts: Sequence[Tensor]) -> Tensor:
        """Give values of all batches to the places in the packed batch that they belong to; elsewhere stands 0.

        Args:
            parts: of each batch `[rows, longest, ...]`.

        Returns:
            `[batch, sequence, ...]`, to which gradients of `parts` are known.

        Raises:
            BatchError: a part has not the shape of its batch, parts differ in other dimensions or device, or torch
                moves no values of their dtype.
        """
        require_instance(parts, Sequence, "parts", "Give a list of tensors, one for each batch.", error=BatchError)
        if len(parts) != len(self.places):
            remedy = "Give what each of these batches gave, in their order."
            message = f"must be one for each of {len(self.places)} batches"
            raise BatchError(Problem("parts", message, "value", value=len(parts), remedy=remedy))
        for part, places in zip(parts, self.places, strict=True):
            _require_values("parts", part, 0, (places.shape[0], places.shape[1]), self.sources.device)
        rests = sorted({tuple(part.shape[2:]) for part in parts})
        if len(rests) > 1:
            message = "must all have the same dimensions per token"
            raise BatchError(Problem("parts", message, "shape", value=rests, remedy="Give parts of one kind."))
        flat = [part.flatten(0, 1) for part in parts]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat)
        found = joined.index_select(0, self.sources)
        found = found.masked_fill_(self.in_no_document.view(-1, *[1] * (found.ndim - 1)), 0)
        return found.view(*self.shape, *found.shape[1:])


def document_rows(document_ids: Tensor | Segments, groups: Sequence[Sequence[int]] | None = None) -> DocumentRows:
    """Plan rows of one document each, padded to the longest of their batch.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, without holes.
        groups: the documents of each batch, counted over all rows in order; every document once. By default one
            batch of all. Without any document it is one batch of one row, one place of padding long.

    Raises:
        DocumentIdsError: the ids are malformed, or have a hole.
        PlanError: a group is empty, or the groups do not hold each document once.

    Example:
        >>> import torch
        >>> rows = document_rows(torch.tensor([[1, 1, 1, 2, 0], [1, 1, 2, 2, 2]]))
        >>> tokens = torch.tensor([[10, 11, 12, 20, 99], [30, 31, 40, 41, 42]])
        >>> rows.take(tokens, 0)
        tensor([[10, 11, 12],
                [20,  0,  0],
                [30, 31,  0],
                [40, 41, 42]])
        >>> rows.put_back([rows.take(tokens, 0)])
        tensor([[10, 11, 12, 20,  0],
                [30, 31, 40, 41, 42]])
    """
    segments = as_segments(document_ids)
    require_no_holes(segments)
    documents = segments.documents
    checked = _checked_groups(groups, documents.lengths.size)
    sources = np.full(segments.batch * segments.sequence, -1, np.int64)
    lengths: list[Integers] = []
    places: list[Integers] = []
    before = 0
    for group in checked:
        lengths.append(documents.lengths[group])
        places.append(_places(documents.starts[group], lengths[-1]))
        taken = np.flatnonzero(places[-1].ravel() >= 0)
        sources[places[-1].ravel()[taken]] = taken + before
        before += places[-1].size
    if not checked:
        lengths, places = [np.zeros(1, np.int64)], [np.full((1, 1), -1, np.int64)]
    return DocumentRows(
        shape=(segments.batch, segments.sequence),
        lengths=tuple(lengths),
        places=tuple(segments.tensor(np.maximum(each, 0)) for each in places),
        padding=tuple(segments.tensor(each < 0) for each in places),
        sources=segments.tensor(np.maximum(sources, 0)),
        in_no_document=segments.tensor(sources < 0),
    )


def joined_row(document_ids: Tensor | Segments) -> DocumentRows:
    """Plan one row of all rows end to end, padding included: what layers that take offsets demand of a batch.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> import torch
        >>> row = joined_row(torch.tensor([[1, 0], [1, 2]]))
        >>> row.take(torch.tensor([[10, 99], [20, 30]]), 0)
        tensor([[10, 99, 20, 30]])
    """
    segments = as_segments(document_ids)
    places = np.arange(segments.batch * segments.sequence)
    return DocumentRows(
        shape=(segments.batch, segments.sequence),
        lengths=(np.array([places.size]),),
        places=(segments.tensor(places[None]),),
        padding=(segments.tensor(np.zeros((1, places.size), np.bool_)),),
        sources=segments.tensor(places),
        in_no_document=segments.tensor(np.repeat(segments.ids == 0, segments.lengths)),
    )


def _places(starts: Integers, lengths: Integers) -> Integers:
    """Give the flat place of each token of each document, `[documents, longest]`, -1 after its end."""
    column = np.arange(int(lengths.max()))
    places: Integers = np.where(column < lengths[:, None], starts[:, None] + column, -1)
    return places


def _checked_groups(groups: Sequence[Sequence[int]] | None, count: int) -> list[Integers]:
    if groups is None:
        return [np.arange(count)] if count else []
    remedy = "Number documents from 0, over all rows in order."
    require_instance(groups, Sequence, "groups", remedy, error=PlanError)
    for group in groups:
        require_list(group, "groups", remedy)
    listed = [number for group in groups for number in group]
    if not all(map(is_count, listed)) or sorted(listed) != list(range(count)) or not all(map(len, groups)):
        message = f"must hold each of {count} documents once, and no group may be empty"
        raise PlanError(Problem("groups", message, "value", value=[list(group) for group in groups], remedy=remedy))
    return [np.asarray(group, np.int64) for group in groups]


def _require_values(field: str, values: object, axis: int, shape: tuple[int, int], device: torch.device) -> None:
    problems = tensor_problems(values, field, data=False)
    if not problems and isinstance(values, Tensor):
        if tuple(values.shape[axis : axis + 2]) != shape:
            message = f"must have {shape} from dimension {axis} on, one entry per place"
            remedy = "Give one entry per place, padding included."
            raise BatchError(Problem(field, message, "shape", value=tuple(values.shape), remedy=remedy))
        problems = device_problems(values, device, field, "the document ids lay") or dtype_problems(field, values)
    if problems:
        raise BatchError(*problems)


def _require_fill(fill: object, dtype: torch.dtype) -> None:
    remedy = "Give a number that the dtype of the values holds."
    number = require_count(fill, "fill", remedy, least=INT64_MIN, most=INT64_MAX, error=BatchError)
    if not holds(dtype, number):
        raise BatchError(Problem("fill", f"does not fit {dtype}", "value", value=number, remedy=remedy))
