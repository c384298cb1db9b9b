"""Arguments of kernels: the same offsets under other names, windows in their count, and when 32 bits are too few."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    count_seen_keys,
    document_ids_from_attention_mask,
    document_lengths,
    farthest_element,
    gathered_flat,
    host_offsets,
    needs_int64_indices,
    physical_offsets,
    varlen_kernel_kwargs,
    window_size,
)
from neatpack.adapters.strategies import attention_document_ids, document_ids
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of


@holds_for(ids=document_ids(), gathered=st.booleans())
def test_both_sides_get_the_offsets_of_the_stream(ids: Tensor, gathered: bool) -> None:
    flat = gathered_flat(ids) if gathered else physical_offsets(ids)
    kwargs = varlen_kernel_kwargs(flat)
    rows = rows_of(ids)
    longest = max(oracle.lengths(rows), default=0 if gathered else 1)
    lengths = oracle.lengths(rows) if gathered else oracle.padded_segments(rows, longest)
    for side in (kwargs["cu_seqlens_q"], kwargs["cu_seqlens_k"]):
        assert listed(side) == oracle.running(lengths)
        assert side.dtype == torch.int32
    assert kwargs["max_seqlen_q"] == kwargs["max_seqlen_k"] == longest


@holds_for(window=st.integers(1, 9), causal=st.booleans())
def test_a_window_lets_a_kernel_see_as_many_keys_as_the_model_counts(window: int, causal: bool) -> None:
    before, after = window_size(window, causal=causal)
    assert before is not None
    assert after is not None
    # In the middle of a document that is long enough, the kernel sees those before, those after, and the query's own.
    ids = torch.ones(1, 21, dtype=torch.int64)
    assert before + after + 1 == int(count_seen_keys(ids, window=window, causal=causal)[0, 10])


def test_no_window_is_no_limit_before_the_query() -> None:
    assert (window_size(None), window_size(None, causal=False)) == ((None, 0), (None, None))
    with pytest.raises(EncodingError, match="window"):
        window_size(0)


@holds_for(shape=st.lists(st.integers(0, 4), min_size=1, max_size=3), data=st.data())
def test_32_bits_are_enough_where_no_element_lies_farther(shape: list[int], data: st.DataObject) -> None:
    edges = st.sampled_from([0, 1, 2**31 - 2, 2**31 - 1, 2**31])
    strides = [data.draw(edges | st.integers(0, 2**31)) for _ in shape]
    offsets = [0] if all(shape) else []
    for size, stride in zip(shape, strides, strict=True):
        offsets = [offset + index * stride for offset in offsets for index in range(size)]
    assert farthest_element(shape, strides) == max(offsets, default=0)
    assert needs_int64_indices(shape, strides) == any(offset >= 2**31 for offset in offsets)


@pytest.mark.parametrize(("shape", "strides"), [((2, 3), (1,)), ((-1,), (1,)), (3, (1,)), (("a",), (1,)), ((1,), None)])
def test_shape_and_strides_are_counts(shape: Any, strides: Any) -> None:
    with pytest.raises(EncodingError):
        needs_int64_indices(shape, strides)


@holds_for(ids=attention_document_ids())
def test_lengths_and_their_offsets_on_the_host(ids: Tensor) -> None:
    lengths = oracle.lengths(rows_of(ids))
    found, offsets = document_lengths(ids), host_offsets(ids)
    assert (listed(found), found.dtype) == (lengths, torch.int64)
    assert list(offsets) == oracle.running(lengths)
    assert all(type(offset) is int for offset in offsets)


@holds_for(ids=attention_document_ids())
def test_a_mask_that_numbers_documents_is_read_as_ids(ids: Tensor) -> None:
    assert listed(document_ids_from_attention_mask(ids)) == oracle.canonical(rows_of(ids))
    plain = ids.to(torch.int64) != 0
    assert listed(document_ids_from_attention_mask(plain)) == [[int(number) for number in row] for row in listed(plain)]
    with pytest.raises(DocumentIdsError, match="attention_mask"):
        document_ids_from_attention_mask(ids.float())


def test_the_last_element_that_int32_counts_needs_no_int64() -> None:
    assert not needs_int64_indices((2**31,), (1,))
    assert needs_int64_indices((2**31 + 1,), (1,))
