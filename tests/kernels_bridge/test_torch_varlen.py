"""Torch's varlen kernel, up to the kernel itself: a stand-in of its signature, and refusal of what it cannot do."""

from __future__ import annotations

import inspect
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters import flash_varlen_kwargs
from neatpack.contracts import (
    Accepted,
    BoundariesMissingError,
    DependencyError,
    DocumentIdsError,
    KernelInputError,
    ModelError,
    PackingCapabilities,
    Rejected,
)
from neatpack.kernels_bridge import configure_packing, get_binding, get_consumer
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from neatpack.kernels_bridge.consumers import torch_varlen
from tests.kernels_bridge.packed import IDS, TOKENS, alone, first_fault, gradients, logits, loss, tiny
from tests.kernels_bridge.untyped import backward, different, ints

varlen: Any = pytest.importorskip("torch.nn.attention.varlen")
REAL: Final[Any] = varlen.varlen_attn


def stand_in(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Attend over the whole stream at once, as the kernel documents it."""
    assert all(unused is None for unused in (return_aux, seqused_k, block_table, num_splits))
    assert cu_seq_k is not None
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert max_q == max_k == int(cu_seq_q.diff().max())
    assert ints(cu_seq_q)[-1] == len(query)
    groups = query.shape[1] // key.shape[1]
    assert enable_gqa is (groups > 1)
    places = torch.arange(len(query))
    segment = torch.searchsorted(cu_seq_q, places, right=True)
    before, after = (len(query) if limit < 0 else limit for limit in window_size)
    distance = places[:, None] - places
    visible = (segment[:, None] == segment) & (distance <= before) & (distance >= -after)
    keys, values = (states.repeat_interleave(groups, 1).transpose(0, 1) for states in (key, value))
    scores = query.transpose(0, 1) @ keys.transpose(1, 2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (scores.masked_fill(~visible, -torch.inf).softmax(-1) @ values).transpose(0, 1)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-in take the place of the kernel, on the CPU and in float32."""
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    monkeypatch.setattr(torch_varlen, "_DEVICES", ("cpu",))
    monkeypatch.setattr(torch_varlen, "_DTYPES", (torch.float32,))


def test_the_stand_in_has_the_signature_of_the_installed_kernel() -> None:
    real, standing = (list(inspect.signature(function).parameters.values()) for function in (REAL, stand_in))
    assert [(p.name, p.kind, p.default) for p in standing] == [(p.name, p.kind, p.default) for p in real]


def test_the_installed_kernel_takes_what_it_is_called_with() -> None:
    assert torch_varlen.load_varlen_attn() is REAL


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gpt2", "gemma3_text"])
def test_packed_equals_alone(name: str) -> None:
    model = tiny(name)
    with torch.no_grad():
        expected = alone(model)
    capabilities = PackingCapabilities("document_ids", takes_holes=False)
    assert configure_packing("eager", model, consumer="torch_varlen") == capabilities
    assert first_fault(model, expected) is None
    binding = get_binding(model)
    assert binding is not None
    assert binding.boundaries is not None
    assert ints(binding.boundaries) == [0, 6, 7, 16, 21, 24, 34, 48]


@pytest.mark.usefixtures("on_the_cpu")
def test_gradients_equal_those_of_documents_alone() -> None:
    model = tiny("mistral")
    backward(torch.stack([output.square().sum() for output in alone(model)]).sum())
    expected = gradients(model)
    model.zero_grad()
    configure_packing("eager", model, consumer="torch_varlen")
    backward(loss(model, _packed_seq_ids=IDS))
    for parameter, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[parameter], rtol=1e-3, atol=1e-3)


FAULTS: Final[dict[str, dict[str, Any]]] = {
    "no window": {"window_size": (-1, 0)},
    "a window that counts the keys before alone": {"window_size": (4, 0)},
    "not causal": {"window_size": (-1, -1)},
    "no scale": {"scale": 1.0},
}


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    model = tiny("mistral")
    assert cast("Any", model).config.sliding_window == 4
    with torch.no_grad():
        expected = alone(model)

    def faulty(
        query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
        scale: float, window_size: tuple[int, int], enable_gqa: bool,
    ) -> Tensor:  # fmt: skip
        given: dict[str, Any] = {"scale": scale, "window_size": window_size, "enable_gqa": enable_gqa}
        return stand_in(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **(given | FAULTS[fault]))

    monkeypatch.setattr(varlen, "varlen_attn", faulty)
    configure_packing("eager", model, consumer="torch_varlen")
    assert first_fault(model, expected) is not None


