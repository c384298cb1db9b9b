"""A fault in one piece of the implementation, and whether a property notices it."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest
from hypothesis.errors import Flaky

from neatpack.contracts.errors import PackingError
from tests.adapters.faults import Plant
from tests.adapters.properties import property_names, run_property

_CAUGHT: Final = (AssertionError, PackingError, pytest.fail.Exception, LookupError, ValueError, Flaky)
"""A property has noticed where it fails, also where a fault that is drawn anew fails only once, or where something
refuses or breaks."""


class Fault(NamedTuple):
    """One piece of the implementation, and what stands in its place."""

    name: str
    owner: Any
    piece: str
    plant: Plant


def cases(faults: dict[str, list[Fault]]) -> list[Any]:
    """Give every fault with the property that has to notice it, by name."""
    return [pytest.param(name, fault, id=f"{name}: {fault.name}") for name, all_ in faults.items() for fault in all_]


def require_noticed(name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault, and require that the property fails."""
    monkeypatch.setattr(fault.owner, fault.piece, fault.plant(getattr(fault.owner, fault.piece)))
    with pytest.raises(_CAUGHT):
        run_property(name, max_examples=500)


def properties_of(*modules: ModuleType) -> set[str]:
    """Name the properties of some modules of tests."""
    return {name for module in modules for name in vars(module) if name in property_names()}
