"""Packed equals alone, through every consumer of Hugging Face models, and each planted fault is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters import flash_varlen_kwargs, gathered_flat
from neatpack.contracts import Attachment, BoundariesMissingError, Decision, EncodingError, ModelError
from neatpack.kernels_bridge import PackedCall, configure_packing, families, get_binding, get_consumer, use_consumer
from neatpack.kernels_bridge.consumers import hf_flash, reference
from neatpack.kernels_bridge.registry import Consumer
from tests.kernels_bridge.flash_stand_in import replace_flash_kernel
from tests.kernels_bridge.packed import IDS, TOKENS, alone, documents, first_fault, gradients, logits, loss, tiny
from tests.kernels_bridge.untyped import backward, ints

# gemma2 mixes windowed and full layers, soft-caps and groups; mistral slides everywhere; gpt2 learns positions.
MODELS: Final = ("llama", "gemma2", "gpt2", "mistral", "gpt_oss")
BUILDS: Final = [
    *(("reference", name, "eager") for name in MODELS),
    *(("block_causal", name, "eager") for name in MODELS),
    *(("reference", name, "sdpa") for name in ("llama", "gpt2")),
    *(("block_causal", name, "sdpa") for name in ("llama", "gpt2", "mistral")),
    *(("hf_flash", name, "flash_attention_2") for name in ("llama", "gemma2", "mistral")),
]


@pytest.fixture(autouse=True)
def flash_kernel(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, object]]:
    """Put the reference where Transformers looks for a flash kernel, and refuse its dense function."""
    calls: list[Mapping[str, object]] = []
    replace_flash_kernel(calls, monkeypatch.setattr)
    return calls


def built(name: str, attention: str) -> tuple[nn.Module, list[Tensor]]:
    """Build a model and run its documents alone. Flash attention cannot be asked for where there is no GPU."""
    model = tiny(name, "eager" if attention.startswith("flash") else attention)
    with torch.no_grad():
        expected = alone(model)
    if attention.startswith("flash"):
        cast("Any", model).config._attn_implementation_internal = attention
    return model, expected


@pytest.mark.parametrize(("consumer", "name", "attention"), BUILDS)
def test_packed_equals_alone(consumer: str, name: str, attention: str) -> None:
    model, expected = built(name, attention)
    capabilities = configure_packing(attention, model, consumer=consumer)
    assert first_fault(model, expected) is None
    binding = get_binding(model)
    assert binding is not None
    assert binding.calls == 2
    assert binding.boundaries is not None
    kind = {"reference": "document_ids", "block_causal": "block_causal", "hf_flash": "flash_varlen"}[consumer]
    assert capabilities.packed_mask_type == kind


@pytest.mark.parametrize(("consumer", "name", "attention"), BUILDS[::2])
def test_gradients_equal_those_of_documents_alone(consumer: str, name: str, attention: str) -> None:
    model, _ = built(name, attention)
    internal = cast("Any", model).config
    flash = attention.startswith("flash")
    internal._attn_implementation_internal = "eager" if flash else attention
    backward(torch.stack([output.square().sum() for output in alone(model)]).sum())
    expected = gradients(model)
    model.zero_grad()
    internal._attn_implementation_internal = attention
    configure_packing(attention, model, consumer=consumer)
    backward(loss(model, _packed_seq_ids=IDS))
    for parameter, gradient in gradients(model).items():
        scale = float(expected[parameter].abs().max()) + 1e-6
        assert float((gradient - expected[parameter]).abs().max()) < 1e-4 * scale, parameter


@pytest.mark.parametrize("consumer", ["reference", "block_causal"])
def test_no_gradient_crosses(consumer: str) -> None:
    model = tiny("gemma2")
    configure_packing("eager", model, consumer=consumer)
    embeddings = cast("Any", model).get_input_embeddings()(TOKENS).detach().requires_grad_()
    output = model(inputs_embeds=embeddings, _packed_seq_ids=IDS).logits
    output[0][IDS[0] == 3].sum().backward()
    others = embeddings.grad.abs().sum(-1)
    assert others[0][IDS[0] == 3].min() > 0
    others[0][IDS[0] == 3] = 0
    assert others.max() == 0


def test_flash_gets_int32_offsets_and_python_ints(flash_kernel: list[Mapping[str, object]]) -> None:
    model, _ = built("llama", "flash_attention_2")
    configure_packing("flash_attention_2", model)
    logits(model, TOKENS, _packed_seq_ids=IDS)
    offsets = cast("Tensor", flash_kernel[-1]["cu_seqlens_q"])
    assert offsets.dtype == torch.int32
    assert ints(offsets) == [0, 6, 7, 16, 21, 24, 34, 48]
    assert type(flash_kernel[-1]["max_seqlen_q"]) is int
    assert cast("Any", model).config._attn_implementation == "neatpack|hf_flash|flash_attention_2"


class Faulty:
    """A consumer that spoils what another one derives."""

    def __init__(self, consumer: Consumer, fault: str) -> None:
        self.inner, self.fault = consumer, fault

    @property
    def name(self) -> str:
        return self.inner.name

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        return self.inner.decide(model, attn_implementation)

    def attach(self, model: nn.Module) -> Attachment:
        return self.inner.attach(model)

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        derived = dict(self.inner.derive(model, call))
        return {**derived, **self._spoilt(derived)}

    def _spoilt(self, derived: Mapping[str, Any]) -> dict[str, object]:
        if self.fault == "positions of the row":
            return {"position_ids": torch.arange(IDS.shape[1]).expand_as(IDS)}
        if self.fault == "bool mask for eager":
            return {"attention_mask": derived["attention_mask"] == 0}
        if self.fault == "window lost":
            return {"attention_mask": derived["attention_mask"]["full_attention"]}
        offsets = derived["cu_seq_lens_q"].clone()
        if self.fault == "off by one":
            offsets[1] += 1
        elif self.fault == "last document lost":
            offsets = torch.cat([offsets[:-2], offsets[-1:]])
        elif self.fault == "rows joined":
            offsets = offsets[offsets != IDS.shape[1]]
        longest = int(offsets.diff().max())
        return {
            "cu_seq_lens_q": offsets,
            "cu_seq_lens_k": offsets,
            "max_length_q": longest,
            "max_length_k": longest,
        }


@pytest.mark.parametrize(
    ("consumer", "name", "fault"),
    [
        ("reference", "llama", "off by one"),
        ("reference", "llama", "last document lost"),
        ("reference", "gpt2", "positions of the row"),
        ("block_causal", "llama", "bool mask for eager"),
        ("block_causal", "gemma2", "window lost"),
    ],
)
def test_a_planted_fault_is_seen(consumer: str, name: str, fault: str) -> None:
    model, expected = built(name, "eager")
    with use_consumer(Faulty(get_consumer(consumer), fault)):
        configure_packing("eager", model, consumer=consumer)
        assert first_fault(model, expected) is not None


def test_joined_rows_are_seen() -> None:
    model = tiny("llama")
    full = torch.where(IDS == 0, 9, IDS)
    with use_consumer(Faulty(get_consumer("reference"), "rows joined")):
        configure_packing("eager", model, consumer="reference")
        assert first_fault(model, alone_of(model), full) is not None


def alone_of(model: nn.Module) -> list[Tensor]:
    binding = get_binding(model)
    assert binding is not None
    with binding.suspended(), torch.no_grad():
        return alone(model)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be known of any family, so that models are bound to what does not suit them."""
    monkeypatch.setattr(families, "FINDINGS", {})


