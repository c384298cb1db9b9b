"""Public names follow one grammar, and each is listed where it lives."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

import pytest

import neatpack
from neatpack import contracts
from tests.environments import PACKAGE_FOLDERS

PACKAGES = [importlib.import_module(f"neatpack.{folder}") for folder in PACKAGE_FOLDERS]
EVERYWHERE = pytest.mark.parametrize("package", [neatpack, *PACKAGES], ids=lambda package: package.__name__)

CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
CLASS = re.compile(r"([A-Z][a-z0-9]*|[A-Z0-9]+)+")
FUNCTION = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def public_names(package: ModuleType) -> list[str]:
    return [name for name in package.__all__ if name != "__version__"]


@EVERYWHERE
def test_names_are_listed_once_and_exist(package: ModuleType) -> None:
    names = package.__all__
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(package, name)] == []


@EVERYWHERE
def test_names_say_what_they_are(package: ModuleType) -> None:
    wrong: list[str] = []
    for name in public_names(package):
        value = getattr(package, name)
        if inspect.isroutine(value):
            grammar = FUNCTION
        elif isinstance(value, (str, int, float, tuple, frozenset)):
            grammar = CONSTANT
        elif inspect.ismodule(value):
            grammar = FUNCTION
        else:
            grammar = CLASS
        if not grammar.fullmatch(name):
            wrong.append(name)
    assert wrong == []


@EVERYWHERE
def test_public_functions_and_classes_are_documented(package: ModuleType) -> None:
    documented = (getattr(package, name) for name in public_names(package))
    things = [thing for thing in documented if inspect.isroutine(thing) or inspect.isclass(thing)]
    assert [thing.__name__ for thing in things if not inspect.getdoc(thing)] == []


def test_facade_is_the_core() -> None:
    assert set(neatpack.__all__) == {*contracts.__all__, "__version__"}


@pytest.mark.parametrize("name", [name for name in contracts.__all__ if name.startswith("validate_")])
def test_concepts_have_three_checks(name: str) -> None:
    concept = name.removeprefix("validate_")
    assert {f"is_{concept}", f"parse_{concept}"} <= set(contracts.__all__)


@pytest.mark.parametrize("name", [name for name in contracts.__all__ if name.isupper() and name.endswith("S")])
def test_lists_of_literals_match_their_type(name: str) -> None:
    singular = re.sub("IES$", "Y", name).removesuffix("S")
    alias = "".join(part.capitalize() for part in singular.split("_"))
    assert getattr(contracts, name) == contracts.__dict__[alias].__args__
