"""Tiny models keep what matters of their family: every kind of layer, windows that bite, weights that hide nothing."""

from __future__ import annotations

import pytest
import torch

from neatpack.contracts.errors import ModelError
from neatpack.kernels_bridge.audit.targets import layer_windows
from neatpack.kernels_bridge.audit.tiny_models import LARGEST, build_tiny_model, model_types, tiny_config

FAMILIES = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "mistral", "mixtral", "gpt_oss", "opt", "phi3"),
    *("nemotron", "stablelm", "bloom", "codegen", "gpt_neox", "deepseek_v3", "llama4_text"),
    *("bamba", "lfm2", "mamba", "mamba2", "recurrent_gemma", "qwen3_next", "zamba2"),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_builds_tiny_and_answers(name: str) -> None:
    model = build_tiny_model(name, "eager")
    assert sum(parameter.numel() for parameter in model.parameters()) < LARGEST
    assert not model.training
    logits = model(input_ids=torch.arange(60, 72)[None], use_cache=False).logits
    assert logits.isfinite().all()
    assert logits.std() > 0.3


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("llama", {"full_attention": None}),
        ("mistral", {"sliding_attention": 4}),
        ("gemma2", {"sliding_attention": 4, "full_attention": None}),
        ("llama4_text", {"chunked_attention": 4, "full_attention": None}),
        ("bamba", {"full_attention": None}),
    ],
)
def test_windows_are_shorter_than_the_documents(name: str, windows: dict[str, int | None]) -> None:
    assert layer_windows(build_tiny_model(name)) == windows


def test_one_layer_of_each_kind_is_kept() -> None:
    assert sorted(tiny_config("gemma3").layer_types) == ["full_attention", "sliding_attention"]


def test_of_several_towers_the_text_is_built() -> None:
    assert type(build_tiny_model("gemma3")).__name__ == "Gemma3ForCausalLM"


def test_weights_are_the_same_every_time() -> None:
    torch.default_generator.manual_seed(3)
    one = build_tiny_model("llama", "eager").state_dict()
    torch.default_generator.manual_seed(4)
    other = build_tiny_model("llama", "sdpa").state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_model_that_stays_large_is_refused_before_it_is_built() -> None:
    with pytest.raises(ModelError, match="is not tiny when shrunk"):
        build_tiny_model("xlm")


def test_the_model_types_are_those_of_transformers() -> None:
    assert {"llama", "gpt2", "mamba"} <= set(model_types())
