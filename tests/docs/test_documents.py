"""Whatever the documents show is run, type-checked or compared with what is run."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import neatpack
from neatpack import adapters, kernels_bridge
from neatpack.adapters import strategies, wire
from neatpack.kernels_bridge.audit.paths import PATHS
from neatpack.kernels_bridge.audit.report import Kind, ModelReport, PathReport, Pattern, Trial
from neatpack.kernels_bridge.audit.tiny_models import every_model_type
from tests.docs.markdown import DOCUMENTS, Block, blocks_of, commands_of
from tests.environments import ACTIVE, REPOSITORY, run
from tests.packaging.test_checkers import CHECKERS

LANGUAGES = {"python", "bash", "text", "toml"}
README = REPOSITORY / "README.md"

KNOWN_WORDS = {
    *(path.name for path in PATHS),
    *get_args(Kind),
    *get_args(Pattern),
    *get_args(Trial),
    *ModelReport.__annotations__,
    *PathReport.__annotations__,
    *neatpack.PACKED_MASK_TYPES,
    *kernels_bridge.consumer_names(),
    *adapters.PACKING_METHODS,
    *every_model_type(),
    "schema_version",
}
"""What the documents name beside public names: paths, kinds, mask types, consumers, ways to plan rows, model types."""

OTHERS = {
    "chunk_gated_delta_rule",
    "doc_lens",
    "flash_attn_varlen_func",
    "mamba_chunk_scan_combined",
    "pad_to_multiple_of",
    "return_position_ids",
    "sequence_id",
}
"""Functions of other packages that the documents name, and fields of their batches."""

OTHER_COMMANDS = [["ruff", "format"], ["source", ".venv/bin/activate"]]
"""What the documents may show beside commands that CI runs."""

EVERY_DOCUMENT = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def program_of(document: Path) -> str:
    """The Python blocks of a document as one program, each line at its line number in the document."""
    lines: list[str] = []
    for block in blocks_of(document):
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.body.splitlines()
    return "\n".join(lines) + "\n"


def readme_commands() -> dict[str, Block]:
    return {block.mark.removeprefix("command: "): block for block in blocks_of(README) if "command: " in block.mark}


@EVERY_DOCUMENT
def test_blocks_are_in_known_languages(document: Path) -> None:
    assert {block.language for block in blocks_of(document)} <= LANGUAGES


@EVERY_DOCUMENT
def test_python_blocks_run_in_order(document: Path) -> None:
    exec(compile(program_of(document), document, "exec"), {"__name__": document.stem})  # noqa: S102


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_python_blocks_check(checker: str, tmp_path: Path) -> None:
    for document in DOCUMENTS:
        (tmp_path / f"{document.stem.lower()}_blocks.py").write_text(program_of(document))
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    # mypy takes its settings, and its cache of torch, from the repository. Pyright takes the settings above.
    folder = REPOSITORY if checker == "mypy" else tmp_path
    run(sys.executable, "-m", checker, tmp_path, cwd=folder, env=ACTIVE)


def test_readme_has_two_commands_which_ci_runs() -> None:
    assert list(readme_commands()) == ["audit", "test"]
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert "set -- audit test" in script
    for block in readme_commands().values():
        assert len(commands_of(block.body)) == 1


def is_run(command: str) -> bool:
    """Whether CI runs `command`, or, for a part of the tests, whether it selects any."""
    whole = {command for block in readme_commands().values() for command in commands_of(block.body)}
    parts = {part for command in whole for part in command.split(" && ")}
    program, *arguments = shlex.split(command)
    if command in whole | parts or [program, *arguments] in [*CHECKERS, *OTHER_COMMANDS]:
        return True
    return program == "pytest" and selects_tests(arguments)


def selects_tests(arguments: list[str]) -> bool:
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    return run(*collect, check=False).returncode == 0


@EVERY_DOCUMENT
def test_bash_blocks_hold_commands_that_are_run(document: Path) -> None:
    shown = [line for block in blocks_of(document) if block.language == "bash" for line in commands_of(block.body)]
    assert [line for line in shown if not is_run(line)] == []


@EVERY_DOCUMENT
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@EVERY_DOCUMENT
def test_files_that_are_named_exist(document: Path) -> None:
    named = re.findall(r"`((?:tests|docs|src|contracts|adapters|kernels_bridge|\.ci)/[^`]*)`", document.read_text())
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


@EVERY_DOCUMENT
def test_functions_that_are_named_exist(document: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)(?:\([^`]*\))?`", prose))
    assert named - KNOWN_WORDS - OTHERS - public_names() == set()


def public_names() -> set[str]:
    """Name what the packages export, the parameters of their functions, and the attributes of their classes."""
    packages: tuple[ModuleType, ...] = (neatpack, adapters, kernels_bridge, strategies, wire)
    exported = {name: getattr(package, name) for package in packages for name in package.__all__}
    functions = [each for each in exported.values() if inspect.isfunction(each)]
    parameters = {parameter for each in functions for parameter in inspect.signature(each).parameters}
    classes = [each for each in exported.values() if inspect.isclass(each)]
    attributes = {name for each in classes for name in (*vars(each), *inspect.get_annotations(each))}
    return {*exported, *parameters, *attributes}
