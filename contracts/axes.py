"""What each dimension of a field means. Validators, documentation and strategies all read it from here.

An annotation such as `Annotated[TensorT, Axes("batch", "sequence", dtype="int64")]` is transparent to type
checkers and is found at run time by `field_axes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args, get_origin

from typing_extensions import get_type_hints

DtypeRule = Literal["int64", "int32", "integer", "bool", "floating", "mask", "any"]
"""`integer` is any integer dtype and not bool; `mask` is bool or floating point; the rest name themselves."""

_INTEGERS: Final = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
_ACCEPTED: Final[dict[DtypeRule, tuple[str, ...]]] = {
    "int64": ("int64",),
    "int32": ("int32",),
    "integer": _INTEGERS,
    "bool": ("bool",),
    "floating": _FLOATS,
    "mask": ("bool", *_FLOATS),
}


@dataclass(frozen=True)
class Axes:
    """The dimensions of a tensor field, in order, with its dtype, its fill value and what it counts.

    Attributes:
        names: one name per dimension. Equal names of one batch have equal sizes; a decimal name is a fixed size.
        dtype: the dtypes that are accepted.
        fill: the value of unused entries, or None where there are none.
        unit: what one entry holds.

    Example:
        >>> Axes("batch", "sequence", dtype="int64", unit="document id")
        Axes(names=('batch', 'sequence'), dtype='int64', fill=None, unit='document id')
    """

    names: tuple[str, ...]
    dtype: DtypeRule
    fill: int | None
    unit: str

    def __init__(self, *names: str, dtype: DtypeRule = "any", fill: int | None = None, unit: str = "") -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "fill", fill)
        object.__setattr__(self, "unit", unit)

    def __str__(self) -> str:
        return f"{self.dtype_words} [{', '.join(self.names)}]"

    @property
    def dtype_words(self) -> str:
        """The accepted dtypes, in words that say what to convert to."""
        return "bool or floating" if self.dtype == "mask" else self.dtype

    def accepts_dtype(self, name: str) -> bool:
        """Tell whether a tensor of the dtype called `name` (`"int64"`, `"bool"`, ...) may stand here."""
        return self.dtype == "any" or name in _ACCEPTED[self.dtype]


@dataclass(frozen=True)
class Count:
    """A plain Python int, never a tensor: a kernel that is given one needs no read from the device.

    Example:
        >>> Count(unit="tokens", minimum=0)
        Count(unit='tokens', minimum=0)
    """

    unit: str
    minimum: int = 0


@dataclass(frozen=True)
class FieldRule:
    """What one field of a batch or of an encoding may hold: one of several tensors, or a count.

    Attributes:
        axes: the accepted tensors; more than one where a field has several forms.
        count: set where the field is a Python int.
        required: whether the field must be there.
    """

    axes: tuple[Axes, ...]
    count: Count | None
    required: bool


def field_axes(owner: type) -> dict[str, FieldRule]:
    """Read the rules of every annotated field of a TypedDict or dataclass, in the order of definition.

    Args:
        owner: a class of `neatpack.contracts.batch` or `neatpack.contracts.encodings`, or a subclass of one.

    Example:
        >>> from neatpack.contracts.encodings import FlashVarlenKwargs
        >>> str(field_axes(FlashVarlenKwargs)["cu_seq_lens_q"].axes[0])
        'int32 [segment_boundaries]'
    """
    optional: frozenset[str] = getattr(owner, "__optional_keys__", frozenset())
    rules: dict[str, FieldRule] = {}
    for name, hint in get_type_hints(owner, include_extras=True).items():
        metadata = tuple(_metadata(hint))
        axes = tuple(item for item in metadata if isinstance(item, Axes))
        counts = tuple(item for item in metadata if isinstance(item, Count))
        if axes or counts:
            rules[name] = FieldRule(axes, counts[0] if counts else None, name not in optional)
    return rules


def axes_table(owner: type) -> str:
    """Draw the fields of a TypedDict or dataclass as a Markdown table, for the documentation.

    Example:
        >>> from neatpack.contracts.encodings import GatheredFlat
        >>> print(axes_table(GatheredFlat))
        | field | type | fill | holds |
        |---|---|---|---|
        | `token_indices` | int64 [tokens] |  | index into the flattened batch * sequence |
        | `cu_seqlens` | int32 [boundaries] |  | gathered offset, all rows in one stream |
        | `max_seqlen` | int |  | tokens |
    """
    lines = ["| field | type | fill | holds |", "|---|---|---|---|"]
    for name, rule in field_axes(owner).items():
        kinds = " or ".join(str(axes) for axes in rule.axes) or "int"
        fill = next((str(axes.fill) for axes in rule.axes if axes.fill is not None), "")
        unit = rule.count.unit if rule.count else rule.axes[0].unit
        lines.append(f"| `{name}` | {kinds} | {fill} | {unit} |")
    return "\n".join(lines)


def _metadata(hint: object) -> Iterator[object]:
    """Yield the metadata of `Annotated`, looking through NotRequired, ReadOnly and unions."""
    if get_origin(hint) is Annotated:
        base, *metadata = get_args(hint)
        yield from metadata
        yield from _metadata(base)
    else:
        for argument in get_args(hint):
            yield from _metadata(argument)
