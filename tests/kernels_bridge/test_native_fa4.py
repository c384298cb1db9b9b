"""Native FlashAttention-4: gathered, called by name, scattered into zeros; equal to each document spelled out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neatpack.adapters import build_packed_sequence_metadata, gathered_flat
from neatpack.adapters.strategies import attention_document_ids
from neatpack.contracts import (
    CapabilitiesError,
    DependencyError,
    EncodingError,
    KernelInputError,
    ModelError,
    Rejected,
)
from neatpack.kernels_bridge import (
    configure_packing,
    gathering,
    get_binding,
    get_consumer,
    native_fa4_attention,
    varlen_attention,
)
from neatpack.kernels_bridge import fa4 as package
from neatpack.kernels_bridge.compiling import eagerly
from neatpack.kernels_bridge.consumers import native_fa4
from tests.kernels_bridge.fa4_stand_in import flash_attn_varlen_func
from tests.kernels_bridge.packed import IDS, TOKENS
from tests.kernels_bridge.untyped import backward, different, ints

Kernel = Callable[..., tuple[Tensor, Tensor | None]]
HOPPER = (9, 0)


@dataclass(frozen=True)
class Case:
    ids: Tensor
    heads: int
    groups: int
    window: int | None
    softcap: float
    sinks: bool
    scale: float | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        draw(attention_document_ids(max_batch=3, max_sequence=9, dtypes=(torch.int64,))),
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        draw(st.none() | st.integers(1, 4)),
        draw(st.sampled_from([0.0, 0.5])),
        draw(st.booleans()),
        draw(st.none() | st.just(0.3)),
    )


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let the stand-in be called on the CPU, in float64 too, and keep its arguments. All have to come by name."""
    calls: list[dict[str, Any]] = []

    def kernel(**arguments: Any) -> tuple[Tensor, Tensor | None]:
        calls.append(arguments)
        return flash_attn_varlen_func(**arguments)

    plant(monkeypatch, kernel)
    pretend(monkeypatch, HOPPER)
    monkeypatch.setattr(package, "_DTYPES", (torch.float16, torch.bfloat16, torch.float64))
    monkeypatch.setattr(package, "_SINK_DTYPES", (torch.float16, torch.bfloat16, torch.float64))
    return calls


