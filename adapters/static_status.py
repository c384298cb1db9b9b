"""What ids did wrong, told in a tensor by every function of fixed shapes, and read when the caller chooses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import torch
from torch import Tensor

from neatpack.adapters.arguments import require_readable
from neatpack.adapters.host_arrays import read_on_host
from neatpack.adapters.static_scan import StaticScan
from neatpack.contracts.errors import DocumentIdsError, EncodingError, PackingError, Problem


class StaticRule(IntEnum):
    """What a status tells."""

    VALID = 0
    NEGATIVE_ID = 1
    RETURNING_ID = 2
    HOLE = 3
    LEADING_PADDING = 4
    TOO_MANY_DOCUMENTS = 5
    TOO_LONG = 6
    TOO_MANY_SEGMENTS = 7


def raise_if_invalid(status: Tensor, field: str = "document_ids") -> None:
    """Read a status, and raise if a rule was broken.

    Args:
        status: int32 `[4]`, the second result of a static function. It is read from its device here.
        field: what errors call the ids.

    Raises:
        DocumentIdsError: the ids are malformed, or what the encoding cannot express.
        EncodingError: they exceed a bound, or the status is none.

    Example:
        >>> from neatpack.adapters import StaticBounds, static_position_ids
        >>> _, status = static_position_ids(torch.tensor([[1, 2, 1]]), StaticBounds(3, 3, 3))
        >>> raise_if_invalid(status)
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.DocumentIdsError: document_ids[row 0, position 2] = 1: id comes back after another \
id. Give each document of a row an id of its own, and keep its tokens together.
    """
    remedy = "Give the second result of a static function."
    require_readable(status=status)
    form = (status.dtype, tuple(status.shape))
    if form != (torch.int32, (4,)):
        raise EncodingError(Problem("status", "must be int32 [4]", "shape", value=form, remedy=remedy))
    told = read_on_host(status, "status")
    code, row, position, value = (int(number) for number in told)
    if code not in _FAULTS and code != StaticRule.VALID:
        raise EncodingError(Problem("status", "tells no rule", "value", value=code, remedy=remedy))
    if code != StaticRule.VALID:
        error, message, remedy = _FAULTS[StaticRule(code)]
        raise error(Problem(field, message, "value", row, position, value, remedy))


def first_fault(scan: StaticScan, faults: Mapping[StaticRule, Tensor]) -> Tensor:
    """Give the status: the first place where a rule is broken, a bound or one of the faults of the encoding.

    Args:
        scan: of the ids.
        faults: bool `[batch, sequence]` for each rule that the encoding adds to negative ids and long documents.
    """
    values = scan.ids[:, 2:].clamp(-(2**31), 2**31 - 1)
    marks = {
        StaticRule.NEGATIVE_ID: values.view(torch.uint8)[:, _HIGH_BYTE::8],
        StaticRule.TOO_LONG: scan.too_long,
        **faults,
    }
    marked = torch.stack([marks.get(rule, scan.nowhere).view(torch.uint8) for rule in StaticRule], -1)
    # The place and the rule of the first mark; where there is none, zeros, which are the first place, and no rule.
    found = marked.nonzero_static(size=1, fill_value=0)
    where = found.view(torch.int32)[0, _LOW_HALF::2]
    value = values[found[:, 0], found[:, 1]].view(torch.int32)[_LOW_HALF::2]
    return torch.cat([where[2:], where[:2], value])


_LITTLE: Final = sys.byteorder == "little"
_HIGH_BYTE: Final = 7 if _LITTLE else 0
_LOW_HALF: Final = 0 if _LITTLE else 1
"""Which byte of an int64 holds its sign, and which half the number: to view them starts no kernel."""

_ID: Final = "Use 0 for padding and a positive number for each document."
_BOUND: Final = "Give a greater bound, or fewer or shorter documents: nothing is truncated."
_FAULTS: Final[dict[StaticRule, tuple[type[PackingError], str, str]]] = {
    StaticRule.NEGATIVE_ID: (DocumentIdsError, "negative id", _ID),
    StaticRule.RETURNING_ID: (
        DocumentIdsError,
        "id comes back after another id",
        "Give each document of a row an id of its own, and keep its tokens together.",
    ),
    StaticRule.HOLE: (
        DocumentIdsError,
        "the document goes on after a hole, zeros inside it, which lengths and offsets over padded rows cannot express",
        "Use NEAT metadata or a mask, which leave holes out.",
    ),
    StaticRule.LEADING_PADDING: (
        DocumentIdsError,
        "padding before the first document, which lengths cannot express",
        "Pad rows on the right.",
    ),
    StaticRule.TOO_MANY_DOCUMENTS: (EncodingError, "the row has more documents than the bound", _BOUND),
    StaticRule.TOO_LONG: (EncodingError, "the document that begins here is longer than the bound", _BOUND),
    StaticRule.TOO_MANY_SEGMENTS: (EncodingError, "the batch has more segments than the bound", _BOUND),
}
