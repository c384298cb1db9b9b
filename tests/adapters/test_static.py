"""Fixed shapes: equal to the dynamic encodings on the used part, without a read, in one graph, and never truncated."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from neatpack.adapters import static
from neatpack.adapters.block_mask import build_block_mask
from neatpack.adapters.gathered import gathered_flat, gathered_rows
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.physical import physical_offsets
from neatpack.adapters.positions import build_position_ids
from neatpack.adapters.recurrent import segment_index
from neatpack.adapters.static import StaticBounds, StaticRule
from neatpack.adapters.thd import thd_lengths
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle_static
from tests.adapters.host_reads import HostReads, host_reads
from tests.adapters.layouts import DTYPES, Rows, rows_of_ids, tensor
from tests.adapters.test_block_mask import SIZES, WINDOWS, same_tensors

FEWER = settings(max_examples=50)
WITH_HOLES = rows_of_ids(holes=True)
WITHOUT = rows_of_ids()
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "scan_static": (static.scan_static, 9),
    "static_gathered_rows": (static.static_gathered_rows, 20),
    "static_gathered_flat": (static.static_gathered_flat, 27),
    "static_physical_offsets": (static.static_physical_offsets, 28),
    "static_thd_lengths": (static.static_thd_lengths, 30),
    "static_segment_index": (static.static_segment_index, 26),
    "static_position_ids": (static.static_position_ids, 20),
    "static_block_causal_mask": (static.static_block_causal_mask, 24),
    "static_block_mask": (static.static_block_mask, 106),
}
"""Each function, and how many launches it may take, at most."""


@st.composite
def bounds_of(draw: st.DrawFn, rows: Rows) -> StaticBounds:
    """Bounds that the rows keep, some of them tight."""
    spare = st.sampled_from([0, 1, 2, 3, 50])
    longest = oracle_static.longest(rows) + draw(spare)
    segments = len(oracle_static.physical_offsets(rows, longest)) - 1
    return StaticBounds(oracle_static.most(rows) + draw(spare), segments + draw(spare), longest)


def is_valid(status: Tensor) -> bool:
    static.raise_if_invalid(status)
    return status.dtype == torch.int32 and status.shape == (4,) and int(status[0]) == StaticRule.VALID


@FEWER
@given(WITH_HOLES, st.data(), st.sampled_from(DTYPES))
def test_gathered_rows(rows: Rows, data: st.DataObject, dtype: torch.dtype) -> None:
    bounds = data.draw(bounds_of(rows))
    found, status = static.static_gathered_rows(tensor(rows, dtype), bounds)
    expected = gathered_rows(tensor(rows))
    width = expected.cu_seqlens.shape[1]
    assert is_valid(status)
    assert found.cu_seqlens.shape == (len(rows), bounds.documents + 1)
    assert torch.equal(found.packed_token_indices, expected.packed_token_indices)
    assert torch.equal(found.cu_seqlens[:, :width], expected.cu_seqlens)
    assert (found.cu_seqlens[:, width:] == -1).all()
    assert found.max_seqlen == bounds.longest >= expected.max_seqlen


@FEWER
@given(WITH_HOLES, st.data())
def test_gathered_flat(rows: Rows, data: st.DataObject) -> None:
    bounds = data.draw(bounds_of(rows))
    found, status = static.static_gathered_flat(tensor(rows), bounds)
    expected = gathered_flat(tensor(rows))
    tokens, width = expected.token_indices.numel(), expected.cu_seqlens.numel()
    assert is_valid(status)
    assert found.cu_seqlens.shape == (bounds.segments + 1,)
    assert torch.equal(found.token_indices[:tokens], expected.token_indices)
    assert torch.equal(found.token_indices.sort().values, torch.arange(len(rows) * len(rows[0])))
    assert torch.equal(found.cu_seqlens[:width], expected.cu_seqlens)
    assert (found.cu_seqlens[width:] == tokens).all()


@FEWER
@given(WITH_HOLES, st.data())
def test_gathered_flat_with_padding_as_its_tail(rows: Rows, data: st.DataObject) -> None:
    longest = oracle_static.longest(rows) + data.draw(st.integers(0, 3))
    own = cast("list[int]", gathered_flat(tensor(rows)).cu_seqlens.tolist())
    expected = [*own, *oracle_static.tail_offsets(rows, longest)]
    spare = data.draw(st.integers(-1, 3))
    segments = max(len(expected) - 1 + spare, 1)
    bounds = StaticBounds(oracle_static.most(rows), segments, longest)
    found, status = static.static_gathered_flat(tensor(rows), bounds, "padding")
    if segments < len(expected) - 1:
        assert int(status[0]) == StaticRule.TOO_MANY_SEGMENTS
        return
    assert is_valid(status)
    assert found.cu_seqlens.tolist() == expected + [expected[-1]] * (segments + 1 - len(expected))
    assert int(found.cu_seqlens.diff().max()) <= found.max_seqlen


@FEWER
@given(WITHOUT, st.data())
def test_physical_offsets(rows: Rows, data: st.DataObject) -> None:
    bounds = data.draw(bounds_of(rows))
    found, status = static.static_physical_offsets(tensor(rows), bounds)
    expected = oracle_static.physical_offsets(rows, bounds.longest)
    assert is_valid(status)
    assert found.cu_seqlens.tolist() == expected + [expected[-1]] * (bounds.segments + 1 - len(expected))
    dynamic = physical_offsets(tensor(rows), longest_padding=bounds.longest)
    assert dynamic.cu_seqlens.tolist() == expected
    assert dynamic.max_seqlen <= found.max_seqlen == bounds.longest
    short = StaticBounds(bounds.documents, max(len(expected) - 2, 1), bounds.longest)
    if short.segments < len(expected) - 1:
        _, status = static.static_physical_offsets(tensor(rows), short)
        row, position = divmod(expected[short.segments], len(rows[0]))
        assert status.tolist() == [StaticRule.TOO_MANY_SEGMENTS, row, position, rows[row][position]]


@FEWER
@given(rows_of_ids(leading=False), st.data())
def test_thd_lengths(rows: Rows, data: st.DataObject) -> None:
    bounds = data.draw(bounds_of(rows))
    found, status = static.static_thd_lengths(tensor(rows), bounds)
    expected = thd_lengths(tensor(rows))
    width = expected.seq_lens.shape[1]
    assert is_valid(status)
    for ours, theirs in ((found.seq_lens, expected.seq_lens), (found.seq_lens_padded, expected.seq_lens_padded)):
        assert ours.shape == (len(rows), bounds.documents)
        assert torch.equal(ours[:, :width], theirs)
        assert (ours[:, width:] == -1000).all()


@FEWER
@given(WITHOUT, st.data())
def test_segment_index(rows: Rows, data: st.DataObject) -> None:
    found, status = static.static_segment_index(tensor(rows), data.draw(bounds_of(rows)))
    assert is_valid(status)
    assert torch.equal(found.seq_idx, segment_index(tensor(rows)).seq_idx)


@FEWER
@given(WITH_HOLES, st.data(), st.integers(0, 3))
def test_positions(rows: Rows, data: st.DataObject, start: int) -> None:
    found, status = static.static_position_ids(tensor(rows), data.draw(bounds_of(rows)), start)
    assert is_valid(status)
    assert torch.equal(found, build_position_ids(tensor(rows), start))


@FEWER
@given(WITH_HOLES, st.data(), WINDOWS, st.sampled_from([torch.bool, torch.float32, torch.bfloat16, torch.float64]))
def test_dense_masks(rows: Rows, data: st.DataObject, window: int | None, dtype: torch.dtype) -> None:
    found, status = static.static_block_causal_mask(tensor(rows), data.draw(bounds_of(rows)), dtype, window)
    assert is_valid(status)
    assert torch.equal(found, build_block_causal_mask(tensor(rows), dtype, window))


@FEWER
@given(WITH_HOLES, st.data(), st.booleans(), WINDOWS, SIZES)
def test_block_masks(
    rows: Rows, data: st.DataObject, causal: bool, window: int | None, block_size: int | tuple[int, int]
) -> None:
    bounds = data.draw(bounds_of(rows))
    found, status = static.static_block_mask(tensor(rows), bounds, causal=causal, window=window, block_size=block_size)
    assert is_valid(status)
    assert same_tensors(found, build_block_mask(tensor(rows), causal=causal, window=window, block_size=block_size))


NUMBERS = st.sampled_from([1, 1, 2, 2, 3, 0, 0, -1])
MALFORMED = st.lists(st.lists(NUMBERS, min_size=6, max_size=6), min_size=1, max_size=3)
"""Ids of which most rows break a rule, often more than one."""

EXPRESSED: dict[str, dict[str, bool]] = {
    "static_gathered_rows": {},
    "static_gathered_flat": {},
    "static_physical_offsets": {"holes": False},
    "static_thd_lengths": {"holes": False, "leading": False},
    "static_segment_index": {"holes": False},
    "static_position_ids": {},
    "static_block_causal_mask": {},
    "static_block_mask": {},
}
"""Each function, and what its encoding cannot express."""


@settings(max_examples=100)
@given(MALFORMED, st.data())
def test_the_first_fault_is_told_alike_by_all(rows: Rows, data: st.DataObject) -> None:
    documents, longest = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    for name in EXPRESSED:
        require_first_fault(name, rows, documents, longest)


@pytest.mark.parametrize("name", EXPRESSED)
def test_the_first_fault_of_every_short_row_is_told(name: str) -> None:
    for row in itertools.product((0, 1, 2, -1), repeat=4):
        require_first_fault(name, [list(row)], 2, 2)


def require_first_fault(name: str, rows: Rows, documents: int, longest: int) -> None:
    _, status = FUNCTIONS[name][0](tensor(rows), StaticBounds(documents, 24, longest))
    expected = oracle_static.first_fault(rows, documents, longest, **EXPRESSED[name])
    if expected is None:
        assert is_valid(status)
    else:
        assert (StaticRule(int(status[0])).name, *status[1:].tolist()) == expected


@settings(max_examples=100)
@given(MALFORMED)
def test_what_is_told_is_raised(rows: Rows) -> None:
    _, status = static.static_thd_lengths(tensor(rows), StaticBounds(2, 24, 4))
    expected = oracle_static.first_fault(rows, 2, 4, holes=False, leading=False)
    assume(expected is not None)
    with pytest.raises((DocumentIdsError, EncodingError)) as caught:
        static.raise_if_invalid(status, "ids")
    problem = caught.value.problems[0]
    assert (problem.row, problem.position, problem.value) == cast("tuple[str, int, int, int]", expected)[1:]
    assert problem.field == "ids"
    assert problem.remedy


@pytest.mark.parametrize("name", ["static_physical_offsets", "static_thd_lengths", "static_segment_index"])
def test_holes_are_told_where_places_count(name: str) -> None:
    _, status = FUNCTIONS[name][0](tensor([[1, 1, 1, 0], [2, 2, 0, 2]]), StaticBounds(2, 8, 4))
    assert cast("Tensor", status).tolist() == [StaticRule.HOLE, 1, 3, 2]
    with pytest.raises(DocumentIdsError, match="hole"):
        static.raise_if_invalid(status)


def test_padding_before_documents_is_told_where_lengths_follow_each_other() -> None:
    _, status = static.static_thd_lengths(tensor([[1, 1], [0, 2]]), StaticBounds(2, 4, 2))
    assert status.tolist() == [StaticRule.LEADING_PADDING, 1, 0, 0]


@pytest.mark.parametrize("tail", static.TAILS)
def test_more_segments_than_the_bound_are_told_where_the_first_of_them_begins(tail: static.Tail) -> None:
    ids, bounds = tensor([[1, 2, 0, 3], [4, 0, 0, 0]]), StaticBounds(3, 3, 4)
    _, status = static.static_gathered_flat(ids, bounds, tail)
    # Three documents fill the bound: the place left out in the first row finds no segment any more.
    first = {"empty": [StaticRule.TOO_MANY_SEGMENTS, 1, 0, 4], "padding": [StaticRule.TOO_MANY_SEGMENTS, 0, 2, 0]}
    assert status.tolist() == first[tail]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "scan_static"])
def test_a_scan_under_other_bounds_is_refused(name: str) -> None:
    scan = static.scan_static(tensor([[1, 2]]), StaticBounds(2, 2, 2))
    with pytest.raises(EncodingError, match="not those of the scan"):
        FUNCTIONS[name][0](scan, StaticBounds(1, 2, 2))


def test_a_bound_that_is_exceeded_raises_and_truncates_nothing() -> None:
    _, status = static.static_position_ids(tensor([[1, 1, 1, 1, 1, 1, 2, 2]]), StaticBounds(2, 8, 5))
    with pytest.raises(EncodingError, match="longer than the bound") as caught:
        static.raise_if_invalid(status)
    assert "nothing is truncated" in caught.value.problems[0].remedy
    found, status = static.static_physical_offsets(tensor([[1, 1, 2, 2, 2, 2, 2, 2]]), StaticBounds(3, 3, 8))
    assert is_valid(status)
    assert (found.cu_seqlens.tolist(), found.max_seqlen) == ([0, 2, 8, 8], 8)


def test_values_beyond_int32_are_told_as_its_limit() -> None:
    _, status = static.static_gathered_rows(tensor([[1, -(2**40)]]), StaticBounds(2, 2, 2))
    assert status.tolist() == [StaticRule.NEGATIVE_ID, 0, 1, -(2**31)]
    _, status = static.static_gathered_rows(tensor([[2**62, 2**62, 3, 2**33, 2**62]]), StaticBounds(3, 3, 3))
    assert status.tolist() == [StaticRule.RETURNING_ID, 0, 4, 2**31 - 1]
    _, status = static.static_gathered_rows(tensor([[2**63 - 1, 2**62, 2**33, 2**33, 2**31]]), StaticBounds(4, 4, 4))
    assert is_valid(status)


def test_form_is_refused_without_a_look_at_values() -> None:
    bounds = StaticBounds(1, 1, 1)
    for ids in (torch.ones(2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.ones(0, 2).long()):
        with pytest.raises(DocumentIdsError):
            static.static_gathered_rows(ids, bounds)
    with pytest.raises(EncodingError) as caught:
        StaticBounds(1, 0, 1)
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("segments", 0)
    assert type(StaticBounds(cast("int", np.int64(3)), 1, 1).documents) is int
    with pytest.raises(EncodingError, match="'empty', 'padding'"):
        static.static_gathered_flat(tensor([[1]]), bounds, cast("Any", "zeros"))
    with pytest.raises(EncodingError, match="no mask dtype"):
        static.static_block_causal_mask(tensor([[1]]), bounds, torch.int32)


def test_the_comparison_sees_planted_faults() -> None:
    """A bound that is too small is never valid."""
    rows = [[1, 2, 3, 0]]
    for bounds in (StaticBounds(2, 9, 9), StaticBounds(3, 2, 9)):
        with pytest.raises(EncodingError, match="than the bound"):
            is_valid(static.static_gathered_flat(tensor(rows), bounds)[1])
    assert is_valid(static.static_gathered_flat(tensor(rows), StaticBounds(3, 3, 1))[1])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_host_read_and_few_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, bounds = tensor([[1, 1, 2, 0, 3, 3], [4, 4, 4, 4, 4, 0]]), StaticBounds(4, 12, 6)
    function, launches = FUNCTIONS[name]
    with host_reads(monkeypatch) as reads:
        function(ids, bounds)
    assert reads.total == 0
    assert len(reads.launches) <= launches


def test_the_counter_sees_planted_reads() -> None:
    ids = tensor([[1, 1, 2, 0]])
    for read in (lambda: int(ids.max()), lambda: ids[ids != 0], lambda: ids.nonzero(), lambda: ids[0][ids[0, 0]]):
        with HostReads() as reads:
            read()
        assert reads.total >= 1


def everything(ids: Tensor, bounds: StaticBounds) -> list[Any]:
    """Derive all at once; of a block mask its tensors, since a graph gives nothing else back."""
    scan = static.scan_static(ids, bounds)
    mask, status = static.static_block_mask(scan, bounds, block_size=4)
    given_back = [getattr(mask, name) for name in ("kv_num_blocks", "kv_indices", "full_kv_indices", "q_indices")]
    others = [
        function(scan, bounds)
        for name, (function, _) in FUNCTIONS.items()
        if name not in ("scan_static", "static_block_mask")
    ]
    return [*scan[1:], *given_back, status, *others, static.static_gathered_flat(ids, bounds, "padding")]


def flattened(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for each in cast("list[Any]", value) for leaf in flattened(each)]
    if isinstance(value, (Tensor, int)):
        return [value]
    return flattened([*cast("dict[str, Any]", vars(value)).values()])


@pytest.mark.slow
def test_one_graph_holds_the_whole_derivation_for_every_shape() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(everything, fullgraph=True, dynamic=True, backend=backend)
    bounds = StaticBounds(4, 40, 8)
    for rows in ([[1, 1, 2, 0, 3, 3], [4, 4, 4, 4, 4, 0]], [[1] * 7 + [0]] * 3, [[1, 2, 0, 3] * 2 + [4] * 3] * 2):
        ids = tensor(rows)
        found, expected = flattened(compiled(ids, bounds)), flattened(everything(ids, bounds))
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs
    assert len(graphs) == 1


@pytest.mark.slow
def test_the_graph_can_be_taken_apart_into_what_compilers_lower() -> None:
    ids, bounds = tensor([[1, 1, 2, 0, 3, 3], [4, 4, 4, 4, 4, 0]]), StaticBounds(4, 12, 6)

    def tensors(ids: Tensor) -> list[Tensor]:
        return [leaf for leaf in flattened(everything(ids, bounds)) if isinstance(leaf, Tensor)]

    found = torch.compile(tensors, fullgraph=True, backend="aot_eager_decomp_partition")(ids)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, tensors(ids), strict=True))


def test_nothing_depends_on_values() -> None:
    """A fake tensor has none, so that any read of one raises."""
    with FakeTensorMode():
        everything(torch.ones(2, 8, dtype=torch.int64), StaticBounds(2, 16, 8))


@FEWER
@given(WITH_HOLES, st.data())
def test_a_scan_serves_several_encodings(rows: Rows, data: st.DataObject) -> None:
    bounds = data.draw(bounds_of(rows))
    scan = static.scan_static(tensor(rows), bounds)
    for name, (function, _) in FUNCTIONS.items():
        if name in ("scan_static", "static_block_mask"):
            continue
        for ours, theirs in zip(
            flattened(function(scan, bounds)), flattened(function(tensor(rows), bounds)), strict=True
        ):
            assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs


@pytest.mark.gpu
def test_a_device_is_never_waited_for() -> None:
    ids, bounds = tensor([[1, 1, 2, 0, 3, 3], [4, 4, 4, 4, 4, 0]]).cuda(), StaticBounds(4, 12, 6)
    everything(ids, bounds)
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        everything(ids, bounds)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
