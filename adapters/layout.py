"""What encodings that count places demand of the rows: no hole, and padding only where they can tell of it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neatpack.adapters.segments import Segments
from neatpack.contracts.errors import DocumentIdsError, Problem

AS_ROWS: Final = 'Yield batches as they are, output_format="batched".'
KEEPING_HOLES: Final = (
    "Build a model that does not declare `takes_holes = False`, with a consumer such as `block_causal` or `reference`."
)
OF_JOINED: Final = "Of padding between joined documents: call pad_documents(batch, 1). Of tokens that policy took out: "
"""What goes before one of the two, where padding can be moved."""


def require_no_holes(
    segments: Segments,
    field: str = "document_ids",
    tokens: npt.NDArray[Any] | None = None,
    remedy: str = "Use NEAT metadata or a mask, which leave holes out.",
) -> None:
    """Raise where a document has a hole, which lengths and offsets over the padded row cannot express.

    Args:
        segments: the scanned ids.
        field: what errors call them.
        tokens: `[batch, sequence]`, 0 where no token stands, if that is known from elsewhere: at the end of a document
            it alone tells a hole from padding.
        remedy: the way out.

    Raises:
        DocumentIdsError: with the first hole.
    """
    if segments.in_order and tokens is None:
        return
    holes = segments.bounds[segments.holes]
    if tokens is not None:
        without_id = np.repeat(segments.ids == 0, segments.lengths)
        holes = np.append(holes, np.flatnonzero(without_id & (tokens.ravel() != 0)))
    if holes.size:
        row, position = divmod(int(holes.min()), segments.sequence)
        message = "a hole: zero inside a document, or where policy took out a token, which lengths and offsets over \
the padded rows cannot express"
        raise DocumentIdsError(Problem(field, message, "unsupported", row, position, 0, remedy))


def require_padding_after_documents(segments: Segments, field: str = "document_ids") -> None:
    """Raise where a row that holds documents begins with padding, so that it follows none of them.

    Raises:
        DocumentIdsError: with the first such row.
    """
    starts_row = segments.bounds[:-1] % segments.sequence == 0
    leading = np.flatnonzero(starts_row & (segments.ids == 0) & (segments.documents.counts[segments.rows] > 0))
    if leading.size:
        row, position = segments.locate(int(leading[0]))
        message = "padding before the first document, which lengths cannot express"
        remedy = "Pad rows on the right: pad_documents(batch, 1) moves the padding there."
        raise DocumentIdsError(Problem(field, message, "unsupported", row, position, 0, remedy))


def require_trailing_padding(
    segments: Segments,
    field: str = "document_ids",
    remedy: str = "Keep the padding of a row at its end: pad_documents(batch, 1) moves it there.",
) -> None:
    """Raise where padding stands anywhere but at the end of its row.

    Args:
        segments: the scanned ids.
        field: what errors call them.
        remedy: the way out.

    Raises:
        DocumentIdsError: with the first place of padding that a token follows.
    """
    ends = segments.bounds[1:] % segments.sequence == 0
    early = np.flatnonzero((segments.ids == 0) & ~ends)
    if early.size:
        row, position = segments.locate(int(early[0]))
        message = "padding that tokens of its row follow"
        raise DocumentIdsError(Problem(field, message, "unsupported", row, position, 0, remedy))
