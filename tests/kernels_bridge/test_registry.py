from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from neatpack.contracts import (
    CONSUMER_NAMES,
    Accepted,
    Attachment,
    ConsumerError,
    Decision,
    PackingCapabilities,
    Rejected,
)
from neatpack.contracts.kernels import PREFERENCE
from neatpack.kernels_bridge import (
    PackedCall,
    configure_packing,
    consumer_names,
    decide,
    get_binding,
    get_consumer,
    register_consumer,
    unregister_consumer,
    use_consumer,
)
from neatpack.kernels_bridge.attachments import NothingAttached
from neatpack.kernels_bridge.registry import Consumer, preference
from tests.kernels_bridge.packed import tiny
from tests.kernels_bridge.toys import BATCH, TOKENS, Toy

OWN = CONSUMER_NAMES


class Third(Toy):
    def forward(self, input_ids: object, runs: object = None) -> object:
        return self.keep(dict(locals()))


class Runs:
    """A third party's consumer: one class, and nothing edited elsewhere."""

    name = "runs"

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        if isinstance(model, Third):
            return Accepted(PackingCapabilities("document_ids"))
        return Rejected(f"{type(model).__name__} takes no runs, with {attn_implementation}")

    def attach(self, model: nn.Module) -> Attachment:
        del model
        return NothingAttached()

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        del model
        return {"runs": call.segments.lengths.tolist()}


@pytest.fixture
def runs() -> Generator[Consumer, None, None]:
    consumer = Runs()
    register_consumer(consumer)
    yield consumer
    if "runs" in consumer_names():
        unregister_consumer("runs")


def test_neatpacks_own_come_first() -> None:
    assert consumer_names() == OWN
    assert [get_consumer(name).name for name in OWN] == list(OWN)


def test_a_third_party_binds_its_models(runs: Consumer) -> None:
    assert consumer_names() == (*OWN, "runs")
    assert get_consumer("runs") is runs
    model = Third()
    configure_packing("sdpa", model, consumer="runs")
    model(input_ids=TOKENS, _packed_seq_ids=BATCH)
    assert model.seen["runs"] == [2, 3, 1, 3, 1, 2]
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "runs"


def test_a_model_that_no_own_consumer_takes_goes_to_a_third_partys(runs: Consumer) -> None:
    model = Third()
    assert configure_packing("sdpa", model).packed_mask_type == "document_ids"
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == runs.name


def test_duplicates_are_refused_unless_meant(runs: Consumer) -> None:
    with pytest.raises(ConsumerError, match="replace=True"):
        register_consumer(Runs())
    assert get_consumer("runs") is runs
    other = Runs()
    register_consumer(other, replace=True)
    assert get_consumer("runs") is other
    assert consumer_names() == (*OWN, "runs")


def test_a_scoped_override_ends_with_its_block() -> None:
    other = Runs()
    other.name = "reference"
    own = get_consumer("reference")

    def fail() -> None:
        with use_consumer(other):
            assert get_consumer("reference") is other
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert get_consumer("reference") is own
    assert consumer_names() == OWN


def test_unknown_names_bring_the_nearest() -> None:
    with pytest.raises(ConsumerError, match="Did you mean 'reference'") as caught:
        get_consumer("referense")
    assert isinstance(caught.value, ValueError)
    for call in (unregister_consumer, get_consumer):
        with pytest.raises(ConsumerError, match="no consumer has this name"):
            call("")


@pytest.mark.parametrize("name", ["", "a|b", "a/b", "a b", 3])
def test_names_that_cannot_be_part_of_another(name: Any) -> None:
    consumer = Runs()
    consumer.name = name
    with pytest.raises(ConsumerError, match="plain word"):
        register_consumer(consumer)


def test_where_no_name_is_near_all_are_listed() -> None:
    with pytest.raises(ConsumerError) as caught:
        get_consumer("nope")
    assert caught.value.problems[0].remedy == f"Known are {', '.join(map(repr, sorted(OWN)))}."


def test_the_order_of_preference_has_its_reasons() -> None:
    assert tuple(PREFERENCE) == CONSUMER_NAMES
    assert all(preference(name) == PREFERENCE[name] for name in CONSUMER_NAMES)
    with use_consumer(Runs()):
        assert preference("runs") == "after neatpack's own: from tests.kernels_bridge.test_registry.Runs"


@pytest.mark.parametrize("call", [get_consumer, unregister_consumer])
@pytest.mark.parametrize("name", [None, 3, ["reference"]])
def test_what_is_no_name_names_no_consumer(call: Callable[[Any], object], name: object) -> None:
    with pytest.raises(ConsumerError) as caught:
        call(name)
    problem = caught.value.problems[0]
    assert (problem.field, problem.value) == ("consumer", repr(name))
    assert problem.remedy
    assert consumer_names() == OWN


@pytest.mark.parametrize("consumer", [None, object(), SimpleNamespace(name="half", decide=None)])
def test_what_is_no_consumer_is_not_registered(consumer: Any) -> None:
    with pytest.raises(ConsumerError, match=r"is no consumer: it has no .*attach, derive"):
        register_consumer(consumer)
    with pytest.raises(ConsumerError, match="is no consumer"), use_consumer(consumer):
        pass
    assert consumer_names() == OWN


def test_every_consumer_says_why() -> None:
    decisions = dict(decide(tiny("llama")))
    assert list(decisions) == list(OWN)
    accepted = {name: each.capabilities for name, each in decisions.items() if isinstance(each, Accepted)}
    assert accepted == {
        "block_causal": PackingCapabilities("block_causal"),
        "reference": PackingCapabilities("document_ids"),
        "per_document": PackingCapabilities("document_ids", takes_holes=False),
    }
    assert decisions["hf_flash"] == Rejected("it runs with 'eager', which takes no flash varlen kwargs")
    assert isinstance(decisions["declared"], Rejected)
    assert dict(decide(Third()))["reference"] == Rejected(
        "it has no layer that dispatches attention through Transformers' attention interface"
    )


def test_what_is_no_attachment_is_refused_when_configuring() -> None:
    class Forgetful(Runs):
        def attach(self, model: nn.Module) -> Any:
            del model

    model = Third()
    with (
        use_consumer(Forgetful()),
        pytest.raises(ConsumerError, match="consumer = 'runs': its attach returned NoneType"),
    ):
        configure_packing("sdpa", model)
    assert get_binding(model) is None


def test_what_is_no_arguments_is_told_of_the_consumer() -> None:
    class Forgetful(Runs):
        def derive(self, model: nn.Module, call: PackedCall) -> Any:
            del model, call

    model = Third()
    with use_consumer(Forgetful()):
        configure_packing("sdpa", model)
        with pytest.raises(ConsumerError, match="consumer = 'runs': its derive returned NoneType"):
            model(TOKENS, _packed_seq_ids=BATCH)
