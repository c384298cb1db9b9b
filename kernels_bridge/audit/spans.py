"""How far the layers of a model reach, as its configuration and its modules tell: what documents have to be longer
than."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from torch import nn

from neatpack.kernels_bridge.models import text_config

_TELLING: Final = (
    "window",
    "chunk_size",
    "compress_rat",
    "compression_rat",
    "conv_kernel",
    "kernel_size",
    "d_conv",
    "l_cache",
)
"""What the names of fields hold that say how many places a layer sees, convolves, chunks or compresses."""

_OTHERS: Final = ("layer", "feed_forward")
"""What they hold where they count something else."""


@dataclass(frozen=True)
class Span:
    """How many places a layer reaches over, and the field that says so."""

    places: int
    told_by: str


def longest_span(model: nn.Module) -> Span | None:
    """Find the longest window, convolution, chunk or compression that a model tells of; None where it tells of none.

    Read are the fields of its text configuration and those of its modules, numbers or several of them, by their names.

    Example:
        >>> longest_span(nn.Sequential(nn.Conv1d(4, 4, kernel_size=3, dilation=5)))
        Span(places=11, told_by='0.kernel_size')
    """
    modules = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    found = [*_told_by(text_config(model), "", 1)]
    for name, module in modules:
        found += _told_by(module, f"{name}." if name else "", _dilation(module))
    return max(found, key=lambda span: span.places, default=None)


def most_positions(model: nn.Module) -> int | None:
    """The longest document that a model has positions for; None where it does not say."""
    most: object = getattr(text_config(model), "max_position_embeddings", None)
    return most if isinstance(most, int) else None


def _told_by(holder: object, prefix: str, dilation: int) -> Iterator[Span]:
    fields = cast("Mapping[str, object]", getattr(holder, "__dict__", {}))
    for name, value in fields.items():
        telling = any(word in name.lower() for word in _TELLING) and not any(word in name for word in _OTHERS)
        for number in _numbers(value) if telling else ():
            stretch = dilation if "kernel" in name else 1
            yield Span((number - 1) * stretch + 1, f"{prefix}{name}")


def _numbers(value: object) -> Iterable[int]:
    """The positive integers that a field holds."""
    values: Iterable[object] = (value,)
    if isinstance(value, Mapping):
        values = cast("Mapping[object, object]", value).values()
    elif isinstance(value, (list, tuple)):
        values = cast("Iterable[object]", value)
    return [one for one in values if isinstance(one, int) and not isinstance(one, bool) and one > 0]


def _dilation(module: nn.Module) -> int:
    dilation: object = getattr(module, "dilation", 1)
    return max(_numbers(dilation), default=1)
