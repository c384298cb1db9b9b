"""Tiny models keep what matters of their family: every kind of layer, windows that bite, weights that hide nothing."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn

from neatpack.contracts.errors import ModelError
from neatpack.kernels_bridge.audit import tiny_models, tiny_sizes
from neatpack.kernels_bridge.audit.targets import layer_windows
from neatpack.kernels_bridge.audit.tiny_models import (
    LARGEST,
    build_tiny_model,
    model_types,
    tiny_config,
    tiny_model_class,
)

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
        ("moshi", {"full_attention": None}),  # its config has a window, which its code does not use
    ],
)
def test_windows_are_shorter_than_the_documents(name: str, windows: dict[str, int | None]) -> None:
    assert layer_windows(build_tiny_model(name)) == windows


def _parts_of_layers(model: nn.Module) -> set[object]:
    """What layers are made of: classes, and what sets two modules of a class apart by a flag or a name."""
    parts: set[object] = set()
    for listed in (module for module in model.modules() if isinstance(module, nn.ModuleList)):
        for module in listed.modules():
            flags = {
                name: value for name, value in vars(module).items() if name[0] != "_" and isinstance(value, (bool, str))
            }
            has_window = getattr(module, "sliding_window", None) is not None
            parts.add((type(module).__name__, has_window, frozenset(flags.items())))
    return parts


def _parts_missing(name: str) -> set[object]:
    """What the layers of the default configuration have, and those of the tiny one have not."""
    config = import_module("transformers").CONFIG_MAPPING[name]()
    config = config.get_text_config() if "text_config" in config.sub_configs else config
    with torch.device("meta"):
        large = getattr(tiny_model_class(name), "_from_config")(config, attn_implementation="eager")  # noqa: B009
    return _parts_of_layers(large.eval()) - _parts_of_layers(build_tiny_model(name, "eager"))


MIXED = (
    "afmoe",
    "bailing_hybrid",
    "deepseek_v4",
    "dots3_note_text",
    "flint",
    "gemma3n_text",
    "gpt_neo",
    "inkling2_text",
)


@pytest.mark.parametrize("name", [*MIXED, "llama4_text", "nemotron_h", "recurrent_gemma", "zamba2"])
def test_every_part_of_a_layer_is_kept(name: str) -> None:
    assert _parts_missing(name) == set()


def test_a_kind_of_layer_that_is_lost_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tiny_sizes.EXCEPTIONS, "flint")
    monkeypatch.setattr(tiny_models, "tiny_config", tiny_config.__wrapped__)
    assert "FlintSparseMoeBlock" in str(_parts_missing("flint"))


def test_of_several_towers_the_text_is_built() -> None:
    assert type(build_tiny_model("gemma3")).__name__ == "Gemma3ForCausalLM"


def test_weights_are_the_same_every_time() -> None:
    torch.default_generator.manual_seed(3)
    one = build_tiny_model("llama", "eager").state_dict()
    torch.default_generator.manual_seed(4)
    other = build_tiny_model("llama", "sdpa").state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_model_that_stays_large_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tiny_sizes.SIZES, "vocab_size")
    for cached in (tiny_models.tiny_config, tiny_models.require_tiny):
        monkeypatch.setattr(tiny_models, cached.__name__, cached.__wrapped__)
    with pytest.raises(ModelError, match=r"is not tiny when shrunk: .*embed_tokens"):
        build_tiny_model("gemma2")


@pytest.mark.parametrize("name", ["gemma4_assistant", "musicgen"])
def test_what_does_not_answer_to_tokens_alone_says_so(name: str) -> None:
    with pytest.raises(ModelError, match=r"drafts from|codebooks"):
        build_tiny_model(name)


def test_an_encoder_comes_as_the_causal_language_model_that_it_is_asked_for() -> None:
    assert tiny_config("bert").is_decoder is True


def test_the_model_types_are_those_of_transformers() -> None:
    assert {"llama", "gpt2", "mamba"} <= set(model_types())
