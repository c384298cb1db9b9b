"""Documents into the rows of a plan: one padded batch, in one pass over the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import (
    INT32_MAX,
    INTEGER_DTYPES,
    int_remedy,
    is_integer,
    require_instance,
    require_list,
    require_pad_token,
    shown,
    tensor_problems,
)
from neatpack.adapters.host_arrays import Integers, to_tensor
from neatpack.adapters.row_plans import PADDING_ROW, RowPlan
from neatpack.adapters.yielding import apply_packing_contract
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import AnyPackedSequenceContract
from neatpack.contracts.errors import PlanError, Problem
from neatpack.contracts.fields import IGNORED_LABEL, UNUSED_OFFSET


def collate_documents(
    documents: Sequence[Tensor],
    plan: RowPlan,
    pad_token_id: int = 0,
    *,
    rows: Sequence[int] | None = None,
    contract: AnyPackedSequenceContract | None = None,
) -> TrainingBatch[Tensor]:
    """Lay documents out in padded rows.

    Args:
        documents: the tokens of each document, integer `[tokens]`, on one device. Only those are read that lie in the
            rows, so a sequence may load each when it is asked for.
        plan: where each document goes, as `plan_rows` gives it for their lengths.
        pad_token_id: what `input_ids` holds at padding. Padding is known by document id 0, so any token will do.
        rows: the rows of the plan that the batch holds, in this order, -1 for a row of padding alone; None for all.
        contract: emit what a model with this contract reads, as `apply_packing_contract` does.

    Returns:
        A batch of rows of `plan.capacity` places: `input_ids`; `labels` for a model that shifts them itself, -100
        at padding and at the first token of each piece; `position_ids`; `padding_mask`; `document_ids`; and of each
        piece `document_keys`, the index of its document in `documents`, and `document_starts`, the token with which
        it begins there, both `[batch, most pieces of a row]`, filled with -1.

    Raises:
        PlanError: the documents are not those of the plan, it has no such rows, or a token or `pad_token_id` is past
            int64.
        PackingError: as `apply_packing_contract`, where there is a contract.

    Example:
        >>> from neatpack.adapters.planning import plan_rows
        >>> documents = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])]
        >>> batch = collate_documents(documents, plan_rows([3, 2], capacity=6))
        >>> batch["input_ids"], batch["document_ids"], batch["document_keys"]
        (tensor([[5, 6, 7, 8, 9, 0]]), tensor([[1, 1, 1, 2, 2, 0]]), tensor([[0, 1]]))
    """
    require_instance(documents, Sequence, "documents", "Give a list of tensors.", error=PlanError)
    require_instance(plan, RowPlan, "plan", "Call plan_rows(lengths, capacity).", error=PlanError)
    require_pad_token(pad_token_id, PlanError)
    if len(documents) != plan.lengths.size:
        message = f"there are {len(documents)} documents, and the plan is for {plan.lengths.size}"
        remedy = "Plan the lengths of these documents."
        raise PlanError(Problem("documents", message, "disagreement", remedy=remedy))
    layout = _lay_out(plan, _row_numbers(rows, plan))
    tokens = _tokens(documents, plan, layout)
    device = tokens[0].device if tokens else torch.device("cpu")
    batch = _batch(plan, layout, _fill(tokens, layout, pad_token_id, device), device)
    return batch if contract is None else apply_packing_contract(batch, contract)


class _Layout(NamedTuple):
    """The pieces of a batch in row order, and the runs that they and the padding at the end of each row make.

    `pieces` are numbers of the plan, `[pieces]`, and `counts` how many each row has, `[rows]`. `runs` are the places
    of each run, and `numbers` the document id of each, 0 for padding; `[runs]`.
    """

    pieces: Integers
    counts: Integers
    runs: Integers
    numbers: Integers


def _lay_out(plan: RowPlan, rows: Integers) -> _Layout:
    # What is appended is found at PADDING_ROW, the last index.
    counts = np.append(plan.bounds[1:] - plan.bounds[:-1], 0)[rows]
    padding = plan.capacity - np.append(plan.row_tokens, 0)[rows]
    ends = np.cumsum(counts)
    ranks = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    pieces = np.repeat(plan.bounds[rows], counts) + ranks
    # Every row is given a run of padding, of no places where the row is full.
    runs = np.insert(plan.piece_lengths[pieces], ends, padding)
    return _Layout(pieces, counts, runs, np.insert(ranks + 1, ends, 0))


def _tokens(documents: Sequence[Tensor], plan: RowPlan, layout: _Layout) -> list[Tensor]:
    """Give the tokens of each piece.

    Raises:
        PlanError: with every document that is not as the plan knows it.
    """
    numbers, starts, stops = plan.documents[layout.pieces], plan.starts[layout.pieces], plan.stops[layout.pieces]
    lengths = plan.lengths[numbers]
    indices: list[int] = numbers.tolist()
    whole = {index: documents[index] for index in dict.fromkeys(indices)}
    problems = _document_problems(whole, dict(zip(indices, lengths.tolist(), strict=True)))
    if problems:
        raise PlanError(*problems)
    tokens = [whole[index] for index in indices]
    for piece in (stops - starts < lengths).nonzero()[0].tolist():
        tokens[piece] = tokens[piece][starts[piece] : stops[piece]]
    return tokens


def _fill(tokens: list[Tensor], layout: _Layout, pad_token_id: int, device: torch.device) -> Tensor:
    """Join the pieces and the padding into one stream of places."""
    padding = layout.runs[layout.numbers == 0]
    fill = torch.full((int(padding.max()),), pad_token_id, dtype=torch.int64, device=device)
    parts: list[Tensor] = []
    done = 0
    for count, places in zip(layout.counts.tolist(), padding.tolist(), strict=True):
        parts += tokens[done : done + count]
        parts += [fill[:places]] if places else []
        done += count
    return torch.cat([part if part.dtype == torch.int64 else part.to(torch.int64) for part in parts])


def _batch(plan: RowPlan, layout: _Layout, tokens: Tensor, device: torch.device) -> TrainingBatch[Tensor]:
    padding = layout.numbers == 0
    padding_mask = to_tensor(np.repeat(padding, layout.runs), device)
    opens = np.cumsum(layout.runs) - layout.runs
    labels = tokens.clone()
    labels[to_tensor(opens[~padding], device)] = IGNORED_LABEL
    if layout.runs[padding].any():
        labels.masked_fill_(padding_mask, IGNORED_LABEL)
    shape = (layout.counts.size, plan.capacity)
    return {
        "input_ids": tokens.view(shape),
        "labels": labels.view(shape),
        "position_ids": to_tensor(_positions(layout), device).view(shape),
        "padding_mask": padding_mask.view(shape),
        "document_ids": to_tensor(np.repeat(layout.numbers, layout.runs), device).view(shape),
        "document_keys": to_tensor(_per_row(plan.documents, layout), device),
        "document_starts": to_tensor(_per_row(plan.starts, layout), device),
    }


def _positions(layout: _Layout) -> Integers:
    """Count the tokens of each piece from 0, by copying the first numbers again and again; padding has 0."""
    counted = np.arange(int(layout.runs.max()))
    zeros = np.zeros_like(counted)
    return np.concatenate(
        [
            (counted if number else zeros)[:places]
            for number, places in zip(layout.numbers.tolist(), layout.runs.tolist(), strict=True)
        ]
    )


def _per_row(values: Integers, layout: _Layout) -> npt.NDArray[np.int64]:
    """Give a value of each piece as `[rows, most pieces of a row]`."""
    table = np.full((layout.counts.size, max(1, int(layout.counts.max()))), UNUSED_OFFSET, np.int64)
    table[np.arange(table.shape[1]) < layout.counts[:, None]] = values[layout.pieces]
    return table


def _row_numbers(rows: Sequence[int] | None, plan: RowPlan) -> Integers:
    """Give the rows of the batch, or raise where the plan has no such rows."""
    if rows is None:
        numbers = np.arange(len(plan))
    else:
        require_list(rows, "rows", "Give a list of rows of the plan.")
        for place, row in enumerate(cast("Sequence[object]", rows)):
            if not is_integer(row) or not PADDING_ROW <= cast("int", row) < len(plan):
                message = f"must be a row of the plan, below {len(plan)}, or {PADDING_ROW} for padding alone"
                remedy = "Give indices of rows of the plan; where a RankPlan deals them, collate by its own `rows`."
                remedy = int_remedy(row, remedy)
                raise PlanError(Problem("rows", message, "value", place, value=shown(row), remedy=remedy))
        numbers = np.array([int(row) for row in rows], np.int64)
    places = numbers.size * plan.capacity
    if not 0 < places <= INT32_MAX:
        remedy = "Give rows of the plan by parts: rows=range(start, stop)." if places else "Give one row at least."
        raise PlanError(Problem("rows", f"must be from 1 to {INT32_MAX} places", "shape", value=places, remedy=remedy))
    return numbers


def _document_problems(documents: Mapping[int, object], lengths: Mapping[int, int]) -> list[Problem]:
    """List the documents that are not as the plan knows them; none is read from its device, but uint64."""
    devices: dict[torch.device, int] = {}
    problems: list[Problem] = []
    for index, document in documents.items():
        if not isinstance(document, Tensor) or document.is_nested:
            problems += [replace(problem, document=index) for problem in tensor_problems(document, "documents")]
        elif document.dtype not in INTEGER_DTYPES or document.layout is not torch.strided or document.ndim != 1:
            value = (document.dtype, document.layout, tuple(document.shape))
            remedy = "Give the token ids of one document each."
            problems.append(
                Problem(
                    "documents", "must be dense integers [tokens]", "shape", value=value, document=index, remedy=remedy
                )
            )
        elif document.numel() != lengths[index]:
            message = f"has not the {lengths[index]} tokens that the plan knows"
            remedy = "Collate the documents that were planned, in their order."
            problems.append(
                Problem("documents", message, "disagreement", value=document.numel(), document=index, remedy=remedy)
            )
        elif document.dtype == torch.uint64 and not document.is_meta and bool((document.view(torch.int64) < 0).any()):
            message = "has a token past int64, which batches hold"
            remedy = "Give the ids that the tokenizer gave: no vocabulary is so large."
            problems.append(Problem("documents", message, "value", value=document.dtype, document=index, remedy=remedy))
        else:
            devices.setdefault(document.device, index)
    if len(devices) > 1 or torch.device("meta") in devices:
        message = "must all lie on one device, and have data"
        remedy = "Move all to one real device."
        problems += [
            Problem("documents", message, "device", value=each, document=index, remedy=remedy)
            for each, index in devices.items()
        ]
    return problems
