from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neatpack.contracts import KernelInputError, VarlenAttention
from neatpack.kernels_bridge import varlen_attention
from tests.kernels_bridge.untyped import backward, different

_conforms: VarlenAttention[Tensor] = varlen_attention


@dataclass(frozen=True)
class Case:
    lengths_q: list[int]
    lengths_k: list[int]
    heads: int
    groups: int
    causal: bool
    window: tuple[int | None, int | None]
    softcap: float
    sinks: bool
    scale: float | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths_q = draw(st.lists(st.integers(0, 5), max_size=4))
    same = draw(st.booleans())
    lengths_k = lengths_q if same else [draw(st.integers(0, 5)) for _ in lengths_q]
    limit = st.none() | st.integers(0, 4)
    return Case(
        lengths_q,
        lengths_k,
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
        (draw(limit), draw(limit)),
        draw(st.sampled_from([0.0, 0.5, 30.0])),
        draw(st.booleans()),
        draw(st.none() | st.sampled_from([0.1, 1.0])),
    )


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def states(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tokens_q, tokens_k = sum(case.lengths_q), sum(case.lengths_k)
    heads = case.heads * case.groups
    query, key, value = draw(tokens_q, heads, 4), draw(tokens_k, case.heads, 4), draw(tokens_k, case.heads, 3)
    return query, key, value, draw(heads) if case.sinks else None


def run(case: Case, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
    return varlen_attention(
        query,
        key,
        value,
        cu_seqlens_q=offsets(case.lengths_q),
        cu_seqlens_k=offsets(case.lengths_k),
        max_seqlen_q=max(case.lengths_q, default=0),
        max_seqlen_k=max(case.lengths_k, default=0),
        softmax_scale=case.scale,
        causal=case.causal,
        window_size=case.window,
        softcap=case.softcap,
        sinks=sinks,
    )


def oracle(case: Case, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
    """One query, one head and one key at a time, over the whole stream at once."""
    outputs = torch.zeros(len(query), query.shape[1], value.shape[-1], dtype=torch.float64)
    scale = query.shape[-1] ** -0.5 if case.scale is None else case.scale
    starts_q, starts_k = [0, *accumulate(case.lengths_q)], [0, *accumulate(case.lengths_k)]
    for (first_q, last_q), (first_k, last_k) in zip(pairwise(starts_q), pairwise(starts_k), strict=True):
        for token in range(first_q, last_q):
            at = (token - first_q) + (last_k - first_k) - (last_q - first_q)
            left, right = case.window
            seen = [
                first_k + place
                for place in range(last_k - first_k)
                if not (case.causal and place > at)
                and not (left is not None and place < at - left)
                and not (right is not None and place > at + right)
            ]
            for head in range(query.shape[1]):
                own = head // case.groups
                scores = [float(query[token, head] @ key[place, own]) * scale for place in seen]
                if case.softcap:
                    scores = [case.softcap * float(torch.tensor(s / case.softcap).tanh()) for s in scores]
                raised = torch.tensor(scores, dtype=torch.float64).exp()
                total = raised.sum() + (0.0 if sinks is None else sinks[head].exp())
                for weight, place in zip(raised, seen, strict=True):
                    outputs[token, head] += weight / total * value[place, own]
    return outputs


@given(cases())
def test_equals_attention_spelled_out(case: Case) -> None:
    inputs = states(case)
    torch.testing.assert_close(run(case, *inputs), oracle(case, *inputs), rtol=1e-6, atol=1e-7)


def test_the_oracle_sees_a_shifted_boundary() -> None:
    right = Case([3, 4], [3, 4], 1, 1, True, (None, None), 0.0, False, None)
    shifted = Case([4, 3], [4, 3], 1, 1, True, (None, None), 0.0, False, None)
    inputs = states(right)
    assert not torch.allclose(run(shifted, *inputs), oracle(right, *inputs))


@pytest.mark.parametrize("sinks", [False, True])
def test_gradients_are_those_of_finite_differences(sinks: bool) -> None:
    case = Case([2, 0, 3], [2, 1, 3], 1, 2, True, (1, None), 5.0, sinks, None)
    inputs = [tensor.requires_grad_() for tensor in states(case) if tensor is not None]

    def output(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None) -> Tensor:
        return run(case, query, key, value, sinks)

    assert torch.autograd.gradcheck(output, inputs)


def test_an_empty_stream_is_differentiable() -> None:
    case = Case([], [], 1, 1, True, (None, None), 0.0, False, None)
    query, key, value, _ = states(case)
    out = run(case, query.requires_grad_(), key, value, None)
    assert out.shape == (0, 1, 3)
    backward(out.sum())
    assert query.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scores_are_computed_in_float32(dtype: torch.dtype) -> None:
    case = Case([3, 5], [3, 5], 1, 2, True, (None, None), 0.0, False, None)
    query, key, value, _ = states(case)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    wide = run(case, query.double(), key.double(), value.double(), None)
    out = run(case, query, key, value, None)
    assert out.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), wide, rtol=eps, atol=eps)


def test_scores_past_the_range_of_float16_are_finite() -> None:
    wide = torch.full((2, 1, 4), 300.0, dtype=torch.float16)
    case = Case([2], [2], 1, 1, True, (None, None), 0.0, False, 1.0)
    assert torch.equal(run(case, wide, wide, wide, None), wide)


@pytest.mark.parametrize(("dtype", "common", "more"), [(torch.float16, 2048.0, 1.0), (torch.bfloat16, 102.0, 0.25)])
def test_scores_that_a_narrow_dtype_cannot_tell_apart_are_told_apart(
    dtype: torch.dtype, common: float, more: float
) -> None:
    query = torch.ones(2, 1, 2, dtype=dtype)
    key = torch.tensor([[[common, more]], [[common, 0.0]]], dtype=dtype)
    value = torch.tensor([[[1.0]], [[0.0]]], dtype=dtype)
    assert torch.equal(key.sum(-1).flatten(), torch.tensor([common, common], dtype=dtype))
    case = Case([2], [2], 1, 1, True, (None, None), 0.0, False, 1.0)
    weight = 1 / (1 + math.exp(-more))
    assert float(run(case, query, key, value, None)[1]) == pytest.approx(weight, rel=torch.finfo(dtype).eps)


def test_dropout_scales_what_it_keeps() -> None:
    ones = torch.ones(64, 1, 1)
    cu = torch.tensor([0, 64], dtype=torch.int32)
    out = varlen_attention(
        ones, ones, ones, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=64, max_seqlen_k=64, dropout_p=0.5
    )
    assert different(out).numel() > 1
    assert out[-1].item() == pytest.approx(1.0, abs=0.5)


GOOD: dict[str, Any] = {
    "query": torch.zeros(5, 2, 4),
    "key": torch.zeros(5, 2, 4),
    "value": torch.zeros(5, 2, 4),
    "cu_seqlens_q": torch.tensor([0, 2, 5], dtype=torch.int32),
    "cu_seqlens_k": torch.tensor([0, 2, 5], dtype=torch.int32),
    "max_seqlen_q": 3,
    "max_seqlen_k": 3,
}


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("field", "value", "position", "says"),
    [
        ("query", torch.zeros(5, 8), None, "[tokens, heads, head_dim]"),
        ("query", torch.zeros(5, 2, 4, dtype=torch.int64), None, "floating"),
        ("key", torch.zeros(5, 2, 4, dtype=torch.bfloat16), None, "one dtype"),
        ("key", torch.zeros(5, 2, 3), None, "head_dim"),
        ("key", torch.zeros(5, 3, 4), None, "divides"),
        ("key", torch.zeros(5, 2, 4, device="meta"), None, "device"),
        ("value", torch.zeros(4, 2, 4), None, "tokens and heads"),
        ("cu_seqlens_q", torch.tensor([0, 2, 5]), None, "int32"),
        ("cu_seqlens_q", torch.tensor([0.0, 5.0]), None, "int32"),
        ("cu_seqlens_q", i32(0, 2, 5)[None], None, "documents + 1"),
        ("cu_seqlens_q", i32(), None, "documents + 1"),
        ("cu_seqlens_q", i32(0, 2, 5).to("meta"), None, "device"),
        ("cu_seqlens_q", i32(1, 2, 5), 0, "start at 0"),
        ("cu_seqlens_q", i32(0, 3, 2, 5), 2, "decrease"),
        ("cu_seqlens_q", i32(0, 2, 4), 2, "end at the number of tokens, 5"),
        ("cu_seqlens_k", i32(0, 2, 6), 2, "end at the number of tokens, 5"),
        ("cu_seqlens_k", i32(0, 5), None, "has 2 entries"),
        ("max_seqlen_q", 2, None, "longest document, 3"),
        ("max_seqlen_k", torch.tensor(3), None, "Python int"),
        ("max_seqlen_k", True, None, "Python int"),
        ("query", np.zeros((5, 2, 4)), None, "ndarray: must be a torch.Tensor"),
        ("query", None, None, "NoneType: must be a torch.Tensor"),
        ("cu_seqlens_q", [0, 2, 5], None, "list: must be a torch.Tensor"),
        ("cu_seqlens_k", None, None, "NoneType: must be a torch.Tensor"),
        ("sinks", [1, 2], None, "list: must be a torch.Tensor"),
        ("window_size", (None, -1), 1, "negative"),
        ("window_size", 2, None, "(before, after)"),
        ("window_size", (2,), None, "(before, after)"),
        ("window_size", (True, 0), 0, "True: counts"),
        ("window_size", (0, 1.5), 1, "1.5: counts"),
        ("softmax_scale", "x", None, "finite"),
        ("softmax_scale", float("nan"), None, "finite"),
        ("causal", "x", None, "bool"),
        ("softcap", "x", None, "positive"),
        ("dropout_p", "x", None, "probability"),
        ("softcap", -1.0, None, "positive"),
        ("softcap", float("nan"), None, "positive"),
        ("dropout_p", 1.5, None, "probability"),
        ("sinks", torch.zeros(3), None, "[heads]"),
    ],
)
def test_wrong_inputs_are_named(field: str, value: object, position: int | None, says: str) -> None:
    arguments: dict[str, Any] = {**GOOD, field: value}
    if field == "cu_seqlens_k" and isinstance(value, Tensor) and len(value) == 2:
        arguments["max_seqlen_k"] = 5
    with pytest.raises(KernelInputError) as caught:
        varlen_attention(**arguments)
    problem = caught.value.problems[0]
    assert problem.field == field
    assert problem.position == position
    assert says in str(problem)
