from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from torch import Tensor, nn

from neatpack.contracts import (
    CapabilitiesError,
    ConsumerError,
    ModelError,
    ModelTypeError,
    PackingCapabilities,
    PackingError,
)
from neatpack.kernels_bridge import (
    configure_packing,
    configure_packing_for_models,
    get_binding,
    get_packing_capabilities,
    validate_flash_packing_support,
)
from tests.kernels_bridge.packed import tiny
from tests.kernels_bridge.toys import Dense, Flash, Ids, NativeFA4, Recurrent, Swallows


@pytest.mark.parametrize(
    ("attention", "model", "expected"),
    [
        ("fa4", NativeFA4(), PackingCapabilities("document_ids", True, True)),
        ("flash_attention_2", None, PackingCapabilities("flash_varlen")),
        ("flash_attention_3", Flash(), PackingCapabilities("flash_varlen")),
        ("flash_attention_4", Recurrent(), PackingCapabilities("flash_varlen", True)),
        ("kernels-community/flash-attn2", None, PackingCapabilities("flash_varlen")),
        ("sdpa", None, PackingCapabilities("block_causal")),
        ("eager", Ids(), PackingCapabilities("document_ids")),
        ("te", Recurrent(), PackingCapabilities("block_causal", True)),
        ("sdpa", NativeFA4(), PackingCapabilities("block_causal", True)),
        ("some-org/other-kernel", None, PackingCapabilities("block_causal")),
        ("paged|eager", None, PackingCapabilities("block_causal")),
    ],
)
def test_capabilities(attention: str, model: nn.Module | None, expected: PackingCapabilities) -> None:
    tiny("llama")  # Transformers is there, with its registry
    assert get_packing_capabilities(attention, model) == expected
    if model is None:
        assert configure_packing(attention) == expected


@pytest.mark.parametrize("model", [None, Dense(), nn.Linear(2, 2)])
def test_fa4_needs_a_model_that_calls_it(model: nn.Module | None) -> None:
    with pytest.raises(CapabilitiesError, match="native FlashAttention-4") as caught:
        configure_packing("fa4", model)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "near"),
    [("flash_attention2", "flash_attention_2"), ("spda", "sdpa"), ("eagr", "eager"), ("", "te")],
)
@pytest.mark.parametrize("model", [None, Dense()])
def test_a_misspelt_backend_is_refused(name: str, near: str, model: nn.Module | None) -> None:
    with pytest.raises(CapabilitiesError) as caught:
        configure_packing(name, model)
    problem = caught.value.problems[0]
    assert problem.field == "attn_implementation"
    assert (near in problem.remedy) or not name


def test_where_no_name_is_near_all_are_listed() -> None:
    with pytest.raises(CapabilitiesError) as caught:
        get_packing_capabilities("nope")
    remedy = caught.value.problems[0].remedy
    assert remedy.startswith("Known are ")
    assert "'sdpa'" in remedy


@pytest.mark.parametrize("call", [get_packing_capabilities, validate_flash_packing_support])
@pytest.mark.parametrize("name", [None, 3, "zzz"])
def test_a_backend_that_is_no_name(call: Any, name: object) -> None:
    with pytest.raises(CapabilitiesError, match="attn_implementation"):
        call(name)


def test_authors_name_their_own_backends_if_they_declare_what_they_take() -> None:
    model: Any = Ids()
    object.__setattr__(model, "backend", SimpleNamespace(attn="homemade"))
    assert configure_packing("homemade", model).packed_mask_type == "document_ids"
    bare: Any = nn.Linear(2, 2)
    object.__setattr__(bare, "backend", SimpleNamespace(attn="homemade"))
    with pytest.raises(CapabilitiesError, match="homemade"):
        configure_packing("homemade", bare)


def test_a_name_in_transformers_registry_is_known() -> None:
    from transformers import AttentionInterface

    interface = cast("Any", AttentionInterface)
    with pytest.raises(CapabilitiesError):
        get_packing_capabilities("homemade_attention")
    interface.register("homemade_attention", lambda: None)
    try:
        assert get_packing_capabilities("homemade_attention") == PackingCapabilities("block_causal")
    finally:
        del interface._global_mapping["homemade_attention"]


@pytest.mark.parametrize("model", [Ids(), Dense()])
def test_flash_and_another_mask_type_contradict(model: nn.Module) -> None:
    with pytest.raises(CapabilitiesError) as caught:
        configure_packing("flash_attention_2", model)
    assert cast("Any", model).packed_mask_type in str(caught.value)
    assert "flash_varlen" in str(caught.value)
    assert get_binding(model) is None


@pytest.mark.parametrize(
    ("own", "given"),
    [("eager", "sdpa"), ("sdpa", "eager"), ("eager", "flash_attention_2"), ("flash_attention_2", "sdpa")],
)
@pytest.mark.parametrize("consumer", [None, "reference"])
def test_a_name_that_the_model_does_not_run_with_is_refused(own: str, given: str, consumer: str | None) -> None:
    model = tiny("llama")
    cast("Any", model).config._attn_implementation_internal = own
    with pytest.raises(CapabilitiesError, match=f"{given}.* runs with '{own}'.*get_model_attn_implementation"):
        configure_packing(given, model, consumer=consumer)
    assert get_binding(model) is None


def test_a_hub_id_is_the_name_of_what_it_stands_in_for() -> None:
    model = tiny("llama")
    cast("Any", model).config._attn_implementation_internal = "flash_attention_2"
    assert configure_packing("kernels-community/flash-attn2", model) == PackingCapabilities("flash_varlen")


