"""One mask per type of layer: what each shows, what all take together, and that no backend makes NaN of one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from neatpack.adapters import LayerView, build_block_causal_mask, build_layer_masks, layer_masks_bytes
from neatpack.adapters.strategies import attention_document_ids
from neatpack.contracts.errors import EncodingError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of

# A window is seldom narrower than a chunk where half of both are none.
_SIZES = st.sampled_from((1, 2, 3, 4, 6, None))
_VIEWS = st.builds(LayerView, _SIZES, _SIZES)
_IDS = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 0, 1, 1, 1, 1]])


def _chunks(rows: list[list[int]], chunk: int | None) -> list[list[tuple[int, int]]]:
    """Name the chunk of each place: its document's number, and how many chunks have begun in it."""
    named = [[(0, place) for place in range(len(numbers))] for numbers in rows]
    for row, number, places in oracle.documents(rows):
        for place in places:
            named[row][place] = (number, 0 if chunk is None else (place - places[0]) // chunk)
    return named


@holds_for(ids=attention_document_ids(max_batch=3, max_sequence=12), full=_VIEWS, sliding=_VIEWS)
def test_each_type_of_layer_gets_the_mask_of_its_view(ids: Tensor, full: LayerView, sliding: LayerView) -> None:
    rows = rows_of(ids)
    masks = build_layer_masks(ids, {"a": full, "b": sliding, "c": full})
    for name, view in (("a", full), ("b", sliding)):
        named = _chunks(rows, view.chunk)
        expected = [
            [
                [
                    oracle.visible(rows, row, query, key, view.window) and named[row][query] == named[row][key]
                    for key in range(len(numbers))
                ]
                for query in range(len(numbers))
            ]
            for row, numbers in enumerate(rows)
        ]
        assert listed(masks[name][:, 0]) == expected
    assert masks["a"] is masks["c"]
    assert (masks["a"] is masks["b"]) == (full == sliding)


def test_what_is_blocked_is_the_same_in_all_masks() -> None:
    views = {"full": LayerView(), "sliding": LayerView(window=2)}
    for name, mask in build_layer_masks(_IDS, views, torch.float32, blocked=-math.inf).items():
        visible = build_block_causal_mask(_IDS, window=views[name].window)
        assert torch.equal(mask == 0, visible)
        assert torch.equal(mask == -math.inf, ~visible)


@given(ids=attention_document_ids(max_batch=2, max_sequence=8), chunk=st.integers(1, 4), window=st.integers(1, 4))
def test_a_chunk_and_a_window_count_from_the_document_so_that_alone_it_is_the_same(
    ids: Tensor, chunk: int, window: int
) -> None:
    rows = rows_of(ids)
    mask = build_block_causal_mask(ids, window=window, chunk=chunk)
    for row, _, places in oracle.documents(rows):
        inside = slice(places[0], places[-1] + 1)
        alone = build_block_causal_mask(ids[row : row + 1, inside], window=window, chunk=chunk)
        assert torch.equal(mask[row, 0, inside, inside], alone[0, 0])


def test_the_limit_counts_all_masks_together() -> None:
    views = {"full_attention": LayerView(), "sliding_attention": LayerView(window=2), "more": LayerView()}
    assert layer_masks_bytes(2, 6, views) == 144
    assert layer_masks_bytes(2, 6, views, torch.float16) == 288
    build_layer_masks(_IDS, views, max_bytes=144)
    with pytest.raises(
        EncodingError, match=r"2 masks of this shape take 144 bytes.*`hf_flash` or `reference`"
    ) as caught:
        build_layer_masks(_IDS, views, max_bytes=143)
    assert caught.value.problems[0].value == (2, 1, 6, 6)


@pytest.mark.parametrize(
    ("field", "views"),
    [("views", None), ("views", {}), ("views", {3: LayerView()}), ("views['a']", {"a": 4}), ("views", [LayerView()])],
)
def test_views_are_named(field: str, views: Any) -> None:
    with pytest.raises(EncodingError) as caught:
        build_layer_masks(_IDS, views)
    assert caught.value.problems[0].field == field


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "2"])
def test_a_chunk_is_a_positive_int(size: Any) -> None:
    for call in (lambda: LayerView(chunk=size), lambda: build_block_causal_mask(_IDS, chunk=size)):
        with pytest.raises(EncodingError, match="chunk"):
            call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_additive_mask_may_hold_infinity(dtype: torch.dtype) -> None:
    allowed, added = build_block_causal_mask(_IDS), build_block_causal_mask(_IDS, dtype, blocked=-math.inf)
    assert torch.equal(added == 0, allowed)
    assert torch.equal(added == -math.inf, ~allowed)


