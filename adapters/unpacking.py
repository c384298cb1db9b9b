"""Per-token results of packed rows back to the documents of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import INT64_MAX, INTEGER_DTYPES, require_instance, tensor_problems
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.row_plans import RowPlan
from neatpack.adapters.segments import Segments, scan_beside
from neatpack.adapters.token_tensors import require_values
from neatpack.contracts.errors import BatchError, PlanError, Problem


def unpack(
    values: Tensor,
    document_ids: Tensor | Segments,
    document_keys: Tensor | None = None,
    document_starts: Tensor | None = None,
    *,
    plan: RowPlan | None = None,
) -> list[Tensor]:
    """Give each document its own per-token results, in the caller's order.

    Args:
        values: `[batch, sequence, ...]`, one entry per place of the rows.
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        document_keys: integer, `[batch, documents]`, the caller's index of each document of a row, negative where
            unused. Without it documents come in row order.
        document_starts: integer, in the shape of the keys: the token of the caller's document with which each
            begins. With it, pieces of one document are joined; without it, no key may come twice. Then
            `document_ids` are those as packed, which count every token, and all pieces of a document must be there.
            Without the plan it cannot be seen that the last one is missing: the document looks truncated.
        plan: by which the rows were laid out. With it, each document has to come with all tokens that the plan placed,
            and its pieces go on behind those that the plan dropped, wherever those were; `document_ids` are those as
            packed. Documents of which nothing is there are left out.

    Returns:
        One tensor `[tokens, ...]` per document, by ascending key; views of `values`, if their rows lie end to end in
        memory, but for documents with holes or in several pieces.

    Raises:
        DocumentIdsError: the ids are malformed.
        BatchError: shapes differ, the keys do not name each document of each row once, a piece is missing before
            another, or by the plan at the end; or the plan has no such document.
        PlanError: `plan` is none.

    Example:
        >>> ids, keys = torch.tensor([[1, 1, 2, 0], [1, 0, 0, 0]]), torch.tensor([[2, 0], [1, -1]])
        >>> unpack(torch.arange(8).view(2, 4), ids, keys)
        [tensor([2]), tensor([4]), tensor([0, 1])]
        >>> keys, starts = torch.tensor([[1, 0], [1, -1]]), torch.tensor([[0, 0], [2, -1]])
        >>> unpack(torch.arange(8).view(2, 4), ids, keys, starts)
        [tensor([2]), tensor([0, 1, 4])]
    """
    if document_keys is None and document_starts is not None:
        remedy = "Give document_keys too, or neither."
        raise BatchError(Problem("document_starts", "means nothing without keys", "missing", remedy=remedy))
    if plan is not None:
        require_instance(plan, RowPlan, "plan", "Give the plan that the rows were collated by.", error=PlanError)
    given = {"document_keys": document_keys, "document_starts": document_starts}
    named = {name: tensor for name, tensor in given.items() if tensor is not None}
    _require_integers(named)
    segments, read = scan_beside(document_ids, *named.values())
    numbers = {name: _per_document(segments, each, name) for name, each in zip(named, read, strict=True)}
    keys, starts = numbers.get("document_keys"), numbers.get("document_starts")
    if starts is not None:
        _require_same_columns(*read)
    require_values(values, (segments.batch, segments.sequence), "Give one value per token, padding included.")
    groups = _groups(segments, keys, starts, plan)
    if plan is not None:
        _require_placed(segments, keys, groups, plan)
    lengths: list[int] = segments.lengths.tolist()
    # One step for all of them, and one for their gradients on the way back.
    parts = values.flatten(0, 1).split_with_sizes(lengths)
    runs: list[list[Tensor]] = [[] for _ in range(segments.documents.rows.size)]
    kept: list[int] = segments.kept.tolist()
    owners: list[int] = segments.owners.tolist()
    for run, document in zip(kept, owners, strict=True):
        runs[document].append(parts[run])
    joined = ([run for document in group for run in runs[document]] for group in groups)
    return [pieces[0] if len(pieces) == 1 else torch.cat(pieces) for pieces in joined]


def _require_same_columns(keys: npt.NDArray[Any], starts: npt.NDArray[Any]) -> None:
    """Raise where a start stands in another column than a key, so that it is of another document."""
    remedy = "Give both as they were collated, or sliced along the rows alike."
    if starts.shape != keys.shape:
        message = f"must have the shape of document_keys, {keys.shape}"
        raise BatchError(Problem("document_starts", message, "shape", value=starts.shape, remedy=remedy))
    (wrong,) = np.nonzero(((keys < 0) != (starts < 0)).any(axis=1))
    if wrong.size:
        row, message = int(wrong[0]), "must stand in the columns of document_keys"
        value = starts[row].tolist()
        raise BatchError(Problem("document_starts", message, "disagreement", row, value=value, remedy=remedy))


def _groups(
    segments: Segments, keys: Integers | None, starts: Integers | None, plan: RowPlan | None
) -> list[list[int]]:
    """Give the documents of the rows that make each document of the caller, in the caller's order."""
    documents = segments.documents
    if keys is None:
        return [[document] for document in range(documents.rows.size)]
    origins = np.zeros_like(keys) if starts is None else starts
    order = np.lexsort((origins, keys))
    again = np.append(False, keys[order][1:] == keys[order][:-1])[: order.size]
    if starts is not None:
        due = _due(segments, order, again, origins)
        _require_whole(segments, order, origins, due if plan is None else _after_dropped(keys[order], due, plan))
    elif again.any():
        document = int(order[np.argmax(again)])
        row, key = int(documents.rows[document]), int(keys[document])
        remedy = "Where documents were cut into pieces, give document_starts."
        raise BatchError(Problem("document_keys", "names one document twice", "value", row, value=key, remedy=remedy))
    return [group.tolist() for group in np.split(order, np.flatnonzero(~again)[1:])] if order.size else []


