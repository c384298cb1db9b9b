"""Rule 10: no target crosses a boundary of the attention ids, whoever shifted the labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    adapt_model_inputs,
    apply_packing_contract,
    count_valid_targets,
    mask_labels,
    mtp_targets,
    require_supported_packing_contract,
    shard_tokens,
)
from neatpack.adapters.strategies import attention_document_ids, document_ids, training_batches
from neatpack.contracts.batch import LABEL_SHIFTS, LabelShift, TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BatchError, DocumentIdsError, EncodingError, PackingError
from tests.adapters import oracle
from tests.adapters.properties import holds_for, listed, rows_of

_SHIFTS = st.sampled_from(LABEL_SHIFTS)


def _expected(
    labels: list[list[int]],
    attention: list[list[int]],
    structural: list[list[int]],
    shift: LabelShift,
    inside: bool = False,
) -> list[list[int]]:
    return [
        [
            label if oracle.kept_label(attention, structural, row, place, shift, inside) else -100
            for place, label in enumerate(numbers)
        ]
        for row, numbers in enumerate(labels)
    ]


@holds_for(ids=attention_document_ids(), shift=_SHIFTS)
def test_no_target_crosses_a_boundary(ids: Tensor, shift: LabelShift) -> None:
    rows = rows_of(ids)
    # Without structural ids, zeros between two tokens of a document are known to belong to it.
    structural = [
        [
            next((number for number in rows[row][place:] if number), 0)
            if (row, place) in oracle.holes(rows)
            else number
            for place, number in enumerate(numbers)
        ]
        for row, numbers in enumerate(rows)
    ]
    labels = torch.arange(ids.numel()).view(ids.shape)
    assert listed(mask_labels(labels, ids, shift)) == _expected(listed(labels), rows, structural, shift)


@holds_for(batch=training_batches(), shift=_SHIFTS, joined=st.booleans(), inside=st.booleans(), data=st.data())
def test_policy_decides_which_targets_stay(
    batch: TrainingBatch[Tensor], shift: LabelShift, joined: bool, inside: bool, data: st.DataObject
) -> None:
    structural = batch.get("document_ids", batch["input_ids"])
    flags = data.draw(st.lists(st.booleans(), min_size=structural.numel(), max_size=structural.numel()))
    attention = structural.masked_fill(torch.tensor(flags).view(structural.shape), 0)
    if joined:
        attention = (attention > 0).long()
    batch["attention_document_ids"] = attention
    labels = torch.arange(structural.numel()).view(structural.shape)
    batch["labels"] = labels
    batch["position_ids"] = torch.arange(structural.shape[1]).expand(structural.shape)
    found = apply_packing_contract(
        batch,
        PackingCapabilities("document_ids", position_policy="sequence"),
        label_shift=shift,
        inside_documents=inside,
    )
    expected = _expected(listed(labels), rows_of(attention), rows_of(structural), shift, inside)
    assert listed(found["labels"]) == expected
    valid = sum(label != -100 for row in expected for label in row)
    assert int(count_valid_targets(found["labels"])) == valid


@holds_for(batch=training_batches(), shift=_SHIFTS, joined=st.booleans(), original=st.booleans(), data=st.data())
def test_labels_of_a_batch_that_is_yielded_twice_are_those_of_once(
    batch: TrainingBatch[Tensor], shift: LabelShift, joined: bool, original: bool, data: st.DataObject
) -> None:
    """Padding between joined documents tells where one ends, where the contract drops the ids as packed."""
    ids = batch.get("document_ids", batch["input_ids"])
    excluded = torch.zeros_like(ids, dtype=torch.bool)
    if not joined or shift != "document":  # Holes of joined documents do not tell of which of two they are.
        flags = data.draw(st.lists(st.booleans(), min_size=ids.numel(), max_size=ids.numel()))
        excluded = torch.tensor(flags).view(ids.shape)
    attention = ids.masked_fill(excluded, 0)
    batch["attention_document_ids"] = (attention > 0).long() if joined else attention
    batch["labels"] = torch.arange(ids.numel()).view(ids.shape)
    contract = PackingCapabilities("document_ids", return_document_ids=original, position_policy="sequence")
    batch["position_ids"] = torch.arange(ids.shape[1]).expand(ids.shape)
    once = apply_packing_contract(batch, contract, label_shift=shift).copy()
    twice = apply_packing_contract(batch, contract, label_shift=shift)
    assert torch.equal(once["labels"], twice["labels"])
    assert torch.equal(once["padding_mask"], twice["padding_mask"])


@holds_for(ids=attention_document_ids(), stream=st.booleans())
def test_the_same_pairs_are_trained_whoever_shifts(ids: Tensor, stream: bool) -> None:
    tokens = torch.arange(ids.numel()).view(ids.shape) + 1
    unshifted = mask_labels(tokens, ids, "model")
    shifted = mask_labels(tokens.roll(-1, 1), ids, "stream" if stream else "document")
    if not stream:  # only documents that were shifted on their own have a last target of their own
        shifted = shifted.where(shifted != tokens.roll(-1, 1), mask_labels(tokens.roll(-1, 1), ids, "stream"))
    assert torch.equal(unshifted[:, 1:], shifted[:, :-1])
    assert bool((unshifted[:, 0] == -100).all() & (shifted[:, -1] == -100).all())


def test_labels_of_every_shift() -> None:
    ids = torch.tensor([[1, 1, 1, 2, 2, 0]])
    assert listed(mask_labels(torch.tensor([[10, 11, 12, 20, 21, 0]]), ids, "model")) == [
        [-100, 11, 12, -100, 21, -100]
    ]
    labels = torch.tensor([[11, 12, 20, 21, 30, 0]])
    assert listed(mask_labels(labels, ids, "stream")) == [[11, 12, -100, 21, -100, -100]]
    assert listed(mask_labels(labels, ids, "document")) == [[11, 12, 20, 21, 30, -100]]


def test_a_target_that_is_no_target_stays_none_and_dtypes_stay() -> None:
    labels = torch.tensor([[-100, 5, -100]], dtype=torch.int32)
    found = mask_labels(labels, torch.tensor([[1, 1, 1]]), "model")
    assert found.dtype == torch.int32
    assert listed(found) == [[-100, 5, -100]]


def test_a_trailing_excluded_token_is_known_from_the_structural_ids() -> None:
    structural, attention = torch.tensor([[1, 1, 1]]), torch.tensor([[1, 1, 0]])
    labels = torch.tensor([[5, 6, 7]])
    assert listed(mask_labels(labels, attention, "document")) == [[5, 6, -100]]
    assert listed(mask_labels(labels, attention, "document", document_ids=structural)) == [[5, -100, -100]]


def test_joined_documents_keep_their_targets_unless_asked_otherwise() -> None:
    labels, structural = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 1, 2]])
    joined = torch.ones_like(structural)
    assert listed(mask_labels(labels, joined, "model", document_ids=structural)) == [[-100, 6, 7]]
    inside = mask_labels(labels, joined, "model", document_ids=structural, inside_documents=True)
    assert listed(inside) == [[-100, 6, -100]]


@pytest.mark.parametrize(
    ("padding", "expected"), [([False, True], 6), ([True, False], -100), ([False, False], -100), (None, -100)]
)
def test_padding_ends_a_document_where_the_ids_as_packed_are_not_there_and_a_hole_does_not(
    padding: list[bool] | None, expected: int
) -> None:
    """Padding at place 2 or 5; what else is 0 is a token that policy took out of the document around it."""
    ids, labels = torch.tensor([[1, 1, 0, 1, 1, 0, 1]]), torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    batch: Any = {"input_ids": ids, "labels": labels, "attention_document_ids": ids}
    if padding is not None:
        at_2, at_5 = padding[::-1]
        batch["padding_mask"] = torch.tensor([[False, False, at_2, False, False, at_5, False]])
    found = apply_packing_contract(batch, PackingCapabilities("document_ids"), label_shift="document")
    last = 9 if padding == [True, False] else -100
    assert listed(found["labels"]) == [[5, expected, -100, 8, last, -100, 11]]


def test_targets_are_not_kept_inside_documents_that_are_not_known() -> None:
    """Of the ids that attention goes by it cannot be told where a document ends that was joined with the next one."""
    joined, labels = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[5, 6, 7, 8]])
    batch: Any = {"input_ids": labels, "labels": labels, "attention_document_ids": joined}
    calls: list[tuple[type[PackingError], Callable[[], object]]] = [
        (EncodingError, lambda: mask_labels(labels, joined, "model", inside_documents=True)),
        (EncodingError, lambda: mtp_targets(labels, joined, 1, "model", inside_documents=True)),
        (BatchError, lambda: apply_packing_contract(batch, PackingCapabilities("document_ids"), inside_documents=True)),
    ]
    for error, call in calls:
        with pytest.raises(error) as caught:
            call()
        assert [(problem.field, problem.kind) for problem in caught.value.problems] == [("document_ids", "missing")]
    assert [*batch] == ["input_ids", "labels", "attention_document_ids"]
    as_packed: Any = {**batch, "document_ids": torch.tensor([[1, 1, 2, 0]])}
    found = apply_packing_contract(as_packed, PackingCapabilities("document_ids"), inside_documents=True)
    assert listed(found["labels"]) == [[-100, 6, -100, -100]]
    alone: Any = {"input_ids": labels, "labels": labels, "document_ids": joined}  # No policy joined them.
    apply_packing_contract(alone, PackingCapabilities("document_ids"), inside_documents=True)


def _first_that_no_policy_makes(attention: list[list[int]], structural: list[list[int]]) -> set[tuple[int, int]]:
    """Give the first place of padding that is seen, and the first that splits a document."""
    seen: list[tuple[int, int]] = []
    split: list[tuple[int, int]] = []
    for row, (numbers, packed) in enumerate(zip(attention, structural, strict=True)):
        last: dict[int, int] = {}
        for place, (number, document) in enumerate(zip(numbers, packed, strict=True)):
            if number and not document:
                seen.append((row, place))
            elif number and last.setdefault(document, number) != number:
                split.append((row, place))
    return {*seen[:1], *split[:1]}


@holds_for(ids=document_ids(dtypes=(torch.int64,)), changed=st.data(), shift=_SHIFTS)
def test_ids_as_packed_of_which_no_policy_makes_the_others_are_refused(
    ids: Tensor, changed: st.DataObject, shift: LabelShift
) -> None:
    parts = st.integers(0, 2)
    numbers = changed.draw(st.lists(parts, min_size=ids.numel(), max_size=ids.numel()))
    attention = (torch.tensor(numbers).view(ids.shape) + ids).cumsum(1).clamp(max=3) * (ids >= changed.draw(parts))
    wrong = _first_that_no_policy_makes(rows_of(attention), rows_of(ids))
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: mask_labels(ids, attention, shift, document_ids=ids),
        lambda: mtp_targets(ids, attention, 1, shift, document_ids=ids),
    )
    for call in calls:
        if not wrong:
            call()
            continue
        with pytest.raises(
            EncodingError, match=r"padding that attention sees|a document that attention splits"
        ) as caught:
            call()
        (problem,) = caught.value.problems
        assert (problem.row, problem.position) in wrong
        assert (problem.field, problem.value) == ("document_ids", listed(ids)[problem.row or 0][problem.position or 0])


def test_eligibility_reaches_the_labels() -> None:
    ids = torch.tensor([[1, 1, 1, 1]])
    batch: TrainingBatch[Tensor] = {
        "input_ids": ids,
        "labels": torch.tensor([[4, 5, 6, 7]]),
        "position_ids": torch.arange(4)[None],
        "padding_mask": ids == 0,
        "document_ids": ids,
    }
    adapt_model_inputs(batch, torch.tensor([[True, False, True, True]]))
    found = apply_packing_contract(batch, PackingCapabilities("block_causal"))
    assert listed(found["labels"]) == [[-100, -100, -100, 7]]
    assert listed(found["padding_mask"]) == [[False] * 4]


@pytest.mark.parametrize(
    ("labels", "shift", "field"),
    [
        (torch.zeros(1, 3), "model", "labels"),
        (torch.zeros(1, 4, dtype=torch.int64), "model", "labels"),
        (torch.zeros(3, dtype=torch.int64), "model", "labels"),
        (torch.zeros(1, 3, dtype=torch.bool), "model", "labels"),
        ([[0, 0, 0]], "model", "labels"),
        (torch.zeros(1, 3, dtype=torch.int64), "data", "label_shift"),
        (torch.zeros(1, 3, dtype=torch.int64), None, "label_shift"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: Tensor, shift: str, field: str) -> None:
    ids = torch.tensor([[1, 1, 2]])
    with pytest.raises(EncodingError) as caught:
        mask_labels(labels, ids, cast("LabelShift", shift), document_ids=ids.clone())
    assert [problem.field for problem in caught.value.problems] == [field]


def test_ids_of_labels_are_checked() -> None:
    with pytest.raises(DocumentIdsError, match="attention_document_ids"):
        mask_labels(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[1, 2, 1]]), "model")


def test_who_shifted_the_labels_is_asked_for_in_the_same_words_everywhere() -> None:
    ids, wrong = torch.ones(1, 2, dtype=torch.int64), cast("Any", "shifted")
    batch = cast("TrainingBatch[Tensor]", {"input_ids": ids, "labels": ids, "document_ids": ids})
    calls: list[Callable[[], object]] = [
        lambda: mask_labels(ids, ids, wrong),
        lambda: mtp_targets(ids, ids, 0, wrong),
        lambda: shard_tokens(batch, 0, 1, "zigzag", label_shift=wrong),
        lambda: require_supported_packing_contract(PackingCapabilities("document_ids"), label_shift=wrong),
    ]
    said: set[str] = set()
    for call in calls:
        with pytest.raises(PackingError, match="'model', 'stream', 'document'") as caught:
            call()
        said.add(str(caught.value))
    assert len(said) == 1


def test_targets_are_counted_of_the_labels_alone() -> None:
    """Ids are not asked: what stands at padding counts until it is masked."""
    ids, labels = torch.tensor([[1, 1, 0]]), torch.tensor([[10, 11, 12]])
    assert int(count_valid_targets(labels)) == 3
    assert int(count_valid_targets(mask_labels(labels, ids, "model"))) == 1
