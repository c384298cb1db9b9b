"""Five families of Transformers: which ways of giving them a packed batch are clean, and which leak and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neatpack.kernels_bridge.audit.paths import PATH_NAMES, PathName
from neatpack.kernels_bridge.audit.report import ModelReport
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import ModelType

CLEAN = ("clean", None)
DROPPED = ("leak", "kwargs_dropped")
ATTENTION = ("leak", "attention")

EVERY_FAMILY: dict[str, tuple[str, str | None]] = {
    "varlen": CLEAN,
    "varlen+seq_idx": CLEAN,
    "varlen+seq_idx+cu_seqlens": CLEAN,
    "varlen_no_positions": CLEAN,
    "varlen_on_native": DROPPED,
    "seq_idx_on_native": DROPPED,
    "mask_4d_float": CLEAN,
    "mask_4d_bool": ("leak", "causality"),
    "mask_4d_float_sdpa": CLEAN,
    "mask_4d_bool_sdpa": CLEAN,
    "mask_4d_per_layer": CLEAN,
    "positions": CLEAN,
    "positions_sdpa": CLEAN,
    "positions+mask_2d": ATTENTION,
    "positions+cache": ATTENTION,
    "mask_2d": ATTENTION,
    "per_document": CLEAN,
    "configured": CLEAN,
}

WINDOW_LOST = ("differs", "window")
NO_SDPA = ("error", None)

EXCEPTIONS: dict[str, dict[str, tuple[str, str | None]]] = {
    "llama": {},
    "qwen3": {},
    "gpt2": {"varlen_no_positions": ("differs", "positions")},
    "mistral": {
        "mask_4d_float": WINDOW_LOST,
        "mask_4d_float_sdpa": WINDOW_LOST,
        "mask_4d_bool_sdpa": WINDOW_LOST,
    },
    # Its scores are capped, which sdpa cannot do: Transformers refuses to build it so.
    "gemma2": {
        "mask_4d_float": WINDOW_LOST,
        "mask_4d_float_sdpa": NO_SDPA,
        "mask_4d_bool_sdpa": NO_SDPA,
        "positions_sdpa": NO_SDPA,
    },
}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_verdicts(family: Callable[[str], ModelReport], name: str) -> None:
    report = family(name)
    found = {path: (finding.verdict, finding.kind) for path, finding in report.paths.items()}
    assert found == {**EVERY_FAMILY, **EXCEPTIONS[name]}
    assert list(found) == list(PATH_NAMES)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_numbers_are_far_from_the_threshold(family: Callable[[str], ModelReport], name: str) -> None:
    for path in family(name).paths.values():
        for number in (path.perturbation, path.gradient):
            assert number is None or number < 1e-6 or number > 1e-2
        if path.verdict == "clean":
            assert path.gradient == 0.0
            assert path.difference is not None
            assert path.difference < 2e-6


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_the_kernel_was_called_in_every_layer_with_the_boundaries_given(
    family: Callable[[str], ModelReport], name: str
) -> None:
    for path in ("varlen", "varlen+seq_idx", "varlen_no_positions", "configured"):
        finding = family(name).paths[path]
        assert (finding.calls, finding.boundaries_seen) == (2, True), path


def test_leaks_come_with_what_to_do(family: Callable[[str], ModelReport]) -> None:
    paths = family("llama").paths
    assert paths["positions+cache"].remedy == "pass use_cache=False"
    assert paths["positions+mask_2d"].remedy == "give no attention_mask"
    assert paths["mask_2d"].remedy == "use configured, varlen"
    assert paths["mask_2d"].where == "model.layers.0.self_attn (LlamaAttention)"
    assert all(not path.remedy for path in paths.values() if path.verdict == "clean")


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("stablelm", "varlen", DROPPED),
        ("codegen", "varlen", ("leak", "kernel_not_called")),
        ("opt", "positions", ATTENTION),
        ("afmoe", "varlen", CLEAN),
        ("ctrl", "mask_4d_float", CLEAN),
        ("bamba", "varlen", ("leak", "recurrence")),
        ("bamba", "varlen+seq_idx", ("refused", None)),
        ("lfm2", "mask_4d_float", ("leak", "convolution")),
        ("cpmant", "mask_2d", ("leak", "attention")),
        ("zaya", "varlen", ("leak", "convolution")),
        ("deepseek_v4", "positions", ("leak", "attention")),
        ("squeezebert@encoder", "positions", ("leak", "attention")),
        ("mobilebert@encoder", "varlen", ("leak", "token_shift")),
    ],
)
def test_mechanisms_of_other_families(
    texts: list[bytes], name: str, path: PathName, expected: tuple[str, str | None]
) -> None:
    finding = audit_models([ModelType(name)], texts, paths=[path]).models[0].paths[path]
    assert (finding.verdict, finding.kind) == expected


@pytest.mark.parametrize("name", ["codegen", "mamba"])
def test_a_model_that_is_asked_document_by_document_is_clean_once_configured(texts: list[bytes], name: str) -> None:
    model = audit_models([ModelType(name)], texts, paths=["configured"]).models[0]
    assert model.configured.consumer == "per_document"
    assert (model.paths["configured"].verdict, model.paths["configured"].gradient) == ("clean", 0.0)
