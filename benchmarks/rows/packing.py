"""Plans of which document goes into which row and to which rank, and the batch made from them."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from typing import Final, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks import inputs, peers
from benchmarks.records import Effort, Goal, Reading, Row, Sides, Size, compare
from benchmarks.timing import warm
from neatpack.adapters import (
    AttentionCost,
    RankPlan,
    RowPlan,
    balance_rows,
    collate_documents,
    flash_varlen_kwargs,
    plan_rows,
)

_MILLION: Final = Size(1, 8192, 1_000_000, "1,000,000 lengths into 8k")
_COLLATED: Final = Size(1, 275_000, 256, "256 documents, 275,000 tokens")
_BALANCED: Final = Size(64, 32_768, 50_000, "50,000 lengths into 32k, 64 ranks")
_COST: Final = AttentionCost.of_model(parameters=7_000_000_000, layers=32, width=4096)
_TAKEN: Final = ("input_ids", "labels", "position_ids")


def rows() -> list[Row]:
    """Give the rows of these derivations."""
    return [
        Row("plan_rows, best fit", _MILLION, "TRL's best fit", "warm", warm, Goal("faster", 40), _best_fit),
        Row("collate_documents", _COLLATED, "Transformers", "warm", warm, Goal("faster", 40), _collate),
        *(
            Row(
                f"balance_rows, {rows} a rank",
                _BALANCED,
                "random",
                "slowest / mean",
                _slowdown,
                Goal("number", most),
                partial(_balance, rows),
            )
            for rows, most in ((4, 1.05), (1, 1.01))
        ),
    ]


def _best_fit(size: Size) -> Sides:
    """Both may differ in which of equal documents goes where, but not in how many rows they fill."""
    lengths = inputs.lognormal_lengths(size.documents, size.sequence)
    given, tree = lengths.tolist(), peers.trl_tree()

    def ours() -> RowPlan:
        return plan_rows(given, size.sequence)

    def other() -> list[list[int]]:
        return _fill_rows(tree(size.sequence), lengths, size.sequence)

    return Sides(ours, other, lambda: (len(ours().rows), len(other())))


def _collate(size: Size) -> Sides:
    """One row that all documents fill, from which both give input ids, labels, positions and offsets."""
    documents, collator = inputs.tokens(size), peers.transformers_collator()(return_flash_attn_kwargs=True)
    features = [{"input_ids": document} for document in documents]
    lengths = [document.numel() for document in documents]

    def ours() -> dict[str, object]:
        batch = collate_documents(documents, plan_rows(lengths, sum(lengths)))
        ids: Tensor = batch.pop("document_ids")
        return {**{key: batch.get(key) for key in _TAKEN}, **flash_varlen_kwargs(ids)}

    def other() -> dict[str, object]:
        return dict(collator(features))

    return Sides(ours, other, lambda: (ours(), other()))


def _balance(rows_per_rank: int, size: Size) -> Sides:
    """How long all steps take, each as long as its slowest rank, were 1 perfect; the other deals rows at random."""
    lengths = inputs.lognormal_lengths(size.documents, size.sequence, median=1100, spread=1.2).tolist()
    plan = balance_rows(plan_rows(lengths, size.sequence), size.batch, cost=_COST, rows_per_rank=rows_per_rank)
    drawn = np.reshape(np.random.default_rng(0).permutation(len(plan.rows)), plan.steps.shape)
    return Sides(lambda: plan.slowdown, lambda: RankPlan(plan.rows, _COST, drawn).slowdown)


def _slowdown(sides: Sides, _effort: Effort) -> Reading:
    return compare(cast("float", sides.ours()), cast("float", sides.other()), "")


def _fill_rows(tree: peers.SegmentTree, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
    """Fill rows as `_pack_bfd` of TRL does, with its own tree, and without moving the tokens as it does after that."""
    tree.add(capacity)
    rooms: defaultdict[int, deque[list[int]]] = defaultdict(deque)
    rows: list[list[int]] = []
    order = np.argsort(-lengths, kind="stable")
    row: list[int]
    for document, length in zip(order, lengths[order], strict=True):
        room = tree.search(length)
        if room < capacity:
            row = rooms[room].popleft()
            if not rooms[room]:
                tree.remove(room)
        else:
            row = []
            rows.append(row)
        row.append(document)
        room -= length
        rooms[room].append(row)
        if room > 0:
            tree.add(room)
    return rows
