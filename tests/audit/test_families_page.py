"""The page of audited families is what its generator writes, and says what the audit finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import cast

import pytest

import neatpack
from neatpack.kernels_bridge.audit.families_page import WORDS, families_page
from neatpack.kernels_bridge.audit.paths import PATH_NAMES
from neatpack.kernels_bridge.audit.report import (
    Configured,
    Environment,
    Kind,
    ModelReport,
    PathReport,
    Report,
    Verdict,
)
from neatpack.kernels_bridge.audit.surroundings import audit_environment
from neatpack.kernels_bridge.audit.tiny_models import every_model_type

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "families-audited.md"
VERDICT_OF = cast("dict[str, Verdict]", {word: verdict for verdict, word in WORDS.items()})
SAMPLE = ("llama", "gemma2", "bamba", "codegen", "bert@encoder", "llava@images")


def _read_page(text: str) -> Report:
    """Read a page back into the report that it was written from, as far as the page tells."""
    models: list[ModelReport] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        names = re.findall(r"`([^`]+)`", cells[0]) if cells else []
        if len(cells) == 2:
            models += [ModelReport(name, None, Configured(), {}, cells[1].replace("\\|", "|")) for name in names]
        elif names:
            paths = _paths(cells[1:-2], cells[-1])
            configured = Configured(consumer=None if cells[-2] == "none" else cells[-2].strip("`"))
            models += [ModelReport(name, "M", configured, paths) for name in names]
    versions = re.search(r"Transformers (\S+), torch (\S+) and neatpack (\S+) on", text)
    assert versions is not None
    environment = Environment("", "", versions[3], versions[2], versions[1], 1, "float32", "cpu", 1e-5)
    return Report(environment, tuple(sorted(models, key=lambda model: model.name)))


def _paths(words: list[str], explained: str) -> dict[str, PathReport]:
    kinds: dict[int, Kind] = {}
    for part in filter(None, explained.split("; ")):
        kind, *numbers = part.split()
        kinds.update({int(number): cast("Kind", kind) for number in numbers})
    return {
        name: PathReport(VERDICT_OF[word], kinds.get(number))
        for number, (name, word) in enumerate(zip(PATH_NAMES, words, strict=True), start=1)
        if word  # of an encoder, not all are tried
    }


def _said(model: ModelReport) -> dict[str, tuple[Verdict, Kind | None]]:
    return {name: (path.verdict, path.kind) for name, path in model.paths.items()}


@pytest.fixture(scope="module")
def page() -> Report:
    return _read_page(PAGE.read_text(encoding="utf-8"))


def test_the_page_is_as_its_generator_writes_it(page: Report) -> None:
    assert families_page(page) == PAGE.read_text(encoding="utf-8")


def test_the_page_is_of_the_versions_that_are_tested(page: Report) -> None:
    pinned = dict(re.findall(r"(?m)^(\S+)==([^\s+;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8")))
    assert page.environment.transformers == pinned["transformers"]
    assert page.environment.torch.split("+")[0] == pinned["torch"]
    assert page.environment.neatpack == neatpack.__version__


def test_the_page_holds_every_model_type(page: Report) -> None:
    assert [model.name for model in page.models] == sorted(every_model_type())


@pytest.mark.parametrize("name", SAMPLE)
def test_the_page_says_what_the_audit_finds(page: Report, family: Callable[[str], ModelReport], name: str) -> None:
    if page.environment.transformers != metadata.version("transformers"):
        pytest.skip("the page is of another Transformers")
    (said,) = [model for model in page.models if model.name == name]
    found = family(name)
    assert _said(said) == _said(found)
    assert said.configured.consumer == found.configured.consumer


def test_what_a_page_says_can_be_read_back(family: Callable[[str], ModelReport]) -> None:
    failed = ModelReport("none", None, Configured(), {}, "ModelError: a | b\nand c")
    models = (family("gemma2"), failed, *(family(name) for name in ("bamba", "bert@encoder", "llama")))
    report = Report(audit_environment(), models)
    read = {model.name: model for model in _read_page(families_page(report)).models}
    assert {name: _said(model) for name, model in read.items()} == {model.name: _said(model) for model in models}
    assert read["none"].error == "ModelError: a | b and c"


def test_families_that_answer_alike_share_a_row(family: Callable[[str], ModelReport]) -> None:
    report = Report(audit_environment(), (family("llama"), family("gemma2"), family("qwen3")))
    rows = [line for line in families_page(report).splitlines() if line.startswith("| `")]
    assert [row.split("|")[1] for row in rows] == [" `llama` `qwen3` ", " `gemma2` "]
