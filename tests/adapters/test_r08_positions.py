"""Rule 8: positions restart in each document, holes use up coordinates, joined documents are shifted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    adapt_model_inputs,
    build_position_ids,
    check_agreement,
    enable_xdoc_attention,
    repeat_on_axes,
    tokens_remaining,
)
from neatpack.adapters.strategies import attention_document_ids, document_ids, training_batches
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BatchError, CapabilitiesError, DocumentIdsError, EncodingError, PackingError
from tests.adapters import oracle, oracle_loss
from tests.adapters.batches import training_batch
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for, listed, rows_of

_IDS = PackingCapabilities("document_ids")
_WITHOUT_HOLES = [PackingCapabilities("flash_varlen"), PackingCapabilities("document_ids", takes_holes=False)]


def _structural(batch: TrainingBatch[Tensor]) -> Tensor:
    return batch.get("document_ids", batch["input_ids"])


@given(ids=document_ids(), axes=st.integers(1, 4))
def test_text_has_the_same_coordinate_on_every_axis(ids: Tensor, axes: int) -> None:
    positions = build_position_ids(ids)
    found = repeat_on_axes(positions, axes)
    assert listed(found) == [oracle.positions(rows_of(ids))] * axes
    check_agreement(ids, {"position_ids": found})
    # It shares no memory with what it was made of, nor one axis with another.
    found[0].fill_(99)
    assert listed(found[1:]) == [listed(positions)] * (axes - 1)
    assert listed(positions) == oracle.positions(rows_of(ids))


@holds_for(ids=attention_document_ids(), start=st.integers(0, 5))
def test_positions_restart_in_each_document(ids: Tensor, start: int) -> None:
    found = build_position_ids(ids, start)
    assert found.dtype == torch.int64
    assert listed(found) == oracle.positions(rows_of(ids), start)


@holds_for(batch=training_batches(axes=(0, 1, 3)))
def test_joined_documents_are_shifted_on_every_axis(batch: TrainingBatch[Tensor]) -> None:
    structural, before = rows_of(_structural(batch)), batch["position_ids"]
    axes: list[list[list[int]]] = listed(before if before.ndim == 3 else before[None])
    expected = oracle.joined_positions(structural, axes)
    found = enable_xdoc_attention(adapt_model_inputs(batch), _IDS)
    assert found is batch
    assert listed(found["position_ids"]) == (expected if before.ndim == 3 else expected[0])
    assert listed(found.get("attention_document_ids", before)) == [
        [int(number > 0) for number in row] for row in structural
    ]


@holds_for(batch=training_batches(), data=st.data())
def test_excluded_tokens_become_holes_and_keep_their_coordinates(
    batch: TrainingBatch[Tensor], data: st.DataObject
) -> None:
    ids = _structural(batch)
    flags = data.draw(st.lists(st.booleans(), min_size=ids.numel(), max_size=ids.numel()))
    eligible = torch.tensor(flags).view(ids.shape)
    found = adapt_model_inputs(batch, eligible)
    attention = found.get("attention_document_ids", ids)
    assert attention.dtype == torch.int64
    assert attention is not ids
    assert listed(attention) == [
        [number if keep else 0 for number, keep in zip(numbers, row, strict=True)]
        for numbers, row in zip(rows_of(ids), listed(eligible), strict=True)
    ]
    joined = enable_xdoc_attention(found, _IDS)
    assert torch.equal(joined.get("attention_document_ids", ids), (attention != 0).long())
    assert listed(joined["position_ids"]) == oracle.joined_positions(rows_of(ids), [oracle.positions(rows_of(ids))])[0]


@holds_for(batch=training_batches(), data=st.data())
def test_tokens_excluded_once_stay_excluded(batch: TrainingBatch[Tensor], data: st.DataObject) -> None:
    """Each processor says which tokens it excludes, and a loader that adapts every batch says of none."""
    ids = _structural(batch)
    drawn = st.lists(st.booleans(), min_size=ids.numel(), max_size=ids.numel())
    image, audio = (torch.tensor(data.draw(drawn)).view(ids.shape) for _ in range(2))
    for eligible in (image, audio, None):
        adapt_model_inputs(batch, eligible)
    attention = batch.get("attention_document_ids", ids)
    assert listed(attention) == [
        [number if one and other else 0 for number, one, other in zip(*rows, strict=True)]
        for rows in zip(rows_of(ids), listed(image), listed(audio), strict=True)
    ]


@given(batch=training_batches(), contract=st.sampled_from(_WITHOUT_HOLES))
def test_some_contracts_take_joined_documents_only_without_holes(
    batch: TrainingBatch[Tensor], contract: PackingCapabilities
) -> None:
    adapted = adapt_model_inputs(batch)
    joined = [[int(number > 0) for number in row] for row in rows_of(_structural(batch))]
    if not oracle.holes(joined):
        enable_xdoc_attention(adapted, contract)
        return
    before = dict(adapted)
    with pytest.raises(DocumentIdsError, match="attention_document_ids"):
        enable_xdoc_attention(adapted, contract)
    assert dict(adapted) == before


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_narrow_positions_do_not_wrap_when_shifted(dtype: torch.dtype) -> None:
    ids = torch.arange(1, 5).repeat_interleave(100)[None]
    batch: TrainingBatch[Tensor] = {
        "input_ids": ids,
        "labels": ids,
        "position_ids": build_position_ids(ids).to(dtype),
        "padding_mask": ids == 0,
        "document_ids": ids,
    }
    found = enable_xdoc_attention(adapt_model_inputs(batch), _IDS)
    assert listed(found["position_ids"]) == [list(range(400))]


def test_positions_of_no_axis_stay_so() -> None:
    batch = training_batch([[1, 1, 2, 0]])
    batch["position_ids"] = torch.empty(0, 1, 4, dtype=torch.int64)
    found = enable_xdoc_attention(adapt_model_inputs(batch), _IDS)
    assert found["position_ids"].shape == (0, 1, 4)


def test_documents_are_joined_once() -> None:
    batch = enable_xdoc_attention(adapt_model_inputs(training_batch([[1, 1, 2, 2, 0]])), _IDS)
    before = dict(batch)
    with pytest.raises(BatchError, match=r"attention_document_ids\[row 0, position 2\] = 1: .* joined already"):
        enable_xdoc_attention(batch, _IDS)
    assert dict(batch) == before


def test_negative_coordinates_are_refused() -> None:
    batch = adapt_model_inputs(training_batch([[1, 1, 2, 2, 0]]))
    batch["position_ids"] = torch.tensor([[[0, 1, 0, 1, 0]], [[0, 1, -1, 0, 0]]])
    with pytest.raises(BatchError, match=r"position_ids\[row 0, position 2\] = -1: negative coordinate"):
        enable_xdoc_attention(batch, _IDS)
    batch["position_ids"] = torch.tensor([[0, -1, 0, 1, 0]])  # so that the next document does not restart either
    with pytest.raises(BatchError, match=r"position_ids\[row 0, position 1\] = -1: negative coordinate"):
        enable_xdoc_attention(batch, _IDS)
    batch["position_ids"] = torch.tensor([[0, 1, 0, 1, 2**63]], dtype=torch.uint64)
    with pytest.raises(BatchError, match=r"\[row 0, position 4\] = 9223372036854775808: coordinate past int64"):
        enable_xdoc_attention(batch, _IDS)
    batch["position_ids"] = torch.tensor([[0, 1, 0, 1, -1]])  # at padding they mean nothing
    assert listed(enable_xdoc_attention(batch, _IDS)["position_ids"]) == [[0, 1, 2, 3, -1]]


def test_the_first_coordinate_that_is_negative_is_named_and_not_the_lowest() -> None:
    ids = torch.tensor([[1, 1, 0], [1, 2, 2]])
    batch: Any = {"input_ids": ids, "labels": ids, "padding_mask": ids == 0, "document_ids": ids}
    batch["position_ids"] = torch.tensor([[[0, 1, -9], [0, 0, 1]], [[0, -2, 0], [-7, 0, 1]]])
    with pytest.raises(BatchError, match=r"position_ids\[row 0, position 1\] = -2: negative coordinate"):
        enable_xdoc_attention(adapt_model_inputs(batch), _IDS)


def test_joined_coordinates_never_wrap() -> None:
    ids = torch.tensor([[1, 1, 2, 2, 3, 3]])
    batch: Any = {"input_ids": ids, "labels": ids, "padding_mask": ids == 0, "document_ids": ids}
    batch["position_ids"] = torch.tensor([[0, 2**62, 0, 2**62, 0, 1]]).expand(3, 1, 6)
    adapted = adapt_model_inputs(batch)
    before = dict(adapted)
    with pytest.raises(BatchError, match="would be past int64"):
        enable_xdoc_attention(adapted, _IDS)
    assert dict(adapted) == before


def test_the_first_row_whose_joined_coordinates_would_wrap_is_named_with_its_greatest() -> None:
    batch = adapt_model_inputs(training_batch([[1, 2]] * 3))
    batch["position_ids"] = torch.tensor([[0, 1], [2**62, 2**62 + 3], [2**62, 2**62]])
    with pytest.raises(BatchError, match=rf"position_ids\[row 1\] = {2**62 + 3}: .* would be past int64"):
        enable_xdoc_attention(batch, _IDS)


def test_joining_needs_the_attention_ids() -> None:
    with pytest.raises(BatchError, match="adapt_model_inputs"):
        enable_xdoc_attention(training_batch([[1, 1, 2, 2, 0]]), _IDS)
    with pytest.raises(CapabilitiesError):
        enable_xdoc_attention(adapt_model_inputs(training_batch([[1, 1, 2, 2, 0]])), PackingCapabilities("flash"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("eligibility", "kind"),
    [
        (torch.ones(1, 5, dtype=torch.int64), "dtype"),
        (torch.ones(1, 4, dtype=torch.bool), "shape"),
        (torch.ones(1, 5, dtype=torch.bool, device="meta"), "device"),
        ([[True] * 5], "type"),
    ],
)
def test_eligibility_that_does_not_fit_is_refused(eligibility: Tensor, kind: str) -> None:
    batch = training_batch([[1, 1, 2, 2, 0]])
    before = dict(batch)
    with pytest.raises(BatchError) as caught:
        adapt_model_inputs(batch, eligibility)
    assert (caught.value.problems[0].field, caught.value.problems[0].kind) == ("attention_eligibility", kind)
    assert dict(batch) == before


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"document_ids": None}, BatchError),
        ({"document_ids": [[1, 1, 2, 2, 0]]}, BatchError),
        ({"document_ids": torch.tensor([[1, 2, 1, 2, 0]])}, DocumentIdsError),
        ({"document_ids": torch.tensor([[1, 1, 2, 2, 0]]) > 0}, PackingError),
        ({"document_ids": torch.tensor([1, 1, 2, 2, 0])}, PackingError),
        ({"position_ids": torch.tensor([[0, 1, 0, 0, 0]])}, EncodingError),
        ({"position_ids": torch.tensor([[0, 1, 0, 1]])}, BatchError),
        ({"padding_mask": torch.zeros(1, 5, dtype=torch.bool)}, EncodingError),
        ({"padding_mask": torch.tensor([[0, 0, 0, 0, 1]])}, BatchError),
    ],
)
def test_a_batch_that_is_refused_stays_as_it_came(changes: dict[str, object], error: type[Exception]) -> None:
    batch = training_batch([[1, 1, 2, 2, 0]])
    batch.update(changes)  # type: ignore[typeddict-item]  # pyright: ignore[reportArgumentType,reportCallIssue]
    before = dict(batch)
    with pytest.raises(error):
        adapt_model_inputs(batch)
    assert dict(batch) == before
    with pytest.raises(BatchError, match="mapping"):
        adapt_model_inputs(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@given(rows_of_ids(holes=True))
def test_tokens_remaining_and_positions_make_up_the_document(rows: Rows) -> None:
    ids = tensor(rows)
    found = tokens_remaining(ids)
    assert listed(found) == oracle_loss.remaining(rows)
    span = (found + build_position_ids(ids))[ids != 0]
    lengths = [places[-1][1] - places[0][1] for places in oracle_loss.documents(rows) for _ in places]
    assert listed(span.sort().values) == sorted(lengths)


def test_of_padding_no_tokens_remain_in_one_host_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with host_reads(monkeypatch) as reads:
        assert listed(tokens_remaining(torch.tensor([[0, 0]]))) == [[0, 0]]
    assert reads.total == 1
