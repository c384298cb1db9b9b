"""Families whose isolation was measured by other means than this audit: it finds what was found, or says why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Final, Literal, cast

import pytest
from torch import nn

from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.report import Verdict
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder, ModelType
from neatpack.kernels_bridge.audit.tiny_models import redraw_weights, tiny_config, tiny_model_class
from neatpack.kernels_bridge.audit.tiny_sizes import WINDOW
from tests.audit import with_stand_ins
from tests.environments import ACTIVE, REPOSITORY, run

Known = Literal["ok", "differs", "leak", "raises"]
Row = tuple[Known, Known, Known, Known, Known]
PATHS: Final[tuple[PathName, ...]] = ("varlen", "varlen+seq_idx", "mask_4d_float", "mask_4d_per_layer", "positions")

MEANS: Final[dict[Known, frozenset[Verdict]]] = {
    "ok": frozenset({"clean"}),
    "differs": frozenset({"differs"}),
    "leak": frozenset({"leak"}),
    "raises": frozenset({"error", "refused"}),
}

_CLEAN: Final[Row] = ("ok", "ok", "ok", "ok", "ok")
_WINDOW: Final[Row] = ("ok", "ok", "differs", "ok", "ok")
_LEAKS: Final[Row] = ("leak", "leak", "leak", "leak", "leak")
_STATE: Final[Row] = ("leak", "raises", "leak", "leak", "leak")
_MASK_ONLY: Final[Row] = ("raises", "raises", "ok", "ok", "ok")

ROWS: Final[dict[str, Row]] = {
    # Attention alone, which boundaries keep apart.
    **dict.fromkeys(
        ["llama", "qwen2", "qwen3", "qwen3_moe", "phi3", "olmo2", "gpt2", "gpt_neox", "deepseek_v3"], _CLEAN
    ),
    **dict.fromkeys(["mistral", "mixtral", "gemma2", "gemma3"], _WINDOW),
    # The mask is made without the positions.
    "gpt_oss": ("ok", "ok", "differs", "ok", "leak"),
    **dict.fromkeys(["opt", "biogpt"], ("ok", "ok", "ok", "ok", "leak")),
    "afmoe": ("ok", "ok", "differs", "ok", "leak"),
    # Boundaries are not handed to the attention, or no kernel is ever called.
    **dict.fromkeys(["nemotron", "stablelm"], ("leak", "leak", "ok", "ok", "ok")),
    **dict.fromkeys(["codegen", "gpt_neox_japanese"], ("leak", "leak", "ok", "ok", "ok")),
    "xglm": ("leak", "leak", "ok", "ok", "leak"),
    "bloom": ("leak", "leak", "raises", "raises", "leak"),
    **dict.fromkeys(["gptj", "gpt_neo"], _MASK_ONLY),
    **dict.fromkeys(["falcon", "mpt"], ("raises", "raises", "ok", "ok", "leak")),
    # An indexer needs a mask that says something.
    **dict.fromkeys(["deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4"], _MASK_ONLY),
    # Keys are pooled across documents.
    # It adds to every mask, and to none.
    "doge": _MASK_ONLY,
    "deepseek_v4": ("raises", "raises", "leak", "leak", "leak"),
    # Convolutions and states, reset by kernels that are not installed here.
    **dict.fromkeys(["bamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2", "lfm2_moe"], _STATE),
    **dict.fromkeys(["qwen3_next", "qwen3_5", "olmo_hybrid"], ("raises", "raises", "leak", "leak", "leak")),
    **dict.fromkeys(["kimi_linear", "bailing_hybrid", "zamba"], _STATE),
    # Convolutions and states that nothing resets.
    **dict.fromkeys(["mamba2", "jamba", "recurrent_gemma", "minimax", "rwkv", "xlstm", "zaya"], _LEAKS),
    **dict.fromkeys(["mamba", "falcon_mamba"], ("leak", "leak", "raises", "raises", "leak")),
    "lfm3": ("leak", "leak", "leak", "raises", "leak"),
    **dict.fromkeys(["inkling_text", "inkling2_text"], ("raises", "leak", "leak", "leak", "leak")),
}
"""What was found by kernels, masks and texts of others, on one row of four documents; by family and path."""

_RELATIVE: Final = (
    "The layer adds to scores for the distance of tokens, for which flash attention has no place: the audit goes no "
    "further, whatever else is given. Another kernel left it out, and came to the convolutions, which leak."
)

EXPLAINED: Final[dict[tuple[str, PathName], tuple[Verdict, str]]] = {
    ("inkling_text", "varlen+seq_idx"): ("refused", _RELATIVE),
    ("inkling2_text", "varlen+seq_idx"): ("refused", _RELATIVE),
}
"""Where the audit finds something else, what it finds, and why."""

WITH_KERNELS: Final[dict[str, tuple[Known, Known | None]]] = {
    # Convolutions and state spaces take seq_idx.
    **dict.fromkeys(
        ["bamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2", "lfm2_moe"], ("ok", None)
    ),
    # Delta rules take their offsets from the varlen arguments, and no second time.
    "qwen3_next": ("ok", "raises"),
    **dict.fromkeys(["qwen3_5", "olmo_hybrid"], ("ok", None)),
    # They read cu_seqlens alone.
    **dict.fromkeys(["kimi_linear", "bailing_hybrid"], ("leak", "ok")),
    # Boundaries reach no kernel, only the convolution, or nothing that would reset.
    **dict.fromkeys(["mamba2", "mamba", "falcon_mamba", "jamba", "zamba", "lfm3"], ("leak", None)),
    **dict.fromkeys(["recurrent_gemma", "minimax", "rwkv", "xlstm", "zaya"], ("leak", None)),
    **dict.fromkeys(["inkling_text", "inkling2_text"], ("leak", None)),
    **dict.fromkeys(["llama", "mixtral", "gpt_oss", "opt"], ("ok", None)),
}
"""What was found by others where kernels of recurrent layers are stood in for: given seq_idx, and cu_seqlens as well;
None where nobody looked."""

SAMPLE: Final = frozenset({"qwen2", "mixtral", "gpt_oss", "nemotron", "gptj", "mpt", "zamba2", "qwen3_next", "rwkv"})


WITH_KERNELS_SAMPLE: Final = ("bamba", "qwen3_next", "kimi_linear", "mamba2", "lfm3")


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.sweep) for name in ROWS]
)
def test_the_audit_finds_what_was_found(texts: list[bytes], name: str) -> None:
    model = audit_models([ModelType(name)], texts, paths=PATHS).models[0]
    assert model.error is None
    found = {path: model.paths[path].verdict for path in PATHS}
    expected = {
        path: {EXPLAINED[name, path][0]} if (name, path) in EXPLAINED else MEANS[known]
        for path, known in zip(PATHS, ROWS[name], strict=True)
    }
    assert {path: verdict for path, verdict in found.items() if verdict not in expected[path]} == {}


def _with_stand_ins(*arguments: str) -> dict[str, dict[str, str]]:
    """Audit in a process in which the kernels seem to be installed: verdicts by family and path."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.audit.with_stand_ins", *arguments]
    found: dict[str, dict[str, str]] = json.loads(run(*command, cwd=REPOSITORY, env=ACTIVE).stdout.splitlines()[-1])
    return found


