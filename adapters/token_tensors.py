"""Checks of tensors that hold one value per token, and of the shape and device that such tensors share."""

from __future__ import annotations

import torch
from torch import Tensor

from neatpack.adapters.arguments import INTEGER_DTYPES, SIGNED_DTYPES, tensor_problems
from neatpack.contracts.errors import BatchError, Problem


def integer_rows_problems(value: object, field: str) -> list[Problem]:
    """List what keeps a value from being a nonempty integer tensor `[batch, sequence]` with data."""
    problems = tensor_problems(value, field)
    if problems or not isinstance(value, Tensor):
        return problems
    if value.dtype not in INTEGER_DTYPES:
        return [Problem(field, "must hold integers", "dtype", value=value.dtype, remedy="Convert it to int64.")]
    if value.ndim != 2 or value.numel() == 0:
        message = "must be [batch, sequence] and not empty"
        return [Problem(field, message, "rank", value=tuple(value.shape), remedy=_rows_remedy(value, field))]
    return []


def _rows_remedy(value: Tensor, field: str) -> str:
    """Say what to give instead: of positions of several axes, where text positions are among them."""
    if field != "position_ids" or value.ndim != 3:
        return "Give one value per token; one row alone is [1, sequence]."
    if value.shape[0] == 4:
        return "Give the text positions alone, the first of the four axes: position_ids[0]."
    return "Several axes tell no documents apart: give text positions, or call document_ids_from_lengths(...)."


def bool_rows_problems(value: object, field: str, remedy: str) -> list[Problem]:
    """List what keeps a value from being a bool tensor `[batch, sequence]` with data."""
    problems = tensor_problems(value, field)
    if problems or not isinstance(value, Tensor):
        return problems
    message = "must be a bool tensor [batch, sequence]"
    if value.dtype != torch.bool:
        return [Problem(field, message, "dtype", value=value.dtype, remedy=remedy)]
    if value.ndim != 2:
        return [Problem(field, message, "rank", value=tuple(value.shape), remedy=remedy)]
    return []


def padding_mask_problems(padding_mask: object) -> list[Problem]:
    """List what keeps a value from being a padding mask, bool `[batch, sequence]` with data."""
    return bool_rows_problems(padding_mask, "padding_mask", "Give True at padding, for every place of the rows.")


def padded_rows_problems(value: object, padding_mask: Tensor | None, field: str) -> list[Problem]:
    """List what keeps a value from being integers as `integer_rows_problems`, or a mask from marking their padding."""
    problems = integer_rows_problems(value, field)
    if problems or padding_mask is None or not isinstance(value, Tensor):
        return problems
    problems = padding_mask_problems(padding_mask)
    return problems or same_place_problems(padding_mask, value, "padding_mask", field)


def same_place_problems(value: Tensor, reference: Tensor, field: str, reference_field: str) -> list[Problem]:
    """List how a tensor differs from another in shape or device."""
    if value.shape != reference.shape:
        message = f"must have the shape of {reference_field}, {tuple(reference.shape)}"
        remedy = "Give one value per token, for the same tokens."
        return [Problem(field, message, "shape", value=tuple(value.shape), remedy=remedy)]
    return device_problems(value, reference.device, field, f"{reference_field} lies")


def device_problems(value: Tensor, device: torch.device, field: str, lies: str) -> list[Problem]:
    """List that a tensor lies elsewhere than on a device; `lies` names what lies there, with the verb."""
    if value.device == device:
        return []
    message = f"must lie where {lies}, on {device}"
    remedy = "Give a tensor that lies on a real device." if value.is_meta else f"Move it: {field}.to(...)."
    return [Problem(field, message, "device", value=value.device, remedy=remedy)]


def require_values(values: object, shape: tuple[int, int], remedy: str) -> None:
    """Raise unless `values` are a tensor that begins with the shape of the ids.

    Raises:
        BatchError: they are not.
    """
    problems = tensor_problems(values, "values", data=False)
    if not problems and isinstance(values, Tensor) and tuple(values.shape[:2]) != shape:
        message = f"must begin with the shape of the document ids, {shape}"
        problems = [Problem("values", message, "shape", value=tuple(values.shape), remedy=remedy)]
    if problems:
        raise BatchError(*problems)


def dtype_problems(name: str, value: Tensor) -> list[Problem]:
    """List what keeps the values of a tensor from being taken to other places: torch has no such function for all."""
    narrow_float = value.is_floating_point() and value.dtype.itemsize == 1
    if narrow_float or value.dtype in SIGNED_DTYPES:
        remedy = "Convert it: torch moves no tokens of this dtype."
        return [Problem(name, "has a dtype that cannot be moved", "dtype", value=value.dtype, remedy=remedy)]
    return []


def holds(dtype: torch.dtype, number: int) -> bool:
    """Tell whether a dtype has a number, in floating point at least one near it."""
    if dtype == torch.bool:
        return number in (0, 1)
    limits = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return limits.min <= number <= limits.max
