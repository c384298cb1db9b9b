"""Text positions: they restart in each document and count its tokens."""

from __future__ import annotations

from typing import Final

import numpy as np
from torch import Tensor

from neatpack.adapters.arguments import require_count
from neatpack.adapters.segments import Segments, as_segments

START_REMEDY: Final = "Give the position of a document's first token, 0 for most models."


def build_position_ids(document_ids: Tensor | Segments, start: int = 0) -> Tensor:
    """Number the tokens of each document from `start`; a hole uses up its coordinate, and padding has position 0.

    Give structural ids: attention ids lack the tokens that policy excluded before or after all others of a document.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding.
        start: the position of the first token of each document.

    Returns:
        int64 `[batch, sequence]`.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: `start` is no int, or negative.

    Example:
        >>> import torch
        >>> build_position_ids(torch.tensor([[1, 1, 2, 0, 2, 0]]))
        tensor([[0, 1, 0, 1, 2, 0]])
        >>> build_position_ids(torch.tensor([[1, 1, 2, 0]]), start=2)
        tensor([[2, 3, 2, 0]])
    """
    start = require_count(start, "start", START_REMEDY)
    segments = as_segments(document_ids)
    documents = segments.documents
    # Every run counts from the document that opened last; where that has ended, the run is padding.
    owner = np.maximum(np.searchsorted(documents.starts, segments.bounds[:-1], side="right") - 1, 0)
    origins = documents.starts[owner] if documents.starts.size else segments.bounds[:-1]
    positions = np.arange(segments.batch * segments.sequence)
    positions -= np.repeat(origins - start, segments.lengths)
    for run in segments.padding.tolist():
        positions[segments.bounds[run] : segments.bounds[run + 1]] = 0
    return segments.tensor(positions).view(segments.batch, segments.sequence)
