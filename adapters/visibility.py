"""Who sees whom. No other module decides it: masks, block masks and checks all ask here.

A token sees the tokens of its own document within the window, if there is one, and under a causal mask none that
come after it. A token of no document, padding or a hole, sees itself alone and is seen by no other: a softmax over
nothing would be NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from neatpack.adapters.arguments import COMPARED_DTYPES, require_count, require_flag, require_instance, tensor_problems
from neatpack.adapters.segments import Segments
from neatpack.contracts.errors import EncodingError, Problem


@dataclass(frozen=True)
class VisibleSquare:
    """The places of one row, `start` to `stop`, among which tokens see each other; outside of it they see none."""

    row: int
    start: int
    stop: int


def sees(
    query_ids: Tensor,
    key_ids: Tensor,
    query_places: Tensor,
    key_places: Tensor,
    *,
    window: int | None = None,
    causal: bool = True,
) -> Tensor:
    """Tell for each query and key, by broadcasting, whether the query sees the key.

    Args:
        query_ids: document ids of the queries, 0 for those of no document.
        key_ids: document ids of the keys.
        query_places: places of the queries in their row.
        key_places: places of the keys in the same row.
        window: how many places a query sees, its own included; None for no limit. Without a causal mask it sees as
            many places after its own.
        causal: whether a query sees no key that comes after it.

    Returns:
        bool, in the shape that the arguments broadcast to.

    Raises:
        EncodingError: the window is not a positive int, `causal` no bool, or an argument no integer tensor of a fitting
            shape.

    Example:
        >>> import torch
        >>> ids, places = torch.tensor([1, 1, 2, 0]), torch.arange(4)
        >>> sees(ids[:, None], ids, places[:, None], places).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 0, 1]], dtype=torch.int32)
    """
    window = require_window(window)
    require_flag(causal, "causal")
    _require_integers(query_ids=query_ids, key_ids=key_ids, query_places=query_places, key_places=key_places)
    # Nothing is written in place: compiled attention takes this function apart.
    visible = (query_ids == key_ids) & (key_ids != 0)
    if causal:
        visible = visible & (key_places <= query_places)
    if window is not None:
        distance = _signed(query_places) - _signed(key_places)
        visible = visible & (distance < window) & (distance > -window)
    return visible | (query_places == key_places)


def seen_range(
    query_places: Tensor, starts: Tensor, stops: Tensor, *, window: int | None = None, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Give the first and the last place that queries see, as if their documents had no hole.

    Neither ever falls from a query to the next one: documents follow each other.

    Args:
        query_places: places of queries that belong to a document.
        starts: where the document of each query begins.
        stops: where it has ended.
        window: as `sees`.
        causal: as `sees`.

    Returns:
        Two tensors in the shape of `query_places`, int64.

    Raises:
        EncodingError: the window is not a positive int, `causal` no bool, or an argument no integer tensor of a fitting
            shape.

    Example:
        >>> import torch
        >>> places = torch.arange(3, 8)
        >>> first, last = seen_range(places, torch.tensor(3), torch.tensor(8), window=2)
        >>> first.tolist(), last.tolist()
        ([3, 3, 4, 5, 6], [3, 4, 5, 6, 7])
    """
    window = require_window(window)
    require_flag(causal, "causal")
    _require_integers(query_places=query_places, starts=starts, stops=stops)
    for field, value in (("starts", starts), ("stops", stops)):
        if not _expands(value, query_places):
            raise _misshapen(field, value, "query_places", query_places, "Give one value per query.")
    # A place of a narrow dtype could not be moved by the window, and one number may lie on the host.
    query_places, starts, stops = (each.to(query_places.device, torch.int64) for each in (query_places, starts, stops))
    first, last = starts.expand_as(query_places), stops.expand_as(query_places) - 1
    if window is not None:
        first = torch.maximum(first, query_places - (window - 1))
        last = torch.minimum(last, query_places + (window - 1))
    return first, query_places if causal else last


