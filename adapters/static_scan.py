"""The one scan of document ids where bounds fix every shape: what `segments` is to the other encodings.

Nothing is read back to the host, and no value is refused: what is wrong with ids is told by `static_status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from neatpack.adapters.arguments import require_count, require_instance
from neatpack.adapters.segments import require_ids_form
from neatpack.contracts.errors import EncodingError, Problem


@dataclass(frozen=True)
class StaticBounds:
    """What fixes the shapes. Nothing is truncated: ids that exceed a bound have a status that says so.

    Attributes:
        documents: documents of a row, at most.
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
    """What is known of each place of the rows, and of one more place before each row, which holds no token.

    Attributes:
        bounds: what it was made for.
        ids: int64 `[batch, 1 + sequence]`, as they came.
        numbers: int64, -1, 0, 1, ..., as many as an encoding may count: to slice them starts no kernel.
        first: int64 `[batch, 1 + sequence]`, the first place with the same id, which is 0 for id 0.
        begins: bool `[batch, 1 + sequence]`, whether an id stands here for the first time.
        begun: int64 `[batch, 1 + sequence]`, how many ids have stood here or before: the documents, and id 0.
        too_many: bool `[batch, 1 + sequence]`, whether more documents have begun than the bound.
        too_long: bool `[batch, 1 + sequence]`, whether a document begins that has more tokens than the bound.
    """

    bounds: StaticBounds
    ids: Tensor
    numbers: Tensor
    first: Tensor
    begins: Tensor
    begun: Tensor
    too_many: Tensor
    too_long: Tensor

    @property
    def places(self) -> Tensor:
        """0, 1, ..., as many as a row has places."""
        return self.numbers[1 : self.ids.shape[1]]

    @property
    def kept(self) -> Tensor:
        """Whether a token of a document stands at a place of the row."""
        return self.ids[:, 1:] > 0

    def spans(self) -> tuple[Tensor, Tensor]:
        """Give where the document around each place of the row begins and ends; the place, where there is none."""
        width = self.ids.shape[1]
        own, next_places = (self.numbers[start : start + width].expand_as(self.ids) for start in (0, 1))
        # The greatest end so far is that of the document around, or the place itself. The last of equal ones counts.
        stops, starts = own.scatter_reduce(1, self.first, next_places, "amax")[:, 1:].cummax(1)
        return starts, stops

    def runs(self) -> Tensor:
        """Give where the run of equal ids begins in which each place of the row stands."""
        return ((self.ids[:, 1:] != self.ids[:, :-1]) * self.places).cummax(1).values

    def returning(self) -> Tensor:
        """Mark tokens whose id stood before another id began."""
        return torch.logical_and(self.first, self.first.cummax(1).values > self.first)[:, 1:]

    def after_holes(self, runs: Tensor) -> Tensor:
        """Mark tokens whose id stood before the run of ids in which they stand, `runs` being what `runs()` gives."""
        first = self.first[:, 1:]
        return torch.logical_and(first, first <= runs)


def scan_static(document_ids: Tensor, bounds: StaticBounds) -> StaticScan:
    """Look at ids once, for several encodings of them.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.
        bounds: documents of a row and tokens of a document.

    Raises:
        DocumentIdsError: no integer tensor of two dimensions, or an empty one; values are left to the status.
        EncodingError: the bounds are none.

    Example:
        >>> scan_static(torch.tensor([[7, 7, 0, 4]]), StaticBounds(2, 4, 4)).first
        tensor([[0, 1, 1, 0, 4]])
    """
    require_instance(bounds, StaticBounds, "bounds", "Give StaticBounds(documents, segments, longest).")
    require_ids_form(document_ids, "document_ids")
    ids = pad(document_ids.to(torch.int64), (1, 0))
    numbers = torch.arange(-1, max(ids.shape[1], bounds.segments) + 2, device=ids.device)
    ordered, order = ids.sort(dim=1, stable=True)
    first = order.gather(1, torch.searchsorted(ordered, ids))
    none, one = (numbers[number : number + 1].expand_as(ids) for number in (1, 2))
    lengths = none.scatter_add(1, first, one)
    longest = min(bounds.longest, ids.shape[1])
    begins, too_long = (lengths[..., None] > numbers[1 : longest + 2 : longest]).unbind(-1)
    begun = begins.cumsum(1)
    return StaticScan(bounds, ids, numbers, first, begins, begun, begun > bounds.documents + 1, too_long)


def as_scan(document_ids: Tensor | StaticScan, bounds: StaticBounds) -> StaticScan:
    """Return a scan as it is, and scan ids.

    Raises:
        DocumentIdsError: as `scan_static`.
        EncodingError: the bounds are none, or not those of the scan.
    """
    if not isinstance(document_ids, StaticScan):
        return scan_static(document_ids, bounds)
    if not document_ids.bounds == bounds:  # noqa: SIM201 - `!=` of dataclasses cannot be traced
        remedy = "Give the bounds of the scan."
        raise EncodingError(Problem("bounds", "are not those of the scan", "value", value=bounds, remedy=remedy))
    return document_ids
