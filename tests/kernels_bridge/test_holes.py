"""What a consumer cannot express in a forward, it tells the loader before the first: holes in documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters import require_supported_packing_contract
from neatpack.adapters.segments import as_segments
from neatpack.contracts import (
    CONSUMER_NAMES,
    Accepted,
    Attachment,
    CapabilitiesError,
    ContractError,
    Decision,
    DocumentIdsError,
    PackingCapabilities,
)
from neatpack.kernels_bridge import (
    PackedCall,
    configure_packing,
    configure_packing_for_models,
    get_consumer,
    get_packing_capabilities,
    use_consumer,
)
from neatpack.kernels_bridge.consumers import recurrent, torch_varlen
from neatpack.kernels_bridge.explain import explain_model, explanation_lines
from neatpack.kernels_bridge.hf_models import no_reason
from neatpack.kernels_bridge.registry import Consumer
from neatpack.kernels_bridge.terminal import plain
from tests.kernels_bridge.packed import tiny
from tests.kernels_bridge.toys import Dense, Flash, Ids, IdsAsMask, NativeFA4, Recurrent, Toy

IDS: Final = torch.tensor([[1, 1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 2, 2, 2, 2, 2]])
HOLES: Final = torch.tensor([[1, 1, 0, 1, 2, 2, 0, 0], [1, 1, 1, 2, 2, 0, 0, 2]])
TOKENS: Final = torch.arange(3, 19).view(2, 8)


class Lengths(Toy):
    uses_thd: bool = True

    def forward(self, input_ids: Tensor, seq_lens: Tensor, seq_lens_padded: Tensor) -> Tensor:
        return self.keep(dict(locals()))


class NoHoles(Ids):
    takes_holes: bool = False


def flash() -> nn.Module:
    model = tiny("llama")
    cast("Any", model).config._attn_implementation_internal = "flash_attention_2"
    return model


MODELS: Final[Mapping[str, list[tuple[str, Callable[[], nn.Module]]]]] = {
    "native_fa4": [("fa4", NativeFA4)],
    "thd": [("te", Lengths)],
    "declared": [("sdpa", Ids), ("sdpa", IdsAsMask), ("sdpa", Dense), ("sdpa", Recurrent), ("sdpa", Flash)],
    "hf_flash": [("flash_attention_2", flash)],
    "flex": [("flex_attention", lambda: tiny("llama", "flex_attention"))],
    "recurrent": [("eager", lambda: tiny("bamba"))],
    "block_causal": [("eager", lambda: tiny("gemma2")), ("sdpa", lambda: tiny("llama", "sdpa"))],
    "torch_varlen": [("eager", lambda: tiny("llama"))],
    "reference": [("eager", lambda: tiny("llama"))],
    "per_document": [("eager", lambda: tiny("llama")), ("eager", lambda: tiny("mamba"))],
}
"""Models that each consumer takes, and what they run with."""
CASES: Final = [(name, *built) for name in CONSUMER_NAMES for built in MODELS[name]]


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers take models whose kernels do not run here: no attention is called."""
    monkeypatch.setattr(torch_varlen, "_DEVICES", ("cpu",))
    monkeypatch.setattr(recurrent, "kernels_reason", no_reason)


def is_refused(consumer: Consumer, model: nn.Module, capabilities: PackingCapabilities, ids: Tensor) -> bool:
    """Whether the consumer itself refuses the ids in a forward."""
    segments = as_segments(ids)
    call = PackedCall(ids, segments, segments, capabilities, {"input_ids": TOKENS})
    try:
        consumer.derive(model, call)
    except DocumentIdsError:
        return True
    return False


def is_served(capabilities: PackingCapabilities, *, eligibility: bool = False, xdoc: bool = False) -> bool:
    """Whether a loader with such a policy is built."""
    try:
        require_supported_packing_contract(capabilities, eligibility=eligibility, xdoc=xdoc)
    except ContractError:
        return False
    return True


def says_when_built_what_it_does(name: str, attention: str, model: nn.Module) -> bool:
    """Whether a consumer refuses holes in a forward just where a loader that makes them is refused when it is built."""
    consumer = get_consumer(name)
    decision = consumer.decide(model, attention)
    assert isinstance(decision, Accepted), decision
    capabilities = decision.capabilities
    assert is_served(capabilities)
    assert not is_refused(consumer, model, capabilities, IDS)
    takes = not is_refused(consumer, model, capabilities, HOLES)
    require_supported_packing_contract(capabilities, xdoc=True, trailing_padding=True)
    return takes == is_served(capabilities, eligibility=True) == is_served(capabilities, xdoc=True)


