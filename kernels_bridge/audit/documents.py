"""The documents that the audit packs: lengths that expose every mechanism of leakage, in rows with padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from neatpack.adapters.collation import collate_documents
from neatpack.adapters.planning import plan_rows
from neatpack.adapters.positions import build_position_ids
from neatpack.adapters.segments import scan_segments
from neatpack.kernels_bridge.audit.images import IMAGE_LENGTHS, with_images
from neatpack.kernels_bridge.audit.texts import excerpts

LENGTHS: Final = (6, 1, 9, 12, 4)
"""Unequal; one of a single token; two longer than the window, convolution and chunk of any tiny model."""

CAPACITY: Final = 19
"""Tokens per row: first fit gives two rows, each with padding. No axis of a tiny model has this size."""

_FEWEST: Final = 3
"""Token ids up to which another one than 0 cannot always be found for a changed token."""

ASKED_ALONE: Final = 12
"""Documents up to which each is compared with itself alone."""


@dataclass(frozen=True)
class Place:
    """Where one document lies.

    Attributes:
        row: index along `batch`.
        start: index along `sequence` of its first token.
        stop: index along `sequence` after its last token.
    """

    row: int
    start: int
    stop: int

    @property
    def span(self) -> slice:
        """Its tokens, along `sequence`."""
        return slice(self.start, self.stop)

    @property
    def length(self) -> int:
        """Its number of tokens."""
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """Documents packed into rows.

    Attributes:
        input_ids: int64 `[batch, sequence]`.
        position_ids: int64 `[batch, sequence]`, from 0 in each document.
        document_ids: int64 `[batch, sequence]`, from 1 in each row, 0 at padding.
        places: where each document lies, rows in order and documents in the order of their row.
        vocabulary: token ids lie below it, except where an image stands, which no change of tokens takes away.
        bidirectional: whether tokens of a document are to see later ones of it, as in an encoder.
        structural_ids: the ids as packed, where `document_ids` join documents; None where they do not.
        mask_dtype: of additive masks: the model's.
        begun_late: documents of which policy took the first token out, so that they begin at a later position.
    """

    input_ids: Tensor
    position_ids: Tensor
    document_ids: Tensor
    places: tuple[Place, ...]
    vocabulary: int
    bidirectional: bool = False
    structural_ids: Tensor | None = None
    mask_dtype: torch.dtype = torch.float32
    begun_late: frozenset[int] = frozenset()

    def tokens_of(self, document: int) -> Tensor:
        """Where along `sequence` the tokens of one document lie, holes left out: int64 `[length]`."""
        return self._tokens[document]

    @cached_property
    def asked_alone(self) -> frozenset[int]:
        """Which documents are compared with themselves alone: all, or of many the longest, the last of each row and
        some between. A document with a hole is none of them, be it inside or at its start: alone, it would lack the
        hole's place."""
        whole = [
            index
            for index, place in enumerate(self.places)
            if place.length == len(self._tokens[index]) and index not in self.begun_late
        ]
        if len(whole) <= ASKED_ALONE:
            return frozenset(whole)
        last = {place.row: index for index, place in enumerate(self.places)}
        longest = max(whole, key=lambda index: self.places[index].length)
        spread = whole[:: -(-len(whole) // ASKED_ALONE)]
        return frozenset({longest, *(index for index in last.values() if index in whole), *spread})

    @cached_property
    def _owners(self) -> Tensor:
        """The index of the document of each token, and their number where there is none: `[batch, sequence]`."""
        owners = torch.full_like(self.document_ids, len(self.places))
        for index, place in enumerate(self.places):
            owners[place.row, self._tokens[index]] = index
        return owners

    @cached_property
    def _tokens(self) -> tuple[Tensor, ...]:
        ids = self.document_ids
        return tuple(place.start + ids[place.row, place.span].nonzero()[:, 0] for place in self.places)

    def only(self, document: int, added: int = 0) -> PackedDocuments:
        """One document alone, in a row of its own, with some tokens added after it."""
        tokens = self.input_ids[self.places[document].row, self.tokens_of(document)][None]
        longer = torch.cat([tokens, tokens[:, -1:].expand(1, added)], dim=1)
        alone = read_documents(longer, torch.ones_like(longer), self.vocabulary)
        return replace(alone, bidirectional=self.bidirectional)

    def with_changed(self, *documents: int) -> Tensor:
        """The packed tokens with every token of some documents changed: `[batch, sequence]`."""
        chosen = torch.zeros(len(self.places) + 1, dtype=torch.bool, device=self.input_ids.device)
        chosen[list(documents)] = True
        return self._changed_where(chosen[self._owners])

    def with_changed_padding(self) -> Tensor:
        """The packed tokens with every token of padding and of holes changed: `[batch, sequence]`."""
        return self._changed_where(self.document_ids == 0)

    def with_earlier_changed(self) -> Tensor:
        """The packed tokens with all but the last of every document changed: `[batch, sequence]`."""
        changed = self.document_ids > 0
        for place in self.places:
            changed[place.row, place.stop - 1] = False
        return self._changed_where(changed)

    def _changed_where(self, changed: Tensor) -> Tensor:
        others = (self.input_ids + max(1, self.vocabulary // 3)) % self.vocabulary
        if self.vocabulary > _FEWEST:  # to some models, 0 is padding wherever it stands, and takes no position
            others = others.where(others != 0, 1)
        return torch.where(changed & (self.input_ids < self.vocabulary), others, self.input_ids)


def pack_documents(
    texts: Sequence[bytes], vocabulary: int, device: torch.device, images: bool = False
) -> PackedDocuments:
    """Cut documents from `texts` and pack them. Token ids are bytes, modulo a vocabulary smaller than that.

    With `images`, some documents hold one, and two of those touch where one document ends and the next begins.

    Raises:
        BatchError: the texts are too short.
    """
    vocabulary = min(256, vocabulary)
    lengths = IMAGE_LENGTHS if images else LENGTHS
    texts_of_bytes = (torch.tensor(list(text), dtype=torch.int64, device="cpu") for text in excerpts(texts, lengths))
    documents = [text % vocabulary for text in texts_of_bytes]
    documents = with_images(documents) if images else documents
    batch = collate_documents(documents, plan_rows(lengths, CAPACITY, method="first_fit"))
    document_ids = batch.get("document_ids", batch["input_ids"])  # collate_documents always gives them
    return read_documents(batch["input_ids"].to(device), document_ids.to(device), vocabulary)


def pack_ids(document_ids: Tensor, vocabulary: int, device: torch.device) -> PackedDocuments:
    """Fill the documents of given ids, int64 `[batch, sequence]`, with random tokens."""
    vocabulary = min(256, vocabulary)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, document_ids.shape, generator=generator, device="cpu")
    return read_documents(torch.where(document_ids > 0, tokens, 0).to(device), document_ids.to(device), vocabulary)


def read_documents(input_ids: Tensor, document_ids: Tensor, vocabulary: int) -> PackedDocuments:
    """Find where the documents of a batch lie.

    Raises:
        DocumentIdsError: the ids are malformed.
    """
    segments = scan_segments(document_ids)
    found = segments.documents
    rows, starts, ends = found.rows.tolist(), found.starts.tolist(), found.ends.tolist()
    return PackedDocuments(
        input_ids=input_ids,
        position_ids=build_position_ids(segments),
        document_ids=document_ids,
        places=tuple(
            Place(row, start - row * segments.sequence, end - row * segments.sequence)
            for row, start, end in zip(rows, starts, ends, strict=True)
        ),
        vocabulary=vocabulary,
    )
