"""`neatpack inspect`: the documents of a batch as they are, and every disagreement in it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import (
    BatchEntry,
    build_packed_sequence_metadata,
    canonical_document_ids,
    collate_documents,
    flash_varlen_kwargs,
    plan_rows,
)
from neatpack.contracts.errors import BatchError, PackingError
from neatpack.kernels_bridge.cli import main
from neatpack.kernels_bridge.inspect import inspect_batch, inspection_lines
from neatpack.kernels_bridge.terminal import plain


def _batch(lengths: list[int], capacity: int) -> dict[str, BatchEntry]:
    batch = collate_documents(
        [torch.arange(length) for length in lengths], plan_rows(lengths, capacity, method="first_fit")
    )
    entries: dict[str, BatchEntry] = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    return entries


def _every_encoding(lengths: list[int], capacity: int) -> dict[str, BatchEntry]:
    entries = _batch(lengths, capacity)
    ids = entries["document_ids"]
    assert isinstance(ids, Tensor)
    entries["_packed_seq_ids"] = ids
    for encoding in (flash_varlen_kwargs(ids), build_packed_sequence_metadata(ids)):
        entries.update(cast("dict[str, BatchEntry]", encoding))
    return entries


def _strip(entries: dict[str, BatchEntry], width: int = 80) -> list[str]:
    return plain(inspection_lines(inspect_batch(entries), width)).split("\n")


def test_rows_are_drawn_with_lengths_and_padding() -> None:
    lines = _strip(_batch([3, 2, 4], 6))
    assert lines[:2] == [
        "2 rows of 6 places, read from document_ids",
        "3 documents, 9 tokens, 3 padding (25 %), 0 holes; longest 4",
    ]
    assert lines[3:7] == ["0 aaabb.", "  lengths 3 2, padding 1", "1 aaaa..", "  lengths 4, padding 2"]


def test_every_encoding_says_what_it_says() -> None:
    entries = _every_encoding([3, 2, 4], 6)
    entries["position_ids"] = torch.tensor([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 0]])
    lines = _strip(entries)
    assert [line for line in lines if " says " in line] == [
        "document_ids          says as drawn",
        "packed_token_indices  says as drawn",
        "cu_seq_lens_q         says as drawn",
        "position_ids          says 2 3; 4",
    ]
    assert any(line.startswith("DISAGREES: position_ids[row 0, position 2] = 0") for line in lines)


@pytest.mark.parametrize(
    "lengths",
    [
        torch.tensor([3, 2]),
        torch.tensor(3),
        torch.zeros(1, 2, 2),
        torch.tensor([[3, 2]]).bfloat16(),
        torch.tensor([[3, 2]]).to(torch.complex64),
        torch.tensor([[3, 2]]).to("meta"),
        torch.tensor([[3, 2]]).to_sparse(),
    ],
)
def test_lengths_that_are_none_are_told_as_such(lengths: Tensor) -> None:
    entries = _batch([3, 2], 6)
    lines = _strip({**entries, "seq_lens": lengths})
    assert any(line.startswith("DISAGREES: seq_lens") for line in lines)
    with pytest.raises(PackingError, match="seq_lens"):
        inspect_batch({"input_ids": entries["input_ids"], "seq_lens": lengths})


def test_lengths_need_the_rows_that_they_are_of() -> None:
    for tokens in ({}, {"input_ids": torch.arange(6)}):
        with pytest.raises(BatchError, match="input_ids"):
            inspect_batch({**tokens, "seq_lens": torch.tensor([[3, 2]])})


def test_a_long_row_is_drawn_to_scale_with_its_short_documents() -> None:
    entries = _batch([90, 1, 60], 200)
    lines = _strip(entries, width=42)
    assert "0 " + "a" * 18 + "b" + "c" * 12 + "." * 9 in lines
    assert max(map(len, lines)) <= 42


def test_holes_are_drawn_and_counted() -> None:
    ids = torch.tensor([[1, 1, 1, 2, 2, 0]])
    holes = torch.tensor([[1, 0, 1, 2, 0, 0]])
    lines = _strip({"document_ids": ids, "attention_document_ids": holes})
    assert lines[1] == "2 documents, 3 tokens, 1 padding (17 %), 2 holes; longest 2"
    assert lines[3:5] == ["0 a_ab_.", "  lengths 2 1, padding 1, holes 2"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("name", ["document_ids", "padding_mask"])
def test_padding_between_joined_documents_is_no_hole_and_a_token_at_their_end_is_one(
    name: str, dtype: torch.dtype
) -> None:
    joined, packed = torch.tensor([[1, 1, 0, 1, 0, 0]]), torch.tensor([[1, 1, 0, 2, 2, 0]])
    brought = packed.to(dtype) if name == "document_ids" else packed == 0
    lines = _strip({"_packed_seq_ids": joined, name: brought})
    assert lines[1] == "1 documents, 3 tokens, 2 padding (33 %), 1 holes; longest 3"
    assert lines[3:5] == ["0 aa.a_.", "  lengths 3, padding 2, holes 1"]


def test_zeros_between_equal_ids_as_packed_are_a_hole() -> None:
    ids = torch.tensor([[1, 0, 1, 0]])
    assert "0 a_a." in _strip({"document_ids": ids, "padding_mask": ids == 0})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_encodings_of_the_same_documents_agree(lengths: list[int]) -> None:
    entries = _every_encoding(lengths, 12)
    inspection = inspect_batch(entries)
    assert inspection.disagreements == ()
    assert set(inspection.agreeing) == {
        "document_ids",
        "padding_mask",
        "packed_token_indices",
        "cu_seq_lens_q",
        "position_ids",
    }


SOURCES = ("document_ids", "_packed_seq_ids", "packed_token_indices", "cu_seq_lens_q", "position_ids")


@pytest.mark.parametrize("source", SOURCES)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_documents_are_read_from_any_encoding(source: str, lengths: list[int]) -> None:
    entries = _every_encoding(lengths, 12)
    ids = entries["document_ids"]
    assert isinstance(ids, Tensor)
    needed = {
        "packed_token_indices": ("cu_seqlens",),
        "cu_seq_lens_q": ("cu_seq_lens_k", "max_length_q", "max_length_k", "padding_mask"),
        "position_ids": ("padding_mask",),
    }
    kept = (source, *needed.get(source, ()))
    inspection = inspect_batch({name: entries[name] for name in kept})
    assert inspection.source == source
    assert torch.equal(inspection.document_ids, canonical_document_ids(ids))


def _restart(value: Tensor) -> Tensor:
    value = value.clone()
    value[0, 2] = 0
    return value


def _shift(value: Tensor) -> Tensor:
    value = value.clone()
    value[1] += 1
    return value


def _flip(value: Tensor) -> Tensor:
    value = value.clone()
    value[0, 0] = True
    return value


def _renumber(value: Tensor) -> Tensor:
    value = value.clone()
    value[0, 2] = 2  # a token of the first document, given to the second
    return value


def _move(offsets: Tensor) -> Tensor:
    return offsets + (offsets == 3).int()


def _roll(indices: Tensor) -> Tensor:
    return indices.roll(1, 1)


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        ("position_ids", _restart),
        ("cu_seq_lens_q", _shift),
        ("padding_mask", _flip),
        ("document_ids", _renumber),
        ("cu_seqlens", _move),
        ("packed_token_indices", _roll),
    ],
)
def test_each_disagreement_is_flagged_alone(field: str, fault: Callable[[Tensor], Tensor]) -> None:
    entries = _every_encoding([3, 2, 4], 6)
    value = entries[field]
    assert isinstance(value, Tensor)
    entries[field] = fault(value)
    inspection = inspect_batch(entries)
    assert inspection.source == "_packed_seq_ids"
    assert len(inspection.disagreements) == 1
    assert inspection.disagreements[0].startswith(field)
    assert any(line.startswith("DISAGREES: ") for line in _strip(entries))


@pytest.mark.parametrize("mask", [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]])
@pytest.mark.parametrize("others", [(), ("_packed_seq_ids",)])
def test_a_padding_mask_that_contradicts_the_ids_as_packed_is_flagged(
    mask: list[int], others: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = torch.tensor([[1, 1, 1, 2, 2, 0]])
    entries = {"document_ids": ids, "padding_mask": torch.tensor([mask]).bool(), **dict.fromkeys(others, ids)}
    torch.save(entries, tmp_path / "batch.pt")
    assert main(["inspect", str(tmp_path / "batch.pt")]) == 1
    assert "DISAGREES: padding_mask[row 0" in capsys.readouterr().out


def test_entries_that_were_not_compared_are_named() -> None:
    entries = _every_encoding([3, 2, 4], 6)
    assert inspect_batch(entries).uncompared == ("input_ids", "labels", "document_keys", "document_starts")
    del entries["packed_token_indices"], entries["cu_seq_lens_q"]
    half = ("cu_seq_lens_k", "max_length_q", "max_length_k", "cu_seqlens", "max_seqlen")
    assert set(inspect_batch(entries).uncompared) == {"input_ids", "labels", "document_keys", "document_starts", *half}
    assert "not compared: input_ids, labels, document_keys, document_starts" in _strip(_batch([3, 2, 4], 6))


def test_a_batch_that_says_nothing_of_documents_is_refused() -> None:
    with pytest.raises(BatchError, match="nothing in it says where documents end"):
        inspect_batch({"input_ids": torch.zeros(1, 3, dtype=torch.int64), "attention_mask": torch.ones(1, 3)})


@pytest.mark.parametrize(
    "ids",
    [
        torch.tensor([1, 1, 2]),
        torch.tensor([[1, 2, 1]]),
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([[-1, 1]]),
        torch.tensor([[True, False]]),
        torch.zeros(0, 3, dtype=torch.int64),
    ],
)
def test_malformed_ids_are_refused(ids: Tensor) -> None:
    with pytest.raises(PackingError):
        inspect_batch({"document_ids": ids})


def _save(entries: dict[str, BatchEntry], path: Path) -> None:
    if path.suffix == ".pt":
        torch.save(entries, path)
    elif path.suffix == ".npz":
        arrays = {name: np.asarray(value) for name, value in entries.items()}
        np.savez(path, **arrays)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    else:
        lists = {n: v.tolist() if isinstance(v, Tensor) else v for n, v in entries.items()}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        path.write_text(json.dumps(lists))


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".json"])
def test_saved_batches_are_drawn(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"batch{suffix}"
    entries = _batch([3, 2, 4], 6)
    _save(entries, path)
    assert main(["inspect", str(path)]) == 0
    assert "0 aaabb." in capsys.readouterr().out
    positions = entries["position_ids"]
    assert isinstance(positions, Tensor)
    _save({**entries, "position_ids": _restart(positions)}, path)
    assert main(["inspect", str(path)]) == 1
    assert "DISAGREES: position_ids[row 0, position 2]" in capsys.readouterr().out


class _Hostile:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_hostile_files_run_no_code_and_leave_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trap = tmp_path / "trap"
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"document_ids": _Hostile(trap)}))
    torch.save({"document_ids": _Hostile(trap)}, tmp_path / "saved.pt")
    np.savez(tmp_path / "objects.npz", document_ids=np.array([_Hostile(trap)], dtype=object))
    (tmp_path / "noise.pt").write_bytes(bytes(range(256)))
    (tmp_path / "noise.npz").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "ragged.json").write_text('{"document_ids": [[1, 2], [1]]}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "folder.json").mkdir()
    for file in sorted(tmp_path.iterdir()):
        assert main(["inspect", str(file)]) == 2, file.name
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("neatpack: ")
        assert "Traceback" not in err
    assert not trap.exists()