@pytest.mark.parametrize("blocked", [np.float16("-inf"), np.finfo(np.float32).min, np.float64(-3e38), -(2**127)])
def test_what_blocks_may_be_a_number_of_any_type(blocked: Any) -> None:
    found = build_block_causal_mask(_IDS, torch.float32, blocked=blocked)
    assert torch.equal(found, build_block_causal_mask(_IDS, torch.float32, blocked=float(blocked)))


@pytest.mark.parametrize("blocked", [0.0, 1.0, math.nan, True, "-inf", np.float32("nan"), np.bool_(True), -(10**400)])
def test_what_blocks_is_a_negative_number(blocked: Any) -> None:
    with pytest.raises(EncodingError, match="blocked"):
        build_block_causal_mask(_IDS, torch.float32, blocked=blocked)


def test_a_bool_mask_holds_no_number() -> None:
    with pytest.raises(EncodingError, match="blocked"):
        build_block_causal_mask(_IDS, blocked=-1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_that_take_a_mask_are_finite_at_padding(backend: SDPBackend, dtype: torch.dtype) -> None:
    ids = torch.tensor([[1, 1, 1, 2, 2, 0, 0, 0]], device="cuda")
    query, key, value = torch.randn(3, 1, 1, 8, 16, device="cuda", dtype=dtype).requires_grad_().unbind()
    for mask in (build_block_causal_mask(ids), build_block_causal_mask(ids, dtype)):
        with sdpa_kernel(backend):
            found = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        gradients = torch.autograd.grad(found.sum(), (query, key, value))
        assert all(bool(each.isfinite().all()) for each in (found, *gradients))


def _eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """What models do by hand: the mask is added in the dtype of the scores."""
    scores = query @ key.mT / math.sqrt(query.shape[-1]) + mask
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("blocked", [None, -math.inf])
@pytest.mark.parametrize("window", [None, 2])
def test_attention_in_every_precision_is_finite_at_padding_and_its_gradients_are(
    dtype: torch.dtype, blocked: float | None, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(3)
    # Scores near the end of what float16 holds, where an additive mask would overflow first.
    states = 60 * torch.randn(3, 2, 1, 6, 4, generator=generator)
    query, key, value = states.to(dtype).requires_grad_().unbind()
    added = build_block_causal_mask(_IDS, dtype, window, blocked=blocked)
    bool_mask = build_block_causal_mask(_IDS, window=window)
    ways = [_eager(query, key, value, added)]
    for mask in (bool_mask, added):
        with sdpa_kernel(SDPBackend.MATH):
            ways.append(scaled_dot_product_attention(query, key, value, attn_mask=mask))
        ways.append(scaled_dot_product_attention(query, key, value, attn_mask=mask))
    for found in ways:
        gradients = torch.autograd.grad(found.float().sum(), (query, key, value), retain_graph=True)
        assert all(bool(each.isfinite().all()) for each in (found, *gradients))


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_a_window_of_a_view_is_a_positive_int(size: Any) -> None:
    with pytest.raises(EncodingError, match="window"):
        LayerView(window=size)


@pytest.mark.parametrize("dtype", [torch.int64, "bool", None])
def test_the_dtype_of_masks_is_one(dtype: Any) -> None:
    with pytest.raises(EncodingError, match="dtype"):
        build_layer_masks(_IDS, {"full_attention": LayerView()}, dtype, max_bytes=100)
