"""Copies of the repository, wheels, and fresh virtual environments, for tests of what a stranger gets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

TOOLS = Path(sys.executable).parent
"""Where the programs of this environment are, whether or not it is active."""

ACTIVE = {"PYTHONPATH": str(REPOSITORY / "src"), "PATH": f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"}
"""Variables under which tools find this environment and the sources; pyright asks the first Python on the PATH."""

PACKAGE_FOLDERS = ("contracts", "adapters", "kernels_bridge")
"""The folders that install as neatpack.NAME, through links in src/neatpack."""


def run(
    *command: str | Path,
    cwd: Path = REPOSITORY,
    env: dict[str, str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command, its output captured. Unless `check` is off, its failure fails the test and shows the output.

    Args:
        command: the program and its arguments.
        cwd: the folder to run it in.
        env: variables added to this process's own.
        check: whether exit status 0 is required.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise AssertionError(f"{words}\nexited {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def tracked_files(*folders: str) -> list[str]:
    """The paths that git holds, below `folders` if any are given; links are paths of their own."""
    return [
        path for path in run("git", "-c", "safe.directory=*", "ls-files", "-z", *folders).stdout.split("\0") if path
    ]


def copy_checkout(target: Path) -> Path:
    """Copy what git holds, as it now stands in the work tree, links as links: a fresh clone's content."""
    for name in tracked_files():
        source, copy = REPOSITORY / name, target / name
        if source.is_symlink() or source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    return target


def build_distribution(kind: str, source: Path, target: Path) -> Path:
    """Build the `wheel` or `sdist` of the project in `source`, and return the file made in `target`."""
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", target, source)
    (built,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def make_environment(folder: Path, *requirements: str | Path, python: Path | None = None) -> Path:
    """Make a virtual environment, install `requirements` with pip, and return its Python."""
    if python is None:
        venv.create(folder, with_pip=True)
    else:
        run(python, "-m", "venv", folder)
    made = folder / "bin" / "python"
    run(made, "-m", "pip", "install", "--quiet", "-c", REPOSITORY / "constraints.txt", *requirements)
    return made