def _check_with_kernels(found: dict[str, dict[str, str]]) -> None:
    for name, verdicts in found.items():
        for path, known in zip(with_stand_ins.PATHS, WITH_KERNELS[name], strict=True):
            if known is not None:
                expected = {EXPLAINED[name, path][0]} if (name, path) in EXPLAINED else MEANS[known]
                assert verdicts[path] in expected, (name, path)


@pytest.mark.slow
def test_the_audit_finds_what_was_found_with_kernels_of_recurrent_layers() -> None:
    found = _with_stand_ins(*WITH_KERNELS_SAMPLE)
    assert set(found) == set(WITH_KERNELS_SAMPLE)
    _check_with_kernels(found)


@pytest.mark.sweep
def test_the_audit_finds_what_was_found_with_kernels_in_every_family() -> None:
    found = _with_stand_ins(*WITH_KERNELS)
    assert set(found) == set(WITH_KERNELS)
    _check_with_kernels(found)


@pytest.mark.slow
def test_a_kernel_that_does_not_heed_its_boundaries_is_found() -> None:
    (found,) = _with_stand_ins("--deaf", "lfm2").values()
    assert set(found.values()) == {"leak"}


def _variant(name: str, **fields: object) -> Callable[[], nn.Module]:
    """A model type whose configuration is another than the default one."""

    def build() -> nn.Module:
        config = tiny_config(name)
        make = cast("Callable[..., object]", type(config))
        changed = make(**{**cast("dict[str, object]", config.to_dict()), **fields})
        from_config: Callable[..., nn.Module] = getattr(tiny_model_class(name), "_from_config")  # noqa: B009  # untyped
        model = from_config(changed, attn_implementation="eager")
        redraw_weights(model)
        return model

    return build


_ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": WINDOW}
LONGROPE = {"rope_type": "longrope", "long_factor": [2.0] * 4, "short_factor": [1.0] * 4, "factor": 16.0, **_ROPE}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("build", "known", "said"),
    [
        # Frequencies follow the longest row, whatever keeps documents apart.
        (_variant("phi3", original_max_position_embeddings=WINDOW, rope_parameters=LONGROPE), "differs", "'longrope'"),
        (_variant("llama", max_position_embeddings=2 * WINDOW, rope_parameters=DYNAMIC), "differs", "'dynamic'"),
    ],
)
def test_rope_that_is_scaled_by_the_row_is_named(
    texts: list[bytes], build: Callable[[], nn.Module], known: Known, said: str
) -> None:
    paths: list[PathName] = ["varlen", "mask_4d_per_layer", "positions", "configured"]
    model = audit_models([Builder("variant", build, custom=False)], texts, paths=paths).models[0]
    assert model.configured.consumer == "per_document"
    assert model.paths.pop("configured").verdict == "clean"
    for report in model.paths.values():
        assert report.verdict in MEANS[known]
        assert report.kind == "length"
        assert f"RoPE scaling by row, of the kind {said}" in report.message


def test_distances_added_from_a_plain_mask_leak_wherever_they_run(texts: list[bytes]) -> None:
    paths: list[PathName] = ["varlen", "mask_4d_float", "positions", "per_document"]
    target = Builder("alibi", _variant("falcon", alibi=True), custom=False)
    found = audit_models([target], texts, paths=paths).models[0].paths
    assert [found[path].verdict for path in paths] == ["error", "error", "leak", "clean"]


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("hunyuan_v1_dense", "differs"),  # it norms what it has turned, so that turning further is not undone
        pytest.param("llama", "clean", marks=pytest.mark.sweep),
        *(
            pytest.param(name, "differs", marks=pytest.mark.sweep)
            for name in ("gpt2", "opt", "biogpt", "gpt_bigcode", "ctrl", "hunyuan_v1_moe", "beam")
        ),
    ],
)
def test_offsets_without_positions_are_wrong_where_places_count(texts: list[bytes], name: str, verdict: str) -> None:
    path = audit_models([ModelType(name)], texts, paths=["varlen_no_positions"]).models[0].paths["varlen_no_positions"]
    assert (path.verdict, path.kind) == (verdict, "positions" if verdict == "differs" else None)


def test_a_leak_is_never_explained_away() -> None:
    for (name, path), (verdict, why) in EXPLAINED.items():
        known = ROWS[name][PATHS.index(path)]
        with_kernels, _ = WITH_KERNELS.get(name, (known, None))
        assert {with_kernels, verdict} != {"leak", "clean"}, name
        assert {known, verdict} != {"leak", "clean"}, name
        assert verdict not in MEANS[known], name
        assert why
