"""Bound models of Transformers on a device, a pretended one: consumers bring nothing of the host together with it.

Its tensors lie on the host and claim otherwise. Like a real device it refuses operators over tensors of two places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor, nn

from benchmarks.device import FarTensor, counted, far
from neatpack.kernels_bridge import configure_packing
from neatpack.kernels_bridge.reference import varlen_attention
from tests.kernels_bridge.flash_stand_in import replace_flash_kernel
from tests.kernels_bridge.packed import IDS, TOKENS, TOLERANCE, logits
from tests.kernels_bridge.test_consumers import built

BUILDS: Final = [
    ("reference", "gemma2", "eager"),
    ("reference", "gpt2", "sdpa"),
    ("block_causal", "gemma2", "eager"),
    ("block_causal", "mistral", "sdpa"),
    ("hf_flash", "gemma2", "flash_attention_2"),
    ("per_document", "llama", "eager"),
]


def send(model: nn.Module) -> None:
    """Bring a model to the device."""
    for module in model.modules():
        for tensors in (cast("Any", module)._parameters, cast("Any", module)._buffers):
            tensors.update({name: far(tensor.detach()) for name, tensor in tensors.items() if tensor is not None})


@pytest.mark.parametrize(("consumer", "name", "attention"), BUILDS)
@torch.no_grad()
def test_a_bound_model_runs(consumer: str, name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_flash_kernel([], monkeypatch.setattr)
    model, _ = built(name, attention)
    configure_packing(attention, model, consumer=consumer)
    expected = logits(model, TOKENS, _packed_seq_ids=IDS)
    with counted():
        send(model)
        found = logits(model, far(TOKENS), _packed_seq_ids=far(IDS))
    assert isinstance(found, FarTensor)
    torch.testing.assert_close(found.near[IDS != 0], expected[IDS != 0], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_runs(causal: bool) -> None:
    states, offsets = torch.randn(3, 7, 2, 4).unbind(), torch.tensor([0, 3, 7], dtype=torch.int32)

    def attend(send_to: Callable[[Tensor], Tensor]) -> Tensor:
        query, key, value, cu_seqlens = map(send_to, (*states, offsets))
        return varlen_attention(
            query,
            key,
            value,
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_k=cu_seqlens,
            max_seqlen_q=4,
            max_seqlen_k=4,
            causal=causal,
            window_size=(1, None if causal else 1),
        )

    expected = attend(torch.clone)
    with counted():
        found = attend(far)
    assert isinstance(found, FarTensor)
    assert torch.equal(found.near, expected)
