"""What is installed is what git holds, typed, however it is installed."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import pytest

import neatpack
from tests.environments import (
    PACKAGE_FOLDERS,
    REPOSITORY,
    build_distribution,
    make_environment,
    run,
    tracked_files,
)

PACKAGES = ("neatpack", *(f"neatpack.{folder}" for folder in PACKAGE_FOLDERS))


def wheel_files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def package_files_in_git() -> set[str]:
    links = {f"src/neatpack/{folder}" for folder in PACKAGE_FOLDERS}
    facade = {name.removeprefix("src/") for name in tracked_files("src") if name not in links}
    return facade | {f"neatpack/{name}" for name in tracked_files(*PACKAGE_FOLDERS)}


def test_links_are_links_to_the_folders_at_the_top() -> None:
    for folder in PACKAGE_FOLDERS:
        link = REPOSITORY / "src" / "neatpack" / folder
        assert link.is_symlink()
        assert link.readlink() == Path("..", "..", folder)


def test_wheel_holds_what_git_holds(wheel: Path) -> None:
    assert wheel_files(wheel) == package_files_in_git()


def test_wheel_says_that_it_is_typed(wheel: Path) -> None:
    assert {f"{package.replace('.', '/')}/py.typed" for package in PACKAGES} <= wheel_files(wheel)


def test_sdist_builds_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build_distribution("sdist", checkout, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert not any(path.is_symlink() for path in source.rglob("*"))
    assert {"tests", "constraints.txt", "mypy.ini"} <= {path.name for path in source.iterdir()}
    rebuilt = build_distribution("wheel", source, tmp_path)
    assert wheel_files(rebuilt) == wheel_files(wheel)


def test_install_brings_typing_extensions_only(stranger: Path) -> None:
    listed = json.loads(run(stranger, "-m", "pip", "list", "--format=json").stdout)
    names = {package["name"].replace("_", "-") for package in listed}
    assert names - {"pip", "setuptools"} == {"neatpack", "typing-extensions"}


def test_installed_core_and_facade_import_without_the_extras(stranger: Path, tmp_path: Path) -> None:
    code = "import neatpack, neatpack.contracts; print(neatpack.__version__, neatpack.__file__)"
    version, place = run(stranger, "-c", code, cwd=tmp_path).stdout.split(maxsplit=1)
    assert version == neatpack.__version__
    assert "site-packages" in place


def test_the_command_says_what_it_needs(stranger: Path, tmp_path: Path) -> None:
    for command in ([stranger.with_name("neatpack")], [stranger, "-m", "neatpack"]):
        done = run(*command, "doctor", cwd=tmp_path, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("neatpack: the command needs torch, which is not installed. Run `pip install")
        assert "Traceback" not in done.stderr


def test_version_is_written_once(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == neatpack.__version__


@pytest.mark.slow
def test_editable_install_sees_new_files(checkout: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", "--editable", checkout)
    planted = checkout / "contracts" / "planted.py"
    planted.write_text("HERE = __name__\n")
    try:
        done = run(python, "-c", "from neatpack.contracts.planted import HERE; print(HERE)", cwd=tmp_path)
    finally:
        planted.unlink()
    assert done.stdout.strip() == "neatpack.contracts.planted"
