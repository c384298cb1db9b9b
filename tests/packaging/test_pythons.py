"""The core runs on every supported Python, with typing-extensions alone."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.environments import REPOSITORY, make_environment, run

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")


def find_python(version: str) -> Path | None:
    """A Python of `version` ("3.12") on the PATH or among pyenv's, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    for candidate in [*candidates, *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))]:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        # A shim of pyenv's stands on the PATH for versions that are not active, too, and fails.
        if run(candidate, "-c", code, check=False).stdout.strip() == version:
            return candidate
    return None


def test_metadata_names_these_versions() -> None:
    metadata = (REPOSITORY / "pyproject.toml").read_text()
    assert tuple(re.findall(r"Python :: (3\.\d+)", metadata)) == SUPPORTED
    assert f'requires-python = ">={SUPPORTED[0]}"' in metadata


@pytest.mark.slow
@pytest.mark.parametrize("version", SUPPORTED)
def test_core_on(version: str, tmp_path: Path) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    made = make_environment(tmp_path / "venv", "typing-extensions", "pytest", "hypothesis", python=python)
    done = run(made.parent / "pytest", "-p", "no:cacheprovider", "tests/contracts", "src/neatpack/contracts")
    assert " passed" in done.stdout
    assert "torch" not in run(made, "-m", "pip", "list").stdout
