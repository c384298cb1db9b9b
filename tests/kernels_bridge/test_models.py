from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

from neatpack.contracts import CapabilitiesError, ModelTypeError
from neatpack.kernels_bridge import get_model_attn_implementation
from neatpack.kernels_bridge.models import (
    bound_name,
    declared_flag,
    declared_mask_type,
    forward_arguments,
    hf_implementation,
    is_flash,
    mainline_name,
    positional_arguments,
    require_module,
    unbound_name,
)
from tests.kernels_bridge.packed import tiny
from tests.kernels_bridge.toys import Ids, NativeFA4, Outer


def with_attributes(**attributes: Any) -> nn.Module:
    model = nn.Linear(2, 2)
    for name, value in attributes.items():
        object.__setattr__(model, name, value)
    return model


def test_wrappers_come_off_by_type() -> None:
    model = Ids()
    compiled = cast("nn.Module", cast("Any", torch).compile(model, backend="eager"))
    checkpointed = cast("nn.Module", cast("Any", checkpoint_wrapper).checkpoint_wrapper(compiled))
    assert require_module(nn.DataParallel(checkpointed)) is model
    outer = Outer(model)
    assert require_module(outer) is outer


@pytest.mark.parametrize("model", [None, 3, Ids])
def test_no_module(model: object) -> None:
    with pytest.raises(ModelTypeError) as caught:
        get_model_attn_implementation(model)
    assert isinstance(caught.value, TypeError)
    assert caught.value.problems[0].field == "model"


def test_both_spellings_of_a_flag() -> None:
    assert declared_flag(NativeFA4(), "uses_native_fa4")
    assert declared_flag(with_attributes(uses_native_fa4=True), "uses_native_fa4")
    assert not declared_flag(nn.Linear(2, 2), "uses_native_fa4")


@pytest.mark.parametrize("value", ["no", 1, 0])
def test_a_flag_that_is_no_bool(value: object) -> None:
    with pytest.raises(CapabilitiesError, match="uses_native_fa4"):
        declared_flag(with_attributes(uses_native_fa4=value), "uses_native_fa4")


@pytest.mark.parametrize("value", ["document_id", "", 3, ["document_ids"]])
def test_a_mask_type_that_is_none(value: object) -> None:
    with pytest.raises(CapabilitiesError, match="packed_mask_type"):
        declared_mask_type(with_attributes(packed_mask_type=value))


class Raising(nn.Module):
    @property
    def packed_mask_type(self) -> str:
        return str(cast("Any", self).backend_that_is_missing)

    @property
    def requires_packed_sequence_metadata(self) -> bool:
        raise ZeroDivisionError


def test_a_property_that_raises_shows_its_cause() -> None:
    with pytest.raises(CapabilitiesError, match="backend_that_is_missing") as caught:
        declared_mask_type(Raising())
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(ZeroDivisionError):
        declared_flag(Raising(), "requires_packed_sequence_metadata")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, "sdpa"),
        ({"backend": SimpleNamespace(attn="te")}, "te"),
        ({"config": SimpleNamespace(_attn_implementation="eager")}, "eager"),
        ({"config": SimpleNamespace(_attn_implementation=None)}, "sdpa"),
        (
            {
                "backend": SimpleNamespace(attn="te"),
                "config": SimpleNamespace(_attn_implementation="flash_attention_3"),
            },
            "te",
        ),
        (
            {
                "backend": SimpleNamespace(attn="te"),
                "config": SimpleNamespace(_attn_implementation="flash_attention_3"),
                "uses_hf_attention": True,
            },
            "flash_attention_3",
        ),
        ({"backend": SimpleNamespace(attn="te"), "_uses_hf_attention": True}, "sdpa"),
        ({"config": SimpleNamespace(_attn_implementation="neatpack|reference|eager")}, "eager"),
    ],
)
def test_what_a_model_runs_with(attributes: dict[str, Any], expected: str) -> None:
    assert get_model_attn_implementation(with_attributes(**attributes)) == expected


def test_a_backend_that_is_no_name() -> None:
    with pytest.raises(CapabilitiesError, match=r"backend\.attn"):
        get_model_attn_implementation(with_attributes(backend=SimpleNamespace(attn=3)))


@pytest.mark.parametrize("suffix", ["", "@v1", ":flash_attn_varlen_func", "@v1:flash_attn_varlen_func"])
def test_hub_ids_are_mapped_back(suffix: str) -> None:
    from transformers.modeling_flash_attention_utils import FLASH_ATTN_KERNEL_FALLBACK

    for mainline, repo in FLASH_ATTN_KERNEL_FALLBACK.items():
        assert mainline_name(repo + suffix) == mainline
    assert mainline_name("some-org/other-kernel") == "some-org/other-kernel"
    assert mainline_name("paged|sdpa") == "paged|sdpa"


def test_flash_by_name() -> None:
    assert is_flash("flash_attention_3")
    assert is_flash("kernels-community/vllm-flash-attn3@main")
    assert not is_flash("some-org/other-kernel")
    assert not is_flash("flash")


def test_the_text_config_of_a_composite_model_rules() -> None:
    text = cast("Any", tiny("llama")).config

    def get_text_config(decoder: bool) -> object:
        return text if decoder else None

    whole = SimpleNamespace(_attn_implementation="sdpa", get_text_config=get_text_config)
    assert hf_implementation(with_attributes(config=whole)) == "eager"


def test_bound_names_come_off() -> None:
    assert unbound_name(bound_name("reference", "paged|eager")) == "paged|eager"
    assert unbound_name("paged|eager") == "paged|eager"


def test_arguments_of_a_replaced_forward() -> None:
    model = Ids()
    assert forward_arguments(model) == ("input_ids", "position_ids", "_packed_seq_ids")

    def forward(tokens: object, *rest: object, named: object = None, **others: object) -> None: ...

    object.__setattr__(model, "forward", forward)
    assert forward_arguments(model) == ("tokens", "named")
    assert positional_arguments(model) == ("tokens",)
