"""Every public name stands on a page of the documentation, as code, so that a search finds it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import neatpack
from neatpack import adapters, kernels_bridge
from neatpack.adapters import strategies, wire
from tests.docs.markdown import blocks_of
from tests.environments import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def words_of_code(page: Path) -> set[str]:
    """The identifiers of a page's fenced blocks and of what stands between backticks in its prose."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    pieces = [*(block.body for block in blocks_of(page)), *re.findall(r"`([^`\n]+)`", prose)]
    return {word for piece in pieces for word in re.findall(r"\w+", piece)}


IMPORT = re.compile(r"^from (neatpack[\w.]*) import (\([^)]*\)|.+)$", re.MULTILINE)


def imports_of(page: Path) -> set[tuple[str, str]]:
    """The modules of neatpack that a page's code imports from, each with a name."""
    found = [line for block in blocks_of(page) for line in IMPORT.findall(block.body)]
    return {(module, name) for module, names in found for name in re.findall(r"\w+", names)}


@pytest.mark.parametrize(
    "package", [neatpack, adapters, kernels_bridge, strategies, wire], ids=lambda each: each.__name__
)
def test_every_public_name_is_on_a_page(package: ModuleType) -> None:
    named = set[str]().union(*map(words_of_code, PAGES))
    assert [name for name in package.__all__ if name not in named] == []


def test_what_pages_import_is_listed_where_it_lives() -> None:
    modules = {name: importlib.import_module(name) for page in PAGES for name, _ in imports_of(page)}
    assert wire.__name__ in modules
    wrong = [
        (module, name)
        for page in PAGES
        for module, name in sorted(imports_of(page))
        if name not in getattr(modules[module], "__all__", ()) and f"{module}.{name}" not in modules
    ]
    assert wrong == []


def test_a_name_in_prose_is_not_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Axes and a `Count(unit=...)`.\n\n```python\nplan_rows([1], 2)\n```\n")
    found = words_of_code(page)
    assert {"Count", "unit", "plan_rows"} <= found
    assert "Axes" not in found
