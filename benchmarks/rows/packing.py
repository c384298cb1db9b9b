"""Plans of which document goes into which row, and the batch made from them."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks import inputs, peers
from benchmarks.records import Goal, Row, Sides, Size
from benchmarks.timing import warm
from neatpack.adapters import RowPlan, collate_documents, flash_varlen_kwargs, plan_rows

_MILLION: Final = Size(1, 8192, 1_000_000, "1,000,000 lengths into 8k")
_COLLATED: Final = Size(1, 275_000, 256, "256 documents, 275,000 tokens")
_TAKEN: Final = ("input_ids", "labels", "position_ids")


def rows() -> list[Row]:
    """Give the rows of these derivations."""
    return [
        Row("plan_rows, best fit", _MILLION, "TRL's best fit", "warm", warm, Goal("faster", 40), _best_fit),
        Row("collate_documents", _COLLATED, "Transformers", "warm", warm, Goal("faster", 40), _collate),
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
