"""Checks of plain arguments, counts and types, that many functions share."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Final, cast

from neatpack.contracts.errors import EncodingError, PackingError, Problem

INT32_MAX: Final = 2**31 - 1
"""Kernels take int32 offsets, so this is the most places that one batch may have."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def is_count(value: object) -> bool:
    """Tell whether a value is an int that can count something: not negative, and no bool."""
    return _is_integer(value) and int(cast("int", value)) >= 0


def require_count(
    value: object,
    field: str,
    remedy: str,
    *,
    least: int = 0,
    most: int = INT32_MAX,
    error: type[PackingError] = EncodingError,
) -> int:
    """Give an argument that must be an int from `least` to `most`, no bool, as a Python int.

    Raises:
        EncodingError: it is something else; or `error`.

    Example:
        >>> require_count(2.5, "ranks", "Give the size of the group.", least=1)
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.EncodingError: ranks = 2.5: must be an int from 1 to 2147483647. Give the size of \
the group.
    """
    if not _is_integer(value) or not least <= cast("int", value) <= most:
        raise error(Problem(field, f"must be an int from {least} to {most}", "value", value=value, remedy=remedy))
    return int(cast("int", value))


def require_instance(
    value: object,
    kind: type[Any] | tuple[type[Any], ...],
    field: str,
    remedy: str,
    *,
    error: type[PackingError] = EncodingError,
) -> None:
    """Raise unless an argument is of a type, or of one of several.

    Raises:
        EncodingError: it is of another; or `error`.
    """
    if not isinstance(value, kind):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise error(Problem(field, f"must be a {names}", "type", value=type(value).__name__, remedy=remedy))


def require_pad_token(pad_token_id: object, error: type[PackingError]) -> None:
    """Raise unless a token for padding is an int that int64 holds.

    Raises:
        PackingError: `error`.
    """
    remedy = "Give any token, that of the end of a text for example: padding is known by document id 0."
    require_count(pad_token_id, "pad_token_id", remedy, least=INT64_MIN, most=INT64_MAX, error=error)


def _is_integer(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, Integral))
