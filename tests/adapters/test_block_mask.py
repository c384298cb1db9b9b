"""The block mask is torch's own, tensor by tensor, and is made without a look at pairs of tokens."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import copy
import itertools
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import neatpack.adapters.block_lists
import neatpack.adapters.block_mask
from neatpack.adapters.block_mask import build_block_mask, mask_function
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.segments import scan_segments
from neatpack.adapters.static_masks import static_block_mask
from neatpack.adapters.static_scan import StaticBounds
from neatpack.adapters.static_status import raise_if_invalid
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for, run_property

TENSORS: Final = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)
LAYOUTS = rows_of_ids(holes=True, longest=9)
WINDOWS = st.none() | st.integers(1, 12)
SIZES = st.sampled_from([1, 2, 3, 4, 16, 128, (2, 4), (4, 2), (1, 3), (5, 3)])


def pairs(rows: Rows, causal: bool, window: int | None) -> Tensor:
    """Say for each row, query and key whether the query sees the key, bool `[batch, sequence, sequence]`."""

    def sees(ids: list[int], query: int, key: int) -> bool:
        near = window is None or abs(query - key) < window
        return query == key or (ids[query] == ids[key] != 0 and near and (key <= query or not causal))

    places = range(len(rows[0]))
    return torch.tensor([[[sees(ids, query, key) for key in places] for query in places] for ids in rows])


def create(rows: Rows, causal: bool, window: int | None, block_size: int | tuple[int, int]) -> BlockMask:
    """Let torch evaluate every pair, by a table that shares nothing with the code under test."""
    visible = pairs(rows, causal, window)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001 - torch passes it
        return visible[batch, query, key]

    length = len(rows[0])
    return create_block_mask(sees, len(rows), None, length, length, device="cpu", BLOCK_SIZE=block_size)


def same_tensors(found: BlockMask, expected: BlockMask) -> bool:
    return found.shape == expected.shape and all(
        (ours := cast("Tensor", getattr(found, name))).dtype
        == (theirs := cast("Tensor", getattr(expected, name))).dtype
        and ours.stride() == theirs.stride()
        and torch.equal(ours, theirs)
        for name in TENSORS
    )


@settings(max_examples=100)
@holds_for(rows=LAYOUTS, causal=st.booleans(), window=WINDOWS, block_size=SIZES)
def test_all_tensors_are_those_of_torch(
    rows: Rows, causal: bool, window: int | None, block_size: int | tuple[int, int]
) -> None:
    found = build_block_mask(tensor(rows), causal=causal, window=window, block_size=block_size)
    assert same_tensors(found, create(rows, causal, window, block_size))
    sizes = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    assert sizes == found.BLOCK_SIZE


@settings(max_examples=50)
@holds_for(rows=rows_of_ids(longest=9), causal=st.booleans(), window=WINDOWS, block_size=SIZES)
def test_without_holes_as_well(rows: Rows, causal: bool, window: int | None, block_size: int | tuple[int, int]) -> None:
    """Most layouts with long documents have holes, and take another way."""
    found = build_block_mask(tensor(rows), causal=causal, window=window, block_size=block_size)
    assert same_tensors(found, create(rows, causal, window, block_size))


@pytest.mark.parametrize("test", [test_all_tensors_are_those_of_torch, test_without_holes_as_well])
def test_lists_made_on_a_device_are_the_same(test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neatpack.adapters.block_lists, "_is_host", _is_never_host)
    run_property(test.__name__, max_examples=100)


@pytest.mark.parametrize("rows", [[[1] * 300 + [2] * 200 + [0] * 12], [[1] * 200 + [0] * 100 + [1] * 212]])
def test_lists_are_not_sent_to_a_device_but_made_there(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device nothing can be computed on the host: what is sent is as long as the blocks are, not square."""
    sent: list[int] = []
    move = Tensor.to

    def moving(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if torch.device("meta") in args:
            sent.append(tensor.numel())
        return move(tensor, *args, **kwargs)

    segments = replace(scan_segments(tensor(rows)), device=torch.device("meta"))
    monkeypatch.setattr(Tensor, "to", moving)
    monkeypatch.setattr(neatpack.adapters.block_mask, "mask_function", _sees_no_matter_what)
    mask = build_block_mask(segments, block_size=2)
    assert all(getattr(mask, name).is_meta for name in TENSORS)
    assert mask.kv_indices.shape == (1, 1, 256, 256)
    assert max(sent) <= 2 * 5 * 256


def _sees_no_matter_what(_: Tensor, *, window: int | None, causal: bool) -> Callable[..., bool]:
    """Take the place of the mask function, which refuses ids without data."""
    return lambda *_: window is None and causal


def _is_never_host(_: torch.device) -> bool:
    return False


EVERY_ROW: Final[Rows] = [
    list(row)
    for row in itertools.product((0, 1, 2), repeat=6)
    if [number for number, _ in itertools.groupby(number for number in row if number)] in ([], [1], [2], [1, 2], [2, 1])
]
"""All rows of six places with up to two documents, holes and padding anywhere."""


@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block_size", [1, 2, 3, (1, 2), (2, 1), (1, 3), (3, 1), (2, 3)])
def test_every_short_row_has_the_blocks_of_torch(
    block_size: int | tuple[int, int], causal: bool, window: int | None
) -> None:
    expected = create(EVERY_ROW, causal, window, block_size)
    ids = tensor(EVERY_ROW)
    assert same_tensors(build_block_mask(ids, causal=causal, window=window, block_size=block_size), expected)
    bounds = StaticBounds(2, len(EVERY_ROW) * 6, 6)
    found, status = static_block_mask(ids, bounds, causal=causal, window=window, block_size=block_size)
    raise_if_invalid(status)
    assert same_tensors(found, expected)


@holds_for(rows=LAYOUTS, causal=st.booleans(), window=WINDOWS)
def test_the_mask_function_says_who_sees_whom(rows: Rows, causal: bool, window: int | None) -> None:
    function = build_block_mask(tensor(rows), causal=causal, window=window).mask_mod
    places = torch.arange(len(rows[0]))
    batch = torch.arange(len(rows))[:, None, None]
    found = function(batch, torch.zeros(()), places[:, None], places)
    assert torch.equal(found, pairs(rows, causal, window))
    if causal:
        assert torch.equal(found[:, None], build_block_causal_mask(tensor(rows), window=window))


def test_more_documents_than_16_bits_number_are_told_apart() -> None:
    ids = torch.arange(1, 2**16 + 2)[None]
    bounds = StaticBounds(ids.shape[1], 2 * ids.shape[1], 1)
    for mask in (build_block_mask(ids, causal=False), static_block_mask(ids, bounds, causal=False)[0]):
        head, first, *later = (torch.tensor(place) for place in (0, 0, 2**8, 2**15, 2**16))
        assert not any(mask.mask_mod(head, head, each, first) for each in later)


@settings(max_examples=50)
@holds_for(rows=LAYOUTS, causal=st.booleans(), window=WINDOWS)
def test_a_mask_comes_back_from_pickling_and_copying(rows: Rows, causal: bool, window: int | None) -> None:
    mask = build_block_mask(tensor(rows), causal=causal, window=window, block_size=2)
    places = torch.arange(len(rows[0]))
    batch = torch.arange(len(rows))[:, None, None]
    for again in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):  # noqa: S301 - what was just written
        assert same_tensors(again, mask)
        assert again.BLOCK_SIZE == mask.BLOCK_SIZE
        assert torch.equal(again.mask_mod(batch, places[0], places[:, None], places), pairs(rows, causal, window))


