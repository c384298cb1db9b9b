"""FlexAttention by a stand-in for the compiled kernel: packed equals alone, and a BlockMask is what reaches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as torch_flex

from neatpack.adapters import build_block_mask
from neatpack.contracts import BoundariesMissingError, ModelError, PackingCapabilities
from neatpack.kernels_bridge import configure_packing, get_binding
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts
from neatpack.kernels_bridge.consumers import flex
from tests.kernels_bridge.flex_stand_in import replace_flex_kernel
from tests.kernels_bridge.packed import IDS, TOKENS, alone, first_fault, logits, tiny

MODELS: Final = ("llama", "gemma2", "mistral")
FLEX: Final = "flex_attention"


@pytest.fixture(autouse=True)
def given_masks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Put the stand-in where Transformers compiles FlexAttention, and keep the masks that it is given."""
    masks: list[object] = []
    replace_flex_kernel(masks, monkeypatch.setattr)
    return masks


def built(name: str) -> nn.Module:
    """Build a model that runs FlexAttention."""
    return tiny(name, FLEX)


@pytest.mark.parametrize("name", MODELS)
def test_packed_equals_alone(name: str, given_masks: list[object]) -> None:
    with torch.no_grad():
        expected = alone(tiny(name))
    model = built(name)
    assert configure_packing(FLEX, model) == PackingCapabilities("document_ids")
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "flex"
    given_masks.clear()
    assert first_fault(model, expected) is None
    assert binding.calls == 2
    assert isinstance(binding.block_mask, torch_flex.BlockMask)
    assert all(isinstance(mask, torch_flex.BlockMask) for mask in given_masks)


def test_masks_are_built_once_per_forward_and_kind(given_masks: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[int | None] = []
    build: Callable[..., torch_flex.BlockMask] = build_block_mask

    def counted(ids: Any, *, window: int | None) -> torch_flex.BlockMask:
        windows.append(window)
        return build(ids, window=window)

    monkeypatch.setattr(flex, "build_block_mask", counted)
    model = built("gemma2")
    configure_packing(FLEX, model)
    logits(model, TOKENS, _packed_seq_ids=IDS)
    assert sorted(windows, key=str) == [4, None]
    assert len({id(mask) for mask in given_masks}) == 2


@pytest.mark.parametrize("fault", ["window lost", "rows of others", "one document"])
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build: Callable[..., torch_flex.BlockMask] = build_block_mask

    def faulty(_segments: object, *, window: int | None) -> torch_flex.BlockMask:
        ids = {"rows of others": IDS.flip(0), "one document": torch.ones_like(IDS)}.get(fault, IDS)
        return build(ids, window=None if fault == "window lost" else window)

    with torch.no_grad():
        expected = alone(tiny("gemma2"))
    monkeypatch.setattr(flex, "build_block_mask", faulty)
    model = built("gemma2")
    configure_packing(FLEX, model)
    assert first_fault(model, expected) is not None


def test_without_a_mask_of_these_tokens_nothing_runs() -> None:
    model = built("llama")
    configure_packing(FLEX, model)
    with pytest.raises(BoundariesMissingError, match="a BlockMask: did not arrive at LlamaAttention"):
        model.forward(input_ids=TOKENS)
    states = torch.zeros(2, 4, 8, 8)
    for mask in (None, torch.zeros(2, 1, 8, 8), build_block_mask(IDS)):
        with pytest.raises(BoundariesMissingError, match="a BlockMask"):
            flex.attend(FLEX, nn.Identity(), states, states, states, mask)


def test_what_it_does_not_take() -> None:
    with pytest.raises(ModelError, match="takes no BlockMask"):
        configure_packing("eager", tiny("llama"), consumer="flex")
    model = built("llama")
    cast("Any", model).config.attention_dropout = 0.1
    with pytest.raises(ModelError, match="drops attention weights"):
        configure_packing(FLEX, model, consumer="flex")


def test_no_gradient_crosses() -> None:
    model = built("gemma2")
    configure_packing(FLEX, model)
    embeddings = cast("Any", model).get_input_embeddings()(TOKENS).detach().requires_grad_()
    model(inputs_embeds=embeddings, _packed_seq_ids=IDS).logits[0][IDS[0] == 3].sum().backward()
    reached = embeddings.grad.abs().sum(-1)
    assert bool((reached[0][IDS[0] == 3] > 0).all())
    reached[0][IDS[0] == 3] = 0
    assert float(reached.max()) == 0


def test_the_audit_finds_it_clean() -> None:
    builder = Builder("gemma2", lambda: tiny("gemma2", FLEX), custom=False)
    finding = audit_models([builder], read_texts(default_paths()), paths=["configured"]).models[0].paths["configured"]
    assert (finding.verdict, finding.calls, finding.boundaries_seen) == ("clean", 2, True)
