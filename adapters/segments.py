"""The one scan of document ids: where each run of equal ids begins, and which runs make a document.

Every encoding is derived from the small table that the scan leaves, never from the ids again. So a batch is read
once, however many encodings it needs, and once from the device it lies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import INT32_MAX, INT64_MAX, INTEGER_DTYPES, tensor_problems, too_many_places
from neatpack.adapters.host_arrays import Integers, read_on_host, read_together, to_tensor
from neatpack.contracts.errors import DocumentIdsError, Problem

FEW_RUNS: Final = 64
"""Up to so many runs, a loop over Python's ints takes less time than calls of numpy do."""

MANY_PLACES: Final = 2**16
"""From so many places on, a shorter scan is worth a look at what it might have missed."""

_LEAST_FLOAT: Final[float] = 5e-324
_INFINITY_BITS: Final = 0x7FF0_0000_0000_0000


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents of a batch in row order; a document with a hole is one document.

    Attributes:
        rows: the row of each document, `[documents]`.
        ids: the id that each carries in its row, `[documents]`.
        starts: flat physical place of its first token, `[documents]`.
        ends: flat physical place after its last token, `[documents]`.
        lengths: its tokens, holes left out, `[documents]`.
        counts: how many documents each row holds, `[batch]`.
    """

    rows: Integers
    ids: Integers
    starts: Integers
    ends: Integers
    lengths: Integers
    counts: Integers

    @property
    def longest(self) -> int:
        """Tokens of the longest document, holes left out; 0 where there is no document."""
        return greatest(self.lengths) if self.lengths.size else 0

    @cached_property
    def ranks(self) -> Integers:
        """The 0-based number of each document within its row, `[documents]`."""
        before = np.cumsum(self.counts) - self.counts
        return np.arange(self.rows.size) - before[self.rows]


@dataclass(frozen=True, eq=False)
class Segments:
    """The runs of equal ids of a batch in row order, padding and holes included. No run continues into another row.

    The arrays lie on the host. Functions of `Tensor | Segments` take this in place of ids, and then do not scan again.

    Attributes:
        batch: rows.
        sequence: places of a row.
        device: where the ids lie, and where tensors made from them go.
        bounds: flat physical offsets of the runs, the last one `batch * sequence`; `[segments + 1]`.
        ids: the id of each run, 0 for padding and holes; `[segments]`.
        few: the id, the start and the stop of each run as Python's ints where there are few of them, and else None.
        in_order: whether the ids of each row are positive and rise from run to run, with zeros at its end alone. Then
            no id comes back and no document has a hole, and neither has to be looked for.
    """

    batch: int
    sequence: int
    device: torch.device
    bounds: Integers
    ids: Integers
    few: Sequence[tuple[int, int, int]] | None = field(init=False)
    in_order: bool = field(init=False)

    def __post_init__(self) -> None:
        if self.ids.size > FEW_RUNS:
            few, in_order = None, _in_order(self.ids, self.bounds, self.sequence)
        else:
            bounds = self.bounds.tolist()
            few = list(zip(self.ids.tolist(), bounds[:-1], bounds[1:], strict=True))
            in_order = _few_in_order(few, self.sequence)
        object.__setattr__(self, "few", few)
        object.__setattr__(self, "in_order", in_order)

    @cached_property
    def lengths(self) -> Integers:
        """Places of each run, `[segments]`."""
        return self.bounds[1:] - self.bounds[:-1]

    @cached_property
    def row_bounds(self) -> Integers:
        """Index of the first run of each row, and the number of runs; `[batch + 1]`."""
        return self.bounds.searchsorted(np.arange(0, self.batch * self.sequence + 1, self.sequence))

    @cached_property
    def rows(self) -> Integers:
        """The row of each run, `[segments]`."""
        return np.repeat(np.arange(self.batch), self.row_bounds[1:] - self.row_bounds[:-1])

    @cached_property
    def kept(self) -> Integers:
        """Indices of the runs that are not zeros."""
        return self.ids.nonzero()[0]

    @cached_property
    def zeros(self) -> Integers:
        """Indices of the runs of zeros, padding or hole."""
        zeros: Integers = (self.ids == 0).nonzero()[0]
        return zeros

    @cached_property
    def owners(self) -> Integers:
        """The document of each kept run, an index into `documents`."""
        return np.searchsorted(self.documents.starts, self.bounds[self.kept], side="right") - 1

    def owners_of_places(self) -> Integers:
        """Give the document of each flat place, an index into `documents`, -1 at padding and holes."""
        owners = np.full(self.ids.size, -1, np.int64)
        owners[self.kept] = self.owners
        return np.repeat(owners, self.lengths)

    @cached_property
    def documents(self) -> Documents:
        """The documents that the runs make: runs of one id in one row with nothing but zeros between them."""
        runs = self.kept
        edges = np.searchsorted(runs, self.row_bounds)
        counts = edges[1:] - edges[:-1]
        rows = np.repeat(np.arange(self.batch), counts)
        ids, starts, lengths = self.ids[runs], self.bounds[runs], self.lengths[runs]
        if self.in_order:
            return Documents(rows, ids, starts, starts + lengths, lengths, counts)
        opens = np.ones(runs.size, np.bool_)
        opens[1:] = (rows[1:] != rows[:-1]) | (ids[1:] != ids[:-1])
        heads = np.flatnonzero(opens)
        tails = np.append(heads[1:], runs.size) - 1
        ends, lengths = starts[tails] + lengths[tails], np.add.reduceat(lengths, heads)
        rows, ids, starts = rows[heads], ids[heads], starts[heads]
        return Documents(rows, ids, starts, ends, lengths, np.bincount(rows, minlength=self.batch))

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest document, holes left out; 0 where there is no document."""
        if not self.in_order:
            return self.documents.longest
        lengths = np.array(self.lengths)
        lengths[self.zeros] = 0
        return greatest(lengths)

    @cached_property
    def holes(self) -> Integers:
        """Indices of the runs of zeros that stand inside a document."""
        if self.in_order:
            return np.empty(0, np.int64)
        same_row = self.rows[2:] == self.rows[:-2]
        inside = (self.ids[1:-1] == 0) & (self.ids[2:] == self.ids[:-2]) & same_row
        return np.flatnonzero(inside) + 1

    @property
    def blanks(self) -> Sequence[tuple[int, int]]:
        """The start and the stop of each run of zeros, padding or hole, as Python's ints."""
        if self.few is not None:
            return [(start, stop) for number, start, stop in self.few if not number]
        starts, stops = self.bounds.take(self.zeros), self.bounds.take(self.zeros + 1)
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    @cached_property
    def padding(self) -> Integers:
        """Indices of the runs of zeros that stand between documents, before the first or after the last."""
        return np.setdiff1d(self.zeros, self.holes, assume_unique=True) if self.holes.size else self.zeros

    def locate(self, segment: int) -> tuple[int, int]:
        """Give the row and the position of the first place of a run."""
        return divmod(int(self.bounds[segment]), self.sequence)

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """Bring an array to the device of the ids; on the CPU the memory is shared."""
        return to_tensor(array, self.device)


