"""What importing a part of neatpack imports."""

from __future__ import annotations

import sys

import pytest

from tests.environments import ACTIVE, run

HEAVY = frozenset({"numpy", "pydantic", "torch", "transformers"})


def imported_by(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter imports for `statement`, as -X importtime reports them."""
    done = run(sys.executable, "-X", "importtime", "-c", statement, env=ACTIVE)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize("module", ["neatpack", "neatpack.contracts"])
def test_core_imports_nothing_heavy(module: str) -> None:
    found = imported_by(f"import {module}")
    assert "neatpack" in found
    assert not found & HEAVY


def test_check_can_fail() -> None:
    assert imported_by(f"import neatpack.contracts, {', '.join(HEAVY)}") >= HEAVY


@pytest.mark.parametrize("module", ["neatpack.adapters", "neatpack.kernels_bridge"])
def test_optional_packages_are_imported_only_where_they_are_needed(module: str) -> None:
    found = imported_by(f"import {module}")
    assert "torch" in found
    assert not found & {"hypothesis", "pydantic", "transformers"}
