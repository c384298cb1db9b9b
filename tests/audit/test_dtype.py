"""Audits in bf16 say what those in fp32 do, and give a model that its builder keeps its own values back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder, ModelType, Target
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from neatpack.kernels_bridge.cli import main
from tests.audit import planted

PATHS: Sequence[PathName] = ("varlen", "mask_4d_float", "mask_4d_per_layer", "mask_2d", "configured")


@pytest.mark.parametrize("family", ["llama", "mistral", "mixtral", "gemma3_text", "bloom"])
def test_verdicts_in_bf16_are_those_in_fp32(texts: list[bytes], family: str) -> None:
    coarse, fine = (
        audit_models([ModelType(family)], texts, paths=PATHS, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    assert (coarse.environment.dtype, coarse.environment.threshold) == ("bfloat16", 0.0625)
    for name, path in fine.models[0].paths.items():
        found = coarse.models[0].paths[name]
        assert (found.verdict, found.kind) == (path.verdict, path.kind), found.message


@pytest.mark.parametrize(
    ("mask", "verdict"), [(planted.block_causal, "clean"), (planted.only_third_reads_first, "leak")]
)
def test_modules_of_ones_own_too(texts: list[bytes], mask: planted.Mask, verdict: str) -> None:
    target = Builder("m", lambda: planted.Model(planted.Attention(mask), planted.Convolution()))
    (model,) = audit_models([target], texts, paths=["configured"], dtype=torch.bfloat16).models
    assert model.outcome == verdict


def test_a_kept_model_has_its_own_values_afterwards(texts: list[bytes]) -> None:
    kept = build_tiny_model("llama")
    before = {name: tensor.clone() for name, tensor in kept.state_dict().items()}
    target: Target = Builder("kept", lambda: kept)
    assert audit_models([target], texts, paths=["configured"], dtype=torch.bfloat16).is_clean
    assert all(torch.equal(tensor, before[name]) for name, tensor in kept.state_dict().items())


def clean() -> planted.Model:
    return planted.Model(planted.Attention())


def test_the_command_line_takes_a_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"input_ids": torch.arange(4)[None], "document_ids": torch.tensor([[1, 1, 2, 2]])}, tmp_path / "b.pt")
    options = ["--dtype", "bfloat16", "--json", "--batch", str(tmp_path / "b.pt")]
    assert main(["audit", "tests.audit.test_dtype:clean", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["environment"]["dtype"] == "bfloat16"
    assert report["models"][0]["paths"]["configured"]["verdict"] == "clean"
    with pytest.raises(SystemExit):
        main(["audit", "--all", "--dtype", "bfloat16"])