def scan_segments(document_ids: Tensor, *, field: str = "document_ids") -> Segments:
    """Scan ids once, and check that they say which tokens belong together.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding. With zeros removed, each id of a row is
            one run; gaps and order of the numbers carry no meaning. It is read once from its device, never written.
        field: what errors call it.

    Returns:
        The runs of equal ids, on the host.

    Raises:
        DocumentIdsError: with every problem: not an integer tensor of two dimensions, without data or empty, more
            places than int32 offsets can count, a negative id, or an id that comes back after another.

    Example:
        >>> segments = scan_segments(torch.tensor([[1, 1, 2, 0], [3, 0, 3, 3]]))
        >>> segments.bounds.tolist(), segments.ids.tolist()
        ([0, 2, 3, 4, 5, 6, 8], [1, 2, 0, 3, 0, 3])
        >>> segments.documents.lengths.tolist()
        [2, 1, 3]
    """
    require_ids_form(document_ids, field)
    return scan_array(read_on_host(document_ids, field), document_ids.device, field)


def scan_together(**ids: Tensor | Segments) -> list[Segments]:
    """Scan several ids, read together; errors call them by their keywords.

    Raises:
        DocumentIdsError: as `scan_segments`.
    """
    tensors = {name: each for name, each in ids.items() if not isinstance(each, Segments)}
    for name, tensor in tensors.items():
        require_ids_form(tensor, name)
    read = read_together(*tensors.values(), field=next(iter(tensors))) if tensors else ()
    arrays = dict(zip(tensors, read, strict=True))
    return [
        each if isinstance(each, Segments) else scan_array(arrays[name], each.device, name)
        for name, each in ids.items()
    ]


def scan_beside(document_ids: Tensor | Segments, *others: Tensor) -> tuple[Segments, Sequence[npt.NDArray[Any]]]:
    """Scan ids, and read other integer tensors together with them.

    Raises:
        DocumentIdsError: as `scan_segments`.
    """
    if isinstance(document_ids, Segments):
        return document_ids, read_together(*others) if others else ()
    require_ids_form(document_ids, "document_ids")
    ids, *read = read_together(document_ids, *others, field="document_ids")
    return scan_array(ids, document_ids.device, "document_ids"), read


