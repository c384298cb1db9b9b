"""One scan under bounds serves every function of fixed shapes."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.static_scan import StaticBounds, scan_static
from neatpack.contracts.errors import EncodingError
from tests.adapters.layouts import Rows, tensor
from tests.adapters.properties import holds_for
from tests.adapters.static_functions import FEWER, FUNCTIONS, WITH_HOLES, bounds_of, flattened


@FEWER
@holds_for(rows=WITH_HOLES, data=st.data())
def test_a_scan_serves_several_encodings(rows: Rows, data: st.DataObject) -> None:
    bounds = data.draw(bounds_of(rows))
    scan = scan_static(tensor(rows), bounds)
    for name, function in FUNCTIONS.items():
        if name in ("scan_static", "static_block_mask"):
            continue
        for ours, theirs in zip(
            flattened(function(scan, bounds)), flattened(function(tensor(rows), bounds)), strict=True
        ):
            assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "scan_static"])
def test_a_scan_under_other_bounds_is_refused(name: str) -> None:
    scan = scan_static(tensor([[1, 2]]), StaticBounds(2, 2, 2))
    with pytest.raises(EncodingError, match="not those of the scan") as caught:
        FUNCTIONS[name](scan, StaticBounds(1, 2, 2))
    assert caught.value.problems[0].value == StaticBounds(1, 2, 2)


def test_bounds_are_positive_ints_of_python() -> None:
    with pytest.raises(EncodingError) as caught:
        StaticBounds(1, 0, 1)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("segments", 0)
    assert type(StaticBounds(cast("int", np.int64(3)), 1, 1).documents) is int


def test_equal_bounds_are_one_key() -> None:
    assert len({StaticBounds(1, 2, 3), StaticBounds(1, 2, 3)}) == 1
