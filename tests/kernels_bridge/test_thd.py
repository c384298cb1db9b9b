"""Models that take lengths get each form that they name, and a stream kernel that reads them keeps documents apart."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters import build_packed_sequence_metadata, build_position_ids
from neatpack.contracts import (
    Accepted,
    CapabilitiesError,
    DependencyError,
    DocumentIdsError,
    ModelError,
    PackingCapabilities,
    THDConsumer,
)
from neatpack.kernels_bridge import configure_packing, get_binding, get_consumer, get_packing_capabilities
from tests.kernels_bridge.packed import IDS, TOKENS
from tests.kernels_bridge.toys import BATCH, Toy
from tests.kernels_bridge.toys import TOKENS as TOY_TOKENS
from tests.kernels_bridge.untyped import different, ints

TE = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "max_seqlen_q", "max_seqlen_kv")


class Lengths(Toy):
    uses_thd: bool = True

    def forward(
        self,
        input_ids: Tensor,
        seq_lens: Tensor | None = None,
        seq_lens_padded: Tensor | None = None,
        qkv_format: str | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        return self.keep(dict(locals()))


class Engine(Toy):
    uses_thd: bool = True
    packed_mask_type: Literal["document_ids"] = "document_ids"

    def forward(
        self,
        input_ids: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_kv: Tensor,
        cu_seqlens_q_padded: Tensor,
        cu_seqlens_kv_padded: Tensor,
        max_seqlen_q: int,
        max_seqlen_kv: int,
        pad_between_seqs: bool | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        return self.keep(dict(locals()))


class Megatron(Toy):
    uses_thd: bool = True

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor | None, packed_seq_params: object = None
    ) -> Tensor:
        return self.keep(dict(locals()))


class Hybrid(Toy):
    uses_thd: bool = True
    requires_packed_sequence_metadata: bool = True

    def forward(
        self,
        input_ids: Tensor,
        seq_lens: Tensor,
        seq_lens_padded: Tensor,
        packed_token_indices: Tensor,
        cu_seqlens: Tensor,
    ) -> Tensor:
        return self.keep(dict(locals()))


class HalfAnEngine(Toy):
    uses_thd: bool = True

    def forward(
        self, input_ids: Tensor, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, max_seqlen_q: int, max_seqlen_kv: int
    ) -> Tensor:
        return self.keep(dict(locals()))


class Dense(Lengths):
    packed_mask_type: Literal["block_causal"] = "block_causal"


class Swallows(Toy):
    uses_thd: bool = True

    def forward(self, input_ids: Tensor, **kwargs: object) -> Tensor:
        return self.keep({"input_ids": input_ids, **kwargs})


_: type[THDConsumer] = Engine


@dataclass
class PackedSeqParams:
    """The fields of Megatron-Core 0.19's class of that name."""

    qkv_format: str | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_kv: Tensor | None = None
    cu_seqlens_q_padded: Tensor | None = None
    cu_seqlens_kv_padded: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_kv: int | None = None
    local_cp_size: int | None = None
    cp_group: object = None
    total_tokens: int | None = None
    seq_idx: Tensor | None = None
    tokens_per_sample: int | None = None
    pad_between_seqs: bool | None = None


def megatron(monkeypatch: pytest.MonkeyPatch, params: object) -> None:
    module = ModuleType("megatron.core.packed_seq_params")
    module.__dict__["PackedSeqParams"] = params
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def seen(model: Toy, **arguments: Any) -> dict[str, Any]:
    capabilities = configure_packing("te", model)
    assert capabilities.packed_mask_type == "document_ids"
    model(input_ids=TOY_TOKENS, _packed_seq_ids=BATCH, **arguments)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "thd"
    return model.seen


def test_lengths_arrive_and_no_mask() -> None:
    found = seen(Lengths(), attention_mask=(BATCH != 0).long())
    assert set(found) == {"input_ids", "seq_lens", "seq_lens_padded", "qkv_format"}
    assert found["qkv_format"] == "thd"
    assert found["seq_lens"].tolist() == [[2, 3], [3, 1]]
    assert found["seq_lens_padded"].tolist() == [[2, 4], [3, 3]]


def test_the_arguments_of_transformer_engine_arrive() -> None:
    found = seen(Engine())
    assert set(found) == {"input_ids", "position_ids", "pad_between_seqs", *TE}
    assert torch.equal(found["position_ids"], build_position_ids(BATCH))
    assert ints(found["cu_seqlens_q"]) == ints(found["cu_seqlens_kv"]) == [0, 2, 5, 8, 9]
    assert ints(found["cu_seqlens_q_padded"]) == ints(found["cu_seqlens_kv_padded"]) == [0, 2, 6, 9, 12]
    assert found["cu_seqlens_q"].dtype == torch.int32
    assert (found["max_seqlen_q"], found["max_seqlen_kv"], found["pad_between_seqs"]) == (4, 4, True)