def test_one_graph_serves_the_masks_of_all_batches() -> None:
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, _inputs: list[Tensor]) -> GraphModule:
        graphs.append(graph)
        return graph

    def attend(query: Tensor, mask: BlockMask) -> Tensor:
        return flex_attention(query, query, query, block_mask=mask)

    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    query = torch.randn(2, 2, 8, 4)
    for rows in ([[1] * 8, [1] * 7 + [0]], [[1, 1, 1, 2, 2, 2, 2, 2]] * 2, [[1, 2, 3, 3, 0, 3, 0, 0], [0] * 8]):
        mask = build_block_mask(tensor(rows))
        expected = scaled_dot_product_attention(query, query, query, pairs(rows, True, None)[:, None])
        for each in (mask, copy.deepcopy(mask)):
            torch.testing.assert_close(compiled(query, each), expected)
    assert len(graphs) == 1


@pytest.mark.parametrize("fault", ["padding sees nothing", "rows join", "window off by one", "holes are seen"])
def test_the_comparison_sees_planted_faults(fault: str) -> None:
    rows, window = [[1, 0, 0, 0, 1, 1, 0, 2], [2, 2, 2, 2, 2, 2, 2, 2]], 5
    expected = create(rows, True, window, 2)
    if fault == "window off by one":
        found = build_block_mask(tensor(rows), window=window + 1, block_size=2)
    elif fault == "holes are seen":
        found = build_block_mask(tensor([[1, 1, 1, 1, 1, 1, 0, 2], rows[1]]), window=window, block_size=2)
    elif fault == "rows join":
        found = build_block_mask(tensor([rows[0] + rows[1]]), window=window, block_size=2)
    else:
        found = build_block_mask(tensor(rows), window=window, block_size=2)
        empty = found.kv_num_blocks.clone()
        empty[0, 0, 3] = 0
        found.kv_num_blocks = empty
    assert not same_tensors(found, expected)
    assert same_tensors(build_block_mask(tensor(rows), window=window, block_size=2), expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 3])
