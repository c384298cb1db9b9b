"""What is set in Transformers' registries and configs is gone without a trace when the last binding is."""

from __future__ import annotations

import copy
import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from neatpack.contracts import BoundariesMissingError, ModelError
from neatpack.kernels_bridge import Binding, configure_packing, get_binding
from neatpack.kernels_bridge.consumers.reference import attend
from neatpack.kernels_bridge.hf_attention import HFAttachment
from tests.kernels_bridge.packed import IDS, TOKENS, logits, tiny


def snapshot() -> list[dict[str, object]]:
    """Copy every table of Transformers in which functions can be registered, once dropped models are gone."""
    gc.collect()
    from transformers import masking_utils, modeling_utils

    tables: list[Any] = [modeling_utils.ALL_ATTENTION_FUNCTIONS, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS]
    return [dict(part) for table in tables for part in (table._local_mapping, table._global_mapping)]


def config_of(model: nn.Module) -> dict[str, object]:
    config = cast("Any", model).config
    return copy.deepcopy({**config.__dict__, "text": config.get_text_config().__dict__})


def bound(model: nn.Module) -> Binding:
    binding = get_binding(model)
    assert binding is not None
    return binding


@pytest.mark.parametrize("consumer", ["reference", "block_causal"])
def test_removal_leaves_no_trace(consumer: str) -> None:
    model = tiny("gemma2")
    before, config, hooks = snapshot(), config_of(model), [dict(vars(layer)) for layer in model.modules()]
    configure_packing("eager", model, consumer=consumer)
    added = set(snapshot()[0]) - set(before[0])
    assert added == {f"neatpack|{consumer}|eager"}
    assert snapshot()[1:] == before[1:]
    logits(model, TOKENS, _packed_seq_ids=IDS)
    bound(model).remove()
    assert snapshot() == before
    assert config_of(model) == config
    assert [dict(vars(layer)) for layer in model.modules()] == hooks
    assert get_binding(model) is None


def test_the_function_stays_while_another_model_needs_it() -> None:
    before = snapshot()
    first, second = tiny("llama"), tiny("gpt2")
    for model in (first, second):
        configure_packing("eager", model, consumer="reference")
    bound(first).remove()
    bound_second = bound(second)
    logits(second, TOKENS, _packed_seq_ids=IDS)
    bound_second.remove()
    bound_second.remove()
    assert snapshot() == before


class Refusing(dict[str, object]):
    def __setitem__(self, name: str, function: object) -> None:
        raise ZeroDivisionError


def test_a_refusal_by_one_interface_takes_the_function_out_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces: dict[str, dict[str, object]] = {"first_file": {}, "second_file": Refusing()}
    for name, interface in interfaces.items():
        file = ModuleType(name)
        file.__dict__["ALL_ATTENTION_FUNCTIONS"] = interface
        monkeypatch.setitem(sys.modules, name, file)
    config = SimpleNamespace(_attn_implementation_internal="sdpa")
    with pytest.raises(ZeroDivisionError):
        HFAttachment("reference", attend, "sdpa", tuple(interfaces), config)
    assert interfaces == {"first_file": {}, "second_file": {}}
    assert config._attn_implementation_internal == "sdpa"


def test_a_dropped_model_counts_as_removed() -> None:
    before = snapshot()
    model = tiny("llama")
    config = cast("Any", model).config
    configure_packing("eager", model, consumer="reference")
    del model
    gc.collect()
    assert snapshot() == before
    assert config._attn_implementation == "eager"


def shared() -> tuple[nn.Module, nn.Module]:
    first = tiny("llama")
    second = type(first)(cast("Any", first).config)
    return first, second.train()


def test_models_that_share_a_config_are_restored_by_the_last() -> None:
    first, second = shared()
    config = cast("Any", first).config
    for model in (first, second):
        configure_packing("eager", model, consumer="reference")
    bound(first).remove()
    assert config._attn_implementation == "neatpack|reference|eager"
    logits(second, TOKENS, _packed_seq_ids=IDS)
    with pytest.raises(BoundariesMissingError, match="a config of its own"):
        logits(first, TOKENS)
    bound(second).remove()
    assert config._attn_implementation == "eager"
    logits(first, TOKENS)


def test_a_shared_config_cannot_name_two_functions() -> None:
    first, second = shared()
    configure_packing("eager", first, consumer="reference")
    with pytest.raises(ModelError, match=r"shared with a model that is bound as 'neatpack\|reference\|eager'"):
        configure_packing("eager", second, consumer="block_causal")
    configure_packing("eager", second)
    assert bound(second).consumer == "reference"
    bound(second).remove()
    with bound(first).suspended():
        configure_packing("eager", first)
    assert bound(first).consumer == "block_causal"


def test_an_unbound_model_with_the_config_of_a_bound_one_fails_loudly() -> None:
    first, second = shared()
    configure_packing("eager", first)
    with pytest.raises(BoundariesMissingError, match="shares its config"):
        logits(second, TOKENS)


def test_a_nested_text_config_alone_is_pointed() -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = cast("Any", tiny("gemma3_text")).config
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config: Any = Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)
    config._attn_implementation = "eager"
    model = cast("nn.Module", Gemma3ForConditionalGeneration(config)).train()
    before = (config._attn_implementation, config.vision_config._attn_implementation)
    configure_packing("eager", model, consumer="reference")
    assert config.text_config._attn_implementation == "neatpack|reference|eager"
    assert (config._attn_implementation, config.vision_config._attn_implementation) == before
    token_types = torch.zeros_like(TOKENS)
    logits(model, TOKENS, _packed_seq_ids=IDS, token_type_ids=token_types)
    bound(model).remove()
    assert config.text_config._attn_implementation == "eager"


def test_saved_configs_do_not_name_the_binding() -> None:
    model = tiny("llama")
    configure_packing("eager", model)
    assert "neatpack" not in cast("Any", model).config.to_json_string()