def plant(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    monkeypatch.setattr(native_fa4, "load_fa4", lambda: kernel)


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """Let every device have a compute capability."""

    def device_capability(_device: torch.device) -> tuple[int, int]:
        return capability

    monkeypatch.setattr(native_fa4, "device_capability", device_capability)


def states(case: Case, head_dim: int = 8, value_dim: int = 16) -> list[Tensor]:
    """Query, key, value and sinks, float64, that need gradients. Padding holds something as well."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    places = tuple(case.ids.shape)
    heads = case.heads * case.groups
    query, key = draw(*places, heads, head_dim), draw(*places, case.heads, head_dim)
    return [query, key, draw(*places, case.heads, value_dim), draw(heads)]


def attend(case: Case, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> Tensor:
    flat = gathered_flat(case.ids)
    return native_fa4_attention(
        query,
        key,
        value,
        packed_token_indices=flat.token_indices,
        cu_seqlens=flat.cu_seqlens,
        max_seqlen=flat.max_seqlen,
        softmax_scale=case.scale,
        sliding_window=case.window,
        sinks=sinks if case.sinks else None,
        softcap=case.softcap,
    )


def alone(case: Case, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> Tensor:
    """Each document by itself, and each of its tokens over those before it."""
    outputs = query.new_zeros(*query.shape[:3], value.shape[-1])
    scale = case.scale or query.shape[-1] ** -0.5
    for row, ids in enumerate(case.ids):
        for number in ints(different(ids[ids != 0])):
            kept = ints((ids == number).nonzero()[:, 0])
            for at, place in enumerate(kept):
                seen = kept[0 if case.window is None else max(0, at - case.window + 1) : at + 1]
                for head in range(query.shape[2]):
                    own = head // case.groups
                    scores = (key[row, seen, own] @ query[row, place, head]) * scale
                    if case.softcap:
                        scores = case.softcap * torch.tanh(scores / case.softcap)
                    weights = scores.exp()
                    total = weights.sum() + (sinks[head].exp() if case.sinks else 0)
                    outputs[row, place, head] = (weights / total) @ value[row, seen, own]
    return outputs


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(6), dtype=output.dtype)
    found = cast("tuple[Tensor | None, ...]", torch.autograd.grad((output * weights).sum(), inputs, allow_unused=True))
    return [torch.zeros_like(given) if one is None else one for one, given in zip(found, inputs, strict=True)]


def check(case: Case) -> None:
    inputs = states(case)
    expected, output = alone(case, *inputs), attend(case, *inputs)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-10)
    wanted = gradients(expected, inputs) if expected.requires_grad else [torch.zeros_like(one) for one in inputs]
    torch.testing.assert_close(gradients(output, inputs), wanted, rtol=1e-8, atol=1e-10)
    assert output[case.ids == 0].abs().sum() == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(cases())
def test_equals_each_document_spelled_out(case: Case) -> None:
    check(case)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(cases())
def test_equals_the_reference_kernel(case: Case) -> None:
    inputs, flat = states(case), gathered_flat(case.ids)
    query, key, value = (one.detach().flatten(0, 1)[flat.token_indices] for one in inputs[:3])
    window = None if case.window is None else case.window - 1
    expected = varlen_attention(
        query,
        key,
        value,
        cu_seqlens_q=flat.cu_seqlens,
        cu_seqlens_k=flat.cu_seqlens,
        max_seqlen_q=flat.max_seqlen,
        max_seqlen_k=flat.max_seqlen,
        softmax_scale=case.scale,
        window_size=(window, None),
        softcap=case.softcap,
        sinks=inputs[3].detach() if case.sinks else None,
    )
    packed = attend(case, *inputs).detach().flatten(0, 1)[flat.token_indices]
    torch.testing.assert_close(packed, expected, rtol=1e-9, atol=1e-10)


BUSY = Case(torch.tensor([[1, 1, 1, 0, 1, 2, 2, 0], [4, 4, 0, 3, 3, 3, 3, 3]]), 2, 2, 3, 0.5, True, 0.3)


def everywhere(query: Tensor, key: Tensor) -> Tensor:
    return torch.ones_like(query == key)


FAULTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "window counts the keys before alone": lambda given: {"window_size": (given["window_size"][0] + 1, 0)},
    "no window": lambda _: {"window_size": (None, None)},
    "no sinks": lambda _: {"learnable_sink": None},
    "no softcap": lambda _: {"softcap": 0.0},
    "no scale": lambda _: {"softmax_scale": None},
    "documents joined": lambda given: (
        {name: given[name][[0, -1]] for name in ("cu_seqlens_q", "cu_seqlens_k")} | {"max_seqlen_q": 99}
    ),
    "a boundary late": lambda given: (
        {name: given[name] + (torch.arange(len(given[name])) == 1).int() for name in ("cu_seqlens_q", "cu_seqlens_k")}
        | {"max_seqlen_q": 99}
    ),
    "a mask argument, which switches causality off": lambda _: {"mask_mod": everywhere},
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    check(BUSY)

    def faulty(**given: Any) -> tuple[Tensor, Tensor | None]:
        return flash_attn_varlen_func(**{**given, **FAULTS[fault](given)})

    plant(monkeypatch, faulty)
    with pytest.raises(AssertionError):
        check(BUSY)


def test_outputs_in_the_wrong_places_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def rotated(*arguments: Any) -> Tensor:
        kernel, query, key, value, indices, sinks = arguments
        return genuine(kernel, query, key, value, indices.roll(1), sinks)

    genuine = gathering.attend_gathered
    monkeypatch.setattr(native_fa4, "attend_gathered", rotated)
    with pytest.raises(AssertionError):
        check(BUSY)


def test_without_a_window_it_is_called_without_one(hopper: list[dict[str, Any]]) -> None:
    check(replace(BUSY, window=None))
    assert hopper[-1]["window_size"] == (None, None)
    assert set(hopper[-1]) == set(package.KEYWORDS)
    assert hopper[-1]["causal"] is True
    assert type(hopper[-1]["max_seqlen_q"]) is int


def test_padding_alone_calls_nothing_and_has_gradients(hopper: list[dict[str, Any]]) -> None:
    case = replace(BUSY, ids=torch.zeros(2, 3, dtype=torch.int64))
    inputs = states(case)
    output = attend(case, *inputs)
    assert output.shape == (2, 3, 4, 16)
    assert not output.any()
    assert hopper == []
    backward(output.sum())
    assert all(one.grad is not None and not one.grad.any() for one in inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_near(dtype: torch.dtype) -> None:
    inputs = [one.detach().to(dtype) for one in states(BUSY)]
    output = attend(BUSY, *inputs)
    assert output.dtype == dtype
    eps = torch.finfo(dtype).eps
    expected = alone(BUSY, *[one.double() for one in inputs])
    torch.testing.assert_close(output.double(), expected, rtol=4 * eps, atol=4 * eps)


GOOD: dict[str, Any] = {
    "query": torch.zeros(1, 4, 4, 8, dtype=torch.bfloat16),
    "key": torch.zeros(1, 4, 2, 8, dtype=torch.bfloat16),
    "value": torch.zeros(1, 4, 2, 8, dtype=torch.bfloat16),
    "packed_token_indices": torch.arange(4),
    "cu_seqlens": torch.tensor([0, 3, 4], dtype=torch.int32),
    "max_seqlen": 3,
    "sinks": torch.zeros(4, dtype=torch.bfloat16),
}


@pytest.mark.parametrize(
    ("name", "value", "field", "says"),
    [
        ("query", torch.zeros(4, 4, 8), "query", "[batch, sequence, heads, head_dim]"),
        ("key", torch.zeros(1, 3, 2, 8), "key", "batch and sequence of query, (1, 4)"),
        ("query", torch.zeros(1, 4, 4, 8), "query", "float16 or bfloat16"),
        ("key", torch.zeros(1, 4, 2, 8, dtype=torch.float16), "query", "one dtype"),
        ("key", torch.zeros(1, 4, 2, 16, dtype=torch.bfloat16), "key", "head size of query, 8"),
        ("key", torch.zeros(1, 4, 3, 8, dtype=torch.bfloat16), "key", "divides the 4 of query"),
        ("value", torch.zeros(1, 4, 4, 8, dtype=torch.bfloat16), "key", "one number of heads"),
        ("value", GOOD["value"].to("meta"), "value", "where query lies"),
        ("packed_token_indices", torch.arange(4).view(1, 4), "packed_token_indices", "in one stream"),
        ("packed_token_indices", torch.arange(4, dtype=torch.int32), "packed_token_indices", "int64"),
        ("cu_seqlens", torch.tensor([[0, 3, 4]], dtype=torch.int32), "cu_seqlens", "in one stream"),
        ("cu_seqlens", torch.tensor([0, 3, 4]), "cu_seqlens", "int32"),
        ("cu_seqlens", torch.arange(6, dtype=torch.int32)[::2], "cu_seqlens", "contiguous"),
        ("cu_seqlens", GOOD["cu_seqlens"].to("meta"), "cu_seqlens", "where query lies"),
        ("max_seqlen", torch.tensor(3), "max_seqlen", "Python int"),
        ("max_seqlen", None, "max_seqlen", "Python int"),
        ("sliding_window", 0, "sliding_window", "positive int"),
        ("sliding_window", True, "sliding_window", "positive int"),
        ("softcap", -1.0, "softcap", "0 (none) or a positive"),
        ("softcap", float("nan"), "softcap", "0 (none) or a positive"),
        ("sinks", torch.zeros(2, dtype=torch.bfloat16), "sinks", "[heads] = [4]"),
        ("sinks", torch.zeros(4, dtype=torch.int64), "sinks", "floating point"),
    ],
)
def test_what_the_kernel_could_not_take_is_refused_before_it(
    hopper: list[dict[str, Any]], name: str, value: Any, field: str, says: str
) -> None:
    native_fa4_attention(**GOOD)
    del hopper[:]
    with pytest.raises(KernelInputError) as caught:
        native_fa4_attention(**(GOOD | {name: value}))
    assert field in [problem.field for problem in caught.value.problems]
    assert says in str(caught.value)
    assert hopper == []


def test_a_gpu_that_lacks_the_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (8, 0))
    native_fa4_attention(**GOOD)
    needs_gradient = GOOD | {"query": GOOD["query"].clone().requires_grad_()}
    with pytest.raises(KernelInputError, match=r"no backward for compute capability 8\.0"):
        native_fa4_attention(**needs_gradient)
    with torch.no_grad():
        native_fa4_attention(**needs_gradient)


def test_a_cpu_is_refused_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_fa4, "device_capability", package.device_capability)
    with pytest.raises(KernelInputError, match="runs on CUDA devices"):
        native_fa4_attention(**GOOD)


class Layer(nn.Module):
    """Attention with grouped heads, which calls the kernel where there are boundaries."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(32, width) for width in (32, 16, 16))

    def forward(self, hidden: Tensor, **boundaries: Any) -> Tensor:
        query, key, value = (projection(hidden).unflatten(-1, (-1, 8)) for projection in cast("Any", self.projections))
        attended: Tensor = native_fa4_attention(query, key, value, **boundaries).flatten(2)
        return hidden + attended


class Model(nn.Module):
    """Two layers. No argument of its forward is a mask, since the kernel needs none."""

    uses_native_fa4: bool = True

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 32), nn.Linear(32, 40)
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, input_ids: Tensor, packed_token_indices: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(
                hidden, packed_token_indices=packed_token_indices, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen
            )
        logits: Tensor = self.head(hidden)
        return logits


