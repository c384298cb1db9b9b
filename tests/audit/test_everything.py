"""Many models in processes of their own: whatever one of them does, all are reported, and nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from neatpack.contracts.errors import BatchError
from neatpack.kernels_bridge.audit import everything
from neatpack.kernels_bridge.audit.everything import audit_everything
from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.report import Environment, ModelReport, model_json
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.saved import SavedAudits, model_from_json, settings_of
from neatpack.kernels_bridge.audit.surroundings import audit_environment
from neatpack.kernels_bridge.audit.targets import parse_target
from neatpack.kernels_bridge.audit.workers import Finished, Orders, audit_in_workers

READS_IDS, LEAKS = "tests.audit.models:reads_ids", "tests.audit.models:leaks"
HANGS, DIES, PRINTS = (f"tests.audit.misbehaving:{name}" for name in ("hangs", "dies", "prints"))
PATHS: tuple[PathName, ...] = ("mask_2d", "configured")


@pytest.fixture
def named(texts: list[bytes]) -> Callable[[str], ModelReport]:
    """Audit a target in this process."""
    return lambda name: audit_models([parse_target(name)], texts, paths=PATHS).models[0]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, named: Callable[[str], ModelReport]) -> list[str]:
    """Audit in this process what workers would, and list what was asked for."""
    names: list[str] = []

    def audit_here(given: Sequence[str], _orders: Orders, _workers: int) -> Generator[Finished, None, None]:
        for name in given:
            names.append(name)
            yield Finished(model_json(named(name)), failed=name == DIES)

    monkeypatch.setattr(everything, "audit_in_workers", audit_here)
    return names


def test_models_are_reported_as_in_this_process_whatever_others_do(named: Callable[[str], ModelReport]) -> None:
    names = [DIES, READS_IDS, PRINTS, LEAKS]
    report = audit_everything(names, paths=PATHS, workers=1)
    assert [model.name for model in report.models] == names
    dead, *others = report.models
    assert dead.error == "ended its process with status 3: some library: out of luck"
    for model in others:
        assert replace(model, seconds=0.0) == replace(model_from_json(model_json(named(model.name))), seconds=0.0)
    assert report.figures().not_audited == 1
    assert not report.is_clean


def test_a_model_that_takes_too_long_is_stopped() -> None:
    (model,) = audit_everything([HANGS], paths=PATHS, seconds=0.5).models
    assert model.error == "did not finish within 0.5 s"
    assert model.seconds == 0.5


def test_no_worker_outlives_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen[str]):
        def __init__(self, arguments: list[str], **options: object) -> None:
            super().__init__(arguments, **options)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    finished = audit_in_workers([READS_IDS, HANGS, HANGS], Orders((), PATHS, 600.0), workers=1)
    assert next(finished).model["name"] == READS_IDS
    finished.close()
    assert [process.returncode is not None for process in started] == [True]
    assert not [thread for thread in threading.enumerate() if "_serve" in thread.name]


def test_what_is_finished_is_not_audited_again(tmp_path: Path, asked: list[str]) -> None:
    file = tmp_path / "state.jsonl"

    def interrupt(_model: ModelReport) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_everything([READS_IDS, LEAKS], paths=PATHS, resume=file, progress=interrupt)
    whole = audit_everything([READS_IDS, LEAKS], paths=PATHS, resume=file)
    assert asked == [READS_IDS, LEAKS]
    assert [model.name for model in whole.models] == [READS_IDS, LEAKS]
    assert (whole.figures().resumed, whole.figures().models) == (1, 2)
    again = audit_everything([LEAKS, READS_IDS], paths=PATHS, resume=file)
    assert asked == [READS_IDS, LEAKS]
    assert again.models == whole.models[::-1]


def test_a_line_that_was_cut_is_audited_again(tmp_path: Path, asked: list[str]) -> None:
    file = tmp_path / "state.jsonl"
    audit_everything([READS_IDS, LEAKS], paths=PATHS, resume=file)
    file.write_bytes(file.read_bytes()[:-40])
    audit_everything([READS_IDS, LEAKS], paths=PATHS, resume=file)
    assert asked == [READS_IDS, LEAKS, LEAKS]
    audit_everything([READS_IDS, LEAKS], paths=PATHS, resume=file)
    assert asked == [READS_IDS, LEAKS, LEAKS]


def test_what_ended_its_process_is_tried_again(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.audit.misbehaving.dies", lambda: 7)
    for _ in range(2):
        audit_everything([DIES], paths=PATHS, resume=tmp_path / "state.jsonl")
    assert asked == [DIES, DIES]


@pytest.mark.parametrize("change", ["torch", "transformers", "neatpack", "python", "paths", "texts", "schema_version"])
def test_audits_of_other_versions_or_settings_are_not_reused(
    tmp_path: Path, asked: list[str], named: Callable[[str], ModelReport], texts: list[bytes], change: str
) -> None:
    environment: Environment = audit_environment()
    settings = settings_of(environment, texts, PATHS)
    file = tmp_path / "state.jsonl"
    SavedAudits(file, settings).add(model_json(named(LEAKS)))
    audit_everything([LEAKS], paths=PATHS, resume=file)
    assert asked == []
    other = json.loads(file.read_text())
    where = other["settings"] if change in other["settings"] else other["settings"]["environment"]
    where[change] = "another"
    file.write_text(json.dumps(other) + "\n")
    audit_everything([LEAKS], paths=PATHS, resume=file)
    assert asked == [LEAKS]
    assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize("text", ['{"some": "json"}\n', "[1]\n", '{"model": {"name": 3}, "settings": null}\n'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, texts: list[bytes], text: str) -> None:
    file = tmp_path / "state.jsonl"
    settings = settings_of(audit_environment(), texts, PATHS)
    file.write_text(text.replace("null", json.dumps(settings)))
    before = file.read_bytes()
    with pytest.raises(BatchError, match="holds"):
        audit_everything([LEAKS], paths=PATHS, resume=file)
    assert file.read_bytes() == before


@pytest.mark.usefixtures("asked")
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="cannot be"):
        audit_everything([READS_IDS], paths=PATHS, resume=tmp_path)
    with pytest.raises(BatchError, match="cannot be written"):
        audit_everything([READS_IDS], paths=PATHS, resume=tmp_path / "no" / "such" / "folder")


def test_texts_that_are_too_short_are_refused_before_anything_starts(tmp_path: Path, asked: list[str]) -> None:
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(BatchError, match="too short"):
        audit_everything([READS_IDS], texts=[tmp_path], paths=PATHS)
    assert asked == []
