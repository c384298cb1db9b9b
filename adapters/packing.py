"""Documents into rows, rows into a batch, and results back to the documents: for those without a packing loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import is_count, require_count, require_instance, require_pad_token
from neatpack.adapters.document_ids import canonical_document_ids, document_ids_from_lengths
from neatpack.adapters.labels import mask_labels
from neatpack.adapters.positions import build_position_ids
from neatpack.adapters.segments import Segments, as_segments, read_on_host, scan_segments
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.errors import BatchError, PlanError, Problem
from neatpack.contracts.fields import UNUSED_OFFSET


@dataclass(frozen=True)
class RowPlan:
    """Which documents share a row. Every document stands in exactly one row.

    Attributes:
        rows: for each row, the indices of its documents, in the order in which they are laid out.
        lengths: the tokens of each document, by its index.
        capacity: places of a row.

    Raises:
        PlanError: a document is in no row or in two, or a row holds more than it has places.
    """

    rows: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    capacity: int

    def __post_init__(self) -> None:
        placed = sorted(document for row in self.rows for document in row)
        if placed != list(range(len(self.lengths))):
            message = f"must place each of {len(self.lengths)} documents once"
            raise PlanError(Problem("rows", message, "value", value=placed))
        for row, documents in enumerate(self.rows):
            tokens = sum(self.lengths[document] for document in documents)
            if tokens > self.capacity:
                message = f"holds more than {self.capacity} tokens"
                raise PlanError(Problem("rows", message, "value", row, value=tokens))

    @property
    def fill(self) -> float:
        """The share of places that hold tokens, from 0 to 1."""
        return sum(self.lengths) / (self.capacity * len(self.rows)) if self.rows else 0.0


def plan_rows(lengths: Sequence[int], capacity: int) -> RowPlan:
    """Place documents into rows by first fit: in order, each into the first row that has room for it.

    Args:
        lengths: the tokens of each document, all positive.
        capacity: places of a row.

    Raises:
        PlanError: with every document that is empty or longer than a row. Nothing is split or truncated.

    Example:
        >>> plan_rows([3, 4, 2, 1], capacity=5)
        RowPlan(rows=((0, 2), (1, 3)), lengths=(3, 4, 2, 1), capacity=5)
    """
    capacity = require_count(capacity, "capacity", "Give the places of a row.", least=1, error=PlanError)
    problems = _length_problems(lengths, capacity)
    if problems:
        raise PlanError(*problems)
    lengths = [int(length) for length in lengths]
    rooms = Rooms(len(lengths), capacity)
    rows: list[list[int]] = []
    for document, length in enumerate(lengths):
        row = rooms.take(length)
        if row == len(rows):
            rows.append([])
        rows[row].append(document)
    return RowPlan(tuple(tuple(row) for row in rows), tuple(lengths), capacity)


def collate_documents(documents: Sequence[Tensor], plan: RowPlan, pad_token_id: int = 0) -> TrainingBatch[Tensor]:
    """Lay documents out in padded rows.

    Args:
        documents: the tokens of each document, integer `[tokens]`, on one device.
        plan: where each document goes, from `plan_rows` of their lengths.
        pad_token_id: what `input_ids` holds at padding. Padding is known by document id 0, so any token will do.

    Returns:
        A batch of rows of `plan.capacity` places: `input_ids`; `labels` for a model that shifts them itself, -100
        at padding and at the first token of each document; `position_ids`; `padding_mask`; `document_ids`; and
        `document_keys` `[batch, most documents of a row]`, the index of each document in `documents`, filled with -1.

    Raises:
        PlanError: the documents are not those of the plan, or `pad_token_id` is no token.

    Example:
        >>> documents = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])]
        >>> batch = collate_documents(documents, plan_rows([3, 2], capacity=6))
        >>> batch["input_ids"], batch["document_ids"], batch["document_keys"]
        (tensor([[5, 6, 7, 8, 9, 0]]), tensor([[1, 1, 1, 2, 2, 0]]), tensor([[0, 1]]))
    """
    require_instance(documents, Sequence, "documents", "Give a list of tensors.", error=PlanError)
    require_instance(plan, RowPlan, "plan", "Call plan_rows(lengths, capacity).", error=PlanError)
    require_pad_token(pad_token_id, PlanError)
    problems = _document_problems(documents, plan)
    if problems:
        raise PlanError(*problems)
    shape = (len(plan.rows), plan.capacity)
    lengths = [[plan.lengths[document] for document in row] for row in plan.rows]
    segments = replace(scan_segments(document_ids_from_lengths(lengths, plan.capacity)), device=documents[0].device)
    padding = torch.full((plan.capacity,), pad_token_id, dtype=torch.int64, device=segments.device)
    pieces: list[Tensor] = []
    for row, row_lengths in zip(plan.rows, lengths, strict=True):
        pieces += [documents[document].to(torch.int64) for document in row]
        pieces.append(padding[sum(row_lengths) :])
    input_ids = torch.cat(pieces).view(shape)
    document_ids = canonical_document_ids(segments)
    padding_mask = document_ids == 0
    return {
        "input_ids": input_ids,
        "labels": mask_labels(input_ids, segments, "model"),
        "position_ids": build_position_ids(segments),
        "padding_mask": padding_mask,
        "document_ids": document_ids,
        "document_keys": segments.tensor(_keys(plan)),
    }


def unpack(values: Tensor, document_ids: Tensor | Segments, document_keys: Tensor | None = None) -> list[Tensor]:
    """Give each document its own per-token results, in the caller's order.

    Args:
        values: `[batch, sequence, ...]`, one entry per place of the rows.
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        document_keys: integer, `[batch, documents]`, the caller's index of each document of a row, negative where
            unused. Without it documents come in row order.

    Returns:
        One tensor `[tokens, ...]` per document, by ascending key; views of `values` but for documents with holes.

    Raises:
        DocumentIdsError: the ids are malformed.
        BatchError: shapes differ, or the keys do not name each document of each row once.

    Example:
        >>> ids, keys = torch.tensor([[1, 1, 2, 0], [1, 0, 0, 0]]), torch.tensor([[2, 0], [1, -1]])
        >>> unpack(torch.arange(8).view(2, 4), ids, keys)
        [tensor([2]), tensor([4]), tensor([0, 1])]
    """
    segments = as_segments(document_ids)
    shape, given = (segments.batch, segments.sequence), cast("object", values)
    if not isinstance(given, Tensor) or tuple(given.shape[:2]) != shape:
        found = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        message = f"must be a tensor that begins with the shape of the document ids, {shape}"
        raise BatchError(Problem("values", message, "shape", value=found))
    order = range(segments.documents.rows.size) if document_keys is None else _key_order(segments, document_keys)
    flat = values.flatten(0, 1)
    owners: list[int] = segments.owners.tolist()
    pieces: list[list[Tensor]] = [[] for _ in range(segments.documents.rows.size)]
    for run, document in zip(segments.kept.tolist(), owners, strict=True):
        pieces[document].append(flat[segments.bounds[run] : segments.bounds[run + 1]])
    return [pieces[document][0] if len(pieces[document]) == 1 else torch.cat(pieces[document]) for document in order]


class Rooms:
    """The room left in each row, in a tree whose nodes hold the most room below them: first fit in log n."""

    def __init__(self, rows: int, capacity: int) -> None:
        self._leaves = 1 << max(rows - 1, 0).bit_length()
        self._most = [capacity] * (2 * self._leaves)

    def take(self, length: int) -> int:
        """Take room from the first row that has enough, and give its index."""
        node = 1
        while node < self._leaves:
            node *= 2
            if self._most[node] < length:
                node += 1
        row = node - self._leaves
        self._most[node] -= length
        while node > 1:
            node //= 2
            self._most[node] = max(self._most[2 * node], self._most[2 * node + 1])
        return row


def _keys(plan: RowPlan) -> npt.NDArray[np.int64]:
    keys = np.full((len(plan.rows), max(map(len, plan.rows))), UNUSED_OFFSET, np.int64)
    for row, documents in enumerate(plan.rows):
        keys[row, : len(documents)] = documents
    return keys


def _key_order(segments: Segments, document_keys: Tensor) -> list[int]:
    """Give the documents by ascending key, or say which row's keys do not fit."""
    remedy = "Slice document_keys along the same rows as the document ids."
    problem = partial(Problem, "document_keys", remedy=remedy)
    given = cast("object", document_keys)
    if isinstance(given, Tensor) and (given.layout is not torch.strided or given.device.type == "meta"):
        raise BatchError(problem("must be a dense tensor with data", "device", value=(given.layout, given.device)))
    if not isinstance(given, Tensor) or given.is_floating_point() or given.shape[:-1] != (segments.batch,):
        found = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise BatchError(problem(f"must be integers [{segments.batch}, documents]", "shape", value=found))
    (keys,) = read_on_host(document_keys)
    used = keys >= 0
    wrong = np.flatnonzero(used.sum(axis=1) != segments.documents.counts)
    if wrong.size:
        row = int(wrong[0])
        message = f"must name the {segments.documents.counts[row]} documents of the row"
        raise BatchError(problem(message, "disagreement", row, value=keys[row].tolist()))
    named = keys[used]
    order = np.argsort(named, kind="stable")
    twice = np.flatnonzero(np.diff(named[order]) == 0)
    if twice.size:
        row = int(segments.documents.rows[order[twice[0] + 1]])
        raise BatchError(problem("names one document twice", "value", row, value=int(named[order[twice[0]]])))
    return [int(document) for document in order]