def test_megatrons_params_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    megatron(monkeypatch, PackedSeqParams)
    found = seen(Megatron())
    assert set(found) == {"input_ids", "position_ids", "packed_seq_params"}
    params = found["packed_seq_params"]
    assert isinstance(params, PackedSeqParams)
    assert params.qkv_format == "thd"
    assert params.cu_seqlens_q_padded is not None
    assert ints(params.cu_seqlens_q_padded) == [0, 2, 6, 9, 12]
    assert params.total_tokens == 12


def test_a_megatron_that_is_not_there_or_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="megatron-core is not installed"):
        configure_packing("te", Megatron())

    def other(qkv_format: str | None = None, cu_seqlens_q: Tensor | None = None, **_rest: object) -> None: ...

    megatron(monkeypatch, other)
    model = Megatron()
    with pytest.raises(DependencyError, match=r"takes no cu_seqlens_kv, .*pad_between_seqs.* by name"):
        configure_packing("te", model)
    assert get_binding(model) is None


def test_recurrent_layers_get_their_metadata_as_well() -> None:
    model = Hybrid()
    assert configure_packing("te", model).requires_packed_sequence_metadata
    found = seen(model)
    metadata: dict[str, Any] = dict(build_packed_sequence_metadata(BATCH))
    assert torch.equal(found["cu_seqlens"], metadata["cu_seqlens"])
    assert found["seq_lens"].tolist() == [[2, 3], [3, 1]]


def test_a_microbatch_of_padding_keeps_its_rows() -> None:
    model = Engine()
    configure_packing("te", model)
    model(TOY_TOKENS, _packed_seq_ids=torch.zeros_like(BATCH))
    assert ints(model.seen["cu_seqlens_q"]) == [0, 0, 0]
    assert ints(model.seen["cu_seqlens_q_padded"]) == [0, 6, 12]


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([[1, 1, 0, 1, 2, 2], [1, 1, 1, 1, 1, 1]], "hole"),
        ([[0, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 1]], "begins with padding|padding before"),
    ],
)
def test_ids_that_lengths_cannot_tell_are_refused(ids: list[list[int]], says: str) -> None:
    model = Lengths()
    configure_packing("te", model)
    with pytest.raises(DocumentIdsError, match=says):
        model(TOY_TOKENS, _packed_seq_ids=torch.tensor(ids))


def test_what_does_not_take_thd_is_rejected_with_the_way_out() -> None:
    consumer = get_consumer("thd")
    reasons = {type(model).__name__: str(consumer.decide(model, "te")) for model in (Toy(), HalfAnEngine(), Swallows())}
    assert "`uses_thd: bool = True`" in reasons["Toy"]
    assert "`cu_seqlens_q_padded`, `cu_seqlens_kv_padded`" in reasons["HalfAnEngine"]
    assert "`seq_lens`, `seq_lens_padded`; `cu_seqlens_q`" in reasons["Swallows"]
    assert isinstance(consumer.decide(Lengths(), "sdpa"), Accepted)
    assert "refuses THD" in str(consumer.decide(Lengths(), "fa4"))


def test_declarations_of_thd_are_read_by_value() -> None:
    model = Lengths()
    assert get_packing_capabilities("te", model) == PackingCapabilities("document_ids", takes_holes=False)
    model.uses_thd = "yes"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(CapabilitiesError, match="uses_thd"):
        configure_packing("te", model)
    assert "THD is made from 'document_ids'" in str(get_consumer("thd").decide(Dense(), "te"))


class Stream(nn.Module):
    """One layer over a stream, which finds documents as a THD kernel does: where slots begin, as long as is real."""

    uses_thd: bool = True

    def __init__(self, right: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table = nn.Parameter(torch.randn(40, 8, generator=generator))
        self.right = right

    def forward(
        self,
        input_ids: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_kv: Tensor,
        cu_seqlens_q_padded: Tensor,
        cu_seqlens_kv_padded: Tensor,
        max_seqlen_q: int,
        max_seqlen_kv: int,
    ) -> Tensor:
        states = self.table[input_ids].flatten(0, 1)
        output = torch.zeros_like(states)
        starts = ints(cu_seqlens_q_padded if self.right else cu_seqlens_q)
        for start, (first, last) in zip(starts[:-1], pairwise(ints(cu_seqlens_kv)), strict=True):
            assert last - first <= max_seqlen_q
            assert max_seqlen_q == max_seqlen_kv
            assert cu_seqlens_kv_padded is cu_seqlens_q_padded
            part = states[start : start + last - first]
            scores = (part @ part.T).masked_fill(torch.ones(len(part), len(part)).triu(1).bool(), -torch.inf)
            output[start : start + last - first] = scores.softmax(-1) @ part
        return output.view(*input_ids.shape, -1)


@pytest.mark.parametrize("right", [True, False])
def test_a_kernel_over_the_stream_isolates_documents(right: bool) -> None:
    model = Stream(right)
    configure_packing("te", model)
    packed: Tensor = model(TOKENS, _packed_seq_ids=IDS)
    equal: list[bool] = []
    for row, ids in enumerate(IDS):
        for number in ints(different(ids[ids != 0])):
            own = TOKENS[row][ids == number][None]
            alone = model(own, _packed_seq_ids=torch.ones_like(own))[0]
            equal.append(torch.allclose(packed[row][ids == number], alone, atol=1e-6))
    assert all(equal) is right
