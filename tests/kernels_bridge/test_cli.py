"""The command line: what it prints where, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neatpack.contracts.errors import PackingError
from neatpack.kernels_bridge.audit.report import ModelReport, Report
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import parse_target
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts
from neatpack.kernels_bridge.cli import main

ROOT = Path(__file__).parents[2]

CLEAN = "tests.audit.models:reads_ids"
LEAKS = "tests.audit.models:leaks"


def test_a_clean_model_gives_0_and_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["audit", CLEAN]) == 0
    out, err = capsys.readouterr()
    assert f"{CLEAN}  the configured path is clean, by consumer declared" in out
    assert max(map(len, out.split("\n"))) <= 80
    assert err == f"[1/1] {CLEAN}\n"


def test_one_model_that_is_not_clean_gives_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", CLEAN, LEAKS]) == 1
    assert "not clean: refused" in capsys.readouterr().out


def test_a_target_that_exits_ends_neither_the_command_nor_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exits_when_built.py").write_text("def build():\n    raise SystemExit(0)\n")
    (tmp_path / "exits_when_imported.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "exits_when_built:build", CLEAN]) == 1
    out = capsys.readouterr().out
    assert "not audited: SystemExit: 0" in out
    assert f"{CLEAN}  " in out
    assert main(["audit", "exits_when_imported:build"]) == 2
    assert "cannot be found (SystemExit: 0)" in capsys.readouterr().err


def test_json_goes_to_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", LEAKS, "--json"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["schema_version"] == 1
    assert report["models"][0]["name"] == LEAKS
    assert report["models"][0]["class"] == "Leaks"
    assert report["models"][0]["paths"]["mask_2d"]["verdict"] == "leak"
    assert err == f"[1/1] {LEAKS}\n"


def test_text_of_ones_own_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.txt").write_text("too short")
    assert main(["audit", CLEAN, "--text", str(tmp_path)]) == 2
    assert "too short" in capsys.readouterr().err
    (tmp_path / "longer.txt").write_text("It was the best of times, it was the worst of times, it was the age.")
    assert main(["audit", CLEAN, "--text", str(tmp_path / "longer.txt")]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "lama"], "Did you mean llama"),
        (["audit", "no.module:build"], "cannot be found"),
        (["audit", CLEAN, "--text", "no such folder"], "cannot be read"),
        (["inspect", "no such file.json"], "there is no such file"),
        (["inspect", "pyproject.toml"], "unknown kind"),
    ],
)
def test_what_cannot_be_done_gives_2_and_says_why(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("neatpack: ")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["audit"],
        ["audit", CLEAN, "--all"],
        ["audit", CLEAN, "--workers", "2"],
        ["audit", CLEAN, "--page"],
        ["audit", "--all", "--workers", "0"],
        ["audit", "--all", "--keep-weights"],
        ["audit", "--all", "--batch", "batch.json"],
        ["inspect"],
        ["no-such-command"],
        ["audit", CLEAN, "--no-option"],
    ],
)
def test_misuse_gives_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Let `--all` mean two families, audited in this process, and note what was asked for."""
    asked: dict[str, object] = {}
    report = audit_models([parse_target(CLEAN), parse_target(LEAKS)], read_texts(default_paths()))

    def audit_here(names: list[str], *, progress: Callable[[ModelReport], None], **options: object) -> Report:
        asked.update(options, names=names)
        for model in report.models:
            progress(model)
        return report

    monkeypatch.setattr("neatpack.kernels_bridge.audit.tiny_models.every_model_type", lambda: [CLEAN, LEAKS])
    monkeypatch.setattr("neatpack.kernels_bridge.audit.everything.audit_everything", audit_here)
    return asked


def test_all_model_types_are_audited_as_asked_for(
    everything: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "state.jsonl"
    assert main(["audit", "--all", "--resume", str(file), "--workers", "3"]) == 1
    out, err = capsys.readouterr()
    assert everything == {"names": [CLEAN, LEAKS], "texts": (), "resume": file, "workers": 3}
    assert err == f"[1/2] {CLEAN}: clean\n[2/2] {LEAKS}: refused\n"
    assert "2 models audited, 0 not." in out


@pytest.mark.usefixtures("everything")
def test_all_can_be_printed_as_json_and_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--all", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["figures"]["models"] == 2
    assert report["figures"]["median_seconds"] > 0
    assert main(["audit", "--all", "--page"]) == 1
    assert capsys.readouterr().out.startswith("# Audited families\n")


def test_the_current_folder_is_importable_for_the_audit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "of_my_own.py").write_text(f"from {CLEAN.split(':')[0]} import reads_ids as build\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert main(["audit", "of_my_own:build"]) == 0
    assert sys.path == before
    assert "of_my_own:build" in capsys.readouterr().out


def test_an_interruption_leaves_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("neatpack.kernels_bridge.audit.run.audit_models", interrupted)
    assert main(["audit", CLEAN]) == 130
    assert capsys.readouterr().err.endswith("neatpack: interrupted\n")


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """Let processes that are started heed SIGINT: a shell's background job hands on that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_interrupts")
def test_a_signal_interrupts_a_running_audit() -> None:
    command = [sys.executable, "-m", "neatpack", "audit", *["llama"] * 50]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"[1/50] llama\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert out == b""


def test_doctor_imports_no_kernel_and_no_transformers() -> None:
    code = (
        "import sys; from neatpack.kernels_bridge.doctor import doctor_lines; doctor_lines(80);"
        "sys.exit(bool({'transformers', 'flash_attn', 'kernels', 'rich'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_doctor_shows_versions_and_reasons(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.split("\n"))) <= 80
    assert "  torch                   2." in out
    assert "  reference               usable    consumer reference" in out


def test_errors_of_the_command_line_are_of_the_family() -> None:
    with pytest.raises(PackingError):
        audit_models([], [b""])
