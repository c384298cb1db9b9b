"""FlashAttention-4 is found by its distribution, asked for its signature, and told only what it can do."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from neatpack.contracts import DependencyError
from neatpack.kernels_bridge.fa4 import KEYWORDS, FA4Use, load_fa4, use_problems
from tests.kernels_bridge.fa4_stand_in import RECORDED, flash_attn_varlen_func

SIGNATURE = ", ".join(name if default is None else f"{name}={default}" for name, default in RECORDED["parameters"])


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path, None, None]:
    """A folder first on the path, and no FlashAttention imported."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, name)
    load_fa4.cache_clear()
    yield tmp_path
    load_fa4.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]


def install(folder: Path, code: str, distribution: str = "flash-attn-4", version: str = RECORDED["version"]) -> None:
    """Put a distribution with a module `flash_attn.cute` of `code` into `folder`."""
    (folder / "flash_attn" / "cute").mkdir(parents=True)
    (folder / "flash_attn" / "cute" / "__init__.py").write_text(code)
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


def test_the_stand_in_has_the_recorded_signature() -> None:
    parameters = inspect.signature(flash_attn_varlen_func).parameters.values()
    empty = inspect.Parameter.empty
    found = [[p.name, None if p.default is empty else repr(p.default)] for p in parameters]
    assert found == RECORDED["parameters"]


def test_the_real_signature_is_accepted(packages: Path) -> None:
    install(packages, f"def flash_attn_varlen_func({SIGNATURE}):\n    return 'called'\n")
    assert load_fa4() is sys.modules["flash_attn.cute"].flash_attn_varlen_func
    assert load_fa4() is load_fa4()


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_signature_that_lacks_a_keyword_is_refused_with_its_version(packages: Path, keyword: str) -> None:
    parts = SIGNATURE.replace("(None, None)", "()").split(", ")
    lacking = ", ".join(part for part in parts if part.partition("=")[0] != keyword)
    install(packages, f"def flash_attn_varlen_func({lacking}, **kwargs): ...\n", version="9.8.7")
    with pytest.raises(DependencyError) as caught:
        load_fa4()
    assert f"takes no {keyword} by name" in str(caught.value)
    assert "9.8.7" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "distribution", "says"),
    [
        (f"def flash_attn_varlen_func({SIGNATURE}): ...", "flash-attn", "is not installed"),
        ("import no_such_cutlass", "flash-attn-4", "ModuleNotFoundError: No module named 'no_such_cutlass'"),
        ("raise OSError('libcuda.so.1')", "flash-attn-4", "OSError: libcuda.so.1"),
        ("flash_attn_func = None", "flash-attn-4", "AttributeError"),
        ("flash_attn_varlen_func = None", "flash-attn-4", "takes no q, k, v"),
        ("def flash_attn_varlen_func(*args, **kwargs): ...", "flash-attn-4", "takes no q, k, v"),
        ("def flash_attn_varlen_func(q, k, v, /, cu_seqlens_q): ...", "flash-attn-4", "takes no q, k, v"),
    ],
)
def test_what_is_no_flash_attention_4(packages: Path, code: str, distribution: str, says: str) -> None:
    install(packages, code, distribution)
    with pytest.raises(DependencyError) as caught:
        load_fa4()
    assert says in str(caught.value)
    assert caught.value.problems[0].remedy
    assert isinstance(caught.value, ImportError)


PLAIN: dict[str, Any] = {"backward": True}
EVERYTHING: dict[str, Any] = {"backward": True, "window": True, "sinks": True, "softcap": True}


@pytest.mark.parametrize(
    ("capability", "sizes", "options", "fields"),
    [
        ((7, 5), (64, 64), {}, ["query"]),
        ((13, 0), (64, 64), {}, ["query"]),
        ((8, 0), (64, 64), {}, []),
        ((8, 0), (64, 64), {"window": True, "sinks": True, "softcap": True}, []),
        ((8, 0), (64, 64), PLAIN, ["query"]),
        ((8, 9), (64, 64), EVERYTHING, ["query", "sinks"]),
        ((9, 0), (64, 64), EVERYTHING, []),
        ((9, 0), (8, 8), PLAIN, []),
        ((9, 0), (256, 256), EVERYTHING, []),
        ((9, 0), (264, 264), PLAIN, ["query"]),
        ((9, 0), (64, 264), PLAIN, ["query"]),
        ((9, 0), (60, 64), PLAIN, ["query"]),
        ((9, 0), (64, 12), PLAIN, ["query"]),
        ((9, 0), (192, 128), PLAIN, []),
        ((10, 0), (128, 128), EVERYTHING, []),
        ((10, 0), (136, 136), PLAIN, ["query"]),
        ((10, 0), (192, 192), PLAIN, ["query"]),
        ((10, 0), (128, 192), PLAIN, ["query"]),
        ((10, 3), (192, 128), EVERYTHING, []),
        ((10, 0), (256, 256), PLAIN, []),
        ((10, 0), (256, 256), {"window": True, "sinks": True, "softcap": True}, []),
        ((10, 0), (256, 256), EVERYTHING, ["sliding_window", "sinks", "softcap"]),
        ((11, 0), (256, 256), {"backward": True, "window": True}, ["sliding_window"]),
        ((11, 0), (256, 128), PLAIN, ["query"]),
        ((12, 0), (128, 128), PLAIN, []),
        ((12, 0), (128, 128), EVERYTHING, ["sinks"]),
    ],
)
def test_what_each_gpu_takes(
    capability: tuple[int, int], sizes: tuple[int, int], options: dict[str, bool], fields: list[str]
) -> None:
    problems = use_problems(capability, FA4Use(*sizes, **options))
    assert [problem.field for problem in problems] == fields
    assert all(problem.kind == "unsupported" and problem.remedy for problem in problems)


@pytest.mark.gpu
def test_the_installed_package_takes_what_it_is_called_with() -> None:
    try:
        function = load_fa4()
    except DependencyError as error:
        pytest.skip(str(error))
    assert callable(function)
    assert torch.cuda.get_device_capability() >= (8, 0)
