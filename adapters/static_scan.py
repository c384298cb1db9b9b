"""The one scan of document ids where bounds fix every shape: what `segments` is to the other encodings.

Nothing is read back to the host, and no value is refused: what is wrong with ids is told by `static_status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from neatpack.adapters.arguments import require_count, require_instance
from neatpack.adapters.segments import require_ids_form
from neatpack.contracts.errors import EncodingError, Problem


@dataclass(frozen=True)
class StaticBounds:
    """What fixes the shapes. Nothing is truncated: ids that exceed a bound have a status that says so.

    Attributes:
        documents: documents of a row, at most, for encodings that count them row by row.
        segments: entries of an encoding that makes all rows one stream, at most: documents, and pieces of padding.
        longest: tokens of a document, at most; also where padding is cut, and the `max_seqlen` that kernels get.

    Raises:
        EncodingError: a bound is no positive int.

    Example:
        >>> StaticBounds(documents=3, segments=6, longest=4)
        StaticBounds(documents=3, segments=6, longest=4)
    """

    documents: int
    segments: int
    longest: int

    def __post_init__(self) -> None:
        for name, value in (("documents", self.documents), ("segments", self.segments), ("longest", self.longest)):
            # torch.compile takes no int of numpy.
            object.__setattr__(self, name, require_count(value, name, "Give a bound of at least 1.", least=1))


class StaticScan(NamedTuple):
    """What is known of each place of the rows, and of two more places before each row.

    The two hold the ids 0 and -1: so id 0 first stands at place 0, and a run of ids begins with each row.

    Attributes:
        bounds: what it was made for.
        ids: int64 `[batch, 2 + sequence]`, as they came, after the two.
        numbers: int64, -2, -1, 0, ..., as many as an encoding may count.
        first: int64 `[batch, 2 + sequence]`, the first place with the same id, which is 0 for id 0.
        nowhere: bool `[batch, sequence]`, False.
        too_long: bool `[batch, sequence]`, whether a document begins that has more tokens than the bound.
    """

    bounds: StaticBounds
    ids: Tensor
    numbers: Tensor
    first: Tensor
    nowhere: Tensor
    too_long: Tensor

    def counting(self, start: int, stop: int) -> Tensor:
        """Give the numbers from one to before another, as a slice, which starts no kernel."""
        return self.numbers[start + 2 : stop + 2]

    @property
    def places(self) -> Tensor:
        """0, 1, ..., as many as a row has places."""
        return self.counting(0, self.ids.shape[1] - 2)

    @property
    def int32_minus_one(self) -> Tensor:
        """-1, int32 `[1]`: half of the number, which starts no kernel."""
        return self.counting(-1, 0).view(torch.int32)[:1]

    @property
    def kept(self) -> Tensor:
        """Whether a token of a document stands at a place of the row."""
        return self.ids[:, 2:] > 0

    def begins(self, before: int = 0) -> Tensor:
        """Mark where an id stands for the first time, in the row and at so many places before it."""
        return self.first[:, 2 - before :] == self.counting(2 - before, self.ids.shape[1])

    def begins_run(self) -> Tensor:
        """Mark where another id stands than at the place before, and where the row begins."""
        return self.ids[:, 2:] != self.ids[:, 1:-1]

    def spans(self) -> tuple[Tensor, Tensor]:
        """Give where the document around each place of the row begins and ends; the place, where there is none."""
        # The greatest end so far is that of the document around, or the place itself. The last of equal ones counts.
        stops, starts = self.ends()[:, 2:].cummax(1)
        return starts, stops

    def ends(self) -> Tensor:
        """Give at each place where an id first stands the place of the row after its last one; else the place itself.

        int64 `[batch, 2 + sequence]`, places before the row among them.
        """
        sequence = len(self.places)
        own, following = (self.counting(start, start + sequence + 2).expand_as(self.ids) for start in (-2, -1))
        return own.scatter_reduce(1, self.first, following, "amax")

    def returning(self) -> Tensor:
        """Mark tokens whose id stood before another id began."""
        first = self.first[:, 2:]
        return torch.logical_and(first, first.cummax(1).values > first)

    def resumed(self, begins: Tensor, begins_run: Tensor) -> Tensor:
        """Mark where a run of tokens begins whose id stood before, given what the functions of these names give."""
        return torch.logical_and(self.ids[:, 2:], begins_run) > begins


def scan_static(document_ids: Tensor, bounds: StaticBounds) -> StaticScan:
    """Look at ids once, for several encodings of them.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: those of the functions that take the scan.

    Raises:
        DocumentIdsError: no integer tensor of two dimensions, or an empty one; values are left to the status.
        EncodingError: the bounds are none.

    Example:
        >>> scan_static(torch.tensor([[7, 7, 0, 4]]), StaticBounds(2, 4, 4)).first
        tensor([[0, 1, 2, 2, 0, 5]])
    """
    _require_bounds(bounds)
    require_ids_form(document_ids, "document_ids")
    batch, sequence = document_ids.shape
    numbers = torch.arange(-2, max(sequence, bounds.segments) + 2, device=document_ids.device)
    minus_one, zero, one = (numbers[index : index + 1].expand(batch, 1) for index in (1, 2, 3))
    ids = torch.cat([zero, minus_one, document_ids.to(torch.int64)], 1)
    ordered, order = ids.sort(dim=1, stable=True)
    first = order.gather(1, torch.searchsorted(ordered, ids))
    # A byte of the number 0: to see it as a bool starts no kernel.
    too_long = nowhere = numbers[2:3].view(torch.bool)[:1].expand(batch, sequence)
    if bounds.longest < sequence:
        lengths = zero.expand_as(ids).scatter_add(1, first, one.expand_as(ids))
        too_long = lengths[:, 2:] > bounds.longest
    return StaticScan(bounds, ids, numbers, first, nowhere, too_long)


def as_scan(document_ids: Tensor | StaticScan, bounds: StaticBounds) -> StaticScan:
    """Return a scan as it is, and scan ids.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan.
    """
    if not isinstance(document_ids, StaticScan):
        return scan_static(document_ids, bounds)
    _require_bounds(bounds)
    if not document_ids.bounds == bounds:  # noqa: SIM201 - `!=` of dataclasses cannot be traced
        remedy = "Give the bounds of the scan."
        raise EncodingError(Problem("bounds", "are not those of the scan", "value", value=bounds, remedy=remedy))
    return document_ids


def _require_bounds(bounds: object) -> None:
    require_instance(bounds, StaticBounds, "bounds", "Give StaticBounds(documents, segments, longest).")
