"""Models with adapters around them, as PEFT makes them: the base is called by its `forward`, past its hooks."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.contracts import BoundariesMissingError, ModelError
from neatpack.kernels_bridge import configure_packing, get_binding
from tests.kernels_bridge.packed import IDS, TOKENS, alone, first_fault, gradients, logits, loss, tiny
from tests.kernels_bridge.toys import BATCH, Dense, Ids
from tests.kernels_bridge.toys import TOKENS as TOY_TOKENS
from tests.kernels_bridge.untyped import backward


class Tuner(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.model.forward(*args, **kwargs)


class Adapted(nn.Module):
    """Names few arguments and hands all others on, as it does attributes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = Tuner(model)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model.model, name)

    def get_base_model(self) -> nn.Module:
        return self.base_model.model

    def forward(self, input_ids: Tensor | None = None, labels: Tensor | None = None, **kwargs: object) -> object:
        given = {} if labels is None else {"labels": labels}
        return self.base_model(input_ids=input_ids, **given, **kwargs)


class Loses(Adapted):
    """Takes any argument as well, and loses those that it does not name."""

    def forward(self, input_ids: Tensor | None = None, labels: Tensor | None = None, **kwargs: object) -> object:
        del labels, kwargs
        return self.base_model(input_ids=input_ids, use_cache=False)


@pytest.mark.parametrize("consumer", ["block_causal", "reference"])
def test_a_model_with_adapters_is_bound_outside_of_them(consumer: str) -> None:
    model = tiny("llama")
    expected = [output.detach() for output in alone(model)]
    adapted = Adapted(model)
    configure_packing("eager", adapted, consumer=consumer, verify=True)
    binding = get_binding(adapted)
    assert binding is not None
    assert binding.model is adapted
    assert get_binding(model) is None
    assert first_fault(adapted, expected) is None
    assert binding.calls == 2
    backward(loss(adapted, _packed_seq_ids=IDS))
    assert gradients(model)
    binding.remove()
    assert cast("Any", model).config._attn_implementation == "eager"


def test_a_model_that_was_bound_before_says_what_to_call() -> None:
    model = tiny("llama")
    configure_packing("eager", model, consumer="reference")
    with pytest.raises(BoundariesMissingError, match="Call the bound model itself"):
        logits(Adapted(model), TOKENS, _packed_seq_ids=IDS)


def test_custom_models_get_what_they_name() -> None:
    model = Ids()
    adapted = Adapted(model)
    configure_packing("sdpa", adapted)
    adapted(input_ids=TOY_TOKENS, _packed_seq_ids=BATCH)
    assert torch.equal(model.seen["_packed_seq_ids"], BATCH)
    assert model.seen["position_ids"].shape == BATCH.shape


def test_adapters_that_lose_arguments_are_seen_by_call() -> None:
    model = Loses(tiny("llama"))
    with pytest.raises(ModelError, match="cu_seq_lens_q"):
        configure_packing("eager", model, consumer="reference", verify=True)
    assert get_binding(model) is None


def test_a_method_of_that_name_alone_changes_nothing() -> None:
    model: Any = Dense()
    object.__setattr__(model, "get_base_model", lambda: model)
    configure_packing("sdpa", model)
    model(input_ids=TOY_TOKENS, _packed_seq_ids=BATCH)
    assert set(model.seen) == {"input_ids", "attention_mask"}
