"""Convolutions, state spaces and delta rules, by stand-ins for their kernels: packed equals alone, or it is refused."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import json
import sys
from typing import Any, Final, cast

import pytest
import torch
from hypothesis import given
from torch import nn

from neatpack.adapters import joined_segment_index
from neatpack.contracts import DocumentIdsError, ModelError, Rejected
from neatpack.kernels_bridge import configure_packing, decide, get_binding
from neatpack.kernels_bridge.families import RECURRENT
from neatpack.kernels_bridge.recurrent_kernels import kernels_reason
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.oracle_runs import runs
from tests.environments import ACTIVE, REPOSITORY, run
from tests.kernels_bridge.packed import tiny

# One of each way in which layers learn the boundaries.
SAMPLE: Final = ("bamba", "qwen3_next", "kimi_linear")


def outcomes(*names: str) -> dict[str, dict[str, object]]:
    """Run families in a process of their own, where the packages seem to be installed."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels_bridge.recurrent_stand_ins", *names]
    found: dict[str, dict[str, object]] = json.loads(run(*command, cwd=REPOSITORY, env=ACTIVE).stdout.splitlines()[-1])
    return found


def check(name: str, outcome: dict[str, object]) -> None:
    assert outcome["consumer"] == "recurrent"
    assert outcome["fault"] is None
    assert outcome["loss"] is True
    assert outcome["without seq_idx"] is not None
    assert outcome["without cu_seq_lens_q"] is not None
    # One kind of layer needs offsets by another name; the others need none, and are given none.
    assert (outcome["without cu_seqlens"] is not None) == ("cu_seqlens" in RECURRENT[name])


def test_packed_equals_alone_and_lost_boundaries_are_seen() -> None:
    for name, outcome in outcomes(*SAMPLE).items():
        check(name, outcome)


@pytest.mark.sweep
def test_every_known_family() -> None:
    found = outcomes(*RECURRENT)
    assert set(found) == set(RECURRENT)
    for name, outcome in found.items():
        check(name, outcome)


@pytest.mark.parametrize("name", ["bamba", "lfm2", "qwen3_next"])
def test_without_the_kernels_documents_go_one_by_one(name: str) -> None:
    model = tiny(name)
    decision = dict(decide(model))["recurrent"]
    assert isinstance(decision, Rejected)
    assert "plain torch, which takes no boundaries" in decision.reason
    configure_packing("eager", model)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "per_document"


@pytest.mark.parametrize("name", ["llama", "mamba2", "jamba"])
def test_other_families_are_not_taken(name: str) -> None:
    with pytest.raises(ModelError, match=r"recurrent: (of no kernel|it has no layer)"):
        configure_packing("eager", tiny(name), consumer="recurrent")


def wrapped(name: str, is_new: bool, arguments: tuple[str, ...]) -> Any:
    """Make a function as Transformers wraps a kernel."""
    is_new_implementation, applicable_params, func_name = is_new, arguments, name

    def function() -> object:
        return is_new_implementation, applicable_params, func_name

    cast("Any", function).__wrapped__ = function
    return function


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (("causal_conv1d_fn", True, ("x", "seq_idx")), None),
        (("causal_conv1d_fn", False, ("x", "seq_idx")), "in plain torch"),
        (("causal_conv1d_fn", True, ("x", "kwargs")), "takes no seq_idx, and would leave it out without a word"),
        (("chunk_kda", True, ("q", "seq_idx")), "takes no cu_seqlens"),
        (("chunk_new_rule", True, ("q", "cu_seqlens")), "it is not known how it takes boundaries"),
        (("causal_conv1d_update", False, ()), "could be found"),
    ],
)
def test_kernels_are_judged_by_what_they_take(
    kernel: tuple[str, bool, tuple[str, ...]], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Layer(nn.Module):
        pass

    monkeypatch.setattr(sys.modules[__name__], "some_kernel", wrapped(*kernel), raising=False)
    found = kernels_reason(Layer())
    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")


@given(rows_of_ids())
def test_segments_of_all_rows_are_numbered_in_order(rows: Rows) -> None:
    expected: list[int] = []
    number = 0
    for row in rows:
        for _, start, stop in runs(row):
            expected += [number] * (stop - start)
            number += 1
    index = joined_segment_index(tensor(rows)).seq_idx
    assert index.dtype == torch.int32
    assert index.tolist() == [expected]


def test_a_hole_is_refused() -> None:
    with pytest.raises(DocumentIdsError, match="a hole"):
        joined_segment_index(torch.tensor([[1, 0, 1]]))
