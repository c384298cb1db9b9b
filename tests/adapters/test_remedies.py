"""What an error says is true of what was given, and what it says to do leads out."""

from __future__ import annotations

import json
import math
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.masked import masked_tensor

from neatpack import adapters
from neatpack.adapters import AttentionCost, Piece, RankPlan, RowPlan, StaticBounds
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.encodings import LengthMatrix
from neatpack.contracts.errors import PackingError, Problem
from tests.adapters.batches import training_batch

_IDS: Final = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])
_BOUNDS: Final = StaticBounds(3, 8, 4)
_PLAN: Final = adapters.plan_rows([2, 1], 4)
_COST: Final = AttentionCost(1.0, 1.0)
_FLASH: Final = adapters.flash_varlen_kwargs(torch.tensor([[1, 1, 2, 0]]))
_CONTRACT: Final = PackingCapabilities("document_ids")

Call = Callable[[Any], object]

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors", "ignore:Sparse")


def _refusal(call: Callable[[], object]) -> Problem:
    with pytest.raises(PackingError) as caught:
        call()
    return caught.value.problems[0]


def _batch(**entries: Any) -> Any:
    return training_batch(_IDS.clone(), **entries)


_NUMBERS: Final[tuple[Call, ...]] = (
    lambda bad: adapters.build_position_ids(_IDS, bad),
    lambda bad: adapters.build_block_mask(_IDS, block_size=bad),
    lambda bad: adapters.document_ids_from_lengths([[bad]], 4),
    lambda bad: adapters.plan_rows([bad], 4),
    lambda bad: RowPlan.from_rows([[bad]], [2, 3, 4], 4),
    lambda bad: adapters.collate_documents([torch.tensor([1, 2]), torch.tensor([3])], _PLAN, rows=[bad]),
    lambda bad: list(adapters.RowStream(4, 1).rows([bad])),
)


@pytest.mark.parametrize("call", _NUMBERS)
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_only_of_an_integer_the_item_is_an_int(call: Call, make: Callable[[object], object]) -> None:
    item = "Give a Python int: value.item()."
    assert _refusal(lambda: call(make(2))).remedy == item
    for other in (2.5, True):
        assert _refusal(lambda given=make(other): call(given)).remedy != item


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: AttentionCost(bad, 1.0),
        lambda bad: adapters.build_block_causal_mask(_IDS, torch.float32, blocked=bad),
        lambda bad: RowPlan.from_rows([[0]], [1], 4, [bad]),
        lambda bad: adapters.flatten_packed_sequence_metadata(_IDS, _IDS, bad, 4),
        lambda bad: adapters.build_position_ids(_IDS, bad),
    ],
)
def test_what_is_no_number_is_not_shown_as_one(call: Call) -> None:
    assert _refusal(lambda: call("1")).value == "'1'"
    assert _refusal(lambda: call(np.array(1.5))).value == "array(1.5)"


@pytest.mark.parametrize("number", [torch.tensor(1.0), np.array(1.0)])
def test_a_cost_of_one_number_is_its_item(number: Any) -> None:
    assert _refusal(lambda: AttentionCost(number, 1.0)).remedy == "Give a Python number: value.item()."
    assert AttentionCost(number.item(), 1.0) == _COST
    blocked: Any = torch.tensor(-math.inf)
    problem = _refusal(lambda: adapters.build_block_causal_mask(_IDS, torch.float32, blocked=blocked))
    assert problem.remedy == "Give a Python number: value.item()."


@pytest.fixture
def spread_ids() -> Iterator[Any]:
    """Ids as a DTensor, on the one rank of a group."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distribute_tensor(_IDS, init_device_mesh("cpu", (1,)))
    distributed.destroy_process_group()


_OF_IDS: Final[tuple[Call, ...]] = (
    adapters.gathered_flat,
    adapters.build_packed_sequence_metadata,
    adapters.document_ids_from_positions,
    lambda ids: adapters.scan_static(ids, _BOUNDS),
    lambda ids: adapters.mask_labels(ids, _IDS, "model"),
    lambda ids: adapters.reduce_by_document(ids, _IDS, "sum"),
    lambda ids: adapters.unpack(ids, _IDS),
    lambda ids: adapters.repeat_on_axes(ids, 3),
    lambda ids: adapters.pad_rows(_batch(labels=ids), 8),
    lambda ids: adapters.take_places(_batch(more=ids), _IDS),
)


@pytest.mark.parametrize("call", _OF_IDS)
def test_tensors_that_do_not_mix_with_plain_ones_are_told_how_to_become_plain(call: Call, spread_ids: Any) -> None:
    positions: Any = masked_tensor(torch.arange(4).expand(2, 4), torch.ones(2, 4, dtype=torch.bool))
    for given, plain in ((spread_ids, spread_ids.full_tensor()), (positions, positions.to_tensor(0))):
        problem = _refusal(lambda given=given: call(given))
        assert (problem.message, problem.value) == ("must be a plain tensor", type(given).__name__)
        assert f"{problem.field}.{'full_tensor()' if given is spread_ids else 'to_tensor(0)'}" in problem.remedy
        assert not adapters.is_document_ids(given)
        assert plain.shape == _IDS.shape
    call(spread_ids.full_tensor())


def test_what_is_not_dense_is_told_how_to_become_so() -> None:
    for given in (_IDS.to_sparse(), _IDS.to_sparse_csr()):
        assert _refusal(lambda given=given: adapters.gathered_flat(given)).remedy == "Convert it: document_ids.to_dense()."
        assert adapters.gathered_flat(given.to_dense()).max_seqlen == 3


def test_only_what_holds_numbers_is_to_be_converted() -> None:
    convert = "Convert it: torch.tensor(...)."
    hidden = np.ma.masked_equal(_IDS.numpy(), 2)
    told: list[tuple[object, str]] = [
        (_IDS.tolist(), convert), (_IDS.numpy(), convert), (None, "Give a tensor."), ("ids", "Give a tensor."),
        (hidden, "Give a tensor."), (adapters.as_segments, "Give a tensor."),
    ]  # fmt: skip
    for given, remedy in told:
        assert _refusal(lambda given=given: adapters.scan_segments(cast("Any", given))).remedy == remedy
