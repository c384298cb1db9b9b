"""What functions give back can be compared, kept in sets, copied and pickled, tensors and all."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor

from neatpack import adapters, contracts, kernels_bridge
from neatpack.adapters import (
    build_position_ids,
    document_rows,
    gathered_flat,
    gathered_rows,
    gathered_states,
    length_matrix,
    physical_offsets,
    physical_states,
    row_offsets,
    scan_segments,
    segment_index,
    shard_tokens,
    thd_flat,
    thd_lengths,
)
from neatpack.contracts.encodings import GatheredRows
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.inspect import Inspection

_IDS: Final = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])


def _documents(ids: Tensor) -> object:
    return scan_segments(ids).documents


def _shard(ids: Tensor) -> object:
    batch: dict[str, Tensor] = dict.fromkeys(("input_ids", "labels", "document_ids"), ids)
    batch |= {"position_ids": build_position_ids(ids), "padding_mask": ids == 0}
    return shard_tokens(cast("Any", batch), 0, 2, "contiguous", label_shift="model")


_MAKE: Final[list[Any]] = [
    _documents,
    _shard,
    document_rows,
    gathered_flat,
    gathered_rows,
    gathered_states,
    length_matrix,
    physical_offsets,
    physical_states,
    row_offsets,
    scan_segments,
    segment_index,
    thd_flat,
    thd_lengths,
]


def _classes(package: ModuleType) -> list[type]:
    """Give the dataclasses that the modules of a package define, and those of packages in it."""
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    entries = [entry for name in names for entry in vars(importlib.import_module(name)).values()]
    return [entry for entry in entries if isinstance(entry, type) and is_dataclass(entry) and entry.__module__ in names]


def _holding_tensors(package: ModuleType) -> list[type]:
    return [each for each in _classes(package) if any("Tensor" in str(field.type) for field in fields(each))]


def test_no_class_compares_its_tensors() -> None:
    """`==` of two tensors is a tensor, which is neither true nor false."""
    held = [*_holding_tensors(contracts), *_holding_tensors(adapters)]
    assert GatheredRows in held
    assert [each for each in held if "__eq__" in vars(each)] == []


def test_no_class_of_the_bridge_compares_its_tensors() -> None:
    pytest.importorskip("transformers", reason="one of its modules needs it")
    held = _holding_tensors(kernels_bridge)
    assert {Inspection, PackedDocuments} <= set(held)
    assert [each for each in held if "__eq__" in vars(each)] == []


@pytest.mark.parametrize("make", _MAKE)
def test_results_are_equal_to_themselves_alone(make: Any) -> None:
    one, other = make(_IDS), make(_IDS)
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2


@pytest.mark.parametrize("make", _MAKE)
def test_results_are_copied_and_pickled(make: Any) -> None:
    made = make(_IDS)
    for found in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):  # noqa: S301
        assert type(found) is type(made)
        for field in fields(made):
            value, other = getattr(made, field.name), getattr(found, field.name)
            assert torch.equal(value, other) if isinstance(value, Tensor) else repr(value) == repr(other)
