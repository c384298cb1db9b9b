"""Every public name stands on a page of the documentation, as code, so that a search finds it."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import neatpack
from neatpack import adapters, kernels_bridge
from neatpack.adapters import strategies
from tests.docs.markdown import blocks_of
from tests.environments import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def words_of_code(page: Path) -> set[str]:
    """The identifiers of a page's fenced blocks and of what stands between backticks in its prose."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    pieces = [*(block.body for block in blocks_of(page)), *re.findall(r"`([^`\n]+)`", prose)]
    return {word for piece in pieces for word in re.findall(r"\w+", piece)}


@pytest.mark.parametrize("package", [neatpack, adapters, kernels_bridge, strategies], ids=lambda each: each.__name__)
def test_every_public_name_is_on_a_page(package: ModuleType) -> None:
    named = set[str]().union(*map(words_of_code, PAGES))
    assert [name for name in package.__all__ if name not in named] == []


def test_a_name_in_prose_is_not_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Axes and a `Count(unit=...)`.\n\n```python\nplan_rows([1], 2)\n```\n")
    found = words_of_code(page)
    assert {"Count", "unit", "plan_rows"} <= found
    assert "Axes" not in found
