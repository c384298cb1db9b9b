"""Tables in the documents list what the code has, in its order."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import torch

from neatpack import PackingError, TrainingBatch, adapters, axes_table
from neatpack.contracts.kernels import CONSUMER_NAMES
from neatpack.kernels_bridge.audit.paths import PATHS
from neatpack.kernels_bridge.audit.report import VERDICTS, Kind, Pattern, Trial
from tests.environments import REPOSITORY


def table(document: str, header: str) -> list[list[str]]:
    """The rows of the table whose first column is headed `header`, cells stripped, code marks removed."""
    lines = (REPOSITORY / document).read_text().split(f"\n| {header} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def test_paths() -> None:
    assert table("docs/audit-reference.md", "path") == [[path.name, path.stands_for] for path in PATHS]


def test_verdicts() -> None:
    assert tuple(row[0] for row in table("docs/audit.md", "verdict")) == VERDICTS


def test_kinds() -> None:
    assert tuple(row[0] for row in table("docs/audit-reference.md", "kind")) == get_args(Kind)


def test_trials() -> None:
    assert {row[0] for row in table("docs/audit-reference.md", "trial")} == set(get_args(Trial))


def test_patterns() -> None:
    assert {row[0] for row in table("docs/audit-reference.md", "pattern")} == set(get_args(Pattern))


def test_consumers() -> None:
    assert tuple(row[0] for row in table("README.md", "consumer")) == CONSUMER_NAMES


def test_ways_to_ids() -> None:
    functions = [row[1] for row in table("docs/encodings.md", "from")]
    assert sorted(functions) == [name for name in adapters.__all__ if name.startswith("document_ids_from_")]


def test_encodings_called_offsets() -> None:
    rows = table("docs/encodings.md", "counts")
    ids = torch.tensor([[1, 1, 0]])
    assert [type(getattr(adapters, row[2])(ids)).__name__ for row in rows] == [row[3] for row in rows]


def test_rules_of_a_status() -> None:
    rows = table("docs/static.md", "number")
    assert [(int(row[0]), row[1]) for row in rows] == [(rule.value, rule.name) for rule in adapters.StaticRule]


def test_errors_of_a_status() -> None:
    for number, _, _, error in table("docs/static.md", "number")[1:]:
        with pytest.raises(PackingError) as caught:
            adapters.raise_if_invalid(torch.tensor([int(number), 0, 0, 0], dtype=torch.int32))
        assert type(caught.value).__name__ == error


def test_fields_of_a_batch() -> None:
    assert axes_table(TrainingBatch) in (REPOSITORY / "docs" / "core.md").read_text()


def test_rules_are_numbered_without_a_gap() -> None:
    numbers = re.findall(r"^## R(\d+)\.", (REPOSITORY / "docs" / "contract.md").read_text(), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 17)]
