"""Document ids themselves: checks, canonical numbers, and ids from what other packages ship in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeIs

from neatpack.adapters.arguments import INT64_MAX, int_remedy, is_count, require_count, require_places, shown
from neatpack.adapters.host_arrays import read_together, to_tensor
from neatpack.adapters.segments import Segments, as_segments, scan_segments
from neatpack.adapters.token_tensors import padded_rows_problems
from neatpack.contracts.errors import DocumentIdsError, EncodingError, Problem


def validate_document_ids(value: object, *, field: str = "document_ids") -> list[Problem]:
    """List what keeps `value` from being document ids: integer, `[batch, sequence]`, each id of a row one run.

    Args:
        value: anything.
        field: what the problems call it.

    Example:
        >>> [str(problem) for problem in validate_document_ids(torch.tensor([[1, 2, 1]]))]
        ['document_ids[row 0, position 2] = 1: id comes back after another id; it stood last at position 0. Give each \
document of a row an id of its own, and keep its tokens together.']
    """
    try:
        scan_segments(cast("Tensor", value), field=field)
    except DocumentIdsError as error:
        return list(error.problems)
    return []


def is_document_ids(value: object) -> TypeIs[Tensor]:
    """Tell whether `value` is document ids.

    Example:
        >>> is_document_ids(torch.tensor([[2, 2, 1, 0]])), is_document_ids(torch.tensor([[True, False]]))
        (True, False)
    """
    return not validate_document_ids(value)


def parse_document_ids(value: object, *, field: str = "document_ids") -> Tensor:
    """Check ids and give them canonical numbers, int64 `[batch, sequence]`.

    Args:
        value: anything.
        field: what errors call it.

    Raises:
        DocumentIdsError: with every problem found.

    Example:
        >>> parse_document_ids(torch.tensor([[7, 7, 3, 0]], dtype=torch.int8))
        tensor([[1, 1, 2, 0]])
    """
    return canonical_document_ids(scan_segments(cast("Tensor", value), field=field))


def canonical_document_ids(document_ids: Tensor | Segments) -> Tensor:
    """Number the documents of each row 1, 2, ... in row order; padding and holes stay 0.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`.

    Returns:
        int64 `[batch, sequence]`, a new tensor.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> canonical_document_ids(torch.tensor([[9, 0, 9, 4], [5, 5, 0, 0]]))
        tensor([[1, 0, 1, 2],
                [1, 1, 0, 0]])
    """
    return number_documents(as_segments(document_ids), np.int64)


def number_documents(segments: Segments, dtype: type[np.int32 | np.int64]) -> Tensor:
    """Give the canonical ids of scanned ones, `[batch, sequence]`, in the dtype."""
    numbers = np.zeros(segments.ids.size, dtype)
    numbers[segments.kept] = segments.documents.ranks[segments.owners] + 1
    ids = np.repeat(numbers, segments.lengths)
    return segments.tensor(ids).view(segments.batch, segments.sequence)


def document_ids_from_positions(position_ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Find the documents from text positions: one ends where the next position is not the successor.

    The first token of a row opens a document whatever its position. Padding has to be given: its positions look
    like documents of their own, whatever they hold. A token after padding that goes on counting belongs to the
    document before it, so the padding is a hole.

    Args:
        position_ids: any integer dtype, `[batch, sequence]`. Multi-axis positions are refused: two image patches
            share a coordinate, so they do not tell where a document ends. The first of four axes is text positions.
        padding_mask: bool, `[batch, sequence]`, True at padding; None where there is none.

    Returns:
        Canonical ids, int64 `[batch, sequence]`.

    Raises:
        EncodingError: wrong type, rank, shape, dtype or device, or a token whose position is negative or past int64.

    Example:
        >>> document_ids_from_positions(torch.tensor([[3, 4, 0, 1, 2, 0, 0]]), torch.arange(7)[None] > 4)
        tensor([[1, 1, 2, 2, 2, 0, 0]])
    """
    problems = padded_rows_problems(position_ids, padding_mask, "position_ids")
    if problems:
        raise EncodingError(*problems)
    mask = torch.zeros_like(position_ids, dtype=torch.bool) if padding_mask is None else padding_mask
    positions, padding = read_together(position_ids, mask, field="position_ids")
    kept = padding == 0
    for message, wrong in {"negative position": positions < 0, "position past int64": positions > INT64_MAX}.items():
        if (kept & wrong).any():
            row, position = (int(axis[0]) for axis in np.nonzero(kept & wrong))
            remedy = "Mark padding in padding_mask, and count the tokens of each document from 0."
            value = int(positions[row, position])
            raise EncodingError(Problem("position_ids", message, "value", row, position, value, remedy))
    rows, places = np.nonzero(kept)
    # Within a document, position minus place is constant, also across a hole.
    origins = positions[kept].astype(np.int64) - places
    opens = np.ones(rows.size, np.bool_)
    opens[1:] = origins[1:] != origins[:-1]
    # Counted from the first of each row, which may go on counting the last of the row before it.
    documents = np.cumsum(opens)
    before = np.zeros(position_ids.shape[0], np.int64)
    heads = np.flatnonzero(np.diff(rows, prepend=-1))
    before[rows[heads]] = documents[heads] - 1
    ids = np.zeros(position_ids.shape, np.int64)
    ids[kept] = documents - before[rows]
    return to_tensor(ids, position_ids.device)


def document_ids_from_lengths(lengths: Sequence[Sequence[int]], sequence_length: int) -> Tensor:
    """Lay documents end to end in each row; what is left of the row is padding.

    Args:
        lengths: for each row, the tokens of its documents in order. Each is positive.
        sequence_length: places of a row.

    Returns:
        Canonical ids, int64 `[batch, sequence_length]`, on the CPU.

    Raises:
        EncodingError: no row, a length that is not positive, a row that is longer than `sequence_length`, or more
            places than int32 offsets can count.

    Example:
        >>> document_ids_from_lengths([[2, 1], [4]], 4)
        tensor([[1, 1, 2, 0],
                [1, 1, 1, 1]])
    """
    sequence_length = require_count(sequence_length, "sequence_length", "Give the places of a row.", least=1)
    problems = _length_problems(lengths, sequence_length)
    if problems:
        raise EncodingError(*problems)
    require_places(len(lengths), sequence_length)
    ids = np.zeros((len(lengths), sequence_length), np.int64)
    for row, row_lengths in enumerate(lengths):
        ids[row, : sum(map(int, row_lengths))] = np.repeat(np.arange(1, len(row_lengths) + 1), row_lengths)
    return to_tensor(ids)


def _length_problems(lengths: Sequence[Sequence[int]], sequence_length: int) -> list[Problem]:
    if not _is_list(lengths) or not lengths:
        remedy = "Give a list of lengths for each row, and at least one row."
        return [Problem("lengths", "must be rows of lengths", "type", value=type(lengths).__name__, remedy=remedy)]
    problems: list[Problem] = []
    for row, row_lengths in enumerate(lengths):
        if not _is_list(row_lengths):
            remedy = "Give a list of lengths for each row."
            found = type(row_lengths).__name__
            problems.append(Problem("lengths", "must be rows of lengths", "type", row, value=found, remedy=remedy))
            continue
        for place, length in enumerate(row_lengths):
            if not is_count(length) or length < 1:
                remedy = int_remedy(length, "Leave empty documents out.")
                problems.append(
                    Problem("lengths", "must be a positive int", "value", row, place, shown(length), remedy)
                )
        if not problems and (places := sum(map(int, row_lengths))) > sequence_length:
            remedy = "Nothing is truncated: give a longer row or fewer documents."
            message = f"documents of the row need more than {sequence_length} places"
            problems.append(Problem("lengths", message, "value", row, value=places, remedy=remedy))
    return problems


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
