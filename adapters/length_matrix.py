"""The lengths of the documents of each row as one padded matrix, for rows whose padding trails."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from neatpack.adapters.arguments import require_instance, require_places, require_readable
from neatpack.adapters.host_arrays import read_on_host, to_tensor
from neatpack.adapters.layout import require_no_holes, require_trailing_padding
from neatpack.adapters.segments import Segments, as_segments
from neatpack.contracts.encodings import LengthMatrix, parse_length_matrix
from neatpack.contracts.errors import EncodingError, Problem


def length_matrix(document_ids: Tensor | Segments) -> LengthMatrix[Tensor]:
    """Give the tokens of each document of each row; what the row has beyond them is padding. OLMo-core's `doc_lens`.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding, which ends each row, without holes.

    Returns:
        `lengths`, int32 `[batch, most documents of a row]`, 0 where unused.

    Raises:
        DocumentIdsError: the ids are malformed, have a hole, or padding that tokens follow.

    Example:
        >>> import torch
        >>> length_matrix(torch.tensor([[1, 1, 2, 0], [1, 2, 2, 3]])).lengths
        tensor([[2, 1, 0],
                [1, 2, 1]], dtype=torch.int32)
    """
    segments = as_segments(document_ids)
    require_no_holes(segments)
    require_trailing_padding(segments)
    documents = segments.documents
    lengths = np.zeros((segments.batch, max(int(documents.counts.max()), 1)), np.int32)
    lengths[documents.rows, documents.ranks] = documents.lengths
    return LengthMatrix(segments.tensor(lengths))


def document_ids_from_length_matrix(matrix: LengthMatrix[Tensor], sequence_length: int) -> Tensor:
    """Lay documents of the given lengths end to end in each row; what is left is padding.

    Args:
        matrix: lengths, 0 where there is no document.
        sequence_length: places of a row.

    Returns:
        Canonical ids, int64 `[batch, sequence_length]`.

    Raises:
        EncodingError: a length is negative, or a row is longer than `sequence_length`.

    Example:
        >>> import torch
        >>> lengths = torch.tensor([[2, 1, 0], [4, 0, 0]], dtype=torch.int32)
        >>> document_ids_from_length_matrix(LengthMatrix(lengths), 4)
        tensor([[1, 1, 2, 0],
                [1, 1, 1, 1]])
    """
    require_instance(matrix, LengthMatrix, "matrix", "Give LengthMatrix(lengths), int32 [batch, documents].")
    parse_length_matrix(matrix)
    require_readable(lengths=matrix.lengths)
    batch = matrix.lengths.shape[0]
    require_places(batch, sequence_length)
    sequence_length = int(sequence_length)
    lengths = read_on_host(matrix.lengths, "lengths")
    lengths = lengths.astype(np.int64)
    negative = np.argwhere(lengths < 0)
    if negative.size:
        row, document = (int(index) for index in negative[0])
        message, value = f"document {document} has a negative length", int(lengths[row, document])
        remedy = "Fill unused entries with 0."
        raise EncodingError(Problem("lengths", message, "value", row, value=value, remedy=remedy))
    rest = sequence_length - lengths.sum(axis=1)
    too_long = np.flatnonzero(rest < 0)
    if too_long.size:
        row = int(too_long[0])
        message = f"documents of the row need more than {sequence_length} places"
        remedy = "Nothing is truncated: give a longer row or fewer documents."
        total = int(lengths[row].sum())
        raise EncodingError(Problem("lengths", message, "value", row, value=total, remedy=remedy))
    numbers = np.cumsum(lengths > 0, axis=1)
    lengths = np.hstack([lengths, rest[:, None]])
    numbers = np.hstack([numbers, np.zeros((batch, 1), np.int64)])
    ids = np.repeat(numbers.ravel(), lengths.ravel())
    return to_tensor(ids, matrix.lengths.device).view(batch, sequence_length)
