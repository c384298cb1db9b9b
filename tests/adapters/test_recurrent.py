"""Where recurrent state restarts, in the forms that convolutions, state-space and delta-rule kernels take."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

from itertools import accumulate
from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st

from neatpack.adapters.kernel_arguments import fla_kwargs
from neatpack.adapters.recurrent import (
    document_ids_from_segment_index,
    gathered_states,
    physical_states,
    segment_ids_from_offsets,
    segment_index,
)
from neatpack.contracts.encodings import GatheredStates, PhysicalStates, SegmentIndex, validate_segment_index
from neatpack.contracts.errors import DocumentIdsError, EncodingError
from tests.adapters import oracle_recurrent
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import DTYPES, Rows, rows_of_ids, tensor
from tests.adapters.oracle_runs import canonical
from tests.adapters.properties import holds_for


@holds_for(rows=rows_of_ids(), dtype=st.sampled_from(DTYPES))
def test_segment_index_and_the_way_back(rows: Rows, dtype: torch.dtype) -> None:
    ids = tensor(rows, dtype)
    unused, numbered = segment_index(ids), segment_index(ids, "numbered")
    assert unused.seq_idx.tolist() == oracle_recurrent.segment_index(rows, numbered=False)
    assert numbered.seq_idx.tolist() == oracle_recurrent.segment_index(rows, numbered=True)
    assert validate_segment_index(unused) == validate_segment_index(numbered) == []
    assert unused.seq_idx.is_contiguous()
    assert document_ids_from_segment_index(unused).tolist() == canonical(rows)
    assert document_ids_from_segment_index(numbered, ids == 0).tolist() == canonical(rows)


def test_the_oracle_sees_planted_faults() -> None:
    rows = [[5, 5, 0, 3], [1, 1, 1, 1]]
    right = oracle_recurrent.segment_index(rows, numbered=False)
    assert segment_index(tensor(rows)).seq_idx.tolist() == right
    one_based, over_rows, by_offset = [[1, 1, 0, 2]], [[0, 0, -1, 1], [2, 2, 2, 2]], [[0, 0, -1, 3], [0, 0, 0, 0]]
    assert right not in (one_based, over_rows, by_offset)


@holds_for(rows=rows_of_ids(holes=True), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_gathered_restarts(rows: Rows, dtype: torch.dtype) -> None:
    states = gathered_states(tensor(rows), dtype)
    places, offsets = oracle_recurrent.gathered_restarts(rows)
    assert (states.token_indices.tolist(), states.cu_seqlens.tolist()) == (places, offsets)
    assert states.cu_seqlens.dtype == states.cu_seqlens_cpu.dtype == dtype
    assert torch.equal(states.cu_seqlens, states.cu_seqlens_cpu)


@holds_for(rows=rows_of_ids(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_physical_restarts(rows: Rows, dtype: torch.dtype) -> None:
    states = physical_states(tensor(rows), "run", dtype)
    assert states.cu_seqlens.tolist() == oracle_recurrent.physical_restarts(rows)
    assert states.cu_seqlens.dtype == dtype
    assert torch.isin(states.cu_seqlens, physical_states(tensor(rows)).cu_seqlens).all()


@holds_for(rows=rows_of_ids())
def test_no_segment_is_without_a_token(rows: Rows) -> None:
    for states in (gathered_states(tensor(rows)), physical_states(tensor(rows))):
        assert (states.cu_seqlens.diff() > 0).all()


def test_the_host_copy_is_a_copy() -> None:
    states = gathered_states(tensor([[1, 1, 2]]))
    states.cu_seqlens.add_(1)
    assert states.cu_seqlens_cpu.tolist() == [0, 2, 3]
    kwargs = fla_kwargs(states)
    assert kwargs["cu_seqlens"] is states.cu_seqlens
    assert kwargs["cu_seqlens_cpu"] is states.cu_seqlens_cpu


@holds_for(
    steps=st.lists(st.integers(-1, 3), max_size=6),
    first=st.integers(0, 1),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_offsets_for_fla_rise_from_zero(steps: list[int], first: int, dtype: torch.dtype) -> None:
    offsets = torch.tensor(list(accumulate(steps, initial=first)), dtype=dtype)
    states = PhysicalStates(offsets.clone(), offsets)
    if first == 0 and all(step > 0 for step in steps):
        assert fla_kwargs(states)["cu_seqlens_cpu"] is offsets
    else:
        with pytest.raises(EncodingError) as caught:
            fla_kwargs(states)
        (problem,) = caught.value.problems
        place = cast("int", problem.position)
        assert (problem.field, problem.value) == ("cu_seqlens_cpu", offsets[place])
        assert place == 0 if first else steps[place - 1] <= 0


@pytest.mark.parametrize(
    ("field", "on_device", "on_host"),
    [
        ("cu_seqlens", torch.tensor([0, 2]), torch.tensor([0, 1, 2])),
        ("cu_seqlens", torch.tensor([0, 2]).int(), torch.tensor([0, 2])),
        ("cu_seqlens", None, torch.tensor([0, 2])),
        ("cu_seqlens_cpu", torch.tensor([0, 2]), [0, 2]),
        ("cu_seqlens_cpu", torch.tensor([[0, 2]]), torch.tensor([[0, 2]])),
        ("cu_seqlens_cpu", torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2.0])),
    ],
)
def test_both_copies_of_offsets_for_fla_are_of_one_kind(field: str, on_device: Any, on_host: Any) -> None:
    with pytest.raises(EncodingError) as caught:
        fla_kwargs(GatheredStates(torch.arange(2), on_device, on_host))
    assert caught.value.problems[0].field == field


@holds_for(
    lengths=st.lists(st.integers(0, 5), max_size=8),
    beyond=st.integers(0, 4),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_segment_ids_from_offsets(lengths: list[int], beyond: int, dtype: torch.dtype) -> None:
    offsets = torch.tensor([sum(lengths[:count]) for count in range(len(lengths) + 1)], dtype=dtype)
    expected = [number for number, length in enumerate([*lengths, beyond]) for _ in range(length)]
    found = segment_ids_from_offsets(offsets, sum(lengths) + beyond)
    assert (found.tolist(), found.dtype) == (expected, torch.int32)
    assert segment_ids_from_offsets(offsets).tolist() == expected[: sum(lengths)]


@pytest.mark.parametrize(
    ("offsets", "total", "field", "value"),
    [
        (torch.tensor([1, 2]), None, "cu_seqlens", 1),
        (torch.tensor([0, 3, 2]), None, "cu_seqlens", 2),
        (torch.tensor([0, 3]), 2, "total_tokens", 2),
        (torch.tensor([0, 3]), 2**31, "total_tokens", 2**31),
        (torch.tensor([[0, 3]]), None, "cu_seqlens", (1, 2)),
        (torch.tensor([], dtype=torch.int32), None, "cu_seqlens", (0,)),
        (torch.tensor([0.0, 3.0]), None, "cu_seqlens", torch.float32),
        ([0, 3], None, "cu_seqlens", "list"),
    ],
)
def test_bad_offsets_are_refused(offsets: object, total: int | None, field: str, value: object) -> None:
    with pytest.raises(EncodingError) as caught:
        segment_ids_from_offsets(offsets, total)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == (field, value)


def test_holes_are_refused_where_places_count() -> None:
    ids = tensor([[1, 1, 1], [1, 0, 1]])
    for function in (segment_index, physical_states):
        with pytest.raises(DocumentIdsError, match="hole") as caught:
            function(ids)
        assert (caught.value.problems[0].row, caught.value.problems[0].position) == (1, 1)


def test_bad_arguments_are_refused() -> None:
    ids = tensor([[1]])
    for function in (gathered_states, physical_states):
        with pytest.raises(EncodingError, match=r"torch\.int32 or torch\.int64"):
            function(ids, dtype=torch.float32)
    with pytest.raises(EncodingError, match="'unused', 'numbered'"):
        segment_index(ids, "tail")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_number_that_comes_back_is_refused() -> None:
    index = SegmentIndex(torch.tensor([[0, 1, 0]], dtype=torch.int32))
    with pytest.raises(DocumentIdsError, match="comes back") as caught:
        document_ids_from_segment_index(index)
    assert (caught.value.problems[0].field, caught.value.problems[0].position) == ("seq_idx", 2)
    with pytest.raises(EncodingError, match="must have the shape of seq_idx"):
        document_ids_from_segment_index(index, torch.zeros(1, 2, dtype=torch.bool))
    with pytest.raises(EncodingError, match="int32"):
        document_ids_from_segment_index(SegmentIndex(torch.tensor([[0, 1]])))


def test_one_host_read_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tensor([[1, 1, 2, 0]])
    index, offsets = segment_index(ids), torch.tensor([0, 2, 3])
    calls = (
        lambda: segment_index(ids),
        lambda: gathered_states(ids),
        lambda: physical_states(ids),
        lambda: segment_ids_from_offsets(offsets, 4),
        lambda: document_ids_from_segment_index(index),
        lambda: document_ids_from_segment_index(index, ids == 0),
    )
    for call in calls:
        with host_reads(monkeypatch) as reads:
            call()
        assert reads.total == 1
