"""Fixed shapes: equal to the dynamic encodings on the used part, without a read, in one graph, and never truncated."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from neatpack.adapters import static
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.neat_metadata import gathered_rows
from neatpack.adapters.physical import physical_offsets
from neatpack.adapters.positions import build_position_ids
from neatpack.adapters.recurrent import segment_index
from neatpack.adapters.static_masks import static_block_mask
from neatpack.adapters.static_scan import StaticBounds, scan_static
from neatpack.adapters.static_status import StaticRule
from neatpack.adapters.thd import thd_lengths
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle_static
from tests.adapters.host_reads import HostReads, host_reads
from tests.adapters.layouts import DTYPES, Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for
from tests.adapters.static_functions import FEWER, FUNCTIONS, LAUNCHES, WITH_HOLES, bounds_of, flattened, is_valid

WITHOUT = rows_of_ids()


@FEWER
@holds_for(rows=WITH_HOLES, data=st.data(), dtype=st.sampled_from(DTYPES))
def test_gathered_rows_are_those_without_bounds(rows: Rows, data: st.DataObject, dtype: torch.dtype) -> None:
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
@holds_for(rows=WITH_HOLES, data=st.data())
def test_the_gathered_stream_is_that_without_bounds(rows: Rows, data: st.DataObject) -> None:
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
@holds_for(rows=WITH_HOLES, data=st.data())
def test_the_tail_of_a_stream_holds_the_places_left_out(rows: Rows, data: st.DataObject) -> None:
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
@holds_for(rows=WITHOUT, data=st.data())
def test_physical_offsets_are_those_without_bounds(rows: Rows, data: st.DataObject) -> None:
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
@holds_for(rows=rows_of_ids(leading=False), data=st.data())
def test_lengths_are_those_without_bounds(rows: Rows, data: st.DataObject) -> None:
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
@holds_for(rows=WITHOUT, data=st.data())
def test_segment_numbers_are_those_without_bounds(rows: Rows, data: st.DataObject) -> None:
    found, status = static.static_segment_index(tensor(rows), data.draw(bounds_of(rows)))
    assert is_valid(status)
    assert torch.equal(found.seq_idx, segment_index(tensor(rows)).seq_idx)


@FEWER
@holds_for(rows=WITH_HOLES, data=st.data(), start=st.integers(0, 3))
def test_positions_are_those_without_bounds(rows: Rows, data: st.DataObject, start: int) -> None:
    found, status = static.static_position_ids(tensor(rows), data.draw(bounds_of(rows)), start)
    assert is_valid(status)
    assert torch.equal(found, build_position_ids(tensor(rows), start))


def test_form_is_refused_without_a_look_at_values() -> None:
    bounds = StaticBounds(1, 1, 1)
    for ids in (torch.ones(2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.ones(0, 2).long()):
        with pytest.raises(DocumentIdsError):
            static.static_gathered_rows(ids, bounds)
    with pytest.raises(EncodingError, match="'empty', 'padding'"):
        static.static_gathered_flat(tensor([[1]]), bounds, cast("Any", "zeros"))


@pytest.mark.parametrize("longest", [6, 5])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_host_read_and_few_launches(name: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, bounds = tensor([[1, 1, 2, 0, 3, 3], [4, 4, 4, 4, 4, 0]]), StaticBounds(4, 12, longest)
    with host_reads(monkeypatch) as reads:
        FUNCTIONS[name](ids, bounds)
    assert reads.total == 0
    assert len(reads.launches) <= LAUNCHES[name][longest < ids.shape[1]]


def test_the_counter_sees_planted_reads() -> None:
    ids = tensor([[1, 1, 2, 0]])
    for read in (lambda: int(ids.max()), lambda: ids[ids != 0], lambda: ids.nonzero(), lambda: ids[0][ids[0, 0]]):
        with HostReads() as reads:
            read()
        assert reads.total >= 1


def everything(ids: Tensor, bounds: StaticBounds) -> list[Any]:
    """Derive all at once; of a block mask its tensors, since a graph gives nothing else back."""
    scan = scan_static(ids, bounds)
    mask, status = static_block_mask(scan, bounds, block_size=4)
    given_back = [getattr(mask, name) for name in ("kv_num_blocks", "kv_indices", "full_kv_indices", "q_indices")]
    others = [
        function(scan, bounds)
        for name, function in FUNCTIONS.items()
        if name not in ("scan_static", "static_block_mask")
    ]
    return [*scan[1:], *given_back, status, *others, static.static_gathered_flat(ids, bounds, "padding")]


@pytest.mark.slow
@pytest.mark.parametrize("longest", [5, 11])
def test_one_graph_holds_the_whole_derivation_for_every_shape(longest: int) -> None:
    """One of rows that are longer than a document may be, and one of others."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(everything, fullgraph=True, dynamic=True, backend=backend)
    bounds = StaticBounds(4, 40, longest)
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
