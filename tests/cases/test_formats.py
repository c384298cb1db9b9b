"""Document ids are recovered from the batches of other packages, captured from them, as docs/formats.md says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import pytest
import torch
from torch import Tensor

from neatpack.adapters import (
    document_ids_from_attention_mask,
    document_ids_from_flash_varlen,
    document_ids_from_length_matrix,
    document_ids_from_metadata,
    document_ids_from_positions,
    document_ids_from_row_offsets,
    document_ids_from_segment_index,
    document_ids_from_thd_lengths,
    parse_document_ids,
    segment_ids_from_offsets,
)
from neatpack.contracts import FlashVarlenKwargs, LengthMatrix, PhysicalRows, SegmentIndex, THDLengths
from tests.environments import REPOSITORY

Fields: TypeAlias = dict[str, Any]
Call: TypeAlias = Callable[[Fields, Tensor], Tensor]
"""From the fields of a batch, and where its padding is, to its ids."""

PAGE: Final = (REPOSITORY / "docs" / "formats.md").read_text()


def _from_flash(fields: Fields, padding: Tensor) -> Tensor:
    names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    kwargs = {name: int(fields[name]) if name.startswith("max") else fields[name] for name in names}
    return document_ids_from_flash_varlen(cast("FlashVarlenKwargs[Tensor]", kwargs), padding)


def _from_row_offsets(fields: Fields, padding: Tensor) -> Tensor:
    return document_ids_from_row_offsets(PhysicalRows(fields["cu_seqlens"], fields["max_seqlen"]), padding)


def _from_zephon_flat(fields: Fields, padding: Tensor) -> Tensor:
    offsets, longest = fields["cu_seqlens"], fields["max_seqlen"]
    padding = fields["padding_mask"].view_as(padding)
    renamed = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), offsets)
    return _from_flash({**renamed, **dict.fromkeys(("max_length_q", "max_length_k"), longest)}, padding)


POSITIONS: Final[dict[str, Call]] = {
    "document_ids_from_positions": lambda fields, _: document_ids_from_positions(fields["position_ids"])
}
FLASH: Final[dict[str, Call]] = {"document_ids_from_flash_varlen": _from_flash}
SEQ_IDX: Final[dict[str, Call]] = {
    "document_ids_from_segment_index": lambda fields, _: document_ids_from_segment_index(
        SegmentIndex(fields["seq_idx"])
    )
}
MASK: Final[dict[str, Call]] = {
    "document_ids_from_attention_mask": lambda fields, _: document_ids_from_attention_mask(fields["attention_mask"])
}

CALLS: Final[list[dict[str, Call]]] = [
    {
        "they are ids": lambda fields, _: parse_document_ids(fields["_packed_seq_ids"]),
        "document_ids_from_metadata": lambda fields, _: document_ids_from_metadata(
            fields["packed_token_indices"], fields["cu_seqlens"]
        ),
    },
    {
        "document_ids_from_thd_lengths": lambda fields, padding: document_ids_from_thd_lengths(
            THDLengths(fields["seq_lens"], fields["seq_lens_padded"]), padding.shape[1]
        )
    },
    {**POSITIONS, **SEQ_IDX, **FLASH},
    {**POSITIONS, **SEQ_IDX, **FLASH},
    {**POSITIONS, **FLASH},
    {"document_ids_from_positions": lambda fields, _: document_ids_from_positions(fields["positions"])},
    {
        "document_ids_from_row_offsets": lambda fields, _: _from_row_offsets(fields, fields["padding_mask"]),
    },
    {"document_ids_from_flash_varlen": _from_zephon_flat},
    {"document_ids_from_row_offsets": _from_row_offsets},
    MASK,
    MASK,
    {
        "document_ids_from_segment_index": lambda fields, _: document_ids_from_segment_index(
            SegmentIndex(fields["sequence_id"].int())
        )
    },
    {
        "document_ids_from_length_matrix": lambda fields, padding: document_ids_from_length_matrix(
            LengthMatrix(fields["doc_lens"]), padding.shape[1]
        )
    },
    {"segment_ids_from_offsets": lambda fields, _: segment_ids_from_offsets(fields["packed_cu_seqlens"])[None] + 1},
]
"""For each captured batch, in the order of the file, the calls that the page names for its package."""

CASES: Final[list[dict[str, Any]]] = [
    json.loads(line) for line in Path(__file__).with_name("formats.jsonl").read_text().splitlines()
]
NAMES: Final = [f"{case['package']}-{number}" for number, case in enumerate(CASES)]
EACH: Final = pytest.mark.parametrize(("case", "calls"), list(zip(CASES, CALLS, strict=True)), ids=NAMES)


def _decoded(value: object) -> object:
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        return torch.tensor(given["data"], dtype=getattr(torch, given["dtype"]))
    return value


@EACH
def test_ids_are_those_of_the_documents(case: dict[str, Any], calls: dict[str, Call]) -> None:
    fields = {name: _decoded(value) for name, value in case["fields"].items()}
    expected = torch.tensor(case["document_ids"])
    for call in calls.values():
        assert torch.equal(parse_document_ids(call(fields, expected == 0)), parse_document_ids(expected))


@EACH
def test_the_page_names_the_package_and_the_call(case: dict[str, Any], calls: dict[str, Call]) -> None:
    version = case["version"].removesuffix(".0") if case["version"].count(".") == 2 else case["version"]
    assert re.search(rf"\b{case['package']} {re.escape(version)}", PAGE)
    assert [name for name in calls if name not in PAGE] == []


def test_a_boundary_that_moved_is_noticed() -> None:
    case = next(case for case in CASES if case["package"] == "OLMo-core")
    lengths = cast("Tensor", _decoded(case["fields"]["doc_lens"]))
    lengths[0, 0] -= 1
    lengths[0, 1] += 1
    found = document_ids_from_length_matrix(LengthMatrix(lengths), len(case["document_ids"][0]))
    assert not torch.equal(found, parse_document_ids(torch.tensor(case["document_ids"])))
