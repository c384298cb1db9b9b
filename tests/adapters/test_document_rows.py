"""Other rows for the tokens of a packed batch, against plain loops over the ids."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import DocumentRows, document_rows, joined_row
from neatpack.contracts import BatchError, DocumentIdsError, PlanError
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import DTYPES, Rows, rows_of_ids, tensor
from tests.adapters.oracle_runs import runs
from tests.adapters.properties import holds_for


def documents(rows: Rows, values: list[list[int]]) -> list[list[int]]:
    """Give the values of each document, all rows in order."""
    return [
        own[start:stop] for row, own in zip(rows, values, strict=True) for number, start, stop in runs(row) if number
    ]


def numbered(rows: Rows) -> list[list[int]]:
    """Give every place a value of its own, from 1."""
    width = len(rows[0])
    return [list(range(1 + width * row, 1 + width * (row + 1))) for row in range(len(rows))]


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Rows, list[list[int]] | None]:
    """Rows, and their documents in groups, or no groups."""
    rows = draw(rows_of_ids())
    count = len(documents(rows, rows))
    if draw(st.booleans()):
        return rows, None
    order = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.sets(st.integers(1, max(count - 1, 1)))))
    bounds = [0, *(cut for cut in cuts if cut < count), count]
    groups = [list(order[start:stop]) for start, stop in pairwise(bounds)]
    return rows, [group for group in groups if group]


def takes_right(rows: Rows, groups: list[list[int]] | None, found: DocumentRows) -> bool:
    values, own = torch.tensor(numbered(rows)), documents(rows, numbered(rows))
    every = [list(range(len(own)))] if groups is None else groups
    for batch, group in enumerate(every if own else []):
        longest = max(len(own[document]) for document in group)
        expected = [own[document] + [-5] * (longest - len(own[document])) for document in group]
        if found.take(values, batch, fill=-5).tolist() != expected:
            return False
    return True


def puts_back(rows: Rows, found: DocumentRows) -> bool:
    values = torch.tensor(numbered(rows))
    back = found.put_back([found.take(values, batch, fill=-5) for batch in range(len(found.places))])
    return back.equal(values.where(tensor(rows) != 0, 0))


@holds_for(case=grouped(), dtype=st.sampled_from(DTYPES))
def test_documents_get_rows_of_their_own_and_go_back(
    case: tuple[Rows, list[list[int]] | None], dtype: torch.dtype
) -> None:
    rows, groups = case
    found = document_rows(tensor(rows, dtype), groups)
    assert takes_right(rows, groups, found)
    assert puts_back(rows, found)


def test_the_properties_see_planted_faults() -> None:
    rows = [[1, 1, 2, 0], [3, 3, 3, 3]]
    right = document_rows(tensor(rows))
    assert takes_right(rows, None, right)
    assert puts_back(rows, right)
    shifted = DocumentRows(
        right.shape, right.lengths, (right.places[0].roll(1),), right.padding, right.sources, right.in_no_document
    )
    assert not takes_right(rows, None, shifted)
    assert not puts_back(rows, shifted)
    leaking = DocumentRows(
        right.shape, right.lengths, right.places, right.padding, right.sources, torch.zeros(8, dtype=torch.bool)
    )
    assert not puts_back(rows, leaking)


@holds_for(rows=rows_of_ids(holes=True))
def test_all_rows_in_one(rows: Rows) -> None:
    found = joined_row(tensor(rows))
    assert found.take(torch.tensor(numbered(rows)), 0).tolist() == [[value for row in numbered(rows) for value in row]]
    assert puts_back(rows, found)


def test_values_of_any_rank_move_and_carry_gradients() -> None:
    ids = torch.tensor([[1, 1, 2, 0], [3, 3, 3, 3]])
    found = document_rows(ids)
    positions = torch.arange(24).view(3, 2, 4)
    assert found.take(positions, 0, axis=1).shape == (3, 3, 4)
    states = torch.randn(2, 4, 5, requires_grad=True)
    back = found.put_back([found.take(states, 0)])
    assert back.equal(states.masked_fill((ids == 0)[..., None], 0))
    back.sum().backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert states.grad.equal((ids != 0)[..., None].expand(2, 4, 5).float())


def test_a_batch_of_padding_is_one_place_of_padding() -> None:
    found = document_rows(torch.zeros(2, 3, dtype=torch.int64))
    assert [tuple(places.shape) for places in found.places] == [(1, 1)]
    assert found.take(torch.full((2, 3), 7), 0, fill=9).tolist() == [[9]]
    assert found.put_back([torch.ones(1, 1, 4)]).equal(torch.zeros(2, 3, 4))


def test_ids_are_read_once_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.tensor([[1, 1, 2, 0]])
    with host_reads(monkeypatch) as reads:
        rows = document_rows(ids)
        rows.put_back([rows.take(ids, 0)])
    assert reads.total == 1


@pytest.mark.parametrize("groups", [[], [[0]], [[0, 1], []], [[0, 0, 1]], [[0, 1], [2]]])
def test_groups_that_miss_documents_are_refused(groups: list[list[int]]) -> None:
    with pytest.raises(PlanError, match="each of 2 documents once"):
        document_rows(torch.tensor([[1, 1, 2, 0]]), groups)


def test_what_does_not_fit_is_refused() -> None:
    found = document_rows(torch.tensor([[1, 1, 2, 0]]))
    with pytest.raises(BatchError, match="one entry per place"):
        found.take(torch.zeros(1, 3), 0)
    with pytest.raises(BatchError, match="one entry per place"):
        found.put_back([torch.zeros(2, 3)])
    with pytest.raises(BatchError, match="one for each of 1 batches"):
        found.put_back([])
    wrong: Tensor = cast("Tensor", [[1, 2, 3, 4]])
    with pytest.raises(BatchError, match=r"must be a torch\.Tensor"):
        found.take(wrong, 0)
    with pytest.raises(DocumentIdsError, match="a hole"):
        document_rows(torch.tensor([[1, 0, 1, 0]]))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_values_that_torch_does_not_move_are_refused(dtype: torch.dtype) -> None:
    rows = document_rows(torch.tensor([[1, 1, 2]]))
    with pytest.raises(BatchError, match="dtype that cannot be moved"):
        rows.take(torch.zeros(1, 3).to(dtype), 0)
    with pytest.raises(BatchError, match="dtype that cannot be moved"):
        rows.put_back([torch.zeros(2, 2).to(dtype)])


def test_all_rows_in_one_are_one_row_without_padding() -> None:
    row = joined_row(torch.tensor([[1, 0], [1, 2]]))
    assert [tuple(each.shape) for each in (*row.places, *row.padding)] == [(1, 4), (1, 4)]
    assert not row.is_padded(0)


def test_results_of_several_batches_go_back_together() -> None:
    rows = document_rows(torch.tensor([[1, 1, 2, 0]]), [[1], [0]])
    parts = [torch.tensor([[30]]), torch.tensor([[10, 11]])]
    assert rows.put_back(parts).tolist() == [[10, 11, 30, 0]]


_FILLS = [
    (torch.uint8, -100),
    (torch.uint8, 256),
    (torch.int8, 128),
    (torch.bool, 2),
    (torch.float16, 2**16),
    (torch.int64, 2**63),
    (torch.float32, 2**70),
    (torch.float32, 0.5),
    (torch.int64, None),
    (torch.int64, True),
]


@pytest.mark.parametrize(("dtype", "fill"), _FILLS)
def test_what_the_values_cannot_hold_is_no_fill(dtype: torch.dtype, fill: Any) -> None:
    rows = document_rows(torch.tensor([[1, 1, 2]]))
    with pytest.raises(BatchError, match="fill"):
        rows.take(torch.zeros(1, 3, dtype=dtype), 0, fill=fill)


@pytest.mark.parametrize(
    ("dtype", "fill"), [(torch.uint8, 255), (torch.bool, 1), (torch.float16, -65504), (torch.int64, -(2**63))]
)
def test_what_the_values_hold_is_a_fill(dtype: torch.dtype, fill: int) -> None:
    taken = document_rows(torch.tensor([[1, 1, 2]])).take(torch.zeros(1, 3, dtype=dtype), 0, fill=fill)
    assert taken.tolist() == [[0, 0], [0, fill]]


@pytest.mark.parametrize("batch", [-1, 1, 9, None, 0.0, True])
def test_batches_count_from_0(batch: Any) -> None:
    rows = document_rows(torch.tensor([[1, 1, 2]]))
    with pytest.raises(BatchError, match="batch"):
        rows.is_padded(batch)
    with pytest.raises(BatchError, match="batch"):
        rows.take(torch.zeros(1, 3), batch)


@pytest.mark.parametrize("axis", [-2, 1, 9, None, "0"])
def test_the_axis_is_that_of_the_packed_rows(axis: Any) -> None:
    with pytest.raises(BatchError, match=r"axis|dimension"):
        document_rows(torch.tensor([[1, 1, 2]])).take(torch.zeros(1, 3), 0, axis=axis)


@pytest.mark.parametrize(
    "parts",
    [
        None,
        3,
        iter(()),
        [torch.zeros(1, 1), torch.zeros(1, 2, 2)],
        [torch.zeros(1, 1, device="meta"), torch.zeros(1, 2)],
    ],
)
def test_parts_are_alike_and_where_the_ids_lay(parts: Any) -> None:
    with pytest.raises(BatchError, match="parts"):
        document_rows(torch.tensor([[1, 1, 2]]), [[1], [0]]).put_back(parts)
