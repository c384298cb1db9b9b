"""The error where a second encoding of boundaries says something else than the document ids."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from neatpack.adapters.boundary_fields import READ_TOGETHER
from neatpack.contracts.errors import EncodingError, Problem, ProblemKind

Array: TypeAlias = npt.NDArray[Any]

_ONE_TRUTH: Final = "Boundaries come from the document ids alone:"
LEAVE_OUT: Final = f"{_ONE_TRUTH} leave this out, or derive both from the same ids."


def raise_first(name: str, wrong: npt.NDArray[np.bool_], values: Array | None, message: str) -> None:
    """Raise at the first place of rows or of one stream that is wrong, if there is one.

    Raises:
        EncodingError: there is one.
    """
    if wrong.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        *row, position = place
        value = None if values is None else values[place].item()
        raise disagreement(name, message, "disagreement", value, row[0] if row else None, position)


def disagreement(
    name: str,
    message: str,
    kind: ProblemKind,
    value: object = None,
    row: int | None = None,
    position: int | None = None,
) -> EncodingError:
    """Make the error; the way out is the same for all, but for entries that are not read one without the others."""
    together = next((names for names in READ_TOGETHER if name in names), ())
    of_all = f"{_ONE_TRUTH} leave out all of {', '.join(together)}, or derive them of these ids."
    return EncodingError(Problem(name, message, kind, row, position, value, of_all if together else LEAVE_OUT))
