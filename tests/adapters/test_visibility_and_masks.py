"""Who sees whom, against an oracle that decides pair by pair, and through torch's own attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from neatpack.adapters import block_causal_mask_bytes, build_block_causal_mask, seen_range, sees, visible_squares
from neatpack.adapters.arguments import COMPARED_DTYPES, INT32_MAX
from neatpack.adapters.segments import scan_segments
from neatpack.adapters.strategies import attention_document_ids
from neatpack.contracts.errors import EncodingError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of

_WINDOWS = st.none() | st.integers(1, 6)
_FLOATS = st.sampled_from((torch.float32, torch.float16, torch.bfloat16, torch.float64))


def _expected(rows: list[list[int]], window: int | None) -> list[list[list[list[bool]]]]:
    places = range(len(rows[0]))
    return [
        [[[oracle.visible(rows, row, query, key, window) for key in places] for query in places]]
        for row in range(len(rows))
    ]


@holds_for(ids=attention_document_ids(max_batch=3, max_sequence=12), window=_WINDOWS)
def test_the_mask_shows_each_document_so_far(ids: Tensor, window: int | None) -> None:
    mask = build_block_causal_mask(ids, window=window)
    assert mask.dtype == torch.bool
    assert listed(mask) == _expected(rows_of(ids), window)


@holds_for(ids=attention_document_ids(max_batch=3, max_sequence=12), window=_WINDOWS)
def test_seeing_pair_by_pair_is_the_mask(ids: Tensor, window: int | None) -> None:
    wide, places = ids.to(torch.int64), torch.arange(ids.shape[1])
    found = sees(wide[:, :, None], wide[:, None, :], places[:, None], places[None, :], window=window)
    assert listed(found[:, None]) == _expected(rows_of(ids), window)


@holds_for(
    ids=attention_document_ids(max_batch=1, max_sequence=12),
    window=_WINDOWS | st.sampled_from((127, 256, INT32_MAX)),
    causal=st.booleans(),
    dtypes=st.tuples(st.sampled_from(COMPARED_DTYPES), st.sampled_from(COMPARED_DTYPES)),
)
def test_the_width_of_places_changes_nothing_that_is_seen(
    ids: Tensor, window: int | None, causal: bool, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    (row,), places = rows_of(ids), torch.arange(ids.shape[1])
    queries, keys = (places.to(dtype) for dtype in dtypes)
    wide = ids.to(torch.int64)
    found = sees(wide.mT, wide, queries[:, None], keys, window=window, causal=causal)
    documents, far = oracle.documents([row]), window or len(row)
    for query, seen in enumerate(listed(found)):
        own = next((document.places for document in documents if query in document.places), [query])
        expected = [key for key in own if abs(key - query) < far and not (causal and key > query)]
        assert [key for key, is_seen in enumerate(seen) if is_seen] == expected
    for _, _, own in documents:
        first, last = seen_range(queries[own], keys[own[0]], keys[own[-1]] + 1, window=window, causal=causal)
        assert listed(first) == [max(own[0], query - far + 1) for query in own]
        assert listed(last) == [query if causal else min(own[-1], query + far - 1) for query in own]


@holds_for(ids=attention_document_ids(), dtype=_FLOATS, window=_WINDOWS)
def test_an_additive_mask_says_the_same(ids: Tensor, dtype: torch.dtype, window: int | None) -> None:
    allowed, added = build_block_causal_mask(ids, window=window), build_block_causal_mask(ids, dtype, window)
    assert added.dtype == dtype
    assert torch.equal(added == 0, allowed)
    assert bool((added[~allowed] == torch.finfo(dtype).min).all())


@holds_for(ids=attention_document_ids())
def test_nothing_is_seen_outside_the_squares_but_the_diagonal(ids: Tensor) -> None:
    outside = build_block_causal_mask(ids)[:, 0].clone()
    for square in visible_squares(scan_segments(ids)):
        outside[square.row, square.start : square.stop, square.start : square.stop] = False
    outside.diagonal(dim1=-2, dim2=-1).fill_(False)
    assert not bool(outside.any())


@given(ids=attention_document_ids(max_batch=2, max_sequence=10), additive=st.booleans(), seed=st.integers(0, 99))
def test_attention_with_the_mask_is_finite_and_isolated(ids: Tensor, additive: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch, sequence = ids.shape
    query, key, value = torch.randn(3, batch, 1, sequence, 4, generator=generator).requires_grad_().unbind()
    mask = build_block_causal_mask(ids, torch.float32 if additive else torch.bool)
    found = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert bool(found.isfinite().all())
    for row, _, places in oracle.documents(rows_of(ids)):
        alone = scaled_dot_product_attention(
            query[row, :, places], key[row, :, places], value[row, :, places], is_causal=True
        )
        assert torch.allclose(found[row, :, places], alone, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), value)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("window", [0, -1, 2.0, True, "2"])
def test_a_window_counts_at_least_the_token_itself(window: int) -> None:
    with pytest.raises(EncodingError, match="window"):
        build_block_causal_mask(torch.ones(1, 3, dtype=torch.int64), window=window)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64, torch.float8_e5m2])
def test_a_mask_is_bool_or_floating(dtype: torch.dtype) -> None:
    with pytest.raises(EncodingError, match="no mask dtype"):
        build_block_causal_mask(torch.ones(1, 3, dtype=torch.int64), dtype)
    with pytest.raises(EncodingError, match="no mask dtype"):
        block_causal_mask_bytes(1, 3, dtype)


def test_the_size_is_known_before_anything_is_built() -> None:
    assert block_causal_mask_bytes(1, 96000) == 9216000000
    assert block_causal_mask_bytes(1, 8, torch.bfloat16) == 128
    with pytest.raises(EncodingError, match="hf_flash"):
        build_block_causal_mask(torch.ones(1, 96000, dtype=torch.int64))
    with pytest.raises(EncodingError, match="at most 8 are allowed"):
        build_block_causal_mask(torch.ones(1, 3, dtype=torch.int64), max_bytes=8)


def test_the_mask_has_no_other_memory_than_its_own() -> None:
    mask = build_block_causal_mask(torch.ones(2, 3, dtype=torch.int64))
    assert mask.is_contiguous()
    assert mask.untyped_storage().nbytes() == 18


def test_queries_of_one_document_may_share_its_bounds() -> None:
    places = torch.arange(3, 8)
    shared = seen_range(places, torch.tensor([3]), torch.tensor([8]), window=2, causal=False)
    each = seen_range(places, torch.full((5,), 3), torch.full((5,), 8), window=2, causal=False)
    assert all(map(torch.equal, shared, each))