def visible_squares(segments: Segments, *, chunk: int | None = None) -> Iterator[VisibleSquare]:
    """Give the squares of the `[sequence, sequence]` plane of each row outside which nothing but the diagonal is seen.

    Args:
        segments: scanned ids.
        chunk: cut each document into chunks of so many places from its start, in which attention stays; None for none.

    Raises:
        EncodingError: the segments are none, or the chunk is no positive int.

    Example:
        >>> import torch
        >>> from neatpack.adapters.segments import scan_segments
        >>> list(visible_squares(scan_segments(torch.tensor([[0, 4, 4]]))))
        [VisibleSquare(row=0, start=1, stop=3)]
    """
    require_instance(segments, Segments, "segments", "Call as_segments(document_ids).")
    return _squares(segments, require_chunk(chunk))


def _squares(segments: Segments, chunk: int | None) -> Iterator[VisibleSquare]:
    documents = segments.documents
    for row, start, stop in zip(
        documents.rows.tolist(), documents.starts.tolist(), documents.ends.tolist(), strict=True
    ):
        for first in range(start, stop, chunk or stop - start):
            after = min(first + chunk, stop) if chunk else stop
            yield VisibleSquare(row, first - row * segments.sequence, after - row * segments.sequence)


def fill_visible(plane: Tensor, window: int | None = None) -> None:
    """Set the square of one document, bool `[n, n]`, to what its tokens see of each other, as if it had no hole.

    What the first `m` see of each other is the square of a document of `m` tokens.

    Example:
        >>> import torch
        >>> plane = torch.zeros(3, 3, dtype=torch.bool)
        >>> fill_visible(plane, window=2)
        >>> plane.int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    window = require_window(window)
    plane.fill_(True).tril_()
    if window is not None:
        plane.triu_(1 - window)


def _signed(places: Tensor) -> Tensor:
    """Give places in a dtype that holds every difference of two, and every window; compiled attention has int32."""
    return places if places.dtype == torch.int32 else places.to(torch.int64)


def _require_integers(**arguments: Tensor) -> None:
    """Raise unless all are integers whose shapes broadcast against one another."""
    seen: dict[str, Tensor] = {}
    for field, value in arguments.items():
        problems = tensor_problems(value, field, data=False)
        if not problems and value.dtype not in COMPARED_DTYPES:
            message = "must hold integers that torch can order"
            problems = [Problem(field, message, "dtype", value=value.dtype, remedy="Convert it to int64.")]
        if problems:
            raise EncodingError(*problems)
        for other, known in seen.items():
            if value.device != known.device and value.ndim and known.ndim:
                message = f"must lie where {other} lies, on {known.device}"
                raise EncodingError(
                    Problem(field, message, "device", value=value.device, remedy=f"Move it: {field}.to(...).")
                )
            if not _broadcasts(value, known):
                remedy = "Give one value per query and per key, with a dimension of 1 for the other."
                raise _misshapen(field, value, other, known, remedy)
        seen[field] = value


def _broadcasts(value: Tensor, other: Tensor) -> bool:
    sizes = zip(value.shape[::-1], other.shape[::-1], strict=False)
    return all(size in (1, known) or known == 1 for size, known in sizes)


def _expands(value: Tensor, other: Tensor) -> bool:
    sizes = zip(value.shape[::-1], other.shape[::-1], strict=False)
    return value.ndim <= other.ndim and all(size in (1, known) for size, known in sizes)


def _misshapen(field: str, value: Tensor, other: str, known: Tensor, remedy: str) -> EncodingError:
    message = f"does not broadcast to {other}, which is {tuple(known.shape)}"
    return EncodingError(Problem(field, message, "shape", value=tuple(value.shape), remedy=remedy))


def require_chunk(chunk: object) -> int | None:
    """Give a chunk as a Python int, or None; it must be positive, and int32 must hold it.

    Raises:
        EncodingError: it is something else.
    """
    remedy = "Give the places of a chunk, or None where attention is not cut into chunks."
    return None if chunk is None else require_count(chunk, "chunk", remedy, least=1)


def require_window(window: object) -> int | None:
    """Give a window as a Python int, or None; it must be positive, and int32 must hold it.

    Raises:
        EncodingError: it is something else.
    """
    remedy = "Give how many places a query sees, its own included, or None for no limit."
    return None if window is None else require_count(window, "window", remedy, least=1)