def test_a_chosen_consumer_is_bound() -> None:
    model = tiny("llama")
    assert configure_packing("eager", model, consumer="reference") == PackingCapabilities("document_ids")
    binding = get_binding(model)
    assert binding is not None
    assert (binding.consumer, binding.implementation) == ("reference", "eager")


def test_a_consumer_without_a_model_or_a_name() -> None:
    with pytest.raises(ConsumerError, match="no model"):
        configure_packing("sdpa", consumer="reference")
    with pytest.raises(ConsumerError, match="Did you mean 'block_causal'"):
        configure_packing("sdpa", Dense(), consumer="blockcausal")
    with pytest.raises(ConsumerError, match="no consumer has this name"):
        configure_packing("sdpa", Dense(), consumer=cast("str", 3))


def test_the_reasons_of_all_are_in_the_error() -> None:
    with pytest.raises(ModelError) as caught:
        configure_packing("sdpa", Swallows())
    words = str(caught.value)
    assert all(name in words for name in ("declared", "hf_flash", "block_causal", "reference"))
    assert words.count("declares that it takes 'flash_varlen' itself") == 1
    assert isinstance(caught.value, RuntimeError)


class Around(nn.Module):
    """Holds a Hugging Face model, and says of it no more than the tokens and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.lm = tiny("llama")

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.lm(input_ids, attention_mask=attention_mask).logits
        return logits


class AroundDeclaring(Around):
    packed_mask_type: Literal["block_causal"] = "block_causal"


def test_of_a_module_around_a_hugging_face_model_that_one_is_to_be_configured() -> None:
    with pytest.raises(
        ModelError, match=r"declared, hf_flash, .*: it only holds a Hugging Face model, `lm`: configure"
    ):
        configure_packing("sdpa", Around())
    assert configure_packing("eager", Around().lm).packed_mask_type == "block_causal"
    model = AroundDeclaring()
    configure_packing("sdpa", model)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "declared"


@pytest.mark.parametrize("call", [configure_packing, get_packing_capabilities, validate_flash_packing_support])
def test_no_module(call: Any) -> None:
    for name in ("flash_attention_2", "sdpa"):
        with pytest.raises(ModelTypeError):
            call(name, object())


@pytest.mark.parametrize("models", [None, 3, nn.Linear(2, 2)])
def test_no_stages(models: Any) -> None:
    with pytest.raises(ModelTypeError) as caught:
        configure_packing_for_models(models)
    problem = caught.value.problems[0]
    assert (problem.field, problem.value) == ("models", type(models).__name__)


@pytest.mark.parametrize("model", [None, Flash(), Ids()])
def test_flash_support(model: nn.Module | None) -> None:
    validate_flash_packing_support()
    validate_flash_packing_support("eager", nn.Linear(2, 2))
    validate_flash_packing_support("flash_attention_2", model)
    validate_flash_packing_support("flash_attention_2", tiny("llama"))


@pytest.mark.parametrize("model", [Swallows(), nn.Linear(2, 2)])
def test_no_flash_support(model: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="cu_seq_lens_q") as caught:
        validate_flash_packing_support("flash_attention_2", model)
    assert isinstance(caught.value, PackingError)


def test_a_transformers_without_varlen_kwargs(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.modeling_flash_attention_utils as flash

    def old(query_states: object, attention_mask: object) -> None: ...

    monkeypatch.setattr(flash, "_flash_attention_forward", old)
    model = tiny("llama")
    cast("Any", model).config._attn_implementation_internal = "flash_attention_2"
    for call in (validate_flash_packing_support, configure_packing):
        for subject in (None, model):
            with pytest.raises(ModelError, match="takes no cu_seq_lens_q"):
                call("flash_attention_2", subject)
    assert get_binding(model) is None


def mixed(backend: str, **declared: bool) -> nn.Module:
    """Build a Transformers model that has layers of its own as well."""
    model: Any = tiny("llama")
    model.backend = SimpleNamespace(attn=backend)
    for name, value in declared.items():
        setattr(model, name, value)
    return cast("nn.Module", model)


def test_where_the_config_rules_the_backend_is_not_configured() -> None:
    model = mixed("fa4", uses_native_fa4=True, uses_hf_attention=True)
    assert configure_packing("eager", model).packed_mask_type == "block_causal"
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "block_causal"
    with pytest.raises(CapabilitiesError, match="the model runs with 'eager', as its config says"):
        configure_packing("fa4", model)
    assert get_binding(model) is binding


@pytest.mark.parametrize(("backend", "declared"), [("fa4", {"uses_native_fa4": True}), ("te", {})])
def test_where_the_backend_rules_the_config_is_not_bound(backend: str, declared: dict[str, bool]) -> None:
    for consumer in ("block_causal", "reference"):
        with pytest.raises(ModelError, match=f"its attention is that of its backend, '{backend}': declare `uses_hf"):
            configure_packing(backend, mixed(backend, **declared), consumer=consumer)


def test_a_stage_that_fails_puts_back_what_the_others_had(monkeypatch: pytest.MonkeyPatch) -> None:
    from neatpack.kernels_bridge import configure

    first, second = tiny("llama"), tiny("llama")
    configure_packing("eager", first, consumer="reference")
    bind = cast("Any", configure).bind

    def fail_at_second(stage: nn.Module, *choices: Any) -> object:
        if stage is second:
            raise ZeroDivisionError
        return bind(stage, *choices)

    monkeypatch.setattr(configure, "bind", fail_at_second)
    with pytest.raises(ZeroDivisionError):
        configure_packing_for_models([first, second])
    binding = get_binding(first)
    assert binding is not None
    assert binding.consumer == "reference"
    assert get_binding(second) is None
