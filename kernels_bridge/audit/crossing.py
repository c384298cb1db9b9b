"""How a leak crosses from document to document: which pairs, which tokens, and what that says of the boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neatpack.kernels_bridge.audit.documents import PackedDocuments, Place
from neatpack.kernels_bridge.audit.probes import read_tokens
from neatpack.kernels_bridge.audit.report import Pattern
from neatpack.kernels_bridge.audit.subject import Answer

Pair = tuple[int, int]
"""Indices of the document that reaches, and of the one that it reaches."""

SENTENCES: Final[dict[Pattern, str]] = {
    "rows": "Rows reach one another.",
    "backward": "A document reaches one before it.",
    "first_token": "Only the first token of a document sees the one before it: a boundary counts one token too late.",
    "last_token": "Only the last token of a document reaches the next one: a boundary counts one token too early.",
    "first_document": "Only the first two documents of a row mix: the boundary between them is lost.",
    "last_document": "Only the last document of a row is reached: its boundary is lost.",
    "one_pair": "No other documents mix.",
    "every_document": "Documents are reached by those before them in their row.",
}
"""What each pattern says in a message."""


@dataclass(frozen=True)
class Crossing:
    """One document that reaches another.

    Attributes:
        source: the document that reaches.
        target: the document that it reaches.
        moved: which tokens of the target move, counted from its first.
        read: which tokens of the source are read there, counted from its first; empty where that cannot be told.
    """

    source: Place
    target: Place
    moved: tuple[int, ...]
    read: tuple[int, ...]

    @property
    def moves_a_little(self) -> bool:
        """Whether the first tokens of the target are reached, and no others."""
        return 0 < len(self.moved) < self.target.length and self.moved == tuple(range(len(self.moved)))

    @property
    def reaches_a_little(self) -> bool:
        """Whether this is so, and they are reached by the last tokens of the source alone."""
        few_read = 0 < len(self.read) <= self.source.length // 2 and self.read[-1] == self.source.length - 1
        return few_read and self.moves_a_little


def pairs_of(matrix: Sequence[Sequence[float]], noise: float) -> list[Pair]:
    """The pairs of which one reaches the other.

    Example:
        >>> pairs_of([[1.0, 0.3], [0.0, 1.0]], noise=1e-5)
        [(0, 1)]
    """
    return [
        (source, target)
        for source, effects in enumerate(matrix)
        for target, effect in enumerate(effects)
        if source != target and effect > noise
    ]


def telling_pair(pairs: Sequence[Pair], places: Sequence[Place]) -> Pair:
    """Choose the pair with the most tokens to tell by: of neighbours, the longest of the shorter ones."""

    def tells(pair: Pair) -> tuple[bool, int]:
        source, target = places[pair[0]], places[pair[1]]
        return source.row == target.row and source.stop == target.start, min(source.length, target.length)

    return max(pairs, key=tells)


def find_crossing(answer: Answer, changed: Answer, packed: PackedDocuments, pair: Pair, noise: float) -> Crossing:
    """Find which tokens of one document another one reaches, and with which of its own.

    Args:
        answer: what a model answers to the documents, with its graph.
        changed: what it answers where the first of the pair is changed.
        packed: the documents.
        pair: the documents.
        noise: how far logits may move by rounding.
    """
    source, target = pair
    before = answer.logits[target].detach()
    after = changed.logits[target]
    moved = tuple(int(token) for token in ((before - after).abs().amax(dim=1) > noise).nonzero())
    return Crossing(packed.places[source], packed.places[target], moved, read_tokens(answer, source, target))


def pattern_of(pairs: Sequence[Pair], places: Sequence[Place], crossing: Crossing) -> Pattern:
    """Name what the pairs that mix, and the tokens of one of them, have in common."""
    rows: dict[int, list[int]] = {}
    for index, place in enumerate(places):
        rows.setdefault(place.row, []).append(index)
    if any(places[source].row != places[target].row for source, target in pairs):
        return "rows"
    if any(places[source].start > places[target].start for source, target in pairs):
        return "backward"
    if crossing.moved == (0,) and crossing.target.length > 1 and len(crossing.read) == crossing.source.length > 1:
        return "first_token"
    if crossing.read == (crossing.source.length - 1,) and len(crossing.moved) == crossing.target.length > 1:
        return "last_token"
    earlier = {(source, target) for row in rows.values() for source in row for target in row if source < target}
    firsts = {(row[0], row[1]) for row in rows.values() if len(row) > 1}
    lasts = {row[-1] for row in rows.values() if len(row) > 1}
    if set(pairs) == earlier:
        return "every_document"
    if set(pairs) == firsts:
        return "first_document"
    if {target for _, target in pairs} <= lasts:
        return "last_document"
    return "one_pair" if len(pairs) == 1 else "every_document"