def test_a_model_that_names_no_mask_is_bound_and_isolates() -> None:
    model = Model().double()
    capabilities = configure_packing("fa4", model)
    assert (capabilities.packed_mask_type, capabilities.requires_packed_sequence_metadata) == ("document_ids", True)
    packed: Tensor = model(TOKENS, _packed_seq_ids=IDS)
    binding = get_binding(model)
    assert binding is not None
    assert (binding.consumer, binding.calls) == ("native_fa4", 2)
    assert binding.boundaries is not None
    assert torch.equal(binding.boundaries, gathered_flat(IDS).cu_seqlens)
    for row, ids in enumerate(IDS):
        for number in ints(different(ids[ids != 0])):
            own = TOKENS[row][ids == number][None]
            single = model(own, _packed_seq_ids=torch.ones_like(own))[0]
            torch.testing.assert_close(packed[row][ids == number], single, rtol=1e-9, atol=1e-10)


class Half(nn.Module):
    uses_native_fa4: bool = True

    def forward(self, input_ids: Tensor, packed_token_indices: Tensor, **rest: object) -> None: ...


class Undeclared(nn.Module):
    packed_mask_type: Literal["document_ids"] = "document_ids"

    def forward(self, input_ids: Tensor, packed_token_indices: Tensor, cu_seqlens: Tensor) -> None: ...


