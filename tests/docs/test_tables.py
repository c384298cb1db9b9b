"""Tables in the documents list what the code has, in its order."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import pytest
import torch

from neatpack import PackingError, TrainingBatch, adapters, axes_table, contracts
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


def quoted(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r'"(\w+)"', cell))


def test_choices_of_plans() -> None:
    rows = table("docs/packing.md", "choice")
    assert [quoted(words) for _, words, _ in rows] == [getattr(adapters, names) for _, _, names in rows]


def test_words_of_the_core() -> None:
    rows = [row for row in table("docs/core.md", "values") if quoted(row[0])]
    assert [quoted(words) for words, _, _ in rows] == [getattr(contracts, names) for _, _, names in rows]
    assert len(rows) == 4


def test_errors_of_the_core() -> None:
    leaves = [each for each in vars(contracts).values() if inspect.isclass(each) and issubclass(each, PackingError)]
    named = {row[0]: row[1] for row in table("docs/core.md", "error")}
    assert named == {each.__name__: each.__mro__[2].__name__ for each in leaves if each is not PackingError}


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
