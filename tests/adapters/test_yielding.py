"""What a batch under a contract holds, by what it brought, and which batches come under none."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
import torch

from neatpack.adapters import (
    adapt_model_inputs,
    apply_packing_contract,
    build_position_ids,
    convert_batch_output,
    enable_xdoc_attention,
    pad_documents,
)
from neatpack.contracts.capabilities import PACKED_MASK_TYPES, PackedMaskType, PackingCapabilities
from neatpack.contracts.errors import BatchError, DocumentIdsError

_IDS = torch.tensor([[1, 0, 1, 2, 0, 0]])
_STRUCTURAL = torch.tensor([[1, 1, 1, 2, 2, 0]])
_MASK = torch.tensor([[False, False, False, False, True, True]])


@pytest.mark.parametrize(
    ("brought", "expected"),
    [
        ({"document_ids": _STRUCTURAL}, _STRUCTURAL == 0),
        ({"document_ids": _STRUCTURAL, "padding_mask": _STRUCTURAL == 0}, _STRUCTURAL == 0),
        ({"padding_mask": _MASK}, _MASK),
        ({}, _MASK),
    ],
)
def test_padding_is_told_from_tokens_that_attention_leaves_out(brought: Any, expected: torch.Tensor) -> None:
    batch: Any = {"input_ids": _IDS + 9, "labels": _IDS + 9, "attention_document_ids": _IDS, **brought}
    found = apply_packing_contract(batch, PackingCapabilities("document_ids"))
    assert torch.equal(found["padding_mask"], expected)


def test_the_order_of_entries_does_not_go_by_what_a_batch_brought() -> None:
    """A pipeline schedule pairs the entries and the dimensions along which it cuts them by order."""
    batch: Any = {"input_ids": _IDS + 9, "labels": _IDS + 9, "document_ids": _STRUCTURAL}
    contract = PackingCapabilities("document_ids", True, return_document_ids=True)
    brought: list[Any] = [{}, {"padding_mask": _STRUCTURAL == 0}, {"attention_document_ids": _IDS}]
    found = [list(apply_packing_contract(each | batch, contract)) for each in brought]
    assert found == [["input_ids", "labels", *found[0][2:]]] * 3


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_mask_of_ids_is_the_tensor_of_the_packed_ids(dtype: torch.dtype) -> None:
    batch: Any = {"input_ids": _IDS + 9, "labels": _IDS + 9, "document_ids": _STRUCTURAL.to(dtype)}
    found = apply_packing_contract(batch, PackingCapabilities("document_ids"), flat=True)
    assert found.get("attention_mask") is found.get("_packed_seq_ids") is not None


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("takes_holes", [False, True])
@pytest.mark.parametrize("mask_type", PACKED_MASK_TYPES)
def test_a_hole_is_refused_where_the_contract_takes_none(
    mask_type: PackedMaskType, takes_holes: bool, flat: bool
) -> None:
    """A bound model would find out in its first step."""
    contract = PackingCapabilities(mask_type, takes_holes=takes_holes)
    batch: Any = {"input_ids": _IDS, "labels": _IDS, "attention_document_ids": _IDS, "document_ids": _STRUCTURAL}
    before = dict(batch)
    if takes_holes and mask_type != "flash_varlen":
        apply_packing_contract(batch, contract, flat=flat)
        return
    with pytest.raises(DocumentIdsError, match=r"attention_document_ids\[row 0, position 1\] = 0: a hole"):
        apply_packing_contract(batch, contract, flat=flat)
    assert batch == before


_NO_HOLES = PackingCapabilities("document_ids", takes_holes=False)
_WITHOUT_HOLES: dict[str, Callable[[Any], Any]] = {
    "enable_xdoc_attention": lambda batch: enable_xdoc_attention(batch, _NO_HOLES),
    "apply_packing_contract": lambda batch: apply_packing_contract(batch, _NO_HOLES),
    "convert_batch_output": lambda batch: convert_batch_output(batch, "thd"),
}


@pytest.mark.parametrize("excluded", [False, True], ids=["padding", "excluded"])
@pytest.mark.parametrize("name", _WITHOUT_HOLES)
def test_the_ways_out_of_a_hole_lead_out(name: str, excluded: bool) -> None:
    """Whoever asks for boundaries that express no hole is told what to change: to ask for others is not his to do."""
    ids = _STRUCTURAL if excluded else torch.tensor([[1, 0, 2, 2, 0, 0]])
    batch: Any = {"input_ids": ids + 9, "labels": ids + 9, "document_ids": ids, "position_ids": build_position_ids(ids)}
    batch = adapt_model_inputs(batch, torch.tensor([[True, False, True, True, True, True]]) if excluded else None)
    if name != "enable_xdoc_attention":
        batch = enable_xdoc_attention(batch, PackingCapabilities("document_ids"))
    with pytest.raises(DocumentIdsError) as caught:
        _WITHOUT_HOLES[name](batch)
    (problem,) = caught.value.problems
    assert "joined documents: call pad_documents(batch, 1)." in problem.remedy
    assert re.search(r"took out: (.* a consumer such as `block_causal`|.*output_format=\"batched\")", problem.remedy)
    if not excluded:
        assert _WITHOUT_HOLES[name](pad_documents(batch, 1))["input_ids"].tolist() == [[10, 11, 11]]


_REPLACING: dict[str, Callable[[Any], object]] = {
    "adapt_model_inputs": adapt_model_inputs,
    "enable_xdoc_attention": lambda batch: enable_xdoc_attention(batch, PackingCapabilities("document_ids")),
    "apply_packing_contract": lambda batch: apply_packing_contract(batch, PackingCapabilities("document_ids")),
    "convert_batch_output": lambda batch: convert_batch_output(batch, "thd"),
}


@pytest.mark.parametrize("function", _REPLACING.values(), ids=_REPLACING)
def test_a_batch_whose_entries_cannot_be_replaced_is_refused(function: Callable[[Any], object]) -> None:
    entries: Any = {"input_ids": _STRUCTURAL, "labels": _STRUCTURAL, "position_ids": build_position_ids(_STRUCTURAL)}
    entries |= {"padding_mask": _STRUCTURAL == 0, "document_ids": _STRUCTURAL, "attention_document_ids": _STRUCTURAL}
    with pytest.raises(BatchError, match=r"batch = mappingproxy: .*\bdict\(batch\)"):
        function(MappingProxyType(entries))
    function(UserDict(entries))


@pytest.mark.parametrize("return_document_ids", [False, True])
def test_what_comes_after_the_last_step_goes_by_the_attention_ids(return_document_ids: bool) -> None:
    """Under xdoc, the documents as packed are others than those that attention sees."""
    structural, joined = torch.tensor([[1, 1, 2, 2, 0]]), torch.tensor([[1, 1, 1, 1, 0]])
    batch: Any = {"input_ids": structural, "labels": structural, "document_ids": structural}
    contract = PackingCapabilities("document_ids", True, return_document_ids=return_document_ids)
    batch["attention_document_ids"] = joined
    applied = apply_packing_contract(batch, contract)
    again = apply_packing_contract(applied.copy(), contract)
    assert again.keys() == applied.keys()
    for found in (again.get("_packed_seq_ids", structural), applied.get("_packed_seq_ids", structural)):
        assert torch.equal(found, joined)
    lengths = convert_batch_output(applied, "thd")
    assert torch.equal(lengths.get("seq_lens", structural), torch.tensor([[4]]))
    assert torch.equal(lengths.get("seq_lens_padded", structural), torch.tensor([[5]]))