def test_a_model_that_does_not_name_its_metadata_is_refused() -> None:
    with pytest.raises(ModelError, match=r"native_fa4: Half\.forward does not name `cu_seqlens`"):
        configure_packing("fa4", Half())


def test_a_model_that_does_not_say_that_it_calls_the_kernel_is_refused() -> None:
    with pytest.raises(CapabilitiesError, match="needs a model whose layers call it"):
        configure_packing("fa4", Undeclared())
    consumer = get_consumer("native_fa4")
    assert consumer.decide(Undeclared(), "fa4") == Rejected("it does not declare `uses_native_fa4: bool = True`")
    assert consumer.decide(Model(), "sdpa") == Rejected("it runs with 'sdpa', and not with 'fa4'")


def test_metadata_is_derived_once_per_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    from neatpack.kernels_bridge import neat_metadata

    derived: list[object] = []

    def count(segments: Any) -> Any:
        derived.append(segments)
        return gathered_flat(segments)

    monkeypatch.setattr(neat_metadata, "gathered_flat", count)
    model = Model().double()
    configure_packing("fa4", model)
    model(TOKENS, _packed_seq_ids=IDS)
    assert len(derived) == 1


def test_batch_major_metadata_is_flattened_at_entry() -> None:
    model = Model().double()
    configure_packing("fa4", model)
    metadata: dict[str, Any] = dict(build_packed_sequence_metadata(IDS))
    assert torch.equal(model(TOKENS, **metadata), model(TOKENS, _packed_seq_ids=IDS))
    with pytest.raises(KernelInputError, match="Call the bound model itself"):
        model.forward(TOKENS, **metadata)