def test_attention_under_the_mask_is_attention_under_the_dense_one(window: int | None) -> None:
    rows = [[1, 1, 1, 0, 2, 2, 2, 2, 2, 0], [3, 0, 3, 3, 3, 3, 3, 4, 4, 4]]
    query, key, value = torch.randn(3, 2, 2, 10, 16).unbind(0)
    mask = build_block_mask(tensor(rows), window=window, block_size=4)
    dense = build_block_causal_mask(tensor(rows), window=window)
    found = flex_attention(query, key, value, block_mask=mask)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=dense)
    torch.testing.assert_close(found, expected)


def test_known_counts() -> None:
    mask = build_block_mask(tensor([[1, 1, 1, 1, 2, 2, 2, 2]]), block_size=2)
    assert mask.full_kv_num_blocks is not None
    assert (mask.kv_num_blocks + mask.full_kv_num_blocks).tolist() == [[[1, 2, 1, 2]]]


def test_nothing_the_size_of_all_pairs_is_made() -> None:
    ids = torch.ones(1, 2**16, dtype=torch.int32)
    segments = scan_segments(ids)
    tracemalloc.start()
    mask = build_block_mask(segments)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    result = sum(cast("Tensor", getattr(mask, name)).nbytes for name in TENSORS)
    assert peak < 4 * result < ids.numel() ** 2 / 100


@pytest.mark.parametrize("block_size", [0, -1, True, 2.0, (2,), (2, 0), (2, 2, 2), None])
def test_bad_block_sizes_are_refused(block_size: object) -> None:
    with pytest.raises(EncodingError) as caught:
        build_block_mask(tensor([[1]]), block_size=cast("Any", block_size))
    assert caught.value.problems[0].field == "block_size"
    assert str(block_size).strip("()") in str(caught.value)


def test_bad_windows_and_ids_are_refused() -> None:
    with pytest.raises(EncodingError) as caught:
        build_block_mask(tensor([[1]]), window=0)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("window", 0)
    with pytest.raises(DocumentIdsError, match="comes back"):
        build_block_mask(tensor([[1, 2, 1]]))


def test_the_mask_keeps_no_hold_of_the_ids_given() -> None:
    ids = tensor([[1, 1]])
    mask = build_block_mask(ids)
    ids.zero_()
    zero, one = torch.arange(2)
    assert mask.mask_mod(zero, zero, one, zero)


def test_one_host_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tensor([[1, 1, 0, 1, 2, 2], [1, 1, 1, 1, 1, 1]])
    with host_reads(monkeypatch) as reads:
        build_block_mask(ids, block_size=2)
    assert reads.total == 1
    with host_reads(monkeypatch) as reads:
        mask_function(ids)
    assert reads.total == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 100), (False, None)])
def test_compiled_attention_on_a_device_is_attention_under_the_dense_mask(causal: bool, window: int | None) -> None:
    rows = [[1] * 200 + [2] * 130 + [0] * 20 + [2] * 100 + [3] * 62, [7] * 300 + [0] * 212]
    ids = tensor(rows).cuda()
    query, key, value = torch.randn(3, 2, 2, 512, 64, device="cuda", requires_grad=True).unbind(0)
    mask = build_block_mask(ids, causal=causal, window=window)
    found = torch.compile(flex_attention)(query, key, value, block_mask=mask)
    places = torch.arange(512, device="cuda")
    dense = mask.mask_mod(torch.arange(2, device="cuda")[:, None, None, None], places[0], places[:, None], places)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=dense)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    (ours,) = torch.autograd.grad(found.square().sum(), query)
    (theirs,) = torch.autograd.grad(expected.square().sum(), query)
    torch.testing.assert_close(ours, theirs, atol=5e-2, rtol=5e-2)


def test_blocks_are_of_128_places_and_causal_by_default() -> None:
    ids = tensor([[1, 1, 2, 0]])
    static, _ = static_block_mask(ids, StaticBounds(2, 3, 2))
    assert build_block_mask(ids).BLOCK_SIZE == static.BLOCK_SIZE == (128, 128)
    sees_later = mask_function(ids)(*(torch.tensor(place) for place in (0, 0, 0, 1)))
    assert not bool(sees_later)
