"""Checks of plain arguments, counts, types and tensors, that many functions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.contracts.errors import EncodingError, PackingError, PlanError, Problem

INT32_MAX: Final = 2**31 - 1
"""Kernels take int32 offsets, so this is the most places that one batch may have."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

COMPARED_DTYPES: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""The integer dtypes that torch can order."""

SIGNED_DTYPES: Final = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""The integer dtypes of which torch orders and moves no values, and as what their bits are moved."""

INTEGER_DTYPES: Final = (*COMPARED_DTYPES, *SIGNED_DTYPES)


def is_count(value: object) -> bool:
    """Tell whether a value is an int that can count something: not negative, and no bool."""
    return is_integer(value) and int(cast("int", value)) >= 0


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
    if not is_integer(value) or not least <= cast("int", value) <= most:
        message = f"must be an int from {least} to {most}"
        raise error(Problem(field, message, "value", value=shown(value), remedy=int_remedy(value, remedy)))
    return int(cast("int", value))


def shown(value: object) -> object:
    """Give what an error shows of a value that is no number: words in quotes, since "2" reads as 2, as arrays do."""
    return repr(cast("object", value)) if isinstance(value, (str, np.ndarray)) else value


def int_remedy(value: object, remedy: str) -> str:
    """Give the way out where `value` is no int: of a tensor or array of one int its item, and else `remedy`."""
    return "Give a Python int: value.item()." if _holds_one(value, "iu") else remedy


def number_remedy(value: object, remedy: str) -> str:
    """Give the way out where `value` is no number: of a tensor or array of one number its item, and else `remedy`."""
    return "Give a Python number: value.item()." if _holds_one(value, "iuf") else remedy


def _holds_one(value: object, kinds: str) -> bool:
    """Tell whether a tensor or array has no dimension, and holds one of these kinds, which numpy names by letters."""
    if isinstance(value, Tensor):
        is_float = value.is_floating_point() and "f" in kinds
        return value.ndim == 0 and (is_float or value.dtype in INTEGER_DTYPES)
    return isinstance(value, np.ndarray) and value.ndim == 0 and cast("npt.NDArray[Any]", value).dtype.kind in kinds


def require_places(batch: int, sequence_length: int) -> None:
    """Raise unless a batch of this size has places, and no more than int32 offsets can count.

    Raises:
        EncodingError: it has none or too many.
    """
    sequence_length = require_count(sequence_length, "sequence_length", "Give the places of a row.", least=1)
    if batch < 1 or batch * sequence_length > INT32_MAX:
        message = f"must make a batch of 1 to {INT32_MAX} places"
        remedy = "Give at least one row, and cut a batch that is larger along its rows."
        raise EncodingError(Problem("sequence_length", message, "value", value=(batch, sequence_length), remedy=remedy))


def too_many_places(field: str, shape: tuple[int, ...]) -> Problem:
    """Say that a batch of this shape has more places than int32 offsets can count."""
    message = f"has more places than int32 offsets can count, {INT32_MAX}"
    return Problem(field, message, "shape", value=shape, remedy="Cut the batch along its rows.")


def require_flag(value: object, field: str, *, error: type[PackingError] = EncodingError) -> None:
    """Raise unless an argument is a bool.

    Raises:
        EncodingError: it is something else; or `error`.
    """
    require_instance(value, bool, field, "Give True or False.", error=error)


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
        names = [each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,))]
        name = type(value).__name__
        found = f"{type(value).__module__}.{name}" if name in names else name
        article = "an" if names[0].startswith("A") else "a"
        raise error(Problem(field, f"must be {article} {' or '.join(names)}", "type", value=found, remedy=remedy))


def require_list(value: object, field: str, remedy: str) -> None:
    """Raise unless an argument of a plan is a sequence, or an array with an axis.

    Raises:
        PlanError: it is something else.
    """
    require_instance(value, (Sequence, np.ndarray), field, remedy, error=PlanError)
    require_unmasked(value, field)
    if isinstance(value, np.ndarray) and not value.ndim:
        raise PlanError(Problem(field, "must have an axis", "shape", value=(), remedy=remedy))


