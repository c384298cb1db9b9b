"""What is known of families: it is what the audit measures, it binds its versions, and consumers go by it."""

# What stands in modules and registries of others is of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, cast

import pytest
import torch
from torch import nn

from neatpack.contracts import Accepted, Decision, Rejected
from neatpack.kernels_bridge import configure_packing, decide, get_binding, get_consumer
from neatpack.kernels_bridge import families as families_module
from neatpack.kernels_bridge.audit.families import measure_family, measured_families, write_table
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts
from neatpack.kernels_bridge.families import CLEAN, FULL, KIND_TEXTS, WAYS, knowledge, layer_types, sliding_window
from neatpack.kernels_bridge.families_page import families_page
from neatpack.kernels_bridge.family_table import FINDINGS, MEASURED_ON
from tests.environments import REPOSITORY
from tests.kernels_bridge.packed import IDS, TOKENS, logits, tiny
from tests.kernels_bridge.test_per_document import coupled

# One of each mechanism: nothing wrong, arguments dropped, positions ignored, no interface, a state, the longest row.
SAMPLE: Final = ("llama", "stablelm", "opt", "codegen", "lfm2", "prophetnet")
TEXTS: Final = read_texts(default_paths())


def findings(name: str) -> dict[str, str]:
    return dict(zip(WAYS, FINDINGS[name], strict=True))


@pytest.mark.parametrize("name", SAMPLE)
def test_findings_are_what_is_measured(name: str) -> None:
    assert measure_family(name, TEXTS) == findings(name)


def test_the_sample_shows_that_findings_differ() -> None:
    assert {finding for name in SAMPLE for finding in FINDINGS[name]} >= {
        "clean",
        "refused",
        "leak: attention",
        "leak: convolution",
        "differs: length",
    }


@pytest.mark.sweep
def test_all_findings_are_what_is_measured() -> None:
    found = dict(measured_families(TEXTS))
    different = {name: ways for name, ways in found.items() if ways != findings(name)}
    assert different == {}
    assert set(found) == set(FINDINGS)


def test_the_table_is_written_as_it_stands(tmp_path: Any) -> None:
    path = tmp_path / "family_table.py"
    original = (REPOSITORY / "kernels_bridge" / "family_table.py").read_text()
    path.write_text(original)
    write_table({name: cast("Any", findings(name)) for name in FINDINGS}, path)
    assert path.read_text() == original


def test_the_page_is_what_the_table_says() -> None:
    assert (REPOSITORY / "docs" / "families.md").read_text() == families_page()


def test_every_finding_has_a_meaning() -> None:
    assert {finding for each in FINDINGS.values() for finding in each} - {CLEAN} <= set(KIND_TEXTS)


def decisions(model: nn.Module) -> Mapping[str, Decision]:
    return dict(decide(model))


@pytest.mark.parametrize("name", ["nemotron", "stablelm"])
def test_families_that_drop_arguments_are_known_when_configuring(name: str) -> None:
    model = tiny(name)
    reference = decisions(model)["reference"]
    assert isinstance(reference, Rejected)
    assert "boundaries do not arrive" in reference.reason
    configure_packing("eager", model)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "block_causal"
    binding.remove()
    cast("Any", model).config._attn_implementation_internal = "flash_attention_2"
    configure_packing("flash_attention_2", model)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "per_document"


def test_a_window_of_no_place_is_none() -> None:
    model = tiny("qwen2_moe")
    assert cast("Any", model).config.sliding_window == 0
    assert (layer_types(model), sliding_window(model)) == ((FULL,), None)
    with torch.no_grad():
        alone = cast("Any", model)(TOKENS[:1, IDS[0] == 2], use_cache=False).logits
        configure_packing("eager", model)
        packed = cast("Any", model)(TOKENS, _packed_seq_ids=IDS, use_cache=False).logits
    torch.testing.assert_close(packed[:1, IDS[0] == 2], alone)


def test_a_decision_says_on_what_it_rests() -> None:
    for name in ("block_causal", "reference", "per_document"):
        decision = decisions(tiny("llama"))[name]
        assert isinstance(decision, Accepted)
        assert decision.verified
        assert f"clean on transformers {MEASURED_ON['transformers']}" in decision.evidence


def test_elsewhere_what_was_clean_is_unverified_and_what_was_not_stays_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families_module, "_installed", lambda: {**MEASURED_ON, "transformers": "5.99.0"})
    for name in ("block_causal", "reference", "per_document"):
        decision = decisions(tiny("llama"))[name]
        assert isinstance(decision, Accepted)
        assert not decision.verified
        assert decision.evidence.count("unverified on transformers 5.99.0") == 1
    assert "a call for each length" in cast("Accepted", decisions(tiny("llama"))["per_document"]).evidence
    refused = decisions(tiny("stablelm"))["reference"]
    assert isinstance(refused, Rejected)
    assert refused.reason.startswith("unverified on transformers 5.99.0")


def test_a_layer_of_someone_elses_is_not_what_was_measured() -> None:
    model = tiny("llama")
    cast("Any", model).model.layers[0].mlp = type("Own", (nn.Identity,), {"__module__": "somewhere"})()
    assert knowledge(model, "varlen").is_right is None
    assert not knowledge(model, "varlen").verified


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_scaled_by_the_longest_row_leave_one_consumer(kind: str) -> None:
    model = coupled(kind)
    accepted = [name for name, decision in decisions(model).items() if isinstance(decision, Accepted)]
    assert accepted == ["per_document"]
    reason = decisions(model)["block_causal"]
    assert isinstance(reason, Rejected)
    assert repr(kind) in reason.reason


def contents(*packages: str) -> dict[tuple[str, str], int]:
    """The identity of whatever the loaded modules of packages hold, parts of classes and entries of registries too."""
    found: dict[tuple[str, str], int] = {}
    for module in [each for name, each in list(sys.modules.items()) if name.partition(".")[0] in packages]:
        for name, value in list(vars(module).items()):
            found[module.__name__, name] = id(value)
            parts: dict[object, object] = {}
            if (
                issubclass(type(value), type) and value.__module__.partition(".")[0] in packages
            ):  # no __class__ is asked
                parts.update(vars(value))
            elif type(value).__name__.endswith("Interface"):
                parts.update(
                    (f"{table} {key}", each) for table, held in vars(value).items() for key, each in held.items()
                )
                parts.update((key, each) for key, each in type(value)._global_mapping.items())
            found.update(((name, str(key)), id(each)) for key, each in parts.items())
    del found["RemovableHandle", "next_id"]  # counts all hooks there have ever been
    return found


@pytest.mark.parametrize("consumer", ["block_causal", "reference", "per_document"])
def test_nothing_of_transformers_or_torch_is_different_afterwards(consumer: str) -> None:
    def use() -> dict[tuple[str, str], int]:
        model = tiny("gemma2")
        configure_packing("eager", model, consumer=consumer)
        logits(model, TOKENS, _packed_seq_ids=IDS)
        within = contents("transformers", "torch")
        binding = get_binding(model)
        assert binding is not None
        binding.remove()
        return within

    use()  # what is imported and cached by first use is there
    before = contents("transformers", "torch")
    within = use()
    assert contents("transformers", "torch") == before
    assert (within != before) == (consumer != "per_document")  # the comparison sees what is there while it is bound


def test_a_planted_remainder_is_seen() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = contents("transformers", "torch")
    functions = cast("Any", ALL_ATTENTION_FUNCTIONS)
    functions["neatpack|planted"] = get_consumer
    try:
        assert contents("transformers", "torch") != before
    finally:
        del functions["neatpack|planted"]
    assert contents("transformers", "torch") == before
