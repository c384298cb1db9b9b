"""Every command and option stands on a page, and what a page says that a command prints is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neatpack.kernels_bridge.cli import main
from tests.docs.markdown import blocks_of
from tests.docs.test_public_names import PAGES
from tests.environments import REPOSITORY


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return capsys.readouterr().out


def test_every_command_is_on_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^    ([a-z]+)  ", help_of(capsys), re.MULTILINE)
    assert len(commands) >= 4
    pages = "\n".join(page.read_text() for page in PAGES)
    assert [command for command in commands if f"neatpack {command}" not in pages] == []


def test_every_option_of_the_audit_is_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    options = set(re.findall(r"--[a-z-]+", help_of(capsys, "audit"))) - {"--help"}
    page = (REPOSITORY / "docs" / "audit.md").read_text()
    assert options - set(re.findall(r"--[a-z-]+", page)) == set()


def test_inspect_prints_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (shown,) = (block for block in blocks_of(REPOSITORY / "docs/batches.md") if block.mark.startswith("from: inspect "))
    batch = tmp_path / "batch.json"
    batch.write_text(shown.mark.removeprefix("from: inspect "))
    assert main(["inspect", str(batch)]) == 1
    assert capsys.readouterr().out.rstrip() == shown.body.rstrip()