def require_ids_form(document_ids: object, field: str) -> None:
    """Raise where a value cannot be ids, whatever it holds; nothing is read from its device.

    Raises:
        DocumentIdsError: with every problem.
    """
    problems = _form_problems(document_ids, field)
    if problems:
        raise DocumentIdsError(*problems)


def scan_array(ids: npt.NDArray[np.integer[Any]], device: torch.device, field: str) -> Segments:
    """Scan ids that have been read from `device`, and check their values.

    Raises:
        DocumentIdsError: with the first negative or returning id of each row, or the first past int64.
    """
    segments = _find_runs(ids, device)
    if not segments.in_order:
        problems = _beyond_problems(ids, field) or _value_problems(segments, field)
        if problems:
            raise DocumentIdsError(*problems)
    return segments


def as_segments(document_ids: Tensor | Segments, *, field: str = "document_ids") -> Segments:
    """Return segments as they are, and scan ids.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes; or what was made of such ids.
        field: what errors call them.

    Raises:
        DocumentIdsError: as `scan_segments`.

    Example:
        >>> segments = as_segments(torch.tensor([[4, 4, 7, 0]]))
        >>> as_segments(segments) is segments, segments.ids.tolist(), segments.bounds.tolist()
        (True, [4, 7, 0], [0, 2, 3, 4])
    """
    return document_ids if isinstance(document_ids, Segments) else scan_segments(document_ids, field=field)


def greatest(numbers: npt.NDArray[np.integer[Any]]) -> int:
    """Give the greatest of some numbers, at least one; for few of them this takes a third of the time of `max()`."""
    return int(numbers.item(numbers.argmax()))


def _find_runs(ids: npt.NDArray[np.integer[Any]], device: torch.device) -> Segments:
    flat = ids.ravel()
    shape = (ids.shape[0], ids.shape[1], device)
    if flat.size >= MANY_PLACES and flat.dtype == np.int64:
        segments = _runs_between(_as_compared(flat), flat, *shape)
        if _floats_told(segments, ids):
            return segments
    return _runs_between(flat, flat, *shape)


def _runs_between(
    compared: npt.NDArray[Any], ids: npt.NDArray[np.integer[Any]], batch: int, sequence: int, device: torch.device
) -> Segments:
    opens = flags_for(ids.size)
    np.not_equal(compared[1:], compared[:-1], out=opens[1 : ids.size])
    bounds = bounds_of(opens, ids.size, sequence)
    return Segments(batch, sequence, device, bounds, ids.take(bounds[:-1]).astype(np.int64, copy=False))


