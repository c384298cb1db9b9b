"""Proof by call: what swallows, drops or ignores boundaries is refused, and the model is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.contracts import ConsumerError, ModelError, PackedMaskType, PackingCapabilities
from neatpack.kernels_bridge import configure_packing, get_binding
from neatpack.kernels_bridge.binding import bind
from neatpack.kernels_bridge.proof import prove
from tests.kernels_bridge.flash_stand_in import replace_flash_kernel
from tests.kernels_bridge.packed import tiny
from tests.kernels_bridge.stages import dense, visible

WIDTH = 8


class Answering(nn.Module):
    """An embedding and one attention layer; `mask` says who sees whom."""

    packed_mask_type: Literal["document_ids"] = "document_ids"
    forwards: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Embedding(64, WIDTH)
        self.qkv = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH, generator=generator))
        self.noise = nn.Dropout(0.5)
        self.register_buffer("forwards", torch.zeros(()))

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        self.forwards.add_(1)
        states = self.noise(self.table(input_ids))
        qkv = (states @ self.qkv).reshape(*input_ids.shape, 2, -1).chunk(3, dim=-1)
        ids = torch.ones_like(input_ids) if _packed_seq_ids is None else _packed_seq_ids
        attended: Tensor = states + dense((qkv[0], qkv[1], qkv[2]), self.mask(ids))
        return attended

    def mask(self, ids: Tensor) -> Tensor:
        return visible(ids)


class Swallows(Answering):
    """Names the ids and does nothing with them."""

    def mask(self, ids: Tensor) -> Tensor:
        return visible(torch.ones_like(ids))


class SeesPadding(Answering):
    def mask(self, ids: Tensor) -> Tensor:
        return visible(ids) | (ids == 0)[:, None, None]


class Drops(nn.Module):
    """A wrapper that names the ids and calls the model without them."""

    packed_mask_type: Literal["document_ids"] = "document_ids"

    def __init__(self) -> None:
        super().__init__()
        self.inner = Answering()

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        return cast("Tensor", self.inner(input_ids))


class TokenByToken(Answering):
    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        return cast("Tensor", self.table(input_ids))


class Constant(Answering):
    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        return torch.ones(*input_ids.shape, 3)


class NoNumbers(Answering):
    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        return cast("Tensor", self.table(input_ids)) * torch.nan


class LaterStage(nn.Module):
    """Takes states, not token ids."""

    packed_mask_type: Literal["document_ids"] = "document_ids"

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(WIDTH, WIDTH)

    def forward(self, states: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        return cast("Tensor", self.table(states))


def hooks_of(model: nn.Module) -> list[object]:
    module = cast("Any", model)
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (Swallows, "document 1 changes the outputs of document 2|boundaries do not arrive"),
        (Drops, "boundaries do not arrive"),
        (SeesPadding, "padding changes the outputs of documents"),
        (TokenByToken, "no token of a document answers to an earlier one"),
        (Constant, "outputs do not change when a document's own tokens do"),
        (NoNumbers, "not finite"),
        (LaterStage, "a trial forward raised RuntimeError"),
    ],
)
@pytest.mark.parametrize("train", [True, False])
def test_what_cannot_be_proved_is_refused(build: Callable[[], nn.Module], says: str, train: bool) -> None:
    model = build().train(train)
    hooks = hooks_of(model)
    with pytest.raises(ModelError, match=says) as caught:
        configure_packing("sdpa", model, verify=True)
    assert caught.value.problems[0].field == "verify"
    assert type(model).__name__ in str(caught.value)
    assert get_binding(model) is None
    assert hooks_of(model) == hooks
    assert configure_packing("sdpa", model).packed_mask_type == "document_ids"  # by name alone, it is taken


@pytest.mark.parametrize("wrap", [nn.Module.eval, nn.DataParallel, cast("Any", torch).compile])
def test_a_model_that_reads_them_is_taken(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = Answering()
    configure_packing("sdpa", wrap(model), verify=True)
    assert get_binding(model) is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_in_other_precisions(dtype: torch.dtype) -> None:
    configure_packing("sdpa", Answering().to(dtype), verify=True)
    with pytest.raises(ModelError, match="boundaries do not arrive"):
        configure_packing("sdpa", Swallows().to(dtype), verify=True)


@pytest.mark.parametrize("build", [Answering, Swallows])
def test_the_model_is_left_as_it_was(build: Callable[[], Answering]) -> None:
    model = build().train()
    model.noise.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    buffer, version = model.forwards, model.qkv._version
    random = torch.random.get_rng_state()
    gradient = torch.ones_like(model.qkv)
    model.qkv.grad = gradient
    try:
        configure_packing("sdpa", model, verify=True)
    except ModelError:
        assert build is Swallows
    assert model.forwards is buffer
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.qkv._version == version
    assert model.qkv.grad is gradient
    assert model.table.weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), random)
    assert (model.training, model.table.training, model.noise.training) == (True, True, False)
    binding = get_binding(model)
    assert binding is None or (binding.calls, binding.boundaries) == (0, None)


@pytest.mark.parametrize("consumer", [None, "reference"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_hugging_face_models_are_taken(name: str, consumer: str | None) -> None:
    model = tiny(name)
    configure_packing("eager", model, consumer=consumer, verify=True)
    binding = get_binding(model)
    assert binding is not None
    assert (binding.calls, binding.boundaries) == (0, None)
    assert model.training


@pytest.mark.parametrize("name", ["nemotron", "stablelm"])
@pytest.mark.parametrize(
    ("consumer", "implementation", "mask_type"),
    [("reference", "eager", "document_ids"), ("hf_flash", "flash_attention_2", "flash_varlen")],
)
def test_layers_that_drop_offsets_are_seen(
    name: str, consumer: str, implementation: str, mask_type: PackedMaskType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of these families is left aside: the call alone shows it."""
    replace_flash_kernel([], monkeypatch.setattr)
    model = tiny(name)
    configure_packing("eager", model, verify=True)  # masks arrive
    cast("Any", model).config._attn_implementation_internal = implementation
    binding = bind(model, consumer, implementation, PackingCapabilities(mask_type))
    with pytest.raises(ModelError, match="cu_seq_lens_q") as caught:
        prove(model, binding)
    assert caught.value.problems[0].field == "verify"


def attends_by_itself(hidden_states: Tensor, **_kwargs: object) -> tuple[Tensor, None]:
    return hidden_states, None


def test_a_function_that_is_never_called_is_refused() -> None:
    model = tiny("llama")
    for layer in cast("Any", model).model.layers:
        layer.self_attn.forward = attends_by_itself
    configure_packing("eager", model, consumer="reference")
    before = get_binding(model)
    with pytest.raises(ModelError, match="was never called"):
        configure_packing("eager", model, verify=True)
    kept = get_binding(model)
    assert before is not None
    assert kept is not None
    assert (kept.consumer, kept.capabilities) == (before.consumer, before.capabilities)


def test_weights_that_are_not_there() -> None:
    with torch.device("meta"):
        model = Answering()
    with pytest.raises(ModelError, match=r"meta device.*materialised"):
        configure_packing("sdpa", model, verify=True)
    assert get_binding(model) is None


def test_nothing_to_try() -> None:
    with pytest.raises(ConsumerError, match="no model to try"):
        configure_packing("sdpa", verify=True)
