from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import strategies as st

from neatpack.adapters import physical_offsets_from_positions
from neatpack.contracts.errors import EncodingError
from tests.adapters.properties import holds_for

rows = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3)


@holds_for(
    rows=rows, begun=st.integers(0, 4), dtype=st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.uint64])
)
def test_documents_of_known_lengths_are_found(rows: list[list[int]], begun: int, dtype: torch.dtype) -> None:
    """The last document is made as long as the row needs; the first may go on from `begun`."""
    width = max(map(sum, rows))
    positions: list[list[int]] = []
    offsets = [0]
    for lengths in rows:
        filled = [*lengths[:-1], width - sum(lengths[:-1])]
        row = [place for length in filled for place in range(length)]
        row[: filled[0]] = range(begun, begun + filled[0])
        positions.append(row)
        for length in filled:
            offsets.append(offsets[-1] + length)
    found = physical_offsets_from_positions(torch.tensor(positions, dtype=dtype))
    assert torch.equal(found.cu_seqlens, torch.tensor(offsets, dtype=torch.int32))
    assert found.max_seqlen == max(end - start for start, end in pairwise(offsets))


@pytest.mark.parametrize("row", [[0, 1, 1], [0, 2, 3], [0, 1, 5], [2, 0, 0, 3]])
def test_positions_that_do_not_tell_lengths_are_refused(row: list[int]) -> None:
    with pytest.raises(EncodingError) as caught:
        physical_offsets_from_positions(torch.tensor([list(range(len(row))), row]))
    (problem,) = caught.value.problems
    assert (problem.field, problem.row, problem.position) == ("position_ids", 1, len(row) - 1)


def test_the_first_document_whose_positions_do_not_tell_its_length_is_named() -> None:
    with pytest.raises(EncodingError) as caught:
        physical_offsets_from_positions(torch.tensor([[0, 1, 2, 0, 1], [0, 7, 0, 1, 8]]))
    (problem,) = caught.value.problems
    assert (problem.row, problem.position, problem.value) == (1, 1, 7)
    assert "over the 2 tokens" in problem.message


@pytest.mark.parametrize(
    ("dtype", "row"), [(torch.uint8, [250, 1, 1, 1, 1, 1, 1, 1, 1, 3]), (torch.int8, [100, *[1] * 98, -57])]
)
def test_positions_do_not_wrap_where_their_dtype_does(dtype: torch.dtype, row: list[int]) -> None:
    """In the dtype of the positions, the last less the first is one less than there are tokens."""
    with pytest.raises(EncodingError):
        physical_offsets_from_positions(torch.tensor([row], dtype=dtype))


def test_more_positions_than_int32_counts_are_refused_unread() -> None:
    with pytest.raises(EncodingError, match="more places than int32 offsets can count"):
        physical_offsets_from_positions(torch.zeros(1, 1, dtype=torch.int64).expand(2**16, 2**16))


@pytest.mark.parametrize("positions", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), None])
def test_what_is_no_row_of_positions_is_refused(positions: torch.Tensor) -> None:
    with pytest.raises(EncodingError):
        physical_offsets_from_positions(positions)
