"""Paths share what was measured only where the model computes the same, in its logits and in what they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.computations import Computations
from neatpack.kernels_bridge.audit.documents import pack_documents
from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.probes import Ask
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.subject import Subject
from neatpack.kernels_bridge.audit.targets import Builder
from tests.audit import models


class _Told(models.Leaks):
    """Does as its arguments say: nothing, the same by another way, hide a dependence, or move a little."""

    def forward(self, input_ids: Tensor, way: str = "") -> Tensor:
        states = self.embed(input_ids)
        if way == "again":
            states = states + 0
        if way == "rounded":
            states = states * (1 + 2**-23)
        if way == "hidden":
            states = states.detach() + 0 * states
        if way == "moved":
            states = states * (1 + 1e-4)
        return self.answer(self.attention(states))


@pytest.fixture
def computations(texts: list[bytes]) -> Computations:
    packed = pack_documents(texts, models.VOCABULARY, torch.device("cpu"))
    return Computations(packed, Subject(_Told()).alone(packed))


def _ask(computations: Computations, model: nn.Module, arguments: Mapping[str, object] | None = None) -> Ask:
    return partial(Subject(model).packed, computations.packed, arguments or {})


@pytest.mark.parametrize("way", ["again", "rounded"])
def test_what_is_the_same_is_measured_once(computations: Computations, way: str) -> None:
    model = _Told()
    first = computations.of(_ask(computations, model))
    asked = Subject(model)
    assert computations.of(partial(asked.packed, computations.packed, {"way": way})) is first
    assert asked.calls == 1
    assert len(computations.known) == 1


@pytest.mark.parametrize("way", ["hidden", "moved"])
def test_what_is_not_quite_the_same_is_measured_anew(computations: Computations, way: str) -> None:
    model = _Told()
    first = computations.of(_ask(computations, model))
    other = computations.of(_ask(computations, model, {"way": way}))
    assert other is not first
    assert other.measurement != first.measurement


@pytest.mark.parametrize("model", [models.NoEmbedding, models.NotANumber])
def test_what_cannot_be_compared_is_measured_every_time(computations: Computations, model: type[nn.Module]) -> None:
    built = model()
    assert computations.of(_ask(computations, built)) is not computations.of(_ask(computations, built))


def test_verdicts_are_those_of_paths_audited_one_by_one(texts: list[bytes]) -> None:
    names: tuple[PathName, ...] = ("mask_2d", "positions", "varlen_on_native", "mask_4d_float")
    target = Builder("m", models.ReadsIds)
    together = audit_models([target], texts, paths=names).models[0].paths
    for name in names:
        alone = audit_models([target], texts, paths=[name]).models[0].paths[name]
        assert replace(alone, remedy="") == replace(together[name], remedy="")
