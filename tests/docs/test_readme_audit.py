"""What the README says of the audit is what the audit says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import blocks_of
from tests.docs.test_documents import README
from tests.environments import ACTIVE, run

MODEL = next(block.body for block in blocks_of(README) if "class TinyModel" in block.body)


def audit(*targets: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neatpack", "audit", *targets]
    return run(*command, cwd=cwd, env={**ACTIVE, "COLUMNS": "120"}, check=check)


def without_rounding(line: str) -> str:
    """A line of the table with its numbers replaced by whether they lie above the threshold."""

    def sign(found: re.Match[str]) -> str:
        return "moved" if float(found[0]) > 1e-5 else "still"

    return re.sub(r"\b(0|\de[-+]\d\d)\b", sign, line.rstrip())


@pytest.mark.slow
def test_excerpt_is_what_the_audit_prints(tmp_path: Path) -> None:
    (shown,) = (block for block in blocks_of(README) if block.mark.startswith("from: audit "))
    printed = audit(shown.mark.removeprefix("from: audit "), cwd=tmp_path).stdout
    lines = [without_rounding(line) for line in printed.splitlines()]
    assert [line for line in map(without_rounding, shown.body.splitlines()) if line not in lines] == []


@pytest.mark.slow
def test_model_of_the_readme_is_clean(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(MODEL)
    assert "the configured path is clean, by consumer declared" in audit("tiny:TinyModel", cwd=tmp_path).stdout


@pytest.mark.slow
def test_model_of_the_readme_would_leak_without_its_mask(tmp_path: Path) -> None:
    broken = MODEL.replace("build_block_causal_mask(ids)", "build_block_causal_mask(torch.ones_like(ids))")
    assert broken != MODEL
    (tmp_path / "tiny.py").write_text(broken)
    done = audit("tiny:TinyModel", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "the configured path is not clean: leak" in done.stdout
