"""The tokens of each row cut for the ranks of a context-parallel group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import numpy as np
from torch import Tensor

from neatpack.adapters.agreement import ScannedIds, scan_batch
from neatpack.adapters.arguments import require_choice, require_count
from neatpack.adapters.batch_entries import require_tensor
from neatpack.adapters.boundary_fields import PACKED_SEQ_IDS
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.labels import require_label_shift
from neatpack.adapters.layout import require_no_holes, require_padding_after_documents
from neatpack.adapters.loss import mtp_targets
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.thd import padded_lengths, thd_lengths
from neatpack.adapters.token_fields import move_tokens, require_movable
from neatpack.contracts.batch import LabelShift, TrainingBatch
from neatpack.contracts.encodings import THDLengths
from neatpack.contracts.errors import EncodingError, Problem

ContextLayout = Literal["contiguous", "zigzag"]
"""How places go to ranks: equal pieces of the row, or two of `2 * ranks` chunks of each document."""

CONTEXT_LAYOUTS: Final[tuple[ContextLayout, ...]] = get_args(ContextLayout)

_HOLES_REMEDY: Final = (
    "Of padding between joined documents: call pad_documents(batch, 1), then pad_rows. Of tokens that policy took out: "
    'take places yourself, context_places(document_ids, rank, ranks, "contiguous").'
)
_PAD_DOCUMENTS: Final = "Pad each document: pad_documents(batch, {multiple})."
_PAD_ROWS: Final = "Pad rows whose documents attention joins: pad_rows(batch, {multiple})."


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
        DocumentIdsError: the ids are malformed, have a hole inside a document, or a row begins with padding.
        EncodingError: no such layout, rank or `label_shift`, lengths that the group cannot share, or ids, padding mask
            and positions of the batch contradict one another.

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
    scanned, field = _scan(batch)
    segments = scanned.attention
    places = _places(segments, rank, ranks, layout, field, _longer(scanned))
    on_device = segments.tensor(places)
    labels = require_tensor(batch, "labels", "Give them; without targets, they are -100 everywhere.")
    targets = mtp_targets(labels, segments, 0, label_shift, document_ids=scanned.structural)
    part = move_tokens(cast("TrainingBatch[Tensor]", {**batch, "labels": targets}), on_device)
    part.pop(PACKED_SEQ_IDS, None)
    return ContextShard(part, on_device, thd_lengths(segments), _continues(segments, places))


def context_places(document_ids: Tensor | Segments, rank: int, ranks: int, layout: ContextLayout) -> Tensor:
    """Give the places, counted within each row, that go to one rank of a context-parallel group.

    "contiguous" gives each rank an equal piece of the row. "zigzag" cuts each document with its padding into
    `2 * ranks` chunks, of which a rank holds one from the front and its mirror from the back, so that all ranks do
    equal work under a causal mask; so do Transformer Engine's partitioned indices.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding. For "zigzag" padding follows documents, and
            there are no holes.
        rank: from 0 to `ranks - 1`.
        ranks: size of the group.
        layout: "contiguous" or "zigzag".

    Returns:
        int64 `[batch, sequence // ranks]`, ascending within each document.

    Raises:
        DocumentIdsError: the ids are malformed; or for "zigzag" have a hole, or a row begins with padding.
        EncodingError: no such layout or rank, or a row or document that does not divide among the ranks.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[1, 1, 1, 0, 2, 2, 0, 0]])
        >>> [context_places(ids, rank, 2, "zigzag").tolist() for rank in range(2)]
        [[[0, 3, 4, 7]], [[1, 2, 5, 6]]]
    """
    segments = as_segments(document_ids)
    return segments.tensor(_places(segments, rank, ranks, layout))


def _scan(batch: TrainingBatch[Tensor]) -> tuple[ScannedIds, str]:
    """Scan the ids that attention goes by, and those as packed, in one read.

    No hole stands inside a document or at the head of a row, where lengths would count it as padding.

    Returns:
        The scanned ids, and the name of those that attention goes by.
    """
    scanned, field = scan_batch(batch)
    heads = None
    if scanned.tokens is not None:
        heads = np.zeros_like(scanned.tokens)
        filled = scanned.attention.documents.counts > 0
        heads[filled, 0] = scanned.tokens[filled, 0]
    require_no_holes(scanned.attention, field, heads, _HOLES_REMEDY)
    require_padding_after_documents(scanned.attention, field)
    return scanned, field


def _longer(scanned: ScannedIds) -> str:
    """Say how documents are made as long as zigzag cuts them, `{multiple}` in place of the multiple."""
    seen, packed = scanned.attention.documents, scanned.structural.documents
    if not np.isin(seen.starts, packed.starts).all():
        return _HOLES_REMEDY  # Policy took out the head of a document, and padding gives it no other start.
    joined = np.searchsorted(packed.starts, seen.ends) - np.searchsorted(packed.starts, seen.starts) > 1
    return _PAD_ROWS if joined.any() else _PAD_DOCUMENTS


def _places(
    segments: Segments,
    rank: int,
    ranks: int,
    layout: ContextLayout,
    field: str = "document_ids",
    longer: str = _PAD_DOCUMENTS,
) -> Integers:
    require_choice(layout, CONTEXT_LAYOUTS, "layout")
    ranks = require_count(ranks, "ranks", "Give the size of the group.", least=1)
    rank = require_count(rank, "rank", "Ranks of a group count from 0.", most=ranks - 1)
    if layout == "zigzag" and ranks > 1:  # One rank takes all, of whatever length.
        return _zigzag(segments, rank, ranks, field, longer)
    if segments.sequence % ranks:
        remedy = f"Pad the rows: pad_rows(batch, {ranks})."
        message = f"rows of {segments.sequence} places do not divide among {ranks} ranks"
        raise EncodingError(Problem(field, message, "shape", value=segments.sequence, remedy=remedy))
    size = segments.sequence // ranks
    return np.tile(np.arange(rank * size, (rank + 1) * size), (segments.batch, 1))


def _zigzag(segments: Segments, rank: int, ranks: int, field: str, longer: str) -> Integers:
    """Give the row-local places of chunk `rank` and of its mirror, slot by slot; rows of padding are slots as well."""
    documents = segments.documents
    empty = np.flatnonzero(documents.counts == 0)
    at = np.searchsorted(documents.rows, empty)
    starts = np.insert(documents.starts % segments.sequence, at, 0)
    lengths = np.insert(padded_lengths(segments), at, segments.sequence)
    wrong = np.flatnonzero(lengths % (2 * ranks))
    if wrong.size:
        slot = int(wrong[0])
        row = int(np.insert(documents.rows, at, empty)[slot])
        message = f"a document with its padding takes {lengths[slot]} places, no multiple of 2 * ranks = {2 * ranks}"
        remedy = longer.format(multiple=2 * ranks)
        position = int(starts[slot])
        problem = Problem(field, message, "shape", row, position, int(lengths[slot]), remedy)
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