@pytest.mark.usefixtures("unmeasured")
def test_a_layer_that_drops_the_offsets_raises() -> None:
    model = tiny("stablelm")
    configure_packing("eager", model, consumer="reference")
    with pytest.raises(BoundariesMissingError, match="did not arrive at StableLmAttention"):
        logits(model, TOKENS, _packed_seq_ids=IDS)


@pytest.mark.usefixtures("unmeasured")
def test_a_layer_that_makes_its_own_mask_raises() -> None:
    model = tiny("doge")
    configure_packing("eager", model, consumer="reference")
    with pytest.raises(ModelError, match="DogeAttention adds a mask"):
        logits(model, TOKENS, _packed_seq_ids=IDS)


def test_a_forward_without_the_bound_function_raises() -> None:
    model = tiny("llama")
    configure_packing("eager", model)
    cast("Any", model).set_attn_implementation("sdpa")
    with pytest.raises(BoundariesMissingError, match="never called"):
        logits(model, TOKENS, _packed_seq_ids=IDS)


@pytest.mark.parametrize("consumer", ["reference", "block_causal"])
def test_calling_a_part_of_the_model_raises(consumer: str) -> None:
    model = tiny("llama")
    configure_packing("eager", model, consumer=consumer)
    with pytest.raises(BoundariesMissingError, match="Call the bound model itself"):
        cast("Any", model).model(input_ids=TOKENS)
    with pytest.raises(BoundariesMissingError, match="LlamaAttention"):
        model.forward(input_ids=TOKENS, _packed_seq_ids=IDS)


def test_packed_rows_take_no_cache() -> None:
    from transformers import DynamicCache

    model = tiny("llama")
    configure_packing("eager", model)
    with pytest.raises(EncodingError, match="past_key_values"):
        logits(model, TOKENS, _packed_seq_ids=IDS, past_key_values=DynamicCache())
    assert model(input_ids=TOKENS, _packed_seq_ids=IDS).past_key_values is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba2", "attention interface"),
        ("gptj", "attention interface"),
        ("lfm2", "'conv'"),
        ("qwen3_next", "'linear_attention'"),
        ("llama4_text", "chunks"),
        ("bart", "documents have other positions than alone"),
    ],
)
def test_families_that_need_more_are_rejected(name: str, reason: str) -> None:
    model = tiny(name)
    for consumer in ("reference", "block_causal"):
        with pytest.raises(ModelError, match=reason):
            configure_packing("eager", model, consumer=consumer)
    assert get_binding(model) is None


