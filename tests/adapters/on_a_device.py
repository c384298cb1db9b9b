"""On a device the adapters give what they give on the host, and there, after one read. The device is a pretended one.

Its tensors lie on the host and claim otherwise. Like a real device it refuses operators over tensors of two places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_map

from benchmarks.device import FarTensor, counted, far
from neatpack import adapters
from neatpack.adapters import StaticBounds
from neatpack.contracts.capabilities import PACKED_MASK_TYPES, PackedMaskType, PackingCapabilities
from tests.adapters.batches import training_batch
from tests.adapters.static_functions import FUNCTIONS
from tests.adapters.test_r09_ownership import DERIVE, OF_A_BATCH, OF_SEGMENTS

IDS: Final = torch.tensor([[1, 1, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 2, 2, 2, 2]])
HOLES: Final = torch.tensor([[1, 1, 0, 1, 2, 3, 0, 0], [1, 0, 1, 1, 2, 0, 2, 2]])
VALUES: Final = torch.arange(32.0).view(2, 8, 2).half()
METADATA: Final = adapters.build_packed_sequence_metadata(IDS)

LIES_ON_THE_HOST: Final = "cu_seqlens_cpu"
"""The one result that a kernel wants there."""

OF_IDS: Final[dict[str, Callable[[Tensor], object]]] = {
    **{name: derive for name, derive in DERIVE.items() if name != "unpack"},
    **OF_SEGMENTS,
    "blocks of one place": lambda ids: adapters.build_block_mask(ids, window=3, block_size=1),
    "blocks of two sizes": lambda ids: adapters.build_block_mask(ids, causal=False, block_size=(2, 4)),
    "additive mask": lambda ids: adapters.build_block_causal_mask(ids, torch.float16, chunk=2),
    "spans": lambda ids: adapters.mark_spans(ids, [[(0, 1)], [(1, 2)], [(0, 1)], [(0, 2)], []]),
}
OF_HOLES: Final = (
    "blocks of one place",
    "blocks of two sizes",
    "additive mask",
    "build_packed_sequence_metadata",
    "build_position_ids",
    "gathered_flat",
    "gathered_states",
    "tokens_remaining",
)
OF_TENSORS: Final[dict[str, tuple[Callable[..., object], tuple[Any, ...]]]] = {
    "ids from positions": (adapters.document_ids_from_positions, (adapters.build_position_ids(IDS), IDS == 0)),
    "ids from tokens": (partial(adapters.document_ids_from_tokens, eos_token_id=2), (IDS,)),
    "ids from metadata": (
        adapters.document_ids_from_metadata,
        (METADATA["packed_token_indices"], METADATA["cu_seqlens"]),
    ),
    "ids from varlen": (adapters.document_ids_from_flash_varlen, (adapters.flash_varlen_kwargs(IDS), IDS == 0)),
    "flattened": (
        adapters.flatten_packed_sequence_metadata,
        (METADATA["packed_token_indices"], METADATA["cu_seqlens"], 2, 8),
    ),
    "offsets from positions": (adapters.physical_offsets_from_positions, (torch.tensor([[0, 1, 0], [2, 3, 0]]),)),
    "unpacked": (adapters.unpack, (VALUES, IDS, torch.tensor([[7, 8, 9], [4, 5, -1]]))),
    "sums": (adapters.reduce_by_document, (VALUES, IDS, "sum")),
    "means": (adapters.reduce_by_document, (VALUES, IDS, "mean")),
    "eligibility": (adapters.adapt_model_inputs, (training_batch(IDS), IDS % 2 == 0)),
    "THD": (adapters.convert_batch_output, (training_batch(IDS), "thd")),
}


def leaves(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Give all tensors of a result, by name."""
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, BlockMask):
        value = value.as_tuple()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(cast("Sequence[object]", value)))
    parts = cast("Mapping[object, object]", value if isinstance(value, Mapping) else getattr(value, "__dict__", {}))
    for key, part in parts.items():
        yield from leaves(part, str(key))


def copied(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value


def sent(value: object) -> object:
    return far(value.clone()) if isinstance(value, Tensor) else value


def compare(call: Callable[..., object], given: tuple[Any, ...], *, reads: int = 1) -> None:
    """Require that a call gives on the device what it gives on the host."""
    arguments = tree_map(copied, given)
    expected = dict(enumerate(leaves((call(*arguments), arguments))))
    with counted() as counter:
        arguments = tree_map(sent, given)
        found = dict(enumerate(leaves((call(*arguments), arguments))))
    assert expected
    assert found.keys() == expected.keys()
    for place, (name, tensor) in found.items():
        assert isinstance(tensor, FarTensor) == (name != LIES_ON_THE_HOST), name
        near = tensor.near if isinstance(tensor, FarTensor) else tensor
        assert near.dtype == expected[place][1].dtype
        assert torch.equal(near, expected[place][1]), name
    assert counter.reads <= reads


@pytest.mark.parametrize("name", OF_IDS)
def test_of_ids(name: str) -> None:
    compare(OF_IDS[name], (IDS,))


@pytest.mark.parametrize("name", OF_HOLES)
def test_of_ids_with_holes(name: str) -> None:
    compare(OF_IDS[name], (HOLES,))


@pytest.mark.parametrize("name", OF_A_BATCH)
def test_of_a_batch(name: str) -> None:
    parts = 2 if name == "shard_tokens, half of each" else 1  # It pads first, and then shards.
    compare(OF_A_BATCH[name], (training_batch(IDS),), reads=parts)


@pytest.mark.parametrize("name", OF_TENSORS)
def test_of_tensors(name: str) -> None:
    compare(*OF_TENSORS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_fixed_shapes(name: str) -> None:
    compare(FUNCTIONS[name], (IDS, StaticBounds(16, 64, 8)), reads=0)


@pytest.mark.parametrize("mask_type", PACKED_MASK_TYPES)
@pytest.mark.parametrize("flat", [False, True])
def test_of_the_last_step(mask_type: PackedMaskType, flat: bool) -> None:
    contract = PackingCapabilities(mask_type, True, return_document_ids=True)
    compare(partial(adapters.apply_packing_contract, contract=contract, flat=flat), (training_batch(IDS),))


def test_of_joined_documents() -> None:
    contract = PackingCapabilities("document_ids", True)
    batch = training_batch(IDS, attention_document_ids=IDS)
    compare(adapters.enable_xdoc_attention, (batch, contract))
