"""An audit leaves everything as it was: registries, models, random state, threads, warnings and logging."""

from __future__ import annotations

import gc
import importlib
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from neatpack.contracts.errors import BatchError, ModelError
from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder, ModelType, parse_target
from neatpack.kernels_bridge.audit.texts import excerpts, read_texts
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from tests.audit import models

modeling_utils = importlib.import_module("transformers.modeling_utils")
masking_utils = importlib.import_module("transformers.masking_utils")
transformers_logging = importlib.import_module("transformers.utils.logging")


@pytest.fixture
def threads() -> Generator[int, None, None]:
    """Another number of threads than the audit's own."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def _registries() -> list[Mapping[str, object]]:
    gc.collect()  # What models of earlier tests have installed goes with them.
    attention, masks = modeling_utils.ALL_ATTENTION_FUNCTIONS, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    found: list[Mapping[str, object]] = [dict(interface) for interface in (attention, masks)]
    for interface in (attention, masks):
        found += [dict(interface._local_mapping), dict(interface._global_mapping)]
    return found


def test_registries_are_as_before(texts: list[bytes]) -> None:
    before = _registries()
    paths: list[PathName] = ["varlen", "positions_sdpa", "configured"]
    report = audit_models([ModelType("llama"), ModelType("gptj"), ModelType("no such type")], texts, paths=paths)
    assert [model.error is None for model in report.models] == [True, True, False]
    assert _registries() == before


def test_registries_are_as_before_after_an_interruption(texts: list[bytes], threads: int) -> None:
    before = _registries()

    def interrupt(message: str) -> None:
        if message.endswith("varlen"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_models([ModelType("llama")], texts, interrupt)
    assert _registries() == before
    assert torch.get_num_threads() == threads


def test_random_state_threads_warnings_and_logging_are_as_before(texts: list[bytes], threads: int) -> None:
    torch.default_generator.manual_seed(7)
    state = torch.random.get_rng_state()
    filters, verbosity = list(warnings.filters), transformers_logging.get_verbosity()
    audit_models([ModelType("gpt2"), Builder("m", models.Leaks)], texts, paths=["varlen", "configured"])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert warnings.filters == filters
    assert transformers_logging.get_verbosity() == verbosity


def test_a_model_that_its_builder_keeps_is_as_before(texts: list[bytes]) -> None:
    kept = build_tiny_model("llama")
    config = kept.config
    before = {name: tensor.clone() for name, tensor in kept.state_dict().items()}
    report = audit_models([Builder("kept", lambda: kept)], texts)
    assert report.is_clean
    assert report.models[0].paths["varlen"].calls == 2
    assert report.models[0].paths["mask_4d_bool"].verdict == "leak"
    assert getattr(config, "_attn_implementation") == "sdpa"  # noqa: B009  # a private name of Transformers
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    assert not any(getattr(module, name) for module in kept.modules() for name in hooks)
    assert all(torch.equal(tensor, before[name]) for name, tensor in kept.state_dict().items())
    assert all(parameter.grad is None for parameter in kept.parameters())


def test_a_builder_that_draws_other_weights_each_time_is_compared_with_itself(texts: list[bytes]) -> None:
    def build() -> nn.Module:
        model = models.ReadsIds()
        nn.init.normal_(model.head.weight, std=torch.rand(()).item() + next(scales))
        return model

    scales = iter(range(1, 100))
    assert audit_models([Builder("m", build)], texts).is_clean


def test_verdicts_do_not_depend_on_the_random_state(texts: list[bytes]) -> None:
    reports: list[object] = []
    for seed in (0, 1):
        torch.default_generator.manual_seed(seed)
        paths = audit_models([ModelType("llama")], texts, paths=["varlen", "mask_2d"]).models[0].paths
        reports.append(paths)
    assert reports[0] == reports[1]


def test_text_that_is_too_short_is_refused_before_anything_is_built() -> None:
    def build() -> nn.Module:
        raise AssertionError("was built")

    with pytest.raises(BatchError, match="too short"):
        audit_models([Builder("m", build)], [b"short"])


def test_documents_are_cut_from_the_files_given(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(b"abcdefgh")
    (tmp_path / "two.txt").write_bytes(b"12345678")
    (tmp_path / "empty.txt").write_bytes(b"")
    texts = read_texts([tmp_path])
    assert texts == [b"abcdefgh", b"12345678"]
    assert excerpts(texts, [3, 2, 4, 6]) == [b"abc", b"12", b"defg", b"345678"]
    with pytest.raises(BatchError, match="cannot be read"):
        read_texts([tmp_path / "missing.txt"])
    with pytest.raises(BatchError, match="no text"):
        read_texts([tmp_path / "empty.txt"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lama", "Did you mean llama"),
        ("", "is unknown"),
        ("no.such.module:build", "cannot be found"),
        ("tests.audit.models:no_such_name", "cannot be found"),
        ("tests.audit.models:VOCABULARY", "is not callable"),
        ("tests.audit.models:BUILT", "BUILT = Linear: is a built module. Give a callable"),
        ("tests.audit.models", "A module of your own is named package.module:callable"),
        (":build", "cannot be found"),
    ],
)
def test_targets_that_are_not_there_are_named(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        parse_target(name)


def test_a_builder_of_something_else_is_reported(texts: list[bytes]) -> None:
    (model,) = audit_models([parse_target("tests.audit.models:number")], texts).models
    assert model.error is not None
    assert "built no module" in model.error
