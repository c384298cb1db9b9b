"""Rules 14 and 15: every token is placed exactly once, and results come back to the caller's documents."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    OVERLONG_CHOICES,
    PACKING_METHODS,
    PADDING_ROW,
    AttentionCost,
    Overlong,
    PackingMethod,
    Piece,
    RowPlan,
    apply_packing_contract,
    balance_rows,
    check_agreement,
    collate_documents,
    plan_rows,
    scan_segments,
    take_places,
    unpack,
)
from neatpack.adapters.arguments import INTEGER_DTYPES
from neatpack.adapters.strategies import attention_document_ids
from neatpack.contracts.batch import validate_training_batch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BatchError, PlanError
from tests.adapters import oracle, oracle_plans
from tests.adapters.host_reads import host_reads
from tests.adapters.properties import holds_for, listed, rows_of

_LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=14)
_CAPACITY = st.integers(1, 16)


class Options(NamedTuple):
    """How a plan is made."""

    method: PackingMethod
    overlong: Overlong
    documents_per_row: int | None

    @property
    def most(self) -> int:
        return self.documents_per_row or 1000

    def plan(self, lengths: list[int], capacity: int) -> RowPlan:
        return plan_rows(
            lengths,
            capacity,
            method=self.method,
            overlong=self.overlong,
            documents_per_row=self.documents_per_row,
        )


_OPTIONS = st.builds(
    Options,
    st.sampled_from(PACKING_METHODS),
    st.sampled_from([choice for choice in OVERLONG_CHOICES if choice != "refuse"]),
    st.none() | st.integers(1, 4),
)


def _pieces(plan: RowPlan) -> list[list[oracle_plans.Cut]]:
    return [[(piece.document, piece.start, piece.stop) for piece in row] for row in plan.pieces]


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS)
def test_a_plan_places_every_token_once_or_names_it(lengths: list[int], capacity: int, options: Options) -> None:
    plan = options.plan(lengths, capacity)
    placed = [piece for row in _pieces(plan) for piece in row]
    dropped = [(piece.document, piece.start, piece.stop) for piece in plan.dropped]
    assert oracle_plans.tokens_of([*placed, *dropped]) == oracle_plans.all_tokens(lengths)
    over = [(document, capacity, length) for document, length in enumerate(lengths) if length > capacity]
    assert dropped == (over if options.overlong == "truncate" else [])
    for row in _pieces(plan):
        assert 0 < len(row) <= options.most
        assert sum(stop - start for _, start, stop in row) <= capacity
    in_pieces = [document for document, _, _ in placed]
    assert plan.split == tuple(sorted({each for each in in_pieces if in_pieces.count(each) > 1}))
    assert plan.fill == sum(stop - start for _, start, stop in placed) / (len(plan) * capacity)
    assert plan == options.plan(lengths, capacity)


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY)
def test_best_fit_fills_rows_as_placing_one_by_one_does(lengths: list[int], capacity: int) -> None:
    plan = plan_rows(lengths, capacity, overlong="split")
    assert sorted(plan.row_tokens.tolist()) == oracle_plans.best_fit_loads(
        oracle_plans.cut(lengths, capacity), capacity
    )
    openers = [max(row, key=lambda piece: (piece[2] - piece[1], -piece[0], -piece[1])) for row in _pieces(plan)]
    assert [opener[:2] for opener in openers] == sorted(opener[:2] for opener in openers)


@holds_for(lengths=_LENGTHS, room=st.integers(0, 12), most=st.none() | st.integers(1, 4))
def test_first_fit_takes_the_first_row_with_room(lengths: list[int], room: int, most: int | None) -> None:
    capacity = max(lengths) + room
    plan = plan_rows(lengths, capacity, method="first_fit", documents_per_row=most)
    assert [list(row) for row in plan.rows] == oracle_plans.first_fit(lengths, capacity, most or 1000)


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, most=st.none() | st.integers(1, 4))
def test_wrapping_cuts_only_where_a_row_ends(lengths: list[int], capacity: int, most: int | None) -> None:
    plan = plan_rows(lengths, capacity, method="wrap", overlong="split", documents_per_row=most)
    assert _pieces(plan) == oracle_plans.wrapped(lengths, capacity, most or 1000)


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS)
def test_a_plan_comes_back_from_its_state(lengths: list[int], capacity: int, options: Options) -> None:
    plan = options.plan(lengths, capacity)
    assert RowPlan.from_state(json.loads(json.dumps(plan.state()))) == plan
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan  # noqa: S301 - what was just written
    assert RowPlan.from_rows(plan.pieces, lengths, capacity, plan.dropped) == plan


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS, data=st.data())
def test_collation_places_every_token_once_and_unpacking_returns_it(
    lengths: list[int], capacity: int, options: Options, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from((torch.int64, torch.int32)))
    documents = [torch.arange(length, dtype=dtype) + 100 * index for index, length in enumerate(lengths, start=1)]
    plan = options.plan(lengths, capacity)
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
    assert listed(batch["labels"]) == [
        [token if oracle.kept_label(rows, rows, row, place, "model") else -100 for place, token in enumerate(numbers)]
        for row, numbers in enumerate(listed(batch["input_ids"]))
    ]
    limit = capacity if options.overlong == "truncate" else None
    found = unpack(batch["input_ids"], ids, keys, batch.get("document_starts"))
    assert [listed(each) for each in found] == [listed(document)[:limit] for document in documents]


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS, data=st.data())
def test_chosen_rows_are_collated_as_all_are(
    lengths: list[int], capacity: int, options: Options, data: st.DataObject
) -> None:
    documents = [torch.arange(length) + 100 * index for index, length in enumerate(lengths, start=1)]
    plan = options.plan(lengths, capacity)
    chosen = data.draw(st.lists(st.integers(-1, len(plan) - 1), min_size=1, max_size=5))
    whole: dict[str, Any] = dict(collate_documents(documents, plan, 7))
    part: dict[str, Any] = dict(collate_documents(documents, plan, 7, rows=chosen))
    assert list(part) == list(whole)
    empty = {"input_ids": 7, "labels": -100, "padding_mask": 1, "document_keys": -1, "document_starts": -1}
    for name, values in part.items():
        for row, found in zip(chosen, values.tolist(), strict=True):
            width = len(found)
            expected = whole[name].tolist()[row] if row != PADDING_ROW else [empty.get(name, 0)] * width
            assert found[:width] == expected[:width]
            assert set(found[len(expected) :] + expected[width:]) <= {-1}


@holds_for(lengths=_LENGTHS, room=st.integers(0, 12), data=st.data())
def test_unpacking_survives_a_cut_along_the_rows(lengths: list[int], room: int, data: st.DataObject) -> None:
    plan = plan_rows(lengths, max(lengths) + room)
    batch = collate_documents([torch.full((length,), 5) for length in lengths], plan)
    ids, keys = batch.get("document_ids", batch["labels"]), batch.get("document_keys", batch["labels"])
    order = data.draw(st.permutations(range(len(plan))))
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


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS, data=st.data())
def test_keys_name_the_documents_of_moved_tokens_or_the_move_is_refused(
    lengths: list[int], capacity: int, options: Options, data: st.DataObject
) -> None:
    plan = options.plan(lengths, capacity)
    documents = [torch.arange(length) + 100 * number for number, length in enumerate(lengths)]
    batch: Any = collate_documents(documents, plan)
    before = data.draw(st.integers(0, 3))
    wide = capacity + before
    places = torch.arange(-before, capacity).clamp(min=-1).expand(len(plan), wide).clone()
    moved: Any = take_places(batch, places)
    names = ("document_ids", "document_keys", "document_starts")
    found = unpack(moved["input_ids"], *(moved[name] for name in names), plan=plan)
    kept = sorted({piece.document for row in plan.pieces for piece in row})
    sizes = [int(plan.placed_tokens[document]) for document in kept]
    assert [listed(each) for each in found] == [
        listed(documents[document][:size]) for document, size in zip(kept, sizes, strict=True)
    ]
    row, one, other = (data.draw(st.integers(0, size - 1)) for size in (len(plan), wide, wide))
    places[row, [one, other]] = places[row, [other, one]]
    if listed(places[row][places[row] >= 0]) == list(range(capacity)):
        return
    with pytest.raises(BatchError, match=rf"places\[row {row}, position \d+\] = \d+: does not rise"):
        take_places(batch, places)
    places[row] = 0
    with pytest.raises(BatchError, match=rf"places\[row {row}, position 1\] = 0: does not rise"):
        take_places(batch, places)
    del batch["document_keys"], batch["document_starts"]
    take_places(batch, places)


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS, data=st.data())
def test_pieces_are_joined_whatever_the_order_of_the_rows(
    lengths: list[int], capacity: int, options: Options, data: st.DataObject
) -> None:
    documents = [torch.arange(length) + 100 * index for index, length in enumerate(lengths)]
    plan = plan_rows(lengths, capacity, method=options.method, overlong="split")
    batch: Any = collate_documents(documents, plan, rows=data.draw(st.permutations(range(len(plan)))))
    ids, keys, starts = batch["document_ids"], batch["document_keys"], batch["document_starts"]
    found = unpack(batch["input_ids"], ids, keys, starts)
    assert [listed(each) for each in found] == [listed(document) for document in documents]
    missing = data.draw(st.integers(0, len(plan) - 1))
    rest = [row for row in range(len(plan)) if row != missing]
    cut = set(keys[missing].tolist()) & set(keys[rest].flatten().tolist()) - {-1}
    lost = [key for key in cut if max(starts[rest][keys[rest] == key]) > min(starts[missing][keys[missing] == key])]
    if lost:
        with pytest.raises(BatchError, match="document_starts"):
            unpack(batch["input_ids"][rest], ids[rest], keys[rest], starts[rest])


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS, data=st.data())
def test_by_the_plan_any_missing_piece_is_seen(
    lengths: list[int], capacity: int, options: Options, data: st.DataObject
) -> None:
    plan = options.plan(lengths, capacity)
    documents = [torch.arange(length) + 100 * index for index, length in enumerate(lengths)]
    rows = data.draw(st.lists(st.integers(0, len(plan) - 1), min_size=1, unique=True))
    batch: Any = collate_documents(documents, plan, rows=rows)
    given = batch["input_ids"], batch["document_ids"], batch["document_keys"], batch["document_starts"]
    placed = [(piece[0], row) for row, pieces in enumerate(_pieces(plan)) for piece in pieces]
    here = {document for document, row in placed if row in rows}
    if any(document in here and row not in rows for document, row in placed):
        with pytest.raises(BatchError):
            unpack(*given, plan=plan)
        return
    limit = capacity if options.overlong == "truncate" else None
    found = [listed(each) for each in unpack(*given, plan=plan)]
    assert found == [listed(documents[document])[:limit] for document in sorted(here)]


@holds_for(cuts=st.lists(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=5), min_size=1))
def test_pieces_go_on_behind_what_the_plan_dropped(cuts: list[list[tuple[int, bool]]]) -> None:
    lengths, kept, dropped = [sum(size for size, _ in own) for own in cuts], list[Piece](), list[Piece]()
    for document, own in enumerate(cuts):
        stops = np.cumsum([size for size, _ in own]).tolist()
        for (size, is_kept), stop in zip(own, stops, strict=True):
            (kept if is_kept else dropped).append(Piece(document, stop - size, stop))
    if not kept:
        return
    plan = RowPlan.from_rows([[piece] for piece in kept[::-1]], lengths, 4, dropped)
    documents = [torch.arange(length) + 100 * index for index, length in enumerate(lengths)]
    batch: Any = collate_documents(documents, plan)
    given = [batch[name] for name in ("input_ids", "document_ids", "document_keys", "document_starts")]
    here = sorted({piece.document for piece in kept})
    assert [listed(each) for each in unpack(given[0], given[1], given[2], given[3], plan=plan)] == [
        [100 * document + token for piece in kept if piece.document == document for token in range(*piece[1:])]
        for document in here
    ]
    for missing, part in ((kept[-1], slice(1, None)), (kept[0], slice(-1))):
        if len([piece for piece in kept if piece.document == missing.document]) > 1:
            with pytest.raises(BatchError):
                unpack(*(each[part] for each in given), plan=plan)


def test_a_plan_that_is_of_other_documents_is_refused() -> None:
    values, ids, keys = torch.zeros(1, 3), torch.tensor([[1, 1, 2]]), torch.tensor([[0, 1]])
    assert len(unpack(values, ids, keys, plan=plan_rows([2, 1], 3))) == 2
    with pytest.raises(BatchError, match=r"document_keys\[row 0\] = 1: names a document that the plan of 1"):
        unpack(values, ids, keys, plan=plan_rows([2], 3))
    with pytest.raises(BatchError, match=r"document_keys\[row 0\] = 0: has 2 tokens here, and the plan placed 3"):
        unpack(values, ids, keys, plan=plan_rows([3, 1], 4))
    with pytest.raises(
        BatchError, match=r"document_keys\[row 0\] = 0: has 2 tokens here, and the plan placed 1\. Give"
    ):
        unpack(values, ids, keys, plan=plan_rows([1, 1], 4))
    with pytest.raises(BatchError, match="means nothing without keys"):
        unpack(values, ids, plan=plan_rows([2, 1], 3))
    with pytest.raises(PlanError, match="plan"):
        unpack(values, ids, keys, plan=[[0, 1]])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_keys_that_do_not_name_each_document_once_are_told() -> None:
    values = ids = torch.tensor([[1, 2], [1, 1]])
    with pytest.raises(BatchError, match=r"document_keys\[row 1\] = 5: names one document twice"):
        unpack(values, ids, torch.tensor([[5, 0], [5, -1]]))
    with pytest.raises(BatchError, match=r"document_keys\[row 1\] = \[1, 2\]: must name the 1 documents of the row"):
        unpack(values, ids, torch.tensor([[0, 3], [1, 2]]))
    with pytest.raises(BatchError, match=r"document_keys = \(1, 3\): must be \[2, documents\]"):
        unpack(values, ids, torch.tensor([[0, 1, 2]]))
    with pytest.raises(BatchError, match=r"document_keys = torch\.float32: must hold integers"):
        unpack(values, ids, torch.ones(2, 2))


def test_the_first_piece_that_begins_elsewhere_is_told() -> None:
    ids, keys, starts = torch.ones(3, 1).long(), torch.tensor([[0], [0], [1]]), torch.tensor([[0], [5], [3]])
    with pytest.raises(BatchError, match=r"document_starts\[row 1\] = 5: .* begin at token 1 of its document"):
        unpack(ids, ids, keys, starts)


@holds_for(ids=attention_document_ids())
def test_unpacking_leaves_holes_and_padding_out(ids: Tensor) -> None:
    values = torch.arange(ids.numel()).view(ids.shape)
    expected = [
        [document.row * ids.shape[1] + place for place in document.places]
        for document in oracle.documents(rows_of(ids))
    ]
    assert [listed(each) for each in unpack(values, ids)] == expected


def test_keys_and_starts_are_read_with_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, keys = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]]), torch.tensor([[3, 0], [1, 2]])
    segments = scan_segments(ids)
    for given in (ids, segments):
        for named in ((keys,), (keys, torch.zeros_like(keys))):
            with host_reads(monkeypatch) as reads:
                unpack(torch.zeros(2, 4), given, *named)
            assert reads.total == 1


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_keys_and_starts_may_be_integers_of_any_width(dtype: torch.dtype) -> None:
    ids, keys = torch.tensor([[1, 2], [1, 2]]), torch.tensor([[1, 0], [2, 0]]).to(dtype)
    found = unpack(torch.arange(4).view(2, 2), ids, keys, torch.tensor([[0, 0], [0, 1]]).to(dtype))
    assert [listed(each) for each in found] == [[1, 3], [0], [2]]


@holds_for(lengths=_LENGTHS, capacity=_CAPACITY, options=_OPTIONS, data=st.data())
def test_starts_in_other_columns_than_the_keys_are_refused(
    lengths: list[int], capacity: int, options: Options, data: st.DataObject
) -> None:
    plan = options.plan(lengths, capacity)
    batch: Any = collate_documents([torch.arange(length) for length in lengths], plan)
    unused = torch.full((len(plan), 1), -1)
    keys, starts = (torch.cat([batch[name], unused], dim=1) for name in ("document_keys", "document_starts"))
    given = batch["input_ids"], batch["document_ids"], keys
    assert len(unpack(*given, starts)) == len({document for row in plan.rows for document in row})
    row = data.draw(st.integers(0, len(plan) - 1))
    moved = starts.clone()
    moved[row] = moved[row].roll(1)
    for wrong, value in (
        (moved, listed(moved[row])),
        (batch["document_starts"], tuple(batch["document_starts"].shape)),
    ):
        with pytest.raises(BatchError, match=r"document_keys.* sliced along the rows alike") as caught:
            unpack(*given, wrong)
        assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("document_starts", value)


def test_a_hole_in_a_piece_counts_where_the_next_piece_begins() -> None:
    ids, keys = torch.tensor([[1, 0, 1], [1, 1, 0]]), torch.tensor([[0], [0]])
    found = unpack(torch.arange(6).view(2, 3), ids, keys, torch.tensor([[0], [3]]))
    assert [listed(each) for each in found] == [[0, 2, 3, 4]]


def test_what_is_unpacked_keeps_its_gradient() -> None:
    values = torch.ones(1, 4, 2, requires_grad=True)
    total = torch.cat(unpack(values, torch.tensor([[1, 0, 1, 2]]))).sum()
    (gradient,) = torch.autograd.grad(total, values)
    assert listed(gradient[0, :, 0]) == [1.0, 0.0, 1.0, 1.0]


def test_gradients_of_all_documents_go_back_as_one() -> None:
    """One by one, each would fill a tensor as large as the batch."""
    values = torch.ones(2, 4, requires_grad=True)
    found = unpack(values, torch.tensor([[1, 1, 2, 0], [3, 4, 4, 0]]))
    assert len({document.grad_fn for document in found}) == 1
    assert all(document.untyped_storage().data_ptr() == values.data_ptr() for document in found)


def test_a_contract_gives_what_it_names() -> None:
    documents, contract = [torch.arange(3), torch.arange(2)], PackingCapabilities("document_ids", True)
    plan = plan_rows([3, 2], 6)
    expected: dict[str, Any] = dict(apply_packing_contract(collate_documents(documents, plan), contract))
    found: dict[str, Any] = dict(collate_documents(documents, plan, contract=contract))
    assert list(found) == list(expected)
    assert "document_keys" in found
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_only_the_documents_of_the_rows_are_read() -> None:
    class Lazy(list[Tensor]):
        def __getitem__(self, index: Any) -> Any:
            assert index == 1
            return torch.arange(4)

    plan = plan_rows([3, 4], 5)
    batch = collate_documents(Lazy([torch.arange(0)] * 2), plan, rows=[plan.rows.index((1,))])
    assert listed(batch["input_ids"]) == [[0, 1, 2, 3, 0]]


def test_a_plan_of_long_rows_is_exact() -> None:
    """Rooms past one word of bits, and keys past 16 bits."""
    random = np.random.default_rng(3)
    lengths = random.integers(1, 100_000, 300).tolist()
    plan = plan_rows(lengths, 150_000)
    assert sorted(plan.row_tokens.tolist()) == oracle_plans.best_fit_loads(lengths, 150_000)
    assert sorted(document for row in plan.rows for document in row) == list(range(300))


def test_more_places_than_int32_counts_are_refused_before_they_are_laid_out() -> None:
    plan = plan_rows([1, 1], 2**31 - 1, documents_per_row=1)
    with pytest.raises(PlanError, match=r"^rows = 4294967294: must be from 1 to 2147483647 places.*rows=range"):
        collate_documents([torch.ones(1, dtype=torch.int64)] * 2, plan)


def test_a_row_whose_tokens_are_past_int64_is_too_full() -> None:
    with pytest.raises(PlanError, match=r"rows\[row 0\] = 9223372036854775812: holds more than 10 tokens") as caught:
        RowPlan.from_rows([[0, 1], [2]], [5, 2**63 - 1, 3], capacity=10)
    assert len(caught.value.problems) == 1


def test_a_plan_equals_no_other_object_and_counts_its_pieces_once() -> None:
    assert plan_rows([2, 1], 3) != [[0, 1]]
    one, two = np.array([0]), np.array([2, 1])
    for starts, stops in ((one, two), (np.array([0, 0]), one)):
        with pytest.raises(PlanError, match="starts and stops must be as many as pieces"):
            RowPlan(3, two, np.array([0, 1]), starts, stops, np.array([0, 2]))


def test_a_plan_cannot_be_written_to() -> None:
    given = np.array([2, 1])
    plan = RowPlan(3, given, np.array([0, 1]), np.array([0, 0]), np.array([2, 1]), np.array([0, 2]))
    with pytest.raises(ValueError, match="read-only"):
        plan.documents[0] = 1
    given[0] = 2  # The caller's own array stays as it was.
    with pytest.raises(AttributeError):
        plan.capacity = 4  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("wrong", [np.array([2.0, 1.0]), np.array([[2, 1]]), np.array([True, True])])
@pytest.mark.parametrize("place", range(1, 6))
def test_a_plan_is_made_of_flat_integers(place: int, wrong: Any) -> None:
    parts: list[Any] = [3, np.array([2, 1]), np.array([0, 1]), np.array([0, 0]), np.array([2, 1]), np.array([0, 2])]
    parts[place] = wrong
    with pytest.raises(PlanError, match="must be integers on 1 axes"):
        RowPlan(*parts)


@pytest.mark.parametrize(
    ("document", "start", "stop"), [(-1, 0, 2), (1, 0, 2), (0, -1, 2), (0, 1, 1), (0, 2, 1), (0, 0, 3)]
)
def test_what_is_no_piece_of_a_document_is_named(document: int, start: int, stop: int) -> None:
    with pytest.raises(PlanError, match="no piece of a document") as caught:
        RowPlan(3, np.array([2]), np.array([document]), np.array([start]), np.array([stop]), np.array([0, 1]))
    assert (caught.value.problems[0].row, caught.value.problems[0].value) == (0, (document, start, stop))


@pytest.mark.parametrize(
    ("lengths", "capacity", "document", "field"),
    [([2, 5], 4, 1, "lengths"), ([0, 2], 4, 0, "lengths"), ([2], 0, None, "capacity"), ([], 0, None, "capacity")],
)
def test_what_cannot_be_placed_is_refused(lengths: list[int], capacity: int, document: int | None, field: str) -> None:
    for method in PACKING_METHODS:
        with pytest.raises(PlanError) as caught:
            plan_rows(lengths, capacity, method=method)
        assert (caught.value.problems[0].field, caught.value.problems[0].document) == (field, document)


@pytest.mark.parametrize("lengths", [[4, 2**63], np.array([4, 2**63], np.uint64)])
def test_a_length_past_int64_is_not_called_empty(lengths: Any) -> None:
    with pytest.raises(
        PlanError, match=r"^lengths\[document 1\] = 9223372036854775808: must be within int64\. Give ints"
    ):
        plan_rows(lengths, 4, overlong="split")


@pytest.mark.parametrize("lengths", [[True, 2], [2**63], [-1], [1, 2.0], np.array([[1]]), np.array([True]), "12"])
def test_lengths_are_positive_ints(lengths: Any) -> None:
    with pytest.raises(PlanError, match="lengths"):
        plan_rows(lengths, 4, overlong="split")


def test_every_document_that_cannot_be_placed_is_named() -> None:
    for lengths, refused in (([9, 1, 4, 8], [0, 3]), ([9, 1, 0, -8], [2, 3])):
        with pytest.raises(PlanError) as caught:
            plan_rows(lengths, 4)
        assert [problem.document for problem in caught.value.problems] == refused


def test_no_rows_have_no_fill() -> None:
    plan = RowPlan.from_rows([], [], 4)
    assert (plan.fill, plan.tokens, len(plan), plan.rows) == (0.0, 0, 0, ())


@pytest.mark.parametrize("method", PACKING_METHODS)
@pytest.mark.parametrize("overlong", OVERLONG_CHOICES)
@pytest.mark.parametrize("most", [None, 2])
def test_no_documents_make_no_rows(method: PackingMethod, overlong: Overlong, most: int | None) -> None:
    """A shard of which a filter left nothing: its loader has no step to make, and none of its ranks waits."""
    nothing: list[Any] = [[], np.array([], np.int64)]
    for lengths in nothing:
        plan = plan_rows(lengths, 4, method=method, overlong=overlong, documents_per_row=most)
        assert plan == RowPlan.from_rows([], [], 4)
        dealt = balance_rows(plan, 3, cost=AttentionCost(1.0, 1.0))
        assert [dealt.rank_rows(rank) for rank in range(3)] == [[], [], []]


def test_a_batch_of_no_rows_is_refused_with_what_would_make_one() -> None:
    plan = plan_rows([], 4)
    none: list[int] = []
    for rows in (None, none):
        with pytest.raises(PlanError, match=r"rows = 0: .* Give one row at least\.$"):
            collate_documents([], plan, rows=rows)
    assert listed(collate_documents([], plan, rows=[PADDING_ROW])["padding_mask"]) == [[True] * 4]
    with pytest.raises(PlanError, match=r"rows = 4294967294: .* Give rows of the plan by parts: "):
        collate_documents([torch.zeros(1, dtype=torch.int64)], plan_rows([1], 2**31 - 1), rows=[0, 0])


@pytest.mark.parametrize(
    ("rows", "dropped"),
    [
        ([[Piece(0, 0, 2)], [Piece(0, 3, 5)]], []),
        ([[Piece(0, 0, 3)], [Piece(0, 2, 5)]], []),
        ([[Piece(0, 0, 3)], [Piece(0, 3, 4)]], []),
        ([[Piece(0, 0, 3)]], [Piece(0, 3, 4)]),
        ([[Piece(0, 0, 3)]], [Piece(0, 3, 5), Piece(1, 0, 1)]),
        ([[Piece(0, 1, 5)]], []),
        ([[Piece(0, 0, 6)]], []),
        ([[Piece(0, 3, 3), 0]], []),
        ([[0], []], []),
        ([[1]], []),
        ([], []),
        ([[0, 0]], []),
    ],
)
def test_a_plan_that_loses_or_repeats_tokens_cannot_be_made(rows: list[list[int | Piece]], dropped: Any) -> None:
    with pytest.raises(PlanError, match="rows"):
        RowPlan.from_rows(rows, [5], 10, dropped)


_TEXT: Any = "0"
_FRACTION: Any = 2.0
_NO_PIECES: list[Any] = [
    3,
    (0, 1),
    (0, 1, 2),
    Piece(0, 1, 2**70),
    Piece(_TEXT, 1, 2),
    Piece(0, 1, _FRACTION),
]


@pytest.mark.parametrize("wrong", _NO_PIECES)
def test_what_is_no_piece_is_neither_dropped_nor_placed(wrong: Any) -> None:
    with pytest.raises(PlanError, match="dropped"):
        RowPlan.from_rows([[Piece(0, 0, 1)]], [2], 10, [wrong])
    with pytest.raises(PlanError, match="rows"):
        RowPlan.from_rows([[Piece(0, 0, 1), wrong]], [2], 10)


_EMPTY = "Leave empty documents out."
_INTS = "Give ints: "


@pytest.mark.parametrize(
    ("length", "remedy"),
    [
        (0, _EMPTY),
        (-3, _EMPTY),
        (2**63, _INTS),
        (2.5, _INTS),
        (2.0, _INTS),
        (True, _INTS),
        (torch.tensor(3), "Give a Python int: "),
    ],
)
def test_a_length_that_is_none_is_named_as_it_came(length: Any, remedy: str) -> None:
    with pytest.raises(PlanError) as planned:
        plan_rows([3, length], 4)
    with pytest.raises(PlanError) as found:
        RowPlan.from_rows([[0]], [3, length], 4)
    for problem in (*planned.value.problems, *found.value.problems):
        assert (problem.field, problem.document) == ("lengths", 1)
        assert problem.value is length
        assert problem.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("version", True),
        ("capacity", 0),
        ("lengths", [3, -4]),
        ("lengths", [3.0, 4]),
        ("lengths", [[3, 4]]),
        ("lengths", None),
        ("documents", [0, 5]),
        ("documents", [0, 0]),
        ("bounds", [0, 1]),
        ("bounds", []),
        ("cut", [[0, 0]]),
        ("cut", [[9, 0, 1]]),
        ("cut", [[0, 0, 2]]),
        ("dropped", [[0, 1, 3]]),
        ("dropped", "none"),
    ],
)
def test_a_state_that_is_no_plan_is_refused(name: str, value: object) -> None:
    state: dict[str, object] = {**plan_rows([3, 4], 5).state(), name: value}
    with pytest.raises(PlanError):
        RowPlan.from_state(state)
    del state[name]
    with pytest.raises(PlanError, match=name):
        RowPlan.from_state(state)


@pytest.mark.parametrize(
    "documents",
    [
        [torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.complex64)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64).to_sparse()],
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64, device="meta")],
        [torch.zeros(length, dtype=torch.int64, device="meta") for length in (2, 3)],
    ],
)
def test_documents_that_are_not_the_plan_s_are_refused(documents: list[Tensor]) -> None:
    with pytest.raises(PlanError, match="documents"):
        collate_documents(documents, plan_rows([2, 3], 6))


def test_a_row_of_padding_alone_is_a_batch() -> None:
    batch = collate_documents([torch.tensor([5, 6])], plan_rows([2], 3), 7, rows=[PADDING_ROW])
    assert listed(batch["input_ids"]) == [[7, 7, 7]]
    assert listed(batch["padding_mask"]) == [[True] * 3]


def test_tokens_past_int64_are_refused_and_others_kept_in_any_width() -> None:
    documents = [torch.tensor([2**63 - 1, 1], dtype=torch.uint64), torch.tensor([3], dtype=torch.uint8)]
    assert listed(collate_documents(documents, plan_rows([2, 1], 4))["input_ids"]) == [[2**63 - 1, 1, 3, 0]]
    with pytest.raises(PlanError, match=r"documents\[document 1\].*past int64"):
        collate_documents([documents[1], torch.tensor([1, 2**63], dtype=torch.uint64)], plan_rows([1, 2], 4))


@pytest.mark.parametrize("rows", [[], [2], [-2], [True], range(5)])
def test_rows_are_those_of_the_plan(rows: Any) -> None:
    with pytest.raises(PlanError, match="rows"):
        collate_documents([torch.zeros(2, dtype=torch.int64)] * 2, plan_rows([2, 2], 3), rows=rows)


@pytest.mark.parametrize(
    ("values", "keys", "starts"),
    [
        (torch.zeros(1, 4), None, None),
        (torch.zeros(2, 3), torch.tensor([[0], [1]]), None),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [1, -1]]), None),
        (torch.zeros(2, 3), torch.tensor([[0, 1, 2]]), None),
        (torch.zeros(2, 3), torch.zeros(2, 2), None),
        (torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.bool), None),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [2, 3]]), None),
        (torch.zeros(2, 3), None, torch.tensor([[0, 0], [0, -1]])),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0, 0], [0, -1]])),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0, 0], [2, -1]])),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0, 1], [2, -1]])),
        (torch.zeros(2, 3), torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0, 0], [1, 2]])),
    ],
)
def test_keys_that_do_not_name_each_document_once_are_refused(
    values: Tensor, keys: Tensor | None, starts: Tensor | None
) -> None:
    with pytest.raises(BatchError):
        unpack(values, torch.tensor([[1, 1, 2], [1, 0, 0]]), keys, starts)
