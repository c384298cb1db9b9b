"""What NeMo AutoModel 0.7.0 answers, where any correct implementation answers the same; measured on torch 2.13."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor

from neatpack.adapters import (
    build_packed_sequence_metadata,
    flash_varlen_kwargs,
    flatten_packed_sequence_metadata,
    get_seqlens_in_batch,
    get_unpad_data,
    is_indexed_packed_mask,
)
from neatpack.contracts.errors import PackingError

_ERRORS: Final = {"ValueError": ValueError}

_FUNCTIONS: Final = {
    "get_seqlens_in_batch",
    "get_unpad_data",
    "build_packed_sequence_metadata",
    "flatten_packed_sequence_metadata",
    "is_indexed_packed_mask",
    "packed_seq_params",
}

_REFUSED: Final = {"0144": "bool document ids tell no documents apart"}
"""Cases that AutoModel answers and that are refused here, with the reason."""

_WIDENED: Final = {"get_seqlens_in_batch": torch.int64}
"""Functions whose lengths have the dtype of the mask there, in which they overflow, and one dtype here."""


def _answer(function: str, given: dict[str, Any]) -> dict[str, object]:
    if function == "get_seqlens_in_batch":
        return {"seqlens": get_seqlens_in_batch(**given)}
    if function == "get_unpad_data":
        return dict(zip(("indices", "cu_seqlens", "max_seqlen"), get_unpad_data(**given), strict=True))
    if function == "build_packed_sequence_metadata":
        return dict(build_packed_sequence_metadata(**given))
    if function == "flatten_packed_sequence_metadata":
        return dict(zip(("indices", "cu_seqlens"), flatten_packed_sequence_metadata(**given), strict=True))
    if function == "is_indexed_packed_mask":
        return {"result": is_indexed_packed_mask(**given)}
    # Each run of padding is one segment there.
    return dict(flash_varlen_kwargs(given["doc_ids"], padding="run"))


def _load() -> list[dict[str, Any]]:
    lines = Path(__file__).with_name("contract.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


_CASES: Final = _load()


def _value(encoded: Any) -> Any:
    if not isinstance(encoded, dict):
        return encoded
    fields = cast("dict[str, Any]", encoded)
    tensor = torch.tensor(fields["data"], dtype=getattr(torch, fields["dtype"]))
    return tensor.reshape(fields["shape"]) if "shape" in fields else tensor


@pytest.mark.parametrize("case", _CASES, ids=lambda case: f"{case['function']}-{case['case']}-{case['id']}")
def test_case(case: dict[str, Any]) -> None:
    arguments = {name: _value(encoded) for name, encoded in case["arguments"].items()}
    if "raises" in case or case["id"] in _REFUSED:
        with pytest.raises(PackingError) as caught:
            _answer(case["function"], arguments)
        assert isinstance(caught.value, _ERRORS[case.get("raises", "ValueError")])
        return
    found = _answer(case["function"], arguments)
    assert set(found) == set(case["result"])
    for name, encoded in case["result"].items():
        _assert_same(found[name], _value(encoded), _WIDENED.get(case["function"]))


def _assert_same(found: object, expected: object, dtype: torch.dtype | None) -> None:
    if not isinstance(expected, Tensor):
        assert type(found) is type(expected)
        assert found == expected
        return
    assert isinstance(found, Tensor)
    assert found.dtype == (expected.dtype if dtype is None else dtype)
    assert torch.equal(found.to(expected.dtype), expected)


def test_every_function_has_cases() -> None:
    assert {case["function"] for case in _CASES} == _FUNCTIONS
    assert {case["id"] for case in _CASES} >= set(_REFUSED)
