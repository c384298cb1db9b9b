"""Stand-ins for tensors, so that the core is tested where no tensor library is installed."""

from __future__ import annotations

from dataclasses import dataclass

from neatpack.contracts import Axes, FieldRule

EXACT_DTYPES = {"integer": "int64", "floating": "float32", "mask": "bool", "any": "int64"}


@dataclass(frozen=True)
class FakeTensor:
    """A shape and a dtype, and nothing to read."""

    shape: tuple[int, ...]
    dtype: str


def tensor_for(axes: Axes, sizes: dict[str, int]) -> FakeTensor:
    """Make a tensor that `axes` accepts, drawing the sizes of the dimensions from `sizes`."""
    shape = tuple(int(name) if name.isdecimal() else sizes[name] for name in axes.names)
    return FakeTensor(shape, EXACT_DTYPES.get(axes.dtype, axes.dtype))


def value_for(rule: FieldRule, sizes: dict[str, int], form: int = 0) -> object:
    """Make a value that `rule` accepts; `form` picks one where a field has several."""
    if rule.count is not None:
        return rule.count.minimum + 7
    return tensor_for(rule.axes[form % len(rule.axes)], sizes)