def _as_compared(memory: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give words of 64 bits as floats, which numpy compares up to twice as fast: -0.0 equals 0, and NaN nothing."""
    # Small words are denormal numbers, and a thread may have been told to take these for zero.
    return np.frombuffer(memory, np.float64 if _LEAST_FLOAT != 0.0 else np.int64)


def _floats_told(segments: Segments, ids: npt.NDArray[np.integer[Any]]) -> bool:
    """Tell whether floats of the same bits differ where ids do: none is NaN, and none -0.0 in a run of zeros."""
    # Of NaN, each would be a run: then ids do not rise from run to run.
    if not segments.in_order and greatest(np.frombuffer(segments.ids, np.uint64)) > _INFINITY_BITS:
        return False
    zeros = segments.zeros
    if not zeros.size:
        return True
    positions = segments.bounds.take(zeros) % segments.sequence
    tails = ids[:, positions.item(positions.argmin()) :]
    # The method `min` does the same by way of more code, which takes longer while it is not in the caches.
    return int(np.minimum.reduce(tails, axis=None)) >= 0  # pyright: ignore[reportUnknownMemberType]  # untyped kwargs


def flags_for(places: int) -> npt.NDArray[np.bool_]:
    """Make room for the flags that `bounds_of` takes: one for each place of the flattened rows, and a few more."""
    return np.empty(places // 8 * 8 + 8, np.bool_)


def bounds_of(opens: npt.NDArray[np.bool_], places: int, sequence: int) -> Integers:
    """Give the places where a flag is True or a row begins, and the end of the last row. It writes to the flags."""
    opens[::sequence] = True
    if places < MANY_PLACES or np.count_nonzero(opens[: places // 64]) > places // 2048:
        return opens[: places + 1].nonzero()[0]
    opens[places + 1 :] = False
    # Most words of eight flags hold none that is True, and are skipped as one.
    words = _as_compared(opens)
    (some,) = (words != 0).nonzero()
    bounds: Integers = np.frombuffer(words[some], np.bool_).nonzero()[0]
    word = bounds >> 3
    bounds &= 7
    bounds += (some << 3).take(word)
    return bounds


def _in_order(ids: Integers, bounds: Integers, sequence: int) -> bool:
    # Less one and without a sign, zero is greater than every id.
    ranked = np.frombuffer(ids - 1, np.uint64)
    (falls,) = (ranked[1:] <= ranked[:-1]).nonzero()
    within_rows = bounds.take(falls + 1) % sequence
    return not np.count_nonzero(within_rows) and int(ids.item(ids.argmin())) >= 0


def _few_in_order(runs: Sequence[tuple[int, int, int]], sequence: int) -> bool:
    greatest = 0
    for number, start, _ in runs:
        if start % sequence == 0:
            greatest = 0
        # Zero is greater than every id.
        rank = number or INT64_MAX + 1
        if rank <= greatest:
            return False
        greatest = rank
    return True


def _form_problems(value: object, field: str) -> list[Problem]:
    """List what can be told without a look at the values."""
    problems = tensor_problems(value, field, data=False)
    if problems or not isinstance(value, Tensor):
        return problems
    if value.dtype not in INTEGER_DTYPES:
        remedy = "Give one integer per token: the number of its document, 0 at padding."
        problems.append(Problem(field, "must hold integers", "dtype", value=value.dtype, remedy=remedy))
    if value.ndim != 2:
        remedy = "Give [batch, sequence]; one row alone is [1, sequence]."
        problems.append(Problem(field, "must be [batch, sequence]", "rank", value=tuple(value.shape), remedy=remedy))
    elif value.numel() == 0:
        remedy = "A batch has at least one row and one place: leave empty batches out."
        problems.append(Problem(field, "is empty", "shape", value=tuple(value.shape), remedy=remedy))
    elif value.numel() > INT32_MAX:
        problems.append(too_many_places(field, tuple(value.shape)))
    if value.is_meta:
        remedy = "Derive boundaries from ids that lie on a real device."
        problems.append(Problem(field, "is a meta tensor, without data", "device", value="meta", remedy=remedy))
    return problems


def _beyond_problems(ids: npt.NDArray[np.integer[Any]], field: str) -> list[Problem]:
    """List the first id of each row that int64 does not hold."""
    if ids.dtype != np.uint64:
        return []
    rows, positions = np.nonzero(ids > INT64_MAX)
    first = _first_of_each(rows)
    remedy = "Number the documents of each row from 1: ids need not be unique beyond their row."
    return [
        Problem(field, "id past int64", "value", row, position, int(ids[row, position]), remedy)
        for row, position in zip(rows[first].tolist(), positions[first].tolist(), strict=True)
    ]


def _value_problems(segments: Segments, field: str) -> list[Problem]:
    """List negative ids and ids that come back, the first of each row. It reads the table, not the tokens."""
    if segments.ids.min() >= 0:
        return _return_problems(segments, field)
    problems: list[Problem] = []
    negative = np.flatnonzero(segments.ids < 0)
    for segment in negative[_first_of_each(segments.rows[negative])].tolist():
        row, position = segments.locate(segment)
        remedy = "Use 0 for padding and a positive number for each document."
        problems.append(Problem(field, "negative id", "value", row, position, int(segments.ids[segment]), remedy))
    return problems


def _return_problems(segments: Segments, field: str) -> list[Problem]:
    documents = segments.documents
    rows, ids = documents.rows, documents.ids
    if bool(((ids[1:] > ids[:-1]) | (rows[1:] > rows[:-1])).all()):
        return []
    order = np.lexsort((ids, rows))
    twice = (rows[order][1:] == rows[order][:-1]) & (ids[order][1:] == ids[order][:-1])
    pairs = sorted(zip(order[1:][twice].tolist(), order[:-1][twice].tolist(), strict=True))
    problems: list[Problem] = []
    for again, before in pairs:
        row, position = divmod(int(documents.starts[again]), segments.sequence)
        if problems and problems[-1].row == row:
            continue
        last = int(documents.ends[before]) - 1 - row * segments.sequence
        message = f"id comes back after another id; it stood last at position {last}"
        remedy = "Give each document of a row an id of its own, and keep its tokens together."
        problems.append(Problem(field, message, "value", row, position, int(ids[again]), remedy))
    return problems


def _first_of_each(rows: Integers) -> Integers:
    return np.unique(rows, return_index=True)[1]
