"""Every public function shows how it is called, and says what it raises."""

from __future__ import annotations

import doctest
import inspect
from types import FunctionType

import pytest

import neatpack
from neatpack import adapters, contracts, kernels_bridge
from neatpack.adapters import strategies

FUNCTIONS: dict[str, FunctionType] = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (contracts, adapters, kernels_bridge, strategies)
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
}

RAISE_NOTHING = {
    "neatpack.contracts.unwrap",
    "neatpack.contracts.axes_table",
    "neatpack.contracts.field_axes",
    "neatpack.kernels_bridge.consumer_names",
}
"""Beside the checks that list problems or answer yes or no."""

EVERY_FUNCTION = pytest.mark.parametrize("name", FUNCTIONS)

MADE = [name for name, function in FUNCTIONS.items() if function.__code__.co_name in {"validate", "is_", "parse"}]
"""Checks that are made by a function: what collects doctests from modules does not find theirs."""


@EVERY_FUNCTION
def test_its_docstring_has_an_example(name: str) -> None:
    assert ">>> " in (FUNCTIONS[name].__doc__ or "")


@EVERY_FUNCTION
def test_its_docstring_says_what_it_raises(name: str) -> None:
    if name not in RAISE_NOTHING and not name.rpartition(".")[2].startswith(("validate_", "is_")):
        assert "\n    Raises:\n" in (FUNCTIONS[name].__doc__ or "")


def test_examples_of_checks_that_are_made_run() -> None:
    assert len(MADE) == 33
    runner = doctest.DocTestRunner(verbose=False)
    for name in MADE:
        (example,) = doctest.DocTestFinder(recurse=False).find(FUNCTIONS[name], name, globs=vars(neatpack).copy())
        assert runner.run(example).failed == 0
