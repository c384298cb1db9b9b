"""Masks of fixed shape equal those without bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

from neatpack.adapters.block_mask import build_block_mask
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.static import static_position_ids
from neatpack.adapters.static_masks import static_block_causal_mask, static_block_mask
from neatpack.adapters.static_scan import StaticBounds
from neatpack.contracts.errors import EncodingError
from tests.adapters.layouts import Rows, tensor
from tests.adapters.properties import holds_for
from tests.adapters.static_functions import FEWER, WITH_HOLES, bounds_of, is_valid
from tests.adapters.test_block_mask import SIZES, WINDOWS, pairs, same_tensors
from tests.adapters.test_static_status import MALFORMED


@FEWER
@holds_for(
    rows=WITH_HOLES,
    data=st.data(),
    window=WINDOWS,
    dtype=st.sampled_from([torch.bool, torch.float32, torch.bfloat16, torch.float64]),
)
def test_dense_masks_are_those_without_bounds(
    rows: Rows, data: st.DataObject, window: int | None, dtype: torch.dtype
) -> None:
    found, status = static_block_causal_mask(tensor(rows), data.draw(bounds_of(rows)), dtype, window)
    assert is_valid(status)
    assert torch.equal(found, build_block_causal_mask(tensor(rows), dtype, window))


@FEWER
@holds_for(rows=WITH_HOLES, data=st.data(), causal=st.booleans(), window=WINDOWS, block_size=SIZES)
def test_block_masks_are_those_without_bounds(
    rows: Rows, data: st.DataObject, causal: bool, window: int | None, block_size: int | tuple[int, int]
) -> None:
    bounds, ids = data.draw(bounds_of(rows)), tensor(rows) * data.draw(st.sampled_from([1, 2**32]))
    found, status = static_block_mask(ids, bounds, causal=causal, window=window, block_size=block_size)
    assert is_valid(status)
    assert same_tensors(found, build_block_mask(tensor(rows), causal=causal, window=window, block_size=block_size))
    row, place = torch.arange(len(rows))[:, None, None], torch.arange(len(rows[0]))
    assert torch.equal(found.mask_mod(row, torch.tensor(0), place[:, None], place), pairs(rows, causal, window))


@FEWER
@holds_for(rows=MALFORMED, longest=st.integers(1, 6), causal=st.booleans(), window=WINDOWS, block_size=SIZES)
def test_malformed_ids_are_told_whatever_the_blocks(
    rows: Rows, longest: int, causal: bool, window: int | None, block_size: int | tuple[int, int]
) -> None:
    """Places that are looked up by them are never out of range."""
    bounds = StaticBounds(6, 24, longest)
    _, status = static_block_mask(tensor(rows), bounds, causal=causal, window=window, block_size=block_size)
    assert torch.equal(status, static_position_ids(tensor(rows), bounds)[1])


def test_what_is_no_mask_dtype_is_refused() -> None:
    with pytest.raises(EncodingError, match="no mask dtype"):
        static_block_causal_mask(tensor([[1]]), StaticBounds(1, 1, 1), torch.int32)


def test_a_mask_that_would_be_too_large_is_refused_before_it_is_built() -> None:
    with pytest.raises(EncodingError, match=r"9216000000 bytes.*hf_flash") as caught:
        static_block_causal_mask(torch.ones(1, 96000, dtype=torch.int64), StaticBounds(1, 1, 96000))
    assert caught.value.problems[0].value == (1, 1, 96000, 96000)
    mask, _ = static_block_causal_mask(tensor([[1, 1]]), StaticBounds(1, 1, 2), torch.float32, max_bytes=16)
    assert mask.nbytes == 16
    with pytest.raises(EncodingError, match="at most 15 are allowed"):
        static_block_causal_mask(tensor([[1, 1]]), StaticBounds(1, 1, 2), torch.float32, max_bytes=15)
