"""A consumer that loses one of the arguments that another one derives."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from neatpack.contracts import Attachment, Decision
from neatpack.kernels_bridge import PackedCall
from neatpack.kernels_bridge.consumers.recurrent import RecurrentConsumer


class Spoilt:
    """Takes what the other takes, and leaves out the argument called `lost`."""

    def __init__(self, inner: RecurrentConsumer, lost: str) -> None:
        self.inner, self.lost, self.name = inner, lost, inner.name

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        return self.inner.decide(model, attn_implementation)

    def attach(self, model: nn.Module) -> Attachment:
        return self.inner.attach(model)

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        derived = self.inner.derive(model, call)
        return {name: value for name, value in derived.items() if name != self.lost}

    def restore(self, model: nn.Module, call: PackedCall, output: object) -> object:
        return self.inner.restore(model, call, output)
