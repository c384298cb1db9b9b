"""Rules 14 and 15: every token is placed exactly once, and results come back to the caller's documents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import RowPlan, check_agreement, collate_documents, plan_rows, unpack
from neatpack.adapters.strategies import attention_document_ids
from neatpack.contracts.batch import validate_training_batch
from neatpack.contracts.errors import BatchError, PlanError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of

_LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@holds_for(lengths=_LENGTHS, room=st.integers(0, 12))
def test_first_fit_places_every_document_once(lengths: list[int], room: int) -> None:
    plan = plan_rows(lengths, max(lengths) + room)
    assert [list(row) for row in plan.rows] == oracle.first_fit(lengths, max(lengths) + room)
    assert sorted(document for row in plan.rows for document in row) == list(range(len(lengths)))
    assert plan.fill == sum(lengths) / (len(plan.rows) * plan.capacity)


@holds_for(lengths=_LENGTHS, room=st.integers(0, 12), data=st.data())
def test_collation_places_every_token_once_and_unpacking_returns_it(
    lengths: list[int], room: int, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from((torch.int64, torch.int32)))
    documents = [torch.arange(length, dtype=dtype) + 100 * index for index, length in enumerate(lengths, start=1)]
    plan = plan_rows(lengths, max(lengths) + room)
    batch = collate_documents(documents, plan, pad_token_id=7)
    assert validate_training_batch(batch) == []
    ids, keys = batch.get("document_ids", batch["labels"]), batch.get("document_keys", batch["labels"])
    rows = rows_of(ids)
    check_agreement(ids, batch)
    assert rows == oracle.canonical(rows)
    assert listed(batch["position_ids"]) == oracle.positions(rows)
    assert listed(batch["padding_mask"]) == [[number == 0 for number in row] for row in rows]
    assert batch["input_ids"].dtype == torch.int64
    assert bool((batch["input_ids"][batch["padding_mask"]] == 7).all())
    tokens = sorted(token for document in documents for token in listed(document))
    assert sorted(listed(batch["input_ids"][~batch["padding_mask"]])) == tokens
    assert listed(batch["labels"]) == [
        [token if oracle.kept_label(rows, rows, row, place, "model") else -100 for place, token in enumerate(numbers)]
        for row, numbers in enumerate(listed(batch["input_ids"]))
    ]
    for found, document in zip(unpack(batch["input_ids"], ids, keys), documents, strict=True):
        assert listed(found) == listed(document)


@holds_for(lengths=_LENGTHS, room=st.integers(0, 12), data=st.data())
def test_unpacking_survives_a_cut_along_the_rows(lengths: list[int], room: int, data: st.DataObject) -> None:
    plan = plan_rows(lengths, max(lengths) + room)
    batch = collate_documents([torch.full((length,), 5) for length in lengths], plan)
    ids, keys = batch.get("document_ids", batch["labels"]), batch.get("document_keys", batch["labels"])
    order = data.draw(st.permutations(range(len(plan.rows))))
    cut = data.draw(st.integers(0, len(order)))
    results = torch.stack([torch.arange(ids.numel()).view(ids.shape), ids], dim=-1)
    for part in (order[:cut], order[cut:]):
        if not part:
            continue
        found = unpack(results[part], ids[part], keys[part])
        expected = sorted(document for row in part for document in plan.rows[row])
        assert [len(each) for each in found] == [lengths[document] for document in expected]
        for each, document in zip(found, expected, strict=True):
            row = next(row for row, members in enumerate(plan.rows) if document in members)
            before = sum(lengths[other] for other in plan.rows[row][: plan.rows[row].index(document)])
            assert int(each[0, 0]) == row * plan.capacity + before


@holds_for(ids=attention_document_ids())
def test_unpacking_leaves_holes_and_padding_out(ids: Tensor) -> None:
    values = torch.arange(ids.numel()).view(ids.shape)
    expected = [
        [document.row * ids.shape[1] + place for place in document.places]
        for document in oracle.documents(rows_of(ids))
    ]
    assert [listed(each) for each in unpack(values, ids)] == expected


def test_what_is_unpacked_keeps_its_gradient() -> None:
    values = torch.ones(1, 4, 2, requires_grad=True)
    total = torch.cat(unpack(values, torch.tensor([[1, 0, 1, 2]]))).sum()
    (gradient,) = torch.autograd.grad(total, values)
    assert listed(gradient[0, :, 0]) == [1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("lengths", "capacity", "row", "field"),
    [([], 4, None, "lengths"), ([2, 5], 4, 1, "lengths"), ([0, 2], 4, 0, "lengths"), ([2], 0, None, "capacity")],
)
def test_what_cannot_be_placed_is_refused(lengths: list[int], capacity: int, row: int | None, field: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_rows(lengths, capacity)
    assert (caught.value.problems[0].field, caught.value.problems[0].row) == (field, row)


def test_every_document_that_cannot_be_placed_is_named() -> None:
    with pytest.raises(PlanError) as caught:
        plan_rows([9, 1, 0, 8], 4)
    assert [problem.row for problem in caught.value.problems] == [0, 2, 3]


def test_no_rows_have_no_fill() -> None:
    assert RowPlan((), (), 4).fill == 0.0


@pytest.mark.parametrize(
    "documents",
    [
        [torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64, device="meta")],
    ],
)
def test_documents_that_are_not_the_plan_s_are_refused(documents: list[Tensor]) -> None:
    with pytest.raises(PlanError, match="documents"):
        collate_documents(documents, plan_rows([2, 3], 6))


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        (torch.zeros(1, 4), None),
        (torch.zeros(2, 3), torch.tensor([[0], [1]])),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [1, -1]])),
        (torch.zeros(2, 3), torch.tensor([[0, 1, 2]])),
        (torch.zeros(2, 3), torch.zeros(2, 2)),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [2, 3]])),
    ],
)
def test_keys_that_do_not_name_each_document_once_are_refused(values: Tensor, keys: Tensor | None) -> None:
    with pytest.raises(BatchError):
        unpack(values, torch.tensor([[1, 1, 2], [1, 0, 0]]), keys)