def test_layers_that_are_not_causal_are_rejected() -> None:
    model = tiny("llama")
    attention = next(layer for layer in model.modules() if type(layer).__name__ == "LlamaAttention")
    cast("Any", attention).is_causal = False
    for consumer in ("reference", "block_causal"):
        with pytest.raises(ModelError, match="its LlamaAttention is not causal"):
            configure_packing("eager", model, consumer=consumer)


def test_all_layers_that_slide_get_the_windowed_mask() -> None:
    model = tiny("mistral")
    configure_packing("eager", model)
    logits(model, TOKENS, _packed_seq_ids=IDS)
    binding = get_binding(model)
    assert binding is not None
    assert binding.boundaries is not None
    window = cast("Any", model).config.sliding_window
    last = binding.boundaries[1, 0, 9]
    assert int((last == 0).sum()) == min(window, 10) < 10


def test_padding_is_finite_and_nobodys() -> None:
    model = tiny("llama")
    for consumer in ("reference", "block_causal"):
        configure_packing("eager", model, consumer=consumer)
        output = logits(model, TOKENS, _packed_seq_ids=IDS)
        assert output.isfinite().all()
        backward(output[IDS == 0].sum())
        assert all(gradient.isfinite().all() for gradient in gradients(model).values())


def test_a_batch_of_padding_alone_is_legal() -> None:
    model = tiny("llama")
    for consumer in ("reference", "block_causal"):
        configure_packing("eager", model, consumer=consumer)
        assert logits(model, TOKENS, _packed_seq_ids=torch.zeros_like(IDS)).isfinite().all()


HOLES: Final = IDS.index_put((torch.tensor([0, 0, 0, 1]), torch.tensor([7, 10, 20, 12])), torch.tensor(0))
"""A document that lacks its first token and one inside it, one that lacks its last, and one with a hole."""


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss"])
def test_the_reference_leaves_holes_out(name: str) -> None:
    model = tiny(name)
    positions = torch.cat([torch.arange(length) for length in (6, 1, 9, 5, 3)])[None]
    positions = torch.cat([positions, torch.cat([torch.arange(10), torch.arange(14)])[None]])

    def by_itself(row: int, kept: Tensor) -> Tensor:
        tokens, places = TOKENS[row][kept][None], positions[row][kept][None]
        # Without a mask, Transformers would begin a document wherever positions skip one.
        mask = torch.ones_like(tokens)
        return logits(model, tokens, position_ids=places, attention_mask=mask, use_cache=False)[0]

    expected = [by_itself(row, places & (HOLES[row] != 0)) for row, places in documents()]
    configure_packing("eager", model, consumer="reference")
    packed = logits(model, TOKENS, _packed_seq_ids=HOLES, document_ids=IDS)
    for (row, places), alone_ in zip(documents(), expected, strict=True):
        kept = places & (HOLES[row] != 0)
        torch.testing.assert_close(packed[row][kept], alone_, rtol=1e-4, atol=1e-4)
    changed = torch.where((HOLES == 0), (TOKENS + 7) % 40, TOKENS)
    moved = (logits(model, changed, _packed_seq_ids=HOLES, document_ids=IDS) - packed).abs()
    assert moved[HOLES != 0].max() == 0
    assert moved[HOLES == 0].max() > 0


def test_a_window_of_the_reference_counts_kept_tokens() -> None:
    model = tiny("mistral")
    window = cast("Any", model).config.sliding_window
    ids = torch.ones(1, 2 * window + 1, dtype=torch.int64)
    holes = ids.index_fill(1, torch.arange(1, window + 1), 0)
    tokens = TOKENS[:1, : ids.shape[1]]
    configure_packing("eager", model, consumer="reference")
    packed = logits(model, tokens, _packed_seq_ids=holes, document_ids=ids)
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 40
    moved = (logits(model, changed, _packed_seq_ids=holes, document_ids=ids) - packed).abs().amax(-1)[0]
    assert moved[window + 1] > 0


STATES: Final = torch.randn(2, 4, 24, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("lost", ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"])
def test_flash_attention_never_runs_without_one_of_the_four(lost: str) -> None:
    kwargs: dict[str, Any] = {**flash_varlen_kwargs(IDS), lost: None}
    with pytest.raises(BoundariesMissingError, match=f"^{lost}: did not arrive"):
        hf_flash.attend("flash_attention_2", nn.Identity(), STATES, STATES, STATES, None, **kwargs)


def test_flash_attention_never_runs_with_a_mask() -> None:
    mask = torch.ones_like(IDS)
    with pytest.raises(ModelError, match="made a mask"):
        hf_flash.attend("flash_attention_2", nn.Identity(), STATES, STATES, STATES, mask, **flash_varlen_kwargs(IDS))


def test_the_reference_drops_weights_and_bounds_scores() -> None:
    def attend(**options: Any) -> Tensor:
        flat = gathered_flat(IDS)
        kept: dict[str, Any] = {
            "packed_token_indices": flat.token_indices,
            "cu_seq_lens_q": flat.cu_seqlens,
            "max_length_q": flat.max_seqlen,
        }
        return reference.attend("eager", nn.Identity(), STATES, STATES, STATES, None, **kept, **options)[0]

    assert attend(dropout=1.0).abs().max() == 0
    assert not torch.allclose(attend(softcap=0.1), attend())