def _due(segments: Segments, order: Integers, again: npt.NDArray[np.bool_], origins: Integers) -> Integers:
    """Give the token with which each piece should begin: where the one before it of the same document ended, or 0."""
    documents = segments.documents
    ends = origins[order] + (documents.ends - documents.starts)[order]
    return np.where(again, np.append(0, ends[:-1]), 0)


def _after_dropped(keys: Integers, due: Integers, plan: RowPlan) -> Integers:
    """Go on behind what the plan dropped of a document there."""
    stops = {(piece.document, piece.start): piece.stop for piece in plan.dropped}
    found: list[int] = due.tolist()
    for place, key in enumerate(keys.tolist() if stops else ()):
        while (key, found[place]) in stops:
            found[place] = stops[key, found[place]]
    return np.array(found, np.int64)


def _require_whole(segments: Segments, order: Integers, origins: Integers, due: Integers) -> None:
    """Raise unless each piece begins where it is due."""
    wrong = np.flatnonzero(origins[order] != due)
    if wrong.size:
        piece, expected = int(order[wrong[0]]), int(due[wrong[0]])
        message = f"a piece is missing or comes twice: this one should begin at token {expected} of its document"
        remedy = (
            "Give all rows of a document that was cut, and the plan if it dropped some of its tokens; or no keys, to "
            "have each piece alone."
        )
        row, value = int(segments.documents.rows[piece]), int(origins[piece])
        raise BatchError(Problem("document_starts", message, "disagreement", row, value=value, remedy=remedy))


def _require_placed(segments: Segments, keys: Integers | None, groups: list[list[int]], plan: RowPlan) -> None:
    """Raise unless each document that is there has all tokens that the plan placed."""
    if keys is None:
        remedy = "Give document_keys too."
        raise BatchError(Problem("plan", "means nothing without keys", "missing", remedy=remedy))
    placed, documents = plan.placed_tokens, segments.documents
    for group in groups:
        row, key = int(documents.rows[group[-1]]), int(keys[group[-1]])
        if key >= placed.size:
            message = f"names a document that the plan of {placed.size} does not know"
            remedy = "Give the plan of which this batch was collated."
            raise BatchError(Problem("document_keys", message, "disagreement", row, value=key, remedy=remedy))
        found = int((documents.ends - documents.starts)[group].sum())
        if found != placed[key]:
            message = f"has {found} tokens here, and the plan placed {placed[key]}"
            remedy = "Give all rows of a document that was cut, and the plan of which they were collated."
            raise BatchError(Problem("document_keys", message, "disagreement", row, value=key, remedy=remedy))


def _require_integers(given: Mapping[str, Tensor]) -> None:
    for name, tensor in given.items():
        problems = tensor_problems(tensor, name)
        if not problems and tensor.dtype not in INTEGER_DTYPES:
            problems = [Problem(name, "must hold integers", "dtype", value=tensor.dtype, remedy="Convert it to int64.")]
        if problems:
            raise BatchError(*problems)


def _per_document(segments: Segments, numbers: npt.NDArray[Any], name: str) -> Integers:
    """Give one number per document of the rows, `[documents]`, or say which row's do not fit."""
    remedy = f"Slice {name} along the rows of the ids, and give those as packed: attention may join documents."
    problem = partial(Problem, name, remedy=remedy)
    if numbers.shape[:-1] != (segments.batch,):
        raise BatchError(problem(f"must be [{segments.batch}, documents]", "shape", value=numbers.shape))
    most = int(numbers.max(initial=0))
    if most > INT64_MAX:
        raise BatchError(Problem(name, "must be within int64", "value", value=most, remedy="Count from 0."))
    used = numbers >= 0
    wrong = np.flatnonzero(used.sum(axis=1) != segments.documents.counts)
    if wrong.size:
        row = int(wrong[0])
        message = f"must name the {segments.documents.counts[row]} documents of the row"
        raise BatchError(problem(message, "disagreement", row, value=numbers[row].tolist()))
    return numbers[used].astype(np.int64)