BATCHED: dict[str, Any] = dict(build_packed_sequence_metadata(IDS))
FLAT: dict[str, Any] = {
    "packed_token_indices": gathered_flat(IDS).token_indices,
    "cu_seqlens": gathered_flat(IDS).cu_seqlens,
    "max_seqlen": 14,
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        *((metadata | {"qkv_format": "thd"}, "cu_seqlens") for metadata in (BATCHED, FLAT)),
        *((metadata | {"packed_token_indices": None}, "cu_seqlens") for metadata in (BATCHED, FLAT)),
        *((metadata | {"cu_seqlens": None}, "cu_seqlens") for metadata in (BATCHED, FLAT)),
        (FLAT | {"packed_token_indices": FLAT["packed_token_indices"] + 40}, "packed_token_indices"),
        (FLAT | {"cu_seqlens": FLAT["cu_seqlens"][:-1]}, "cu_seqlens"),
        (BATCHED | {"cu_seqlens": FLAT["cu_seqlens"]}, "cu_seqlens"),
    ],
)
def test_thd_and_half_of_the_metadata_are_refused(training: bool, metadata: dict[str, Any], field: str) -> None:
    model = Model().double().train(training)
    configure_packing("fa4", model)
    with pytest.raises(EncodingError) as caught:
        model(TOKENS, **metadata)
    assert caught.value.problems[0].field == field


def test_a_compiled_model_is_called_with_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, eagerly(flash_attn_varlen_func))  # compilers do not look into the real one either
    model = Model().double()
    configure_packing("fa4", model)
    compiled: Any = cast("Any", torch).compile(model, backend="eager")
    with torch.no_grad():
        expected = model(TOKENS, _packed_seq_ids=IDS)
        torch.testing.assert_close(compiled(TOKENS, _packed_seq_ids=IDS), expected, rtol=1e-12, atol=1e-12)
    binding = get_binding(model)
    assert binding is not None
    assert binding.calls == 2
    torch.compiler.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"window": None}, {"sinks": False, "softcap": 0.0}, {"groups": 1}])
def test_the_real_kernel_equals_each_document_spelled_out(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.undo()
    try:
        package.load_fa4()
    except DependencyError as error:
        pytest.skip(str(error))
    case = replace(BUSY, **options)
    inputs = states(case, 64, 64)
    half = [one.detach().to("cuda", torch.bfloat16).requires_grad_() for one in inputs]
    flat = gathered_flat(case.ids.cuda())
    output = native_fa4_attention(
        half[0],
        half[1],
        half[2],
        packed_token_indices=flat.token_indices,
        cu_seqlens=flat.cu_seqlens,
        max_seqlen=flat.max_seqlen,
        softmax_scale=case.scale,
        sliding_window=case.window,
        sinks=half[3] if case.sinks else None,
        softcap=case.softcap,
    )
    expected = alone(case, *[one.detach().double().cpu() for one in half])
    torch.testing.assert_close(output.double().cpu(), expected, rtol=2e-2, atol=2e-2)
    exact = [one.detach().double().cpu().requires_grad_() for one in half]
    for found, wanted in zip(
        gradients(output.double().cpu(), half), gradients(alone(case, *exact), exact), strict=True
    ):
        torch.testing.assert_close(found.double().cpu(), wanted, rtol=5e-2, atol=5e-2)
