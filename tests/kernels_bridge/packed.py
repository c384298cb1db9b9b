"""One small packed batch, tiny models to run it through, and the check that documents were kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from tests.kernels_bridge.untyped import different, ints

# Unequal lengths, one of a single token, one longer than the tiny models' windows; padding; ids with gaps.
IDS: Final = torch.tensor([[1] * 6 + [2] + [3] * 9 + [4] * 5 + [0] * 3, [5] * 10 + [7] * 14])
TOKENS: Final = torch.randint(3, 40, IDS.shape, generator=torch.Generator().manual_seed(0))
TOLERANCE: Final = 1e-5


def tiny(name: str, attention: str = "eager") -> nn.Module:
    """Build a tiny Transformers model in training mode, without dropout."""
    model = build_tiny_model(name, attention).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    config = cast("Any", model).config
    for field in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop"):
        if hasattr(config, field):
            setattr(config, field, 0.0)
    return model


def documents() -> Iterator[tuple[int, Tensor]]:
    """Give the row and the bool places `[sequence]` of every document."""
    for row, ids in enumerate(IDS):
        for number in ints(different(ids)):
            if number:
                yield row, ids == number


def logits(model: nn.Module, tokens: Tensor, **arguments: object) -> Tensor:
    return cast("Tensor", model(input_ids=tokens, **arguments).logits)


def alone(model: nn.Module, tokens: Tensor = TOKENS) -> list[Tensor]:
    """Run each document by itself through an unbound model: `[places, vocabulary]` each."""
    return [logits(model, tokens[row][places][None], use_cache=False)[0] for row, places in documents()]


def first_fault(model: nn.Module, expected: list[Tensor], ids: Tensor = IDS) -> str | None:
    """Say what is wrong with a bound model: unlike the documents alone, or one that reaches another."""
    with torch.no_grad():
        packed = logits(model, TOKENS, _packed_seq_ids=ids)
    scale = float(max(output.abs().max() for output in expected))
    for (row, places), output in zip(documents(), expected, strict=True):
        if float((packed[row][places] - output).abs().max()) > TOLERANCE * scale:
            return f"a document of row {row} differs from itself alone"
    for row, places in documents():
        changed = TOKENS.clone()
        changed[row][places] = (changed[row][places] + 7) % 40
        with torch.no_grad():
            moved = (logits(model, changed, _packed_seq_ids=ids) - packed).abs()
        moved[row][places] = 0
        moved[ids == 0] = 0
        if float(moved.max()) > TOLERANCE * scale:
            return f"a change in a document of row {row} reaches another"
    return None


def loss(model: nn.Module, **arguments: object) -> Tensor:
    """Sum of squares over real tokens: a scalar whose gradient sees every document."""
    return logits(model, TOKENS, **arguments)[IDS != 0].square().sum()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
