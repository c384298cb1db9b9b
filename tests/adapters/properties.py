"""Property tests that can be run again with a fault planted, to see that they would have caught it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from torch import Tensor

_PROPERTIES: Final[dict[str, tuple[Callable[..., None], dict[str, SearchStrategy[object]]]]] = {}


def holds_for(**strategies: SearchStrategy[object]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make a hypothesis test of a check, and remember both under the check's name."""

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        _PROPERTIES[check.__name__] = check, strategies
        return given(**strategies)(check)

    return decorate


def property_names() -> frozenset[str]:
    """Name every property that was made."""
    return frozenset(_PROPERTIES)


def run_property(name: str, max_examples: int) -> None:
    """Run a property again, always on the same examples, and stop at the first that fails without shrinking it."""
    check, strategies = _PROPERTIES[name]
    same = settings(
        max_examples=max_examples,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    same(given(**strategies)(check))()


def listed(tensor: Tensor) -> Any:
    """Give a tensor's values as nested lists, to compare them with lists."""
    return cast("Any", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def rows_of(ids: Tensor) -> list[list[int]]:
    """Give ids as lists, of whatever integer dtype."""
    return cast("list[list[int]]", listed(ids.to(torch.int64)))