def require_unmasked(value: object, field: str) -> None:
    """Raise where an argument of a plan is an array of numpy's that hides some of its values.

    Raises:
        PlanError: it is.
    """
    if isinstance(value, np.ma.MaskedArray):
        remedy = "Give what it shows: array.compressed()."
        raise PlanError(Problem(field, "must not be masked", "type", value="MaskedArray", remedy=remedy))


def is_choice(value: object, choices: tuple[str, ...]) -> bool:
    """Tell whether a value is one of several words. An array, which compares value by value, is none."""
    return isinstance(value, str) and value in choices


def require_choice(
    value: object, choices: tuple[str, ...], field: str, *, error: type[PackingError] = EncodingError
) -> None:
    """Raise unless an argument is one of several words.

    Raises:
        EncodingError: it is something else; or `error`.
    """
    if not is_choice(value, choices):
        remedy = f"Give one of {', '.join(map(repr, choices))}."
        raise error(Problem(field, "is no such choice", "value", value=repr(value), remedy=remedy))


_STRIDED: Final = torch.strided

_REMEDIES_BY_TYPE: Final = {
    "DTensor": "Give what this rank is to work on: {field}.to_local(), or {field}.full_tensor().",
    "MaskedTensor": "Say what stands where it is masked: {field}.to_tensor(0).",
}
"""Of subclasses of torch's own that do not mix with plain tensors, by name, so that none need be imported."""


def tensor_problems(value: object, field: str, *, data: bool = True) -> list[Problem]:
    """List what keeps a value from being a torch tensor whose values can be looked at.

    Args:
        value: anything.
        field: what the problems call it.
        data: whether a tensor without data, on the meta device, is refused as well.
    """
    if not isinstance(value, Tensor):
        found = type(value).__name__
        hides = isinstance(value, np.ma.MaskedArray)
        listed = isinstance(value, (list, tuple, np.ndarray)) and not hides
        remedy = "Convert it: torch.tensor(...)." if listed else "Give a tensor."
        return [Problem(field, "must be a torch.Tensor", "type", value=found, remedy=remedy)]
    if value.is_nested or value.layout is not _STRIDED or value.is_quantized:
        sort = "nested" if value.is_nested else value.dtype if value.is_quantized else value.layout
        remedy = "Pad its rows to one length." if value.is_nested else f"Convert it: {field}.to_dense()."
        if value.is_quantized:
            remedy = f"Convert it: {field}.dequantize()."
        return [Problem(field, "must be a dense tensor", "type", value=sort, remedy=remedy)]
    if type(value) is not Tensor and (found := type(value).__name__) in _REMEDIES_BY_TYPE:
        remedy = _REMEDIES_BY_TYPE[found].format(field=field)
        return [Problem(field, "must be a plain tensor", "type", value=found, remedy=remedy)]
    if data and value.is_meta:
        remedy = "Give a tensor that lies on a real device."
        return [Problem(field, "is a meta tensor, without data", "device", value="meta", remedy=remedy)]
    return []


def require_readable(**tensors: object) -> None:
    """Raise where an argument, named by its keyword, is no torch tensor whose values can be read.

    Raises:
        EncodingError: with every problem.
    """
    problems = [problem for field, value in tensors.items() for problem in tensor_problems(value, field)]
    if problems:
        raise EncodingError(*problems)


def repeated(names: Iterable[str]) -> list[str]:
    """List the names that come more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def require_pad_token(pad_token_id: object, error: type[PackingError]) -> None:
    """Raise unless a token for padding is an int that int64 holds.

    Raises:
        PackingError: `error`.
    """
    remedy = "Give any token, that of the end of a text for example: padding is known by document id 0."
    require_count(pad_token_id, "pad_token_id", remedy, least=INT64_MIN, most=INT64_MAX, error=error)


_NO_NUMBERS: Final = (bool, np.timedelta64)
"""What Python and numpy take for integers."""


def is_integer(value: object) -> bool:
    """Tell whether a value is an int, numpy's included, and neither a bool nor a time."""
    return isinstance(value, (int, Integral)) and not isinstance(value, _NO_NUMBERS)


def is_number(value: object) -> bool:
    """Tell whether a value is a real number, numpy's included, and neither a bool nor a time."""
    return isinstance(value, Real) and not isinstance(value, _NO_NUMBERS)
