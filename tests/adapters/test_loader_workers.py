"""Batches under every contract come out of the worker processes of a loader as they went in."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.data import DataLoader

from neatpack.adapters import apply_packing_contract, build_block_mask, collate_documents, plan_rows
from neatpack.contracts.capabilities import PACKED_MASK_TYPES, PackedMaskType, PackingCapabilities

_LENGTHS = [5, 3, 9, 2, 7, 1]


class Batches:
    """A dataset of one batch for each row of a plan, with all that a contract can ask for, and FlexAttention's mask."""

    def __init__(self, mask_type: PackedMaskType, *, flat: bool) -> None:
        self.plan = plan_rows(_LENGTHS, 10)
        self.documents = [torch.arange(1, length + 1) for length in _LENGTHS]
        self.capabilities = PackingCapabilities(mask_type, True, return_document_ids=True)
        self.flat = flat

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, row: int) -> dict[str, object]:
        batch = collate_documents(self.documents, self.plan, rows=[row])
        batch = apply_packing_contract(batch, self.capabilities, flat=self.flat)
        return {**batch, "block_mask": build_block_mask(cast("Tensor", batch.get("_packed_seq_ids")))}


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, BlockMask):
        places = torch.arange(10)
        asked = (places[0], places[0], places[:, None], places)
        return isinstance(other, BlockMask) and torch.equal(one.mask_mod(*asked), other.mask_mod(*asked))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mask_type", PACKED_MASK_TYPES)
def test_batches_come_out_of_workers_as_they_went_in(mask_type: PackedMaskType, flat: bool) -> None:
    dataset = Batches(mask_type, flat=flat)
    found = cast(
        "list[dict[str, object]]", list(DataLoader(cast("Any", dataset), batch_size=None, num_workers=2, timeout=20))
    )
    assert len(found) == len(dataset)
    for row, batch in enumerate(found):
        for brought in (batch, copy.deepcopy(batch)):
            assert list(brought) == list(dataset[row])
            assert [name for name, value in dataset[row].items() if not _same(value, brought[name])] == []
