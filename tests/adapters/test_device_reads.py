"""What lies on a device is read together, in one copy, and gives the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import neatpack.adapters.host_arrays
from tests.adapters import (
    test_r01_ids,
    test_r02_agreement,
    test_r03_r04_r05_r06_encodings,
    test_r08_positions,
    test_r14_r15_packing,
)
from tests.adapters.properties import run_property


def _elsewhere(_: Tensor) -> bool:
    return False


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tensors_are_read_from_a_device_in_one_copy(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Tensor] = []

    def copied(tensor: Tensor, _field: str) -> npt.NDArray[Any]:
        copies.append(tensor)
        return tensor.numpy()

    monkeypatch.setattr(neatpack.adapters.host_arrays, "_lies_on_host", _elsewhere)
    monkeypatch.setattr(neatpack.adapters.host_arrays, "read_on_host", copied)
    dtypes = (torch.int32, torch.bool, torch.uint64)[:count]
    tensors = [torch.full((2, 3), number, dtype=dtype) for number, dtype in enumerate(dtypes)]
    read = neatpack.adapters.host_arrays.read_together(*tensors)
    assert [array.tolist() for array in read] == [[[number] * 3] * 2 for number in range(count)]
    assert [array.dtype for array in read] == [tensor.numpy().dtype for tensor in tensors]
    assert len(copies) == 1


@pytest.mark.parametrize(
    "test",
    [
        test_r01_ids.test_canonical_numbers_go_up_in_row_order,
        test_r01_ids.test_ids_come_back_from_positions_and_padding,
        test_r02_agreement.test_a_contradiction_is_refused_and_nothing_changes,
        test_r03_r04_r05_r06_encodings.test_flattening_rows_gives_the_stream,
        test_r03_r04_r05_r06_encodings.test_ids_come_back_from_physical_offsets_and_padding,
        test_r08_positions.test_joined_documents_are_shifted_on_every_axis,
        test_r14_r15_packing.test_unpacking_survives_a_cut_along_the_rows,
    ],
)
def test_a_read_from_a_device_gives_the_same(test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neatpack.adapters.host_arrays, "_lies_on_host", _elsewhere)
    run_property(test.__name__, max_examples=20)
