"""What `neatpack explain` says is what `configure_packing` does, and what loaders emit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neatpack.adapters import apply_packing_contract, collate_documents, plan_rows
from neatpack.contracts import CONSUMER_NAMES, PackingError
from neatpack.kernels_bridge import configure_packing, get_binding, get_model_attn_implementation
from neatpack.kernels_bridge.cli import main
from neatpack.kernels_bridge.explain import explain_model, explanation_lines
from neatpack.kernels_bridge.terminal import plain
from tests.kernels_bridge.packed import tiny
from tests.kernels_bridge.plugins import install
from tests.kernels_bridge.toys import Dense, Ids, NativeFA4, Recurrent, Swallows

MODELS: list[nn.Module] = [
    tiny("llama"),
    tiny("gpt2", "sdpa"),
    Ids(),
    Dense(),
    Recurrent(),
    Swallows(),
    nn.Linear(2, 2),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_the_explanation_is_what_is_done(model: nn.Module) -> None:
    explanation = explain_model(model)
    assert get_binding(model) is None
    assert [said.consumer for said in explanation.said] == list(CONSUMER_NAMES)
    assert all(said.preference for said in explanation.said)
    attention = get_model_attn_implementation(model)
    assert explanation.attention == attention
    if explanation.chosen is None:
        with pytest.raises(PackingError) as caught:
            configure_packing(attention, model)
        assert str(caught.value) == explanation.refusal
        assert not explanation.loader_fields
        return
    capabilities = configure_packing(attention, model)
    binding = get_binding(model)
    assert binding is not None
    assert (binding.consumer, capabilities) == (explanation.chosen, explanation.capabilities)
    binding.remove()
    documents = [torch.tensor([4, 5, 6]), torch.tensor([7])]
    batch = apply_packing_contract(collate_documents(documents, plan_rows([3, 1], 4)), capabilities)
    assert set(explanation.loader_fields) == set(batch)
    assert ("cu_seqlens" in explanation.loader_fields) is capabilities.requires_packed_sequence_metadata


@pytest.mark.parametrize("width", [60, 120])
def test_the_lines_hold_every_reason_and_keep_to_the_width(width: int) -> None:
    explanation = explain_model(MODELS[0], "a llama")
    text = plain(explanation_lines(explanation, width))
    assert max(map(len, text.splitlines())) <= max(width, 60)
    words = " ".join(text.split())
    assert words.startswith("a llama LlamaForCausalLM runs with 'eager'")
    for said in explanation.said:
        assert said.consumer in words
        assert " ".join(said.why.split()) in words
    assert f"{explanation.chosen} CHOSEN block_causal" in words
    assert words.index("native_fa4") < words.index("block_causal")
    assert "packed_mask_type = 'block_causal'" in words
    assert "_packed_seq_ids" in words


def test_a_model_of_transformers_gives_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "llama", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["schema_version"] == 1
    assert (report["model"], report["class_name"], report["chosen"]) == ("llama", "LlamaForCausalLM", "block_causal")
    assert report["capabilities"]["packed_mask_type"] == "block_causal"
    assert [said["consumer"] for said in report["said"]] == list(CONSUMER_NAMES)
    assert main(["explain", "llama"]) == 0
    assert "block_causal    CHOSEN" in capsys.readouterr().out


def test_a_model_that_nobody_takes_gives_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nobodys.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(2, 2)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "nobodys:build"]) == 1
    assert "no consumer takes Linear" in capsys.readouterr().out
    assert main(["explain", "nobodys:build", "--json"]) == 1
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["chosen"] is None
    assert report["capabilities"] is None
    assert "declared: Linear.forward does not name" in report["refusal"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("lama", "Did you mean llama"),
        ("no.module:build", "cannot be found"),
        ("failing:build", "cannot be built (ZeroDivisionError: no)"),
        ("failing:leave", "cannot be built (SystemExit: 3)"),
        ("failing:nothing", "built no module"),
        ("failing:Misspelt", "document_id"),
    ],
)
def test_what_cannot_be_explained_gives_2(
    target: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing.py").write_text(
        "from torch import nn\n"
        "def build():\n    raise ZeroDivisionError('no')\n"
        "def leave():\n    raise SystemExit(3)\n"
        "def nothing():\n    return None\n"
        "class Misspelt(nn.Module):\n    packed_mask_type = 'document_id'\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["explain", target]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""


def test_plugins_are_explained_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    install(tmp_path, "toy-explained", code="import no_such_package_here")
    last = explain_model(Ids()).said[-1]
    assert (last.consumer, last.accepted) == ("runs", False)
    assert "toy-explained 1.5" in last.why
    assert "No module named 'no_such_package_here'" in last.why
    install(tmp_path, "toy-twice")
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    assert "toy-twice 1.5" in explain_model(Ids()).said[-1].why


class Backend:
    attn: str = "fa4"


class Built(NativeFA4):
    backend = Backend()


def test_a_model_that_says_fa4_is_explained() -> None:
    explanation = explain_model(Built())
    assert (explanation.attention, explanation.chosen) == ("fa4", "native_fa4")
