"""Whether the gradient of every weight by packed documents is the sum of those by each of them alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.probes import is_watched, random_sums
from neatpack.kernels_bridge.audit.report import PathReport
from neatpack.kernels_bridge.audit.subject import Answer

NOISE: Final = 1e-3
"""Share of a gradient up to which it may differ by rounding: it is a sum over all tokens."""

LEAST: Final = 1e-2
"""Share of the greatest gradient below which that of a weight counts as this: it may be nothing but rounding."""


def unless_weights_differ(
    report: PathReport, model: nn.Module, answer: Answer, alone: Answer, rounding: float
) -> PathReport:
    """Take back that a model is clean where a gradient of its weights is another than that of the documents alone.

    Args:
        report: what was found.
        model: the model.
        answer: what it answers to packed documents, with its graph.
        alone: what it answers to each alone, with their graphs.
        rounding: how far rounding may move its logits, as a share of their scale.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if report.verdict != "clean" or not (weights and is_watched(answer) and is_watched(alone)):
        return report
    name, share = _worst_weight(weights, answer, alone)
    if share <= max(NOISE, rounding):
        return report
    message = f"The gradient of {name} by a packed batch is not the sum of those by each document alone."
    return replace(report, verdict="differs", kind="weight_gradient", message=message, where=name)


def _worst_weight(weights: Mapping[str, Tensor], answer: Answer, alone: Answer) -> tuple[str, float]:
    """The weight whose gradients are the furthest apart, and how far, as a share of them."""
    asked = [index for index, logits in enumerate(alone.logits) if len(logits)]
    packed, summed = (_gradients([one.logits[index] for index in asked], weights.values()) for one in (answer, alone))
    sizes = [_greatest(gradient) for gradient in summed]
    least = LEAST * max(sizes)
    shares = [
        _greatest(one - other) / (max(size, least) or 1.0)
        for one, other, size in zip(packed, summed, sizes, strict=True)
    ]
    return max(zip(weights, shares, strict=True), key=lambda found: found[1])


def _gradients(logits: Sequence[Tensor], weights: Iterable[Tensor]) -> list[Tensor]:
    """Derive one random projection of the logits of documents by all weights."""
    parts = random_sums(logits, 2)
    found = torch.autograd.grad(parts, list(weights), retain_graph=True, materialize_grads=True, allow_unused=True)
    return [gradient.to_dense() for gradient in found]


def _greatest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
