"""Custom models that declare what they take, each of a few lines, and record what their forward was given."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from neatpack.contracts import PackedMaskConsumer, PackingMetadataConsumer

BATCH = torch.tensor([[1, 1, 2, 2, 2, 0], [3, 3, 3, 5, 0, 0]])
TOKENS = torch.arange(12).view(2, 6)


class Toy(nn.Module):
    """A model that keeps the arguments of its last forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen: dict[str, Any] = {}

    def keep(self, arguments: dict[str, Any]) -> Tensor:
        self.seen = {name: value for name, value in arguments.items() if name != "self" and value is not None}
        return self.weight * 1


class Ids(Toy):
    packed_mask_type: Literal["document_ids"] = "document_ids"

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, _packed_seq_ids: Tensor | None = None
    ) -> Tensor:
        return self.keep(dict(locals()))


class IdsAsMask(Toy):
    packed_mask_type: Literal["document_ids"] = "document_ids"

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.keep(dict(locals()))


class Dense(Toy):
    packed_mask_type: Literal["block_causal"] = "block_causal"

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: object) -> Tensor:
        return self.keep({"input_ids": input_ids, "attention_mask": attention_mask, **kwargs})


class Flash(Toy):
    packed_mask_type: Literal["flash_varlen"] = "flash_varlen"

    def forward(
        self,
        input_ids: Tensor,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
    ) -> Tensor:
        return self.keep(dict(locals()))


class Recurrent(Toy):
    requires_packed_sequence_metadata: bool = True

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        packed_token_indices: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Tensor:
        return self.keep(dict(locals()))


class NativeFA4(Recurrent):
    _uses_native_fa4 = True


class MetadataAlone(Toy):
    requires_packed_sequence_metadata: bool = True

    def forward(self, input_ids: Tensor, packed_token_indices: Tensor, cu_seqlens: Tensor) -> Tensor:
        return self.keep(dict(locals()))


class Swallows(Toy):
    packed_mask_type: Literal["flash_varlen"] = "flash_varlen"

    def forward(self, input_ids: Tensor, **kwargs: object) -> Tensor:
        return self.keep({"input_ids": input_ids, **kwargs})


class Outer(nn.Module):
    """A user's own model, with a part that happens to be called `module`."""

    packed_mask_type: Literal["document_ids"] = "document_ids"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
        output: Tensor = self.module(input_ids, _packed_seq_ids=_packed_seq_ids)
        return output


_: type[PackedMaskConsumer] = Ids
__: type[PackingMetadataConsumer] = Recurrent