@pytest.mark.parametrize(("name", "attention", "build"), CASES)
def test_what_the_forward_refuses_the_loader_is_refused(
    name: str, attention: str, build: Callable[[], nn.Module]
) -> None:
    assert says_when_built_what_it_does(name, attention, build())


class Forgetful:
    """Decides as another consumer does, and says the opposite of holes."""

    def __init__(self, inner: Consumer) -> None:
        self.inner, self.name = inner, inner.name

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        decision = self.inner.decide(model, attn_implementation)
        assert isinstance(decision, Accepted)
        said = decision.capabilities.takes_holes
        return replace(decision, capabilities=replace(decision.capabilities, takes_holes=not said))

    def attach(self, model: nn.Module) -> Attachment:
        return self.inner.attach(model)

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        return self.inner.derive(model, call)


@pytest.mark.parametrize("name", [name for name in CONSUMER_NAMES if name != "hf_flash"])
def test_a_consumer_that_says_the_opposite_is_seen(name: str) -> None:
    attention, build = MODELS[name][0]
    with use_consumer(Forgetful(get_consumer(name))):
        assert not says_when_built_what_it_does(name, attention, build())


def test_which_consumers_take_no_holes() -> None:
    takes: dict[str, bool] = {}
    for name, attention, build in CASES:
        decision = get_consumer(name).decide(build(), attention)
        assert isinstance(decision, Accepted)
        takes[name] = takes.get(name, False) or decision.capabilities.takes_holes
    refusing = {name for name, taken in takes.items() if not taken}
    assert refusing == {"thd", "hf_flash", "recurrent", "torch_varlen", "per_document"}


@pytest.mark.parametrize("consumer", ["torch_varlen", "per_document", "reference", "block_causal"])
def test_configuring_keeps_what_the_consumer_says(consumer: str) -> None:
    takes = consumer in ("reference", "block_causal")
    model = tiny("llama")
    assert configure_packing("eager", model, consumer=consumer).takes_holes is takes
    cast("Any", model).takes_holes = True
    assert configure_packing("eager", model, consumer=consumer).takes_holes is takes
    cast("Any", model).takes_holes = False
    assert configure_packing("eager", model, consumer=consumer).takes_holes is False


def test_a_model_may_declare_that_it_takes_no_holes() -> None:
    model = NoHoles()
    capabilities = configure_packing("sdpa", model)
    assert capabilities == PackingCapabilities("document_ids", takes_holes=False)
    assert get_packing_capabilities("sdpa", model) == capabilities
    assert configure_packing_for_models([Ids(), NoHoles()]) == capabilities
    assert configure_packing_for_models([Ids(), Ids()]) == PackingCapabilities("document_ids")
    way_out = r".*that does not declare `takes_holes = False`, with a consumer such as `block_causal`"
    with pytest.raises(ContractError, match=r"takes_holes = False: the model takes no tokens excluded" + way_out):
        require_supported_packing_contract(capabilities, eligibility=True)
    model(TOKENS, _packed_seq_ids=IDS)
    with pytest.raises(DocumentIdsError, match="a hole" + way_out) as caught:
        model(TOKENS, _packed_seq_ids=HOLES)
    problem = caught.value.problems[0]
    assert (problem.field, problem.row, problem.position) == ("_packed_seq_ids", 0, 2)
    assert torch.equal(model.seen["_packed_seq_ids"], IDS)


def test_the_declaration_is_read_by_value() -> None:
    model = NoHoles()
    cast("Any", model).takes_holes = 0
    with pytest.raises(CapabilitiesError, match="takes_holes = 0: must be a bool"):
        configure_packing("sdpa", model)
    with pytest.raises(CapabilitiesError, match="takes_holes"):
        get_packing_capabilities("sdpa", model)


def test_capabilities_of_lengths_take_no_holes_before_anything_is_bound() -> None:
    assert not get_packing_capabilities("te", Lengths()).takes_holes
    assert not get_packing_capabilities("flash_attention_2").takes_holes
    assert get_packing_capabilities("sdpa").takes_holes
    masked = Lengths()
    cast("Any", masked).packed_mask_type = "block_causal"
    assert get_packing_capabilities("te", masked) == PackingCapabilities("block_causal")


def test_the_explanation_says_it() -> None:
    for model, takes in ((NoHoles(), False), (Ids(), True)):
        text = plain(explanation_lines(explain_model(model), 100))
        assert f"takes_holes = {takes}" in text
