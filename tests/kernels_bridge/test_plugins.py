"""Consumers that installed distributions bring: found by metadata, imported when needed, and harmless when broken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from torch import nn

from neatpack.contracts import CONSUMER_NAMES, Accepted, ConsumerError, PackingCapabilities, Rejected
from neatpack.kernels_bridge import (
    configure_packing,
    consumer_names,
    decide,
    get_binding,
    get_consumer,
    register_consumer,
    unregister_consumer,
    use_consumer,
)
from neatpack.kernels_bridge.registry import preference
from tests.kernels_bridge.plugins import CONSUMER, install
from tests.kernels_bridge.test_registry import Runs, Third
from tests.kernels_bridge.toys import BATCH, TOKENS, Ids

Install = Callable[..., str]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Install, None, None]:
    """Give `install` for a folder on the path; what was imported from there is forgotten at the end."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield lambda *arguments, **options: install(tmp_path, *arguments, **options)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_plugin_is_named_before_it_is_imported(installed: Install) -> None:
    module = installed("toy-runs")
    assert consumer_names() == (*CONSUMER_NAMES, "runs")
    configure_packing("sdpa", Ids())
    assert "toy-runs 1.5 (toy_runs:CONSUMER)" in preference("runs")
    assert module not in sys.modules
    assert get_consumer("runs").name == "runs"
    assert module in sys.modules
    assert get_consumer("runs") is get_consumer("runs")


def test_a_plugin_binds_the_models_it_accepts(installed: Install) -> None:
    installed("toy-runs")
    model = Third()
    assert dict(decide(model))["runs"] == Accepted(PackingCapabilities("document_ids"))
    assert dict(decide(Ids()))["runs"] == Rejected("its forward takes no runs")
    configure_packing("sdpa", model, consumer="runs")
    model(input_ids=TOKENS, _packed_seq_ids=BATCH)
    assert model.seen["runs"] == [2, 3, 1, 3, 1, 2]
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "runs"


BROKEN = {
    "import error": ("import no_such_package_at_all", "CONSUMER", "No module named 'no_such_package_at_all'"),
    "exit": ("raise SystemExit('reads a command line')", "CONSUMER", "SystemExit: reads a command line"),
    "no such object": (CONSUMER, "OTHER", "AttributeError"),
    "class": (CONSUMER, "Runs", "is a class, and not a consumer"),
    "half": (CONSUMER.replace("def attach", "def attack"), "CONSUMER", "it has no attach"),
    "other name": (CONSUMER.replace('"runs"\n', '"walks"\n'), "CONSUMER", "is called 'walks' by itself"),
}


@pytest.mark.parametrize("fault", list(BROKEN))
def test_a_broken_plugin_fails_when_it_is_used_and_breaks_nobody(installed: Install, fault: str) -> None:
    code, value, says = BROKEN[fault]
    installed("toy-broken", code=code, value=value)
    sound = Ids()
    configure_packing("sdpa", sound)
    assert consumer_names() == (*CONSUMER_NAMES, "runs")
    decisions = dict(decide(sound))
    assert isinstance(decisions["declared"], Accepted)
    rejected = decisions["runs"]
    assert isinstance(rejected, Rejected)
    for use in (lambda: get_consumer("runs"), lambda: configure_packing("sdpa", Third(), consumer="runs")):
        with pytest.raises(ConsumerError) as caught:
            use()
        for said in (f"toy-broken 1.5 (toy_broken:{value})", says):
            assert said in str(caught.value)
            assert said in rejected.reason


def test_the_error_of_an_import_is_the_cause(installed: Install) -> None:
    installed("toy-broken", code=BROKEN["import error"][0])
    with pytest.raises(ConsumerError) as caught:
        get_consumer("runs")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return self.nothing", "raised AttributeError: 'Runs' object has no attribute 'nothing'"),
        ("return None", "returned NoneType, and neither Accepted nor Rejected"),
        ("return True", "returned bool"),
    ],
)
def test_a_plugin_that_cannot_decide_is_reported(installed: Install, body: str, says: str) -> None:
    code = CONSUMER.replace('if "runs" in model.forward.__code__.co_varnames:', f"{body}\n        if True:")
    installed("toy-broken", code=code)
    decisions = dict(decide(Ids()))
    assert isinstance(decisions["declared"], Accepted)
    rejected = decisions["runs"]
    assert isinstance(rejected, Rejected)
    assert says in rejected.reason


def test_two_distributions_with_one_name_are_both_named(installed: Install) -> None:
    installed("toy-runs")
    installed("other-runs")
    with pytest.raises(ConsumerError) as caught:
        get_consumer("runs")
    for distribution in ("toy-runs 1.5", "other-runs 1.5"):
        assert distribution in str(caught.value)
    assert consumer_names() == (*CONSUMER_NAMES, "runs")
    rejected = dict(decide(Ids()))["runs"]
    assert isinstance(rejected, Rejected)
    assert "other-runs 1.5" in rejected.reason
    chosen = Runs()
    with use_consumer(chosen):
        assert get_consumer("runs") is chosen


def test_a_plugin_does_not_take_the_place_of_neatpacks_own(installed: Install) -> None:
    installed("toy-runs", name="reference", code=CONSUMER.replace('"runs"\n', '"reference"\n'))
    with pytest.raises(ConsumerError, match=r"of neatpack and toy-runs 1\.5"):
        get_consumer("reference")
    assert consumer_names() == CONSUMER_NAMES


def test_a_consumer_in_code_does_not_take_the_name_of_a_plugin(installed: Install) -> None:
    installed("toy-runs")
    with pytest.raises(ConsumerError) as caught:
        register_consumer(Runs())
    for origin in ("toy-runs 1.5", "tests.kernels_bridge.test_registry.Runs", "replace=True"):
        assert origin in str(caught.value)
    assert get_consumer("runs").name == "runs"
    assert not isinstance(get_consumer("runs"), Runs)


def test_what_a_distribution_brings_is_not_unregistered(installed: Install) -> None:
    installed("toy-runs")
    with pytest.raises(ConsumerError, match=r"comes from toy-runs 1\.5 .*Uninstall"):
        unregister_consumer("runs")


def test_a_bound_model_does_not_search_the_path(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    installed("toy-runs")
    model: nn.Module = Third()
    configure_packing("sdpa", model, consumer="runs")

    def search(group: str) -> None:
        pytest.fail(f"searched for {group}")

    monkeypatch.setattr(metadata, "entry_points", search)
    model(input_ids=TOKENS, _packed_seq_ids=BATCH)