@pytest.mark.usefixtures("on_the_cpu")
def test_holes_are_refused() -> None:
    model = tiny("llama")
    configure_packing("eager", model, consumer="torch_varlen")
    holes = IDS.clone()
    holes[0, 9] = 0
    with pytest.raises(DocumentIdsError, match="hole"):
        logits(model, TOKENS, _packed_seq_ids=holes)


def with_dropout() -> nn.Module:
    model = tiny("llama")
    cast("Any", model).config.attention_dropout = 0.1
    return model


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (tiny("gemma2"), "softcap"),
        (tiny("gpt_oss"), "sinks"),
        (with_dropout(), "drops no weights"),
        (tiny("gptj"), "attention interface"),
    ],
)
def test_models_that_ask_for_more_are_rejected(model: nn.Module, says: str) -> None:
    decision = get_consumer("torch_varlen").decide(model, "eager")
    assert isinstance(decision, Rejected)
    assert says in decision.reason


def test_a_cpu_is_rejected_and_weights_without_a_place_are_not() -> None:
    consumer = get_consumer("torch_varlen")
    decision = consumer.decide(tiny("llama"), "eager")
    assert decision == Rejected("its weights lie on cpu, and varlen_attn runs on CUDA: move the model first")
    assert isinstance(consumer.decide(tiny("llama").to("meta"), "eager"), Accepted)


STATES: Final = torch.zeros(2, 4, 24, 8)
KWARGS: Final[dict[str, Any]] = dict(flash_varlen_kwargs(IDS))


class Causal(nn.Module):
    is_causal = True


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"softcap": 30.0}, ModelError, "a softcap"),
        ({"s_aux": torch.zeros(4)}, ModelError, "sinks"),
        ({"dropout": 0.1}, ModelError, "dropout"),
        ({"is_causal": False}, ModelError, "not causal"),
        ({"position_bias": torch.zeros(1)}, ModelError, "a bias of its own"),
        *(({name: None}, BoundariesMissingError, "did not arrive at Causal") for name in KWARGS),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_before_it(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    torch_varlen.attend("eager", Causal(), STATES, STATES, STATES, None, **KWARGS)
    with pytest.raises(error, match=says):
        torch_varlen.attend("eager", Causal(), STATES, STATES, STATES, None, **(KWARGS | options))


def test_a_mask_of_the_layers_own_is_refused() -> None:
    with pytest.raises(ModelError, match="a mask"):
        torch_varlen.attend("eager", Causal(), STATES, STATES, STATES, torch.ones(1), **KWARGS)


@pytest.mark.parametrize(
    ("devices", "states", "says"),
    [
        (("cuda",), [STATES.bfloat16()] * 3, "runs on CUDA devices"),
        (("cpu",), [STATES] * 3, "float16 or bfloat16"),
        (("cpu",), [STATES.bfloat16(), STATES.half(), STATES.half()], "of one dtype"),
        (("cpu",), [STATES[..., :4].bfloat16()] * 3, "multiple of 8"),
        (("cpu",), [STATES.bfloat16(), STATES.bfloat16(), STATES.bfloat16().repeat(1, 1, 1, 2)], "must be equal"),
        (("cpu",), [torch.zeros(2, 4, 24, 264, dtype=torch.bfloat16)] * 3, "up to 256"),
    ],
)
def test_states_that_the_kernel_does_not_take(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], states: list[Tensor], says: str
) -> None:
    monkeypatch.setattr(torch_varlen, "_DEVICES", devices)
    with pytest.raises(KernelInputError, match=says):
        torch_varlen.attend("eager", Causal(), states[0], states[1], states[2], None, **KWARGS)


def test_a_torch_without_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor) -> None: ...

    monkeypatch.setattr(varlen, "varlen_attn", older)
    with pytest.raises(DependencyError, match="takes no max_q, max_k, scale, window_size, enable_gqa by name"):
        torch_varlen.load_varlen_attn()
    monkeypatch.delattr(varlen, "varlen_attn")
    with pytest.raises(DependencyError, match="has no torch"):
        torch_varlen.load_varlen_attn()
    decision = get_consumer("torch_varlen").decide(tiny("llama"), "eager")
    assert isinstance(decision, Rejected)
    assert "varlen_attn" in decision.reason


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_real_kernel_equals_documents_alone(name: str) -> None:
    model = build_tiny_model(name, "eager").to("cuda", torch.bfloat16).train()
    tokens, ids = TOKENS.cuda(), IDS.cuda()
    with torch.no_grad():
        expected = alone(model, tokens)
    configure_packing("eager", model, consumer="torch_varlen")
    packed = logits(model, tokens, _packed_seq_ids=ids)
    places = [(row, ids[row] == number) for row in range(2) for number in ints(different(ids[row])) if number]
    for (row, kept), output in zip(places, expected, strict=True):
        torch.testing.assert_close(packed[row][kept], output, rtol=5e-2, atol=5e-2)