def _length_problems(lengths: Sequence[int], capacity: int) -> list[Problem]:
    if not isinstance(cast("object", lengths), (Sequence, np.ndarray)):
        remedy = "Give a list: [len(tokens) for tokens in documents]."
        return [Problem("lengths", "must be a sequence", "type", value=type(lengths).__name__, remedy=remedy)]
    if len(lengths) == 0:
        return [Problem("lengths", "there is no document", "shape", value=0, remedy="Give at least one.")]
    problems: list[Problem] = []
    for document, length in enumerate(lengths):
        if not is_count(length) or length < 1:
            remedy = "Leave empty documents out."
            problems.append(
                Problem("lengths", "must be a positive int", "value", document, value=length, remedy=remedy)
            )
        elif length > capacity:
            message = f"is longer than a row of {capacity} places"
            remedy = "Nothing is split or truncated: cut the document yourself, or give longer rows."
            problems.append(Problem("lengths", message, "value", document, value=length, remedy=remedy))
    return problems


def _document_problems(documents: Sequence[Tensor], plan: RowPlan) -> list[Problem]:
    if len(documents) != len(plan.lengths):
        message = f"there are {len(documents)} documents, and the plan is for {len(plan.lengths)}"
        return [Problem("documents", message, "disagreement", remedy="Plan the lengths of these documents.")]
    problems = [
        Problem("documents", "must be a torch.Tensor", "type", index, value=type(document).__name__)
        for index, document in enumerate(cast("Sequence[object]", documents))
        if not isinstance(document, Tensor)
    ]
    if problems:
        return problems
    for index, (document, length) in enumerate(zip(documents, plan.lengths, strict=True)):
        if document.ndim != 1 or document.is_floating_point() or document.dtype == torch.bool:
            message = "must be integers [tokens]"
            problems.append(Problem("documents", message, "shape", index, value=tuple(document.shape)))
        elif document.numel() != length:
            message = f"has not the {length} tokens that the plan knows"
            problems.append(Problem("documents", message, "disagreement", index, value=document.numel()))
        elif document.device != documents[0].device:
            message = f"must lie where the first lies, on {documents[0].device}"
            problems.append(Problem("documents", message, "device", index, value=document.device))
    return problems
