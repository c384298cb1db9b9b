"""A model around which documents get rows of their own, against a padded batch of the same documents."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from benchmarks import inputs, peers
from benchmarks.records import Goal, Row, Sides, Size
from benchmarks.timing import warm
from neatpack.adapters import document_rows, scan_segments
from neatpack.kernels_bridge import configure_packing, get_binding

_EVEN: Final = Size(2, 256, 4)
_UNEVEN: Final = Size(2, 256, 16)


def rows() -> list[Row]:
    """Give the rows of this consumer: forward and backward of a llama of 4 layers, 256 wide."""
    goal, other = Goal("within", 1.1), "a padded batch"
    return [Row("per_document", size, other, "warm", warm, goal, _against_padded) for size in (_EVEN, _UNEVEN)]


def _against_padded(size: Size) -> Sides:
    ids, model = inputs.document_ids(size), _model()
    tokens = torch.randint(1, 1000, ids.shape, generator=torch.Generator().manual_seed(0))
    segments = scan_segments(ids)
    plan = document_rows(segments)
    padded, mask = plan.take(tokens, 0), (~plan.padding[0]).to(torch.int64)
    configure_packing("sdpa", model, consumer="per_document")
    binding = cast("Any", get_binding(model))

    def ours() -> Tensor:
        logits = cast("Tensor", cast("Any", model)(input_ids=tokens, _packed_seq_ids=ids).logits)
        _backward(model, logits)
        return logits.detach()

    def other() -> Tensor:
        with binding.suspended():
            logits = cast("Tensor", cast("Any", model)(input_ids=padded, attention_mask=mask, use_cache=False).logits)
        _backward(model, logits)
        return logits.detach()

    return Sides(ours, other, lambda: (torch.allclose(ours(), plan.put_back([other()]), atol=1e-4), True))


def _backward(model: nn.Module, logits: Tensor) -> None:
    model.zero_grad()
    logits.square().mean().backward()  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]


def _model() -> nn.Module:
    config = peers.find("transformers", "LlamaConfig")(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        vocab_size=1000,
    )
    torch.default_generator.manual_seed(0)
    auto = cast("Any", peers.find("transformers", "AutoModelForCausalLM"))
    return cast("nn.Module", auto.from_config(config, attn_implementation="sdpa").train())
