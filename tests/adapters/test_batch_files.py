"""Saved batches: every kind of file is read, and none runs code."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor

from neatpack.adapters import load_batch
from neatpack.contracts.errors import BatchFileError
from tests.adapters.properties import listed

_IDS: Final = torch.tensor([[1, 1, 2, 0]])


class _Trap:
    """Pickled, it would create a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path]]:
        return Path.touch, (self.marker,)


def _save_torch(path: Path) -> None:
    torch.save({"document_ids": _IDS, "max_seqlen": 2}, path)


def _save_numpy(path: Path) -> None:
    np.savez(path, document_ids=_IDS.numpy(), max_seqlen=np.array(2), name=np.array("a"))


def _save_json(path: Path) -> None:
    path.write_text(json.dumps({"document_ids": listed(_IDS), "padding_mask": [[False, True]], "name": "a"}))


def _save_safetensors(path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({"document_ids": _IDS}, path)


def _save_torch_unzipped(path: Path) -> None:
    torch.save({"document_ids": _IDS}, path, _use_new_zipfile_serialization=False)


def _save_lzma(path: Path) -> None:
    _save_numpy(path)
    with zipfile.ZipFile(path) as plain:
        arrays = {name: plain.read(name) for name in plain.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as packed:
        for name, content in arrays.items():
            packed.writestr(name, content)


def _save_compressed(path: Path) -> None:
    np.savez_compressed(path, document_ids=np.arange(40)[None] % 3)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("batch.pt", _save_torch),
        ("batch.PTH", _save_torch),
        ("batch.pt", _save_torch_unzipped),
        ("batch.npz", _save_numpy),
        ("batch.npz", _save_lzma),
        ("batch.json", _save_json),
        ("batch.safetensors", _save_safetensors),
    ],
)
def test_every_kind_is_read(name: str, save: Callable[[Path], None], tmp_path: Path) -> None:
    save(tmp_path / name)
    batch = load_batch(tmp_path / name)
    ids = batch["document_ids"]
    assert isinstance(ids, Tensor)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, _IDS)
    assert batch.get("max_seqlen", 2) == 2
    assert batch.get("name", "a") == "a"
    assert load_batch(str(tmp_path / name)).keys() == batch.keys()


def test_bools_stay_bools(tmp_path: Path) -> None:
    _save_json(tmp_path / "batch.json")
    mask = load_batch(tmp_path / "batch.json")["padding_mask"]
    assert isinstance(mask, Tensor)
    assert mask.dtype == torch.bool


def test_json_is_utf_8_whatever_the_locale_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "batch.json"
    path.write_bytes('{"name": "é"}'.encode())

    def of_locale(encoding: str | None, *_: int) -> str:
        return encoding or "ascii"

    monkeypatch.setattr(io, "text_encoding", of_locale)
    assert load_batch(path) == {"name": "é"}


def test_tensors_that_were_saved_on_a_device_come_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_device(_: object) -> str:
        return "cuda:0"

    with monkeypatch.context() as saving:
        saving.setattr(torch.serialization, "location_tag", on_a_device)
        _save_torch(tmp_path / "batch.pt")
    ids = load_batch(tmp_path / "batch.pt")["document_ids"]
    assert isinstance(ids, Tensor)
    assert (ids.device.type, listed(ids)) == ("cpu", listed(_IDS))


@pytest.mark.parametrize("name", ["batch.pt", "batch.pth", "batch.npz", "batch.json", "batch.safetensors"])
def test_no_file_runs_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the environment turns off what torch does of itself."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    marker, path = tmp_path / "ran", tmp_path / name
    for save in (
        lambda: torch.save({"document_ids": _Trap(marker)}, path),
        lambda: path.write_bytes(pickle.dumps({"document_ids": _Trap(marker)})),
        lambda: np.savez(path.with_suffix(".npz"), document_ids=np.array([_Trap(marker)], dtype=object)),
    ):
        save()
        with pytest.raises(BatchFileError) as caught:
            load_batch(path if path.exists() else path.with_suffix(".npz"))
        assert caught.value.problems[0].remedy
        assert not marker.exists()
    pickle.loads(pickle.dumps(_Trap(marker)))  # noqa: S301 - the trap works
    assert marker.exists()


@pytest.mark.parametrize("name", ["batch.pt", "batch.npz", "batch.json", "batch.safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"junk", b"PK\x03\x04garbage", b"\x80\x04\x95garbage", b"\xff\xfe{}"]
)
def test_a_broken_file_is_an_error_of_the_family(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BatchFileError, match="batch"):
        load_batch(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("batch.pt", _save_torch),
        ("batch.pt", _save_torch_unzipped),
        ("batch.npz", _save_compressed),
        ("batch.npz", _save_lzma),
        ("batch.json", _save_json),
        ("batch.safetensors", _save_safetensors),
    ],
)
def test_a_file_with_one_wrong_byte_is_read_or_refused(name: str, save: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / name
    save(path)
    content = path.read_bytes()
    for place in range(0, len(content), max(len(content) // 300, 1)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        with suppress(BatchFileError):
            load_batch(path)


def test_a_path_too_long_for_the_system_is_refused() -> None:
    with pytest.raises(BatchFileError, match="is no path of a file"):
        load_batch("a" * 5000 + ".pt")


@pytest.mark.parametrize("row", [[2**64 - 1], [2**63, 1], [0, 2**64 - 1]])
def test_numbers_past_int64_are_read_as_uint64(row: list[int], tmp_path: Path) -> None:
    (tmp_path / "batch.json").write_text(json.dumps({"document_ids": [row]}))
    ids = load_batch(tmp_path / "batch.json")["document_ids"]
    assert isinstance(ids, Tensor)
    assert ids.dtype == torch.uint64
    assert listed(ids) == [row]


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        3,
        {"document_ids": [[1, 2], [1]]},
        {"document_ids": [["a"]]},
        {"document_ids": {"data": 1}},
        {"x": None},
        {"x": 0.5},
        {"x": True},
    ],
)
def test_what_is_no_batch_is_refused(content: object, tmp_path: Path) -> None:
    (tmp_path / "batch.json").write_text(json.dumps(content))
    with pytest.raises(BatchFileError):
        load_batch(tmp_path / "batch.json")


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ([[1, True]], "holds bools beside others"),
        ([[0.5, False]], "holds bools beside others"),
        ([-1, 2**63], "holds ints that no tensor holds together"),
        ([[1, 2], [1]], "is no array"),
    ],
)
def test_lists_are_not_converted(lists: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "batch.json").write_text(json.dumps({"padding_mask": [[True, False]], "document_ids": lists}))
    with pytest.raises(BatchFileError, match=rf"batch\.json: document_ids {said}"):
        load_batch(tmp_path / "batch.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"1": _IDS, 1: _IDS}, "calls an entry 1, which is no str"),
        ({"ids": torch.ones(1, device="meta")}, "ids is a meta tensor, without data"),
        ({"ids": _IDS.to_sparse()}, "ids must be a dense tensor"),
    ],
)
def test_what_cannot_be_told_apart_or_read_is_named(content: object, said: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "batch.pt")
    with pytest.raises(BatchFileError, match=said):
        load_batch(tmp_path / "batch.pt")


def test_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    """Which of the two is meant cannot be told."""
    (tmp_path / "batch.json").write_text('{"document_ids": [[1, 1]], "max_seqlen": 2, "document_ids": [[1, 2]]}')
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "batch.npz", "w") as file:
        warnings.simplefilter("ignore", UserWarning)
        for ids in ([[1, 1]], [[1, 2]]):
            with file.open("document_ids.npy", "w") as entry:
                np.save(entry, ids)
    form = '"document_ids":{"dtype":"%s","shape":[1,2],"data_offsets":[0,16]}'
    header = f"{{{form % 'I64'},{form % 'U64'}}}".encode()
    (tmp_path / "batch.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    for name in ("batch.json", "batch.npz", "batch.safetensors"):
        with pytest.raises(BatchFileError, match=r"more than one entry called 'document_ids'\. Save"):
            load_batch(tmp_path / name)


@pytest.mark.parametrize("content", [[_IDS], {"document_ids": [_IDS]}, {"document_ids": _IDS.to_sparse()}, {}])
def test_a_saved_object_that_is_no_batch_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "batch.pt")
    with pytest.raises(BatchFileError):
        load_batch(tmp_path / "batch.pt")


def test_a_single_array_is_no_batch(tmp_path: Path) -> None:
    with (tmp_path / "batch.npz").open("wb") as file:
        np.save(file, _IDS.numpy())
    with pytest.raises(BatchFileError):
        load_batch(tmp_path / "batch.npz")


@pytest.mark.parametrize("dtype", [">i8", "<i8", ">i4", ">u2", ">f8"])
def test_arrays_of_either_byte_order_are_read(dtype: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", document_ids=_IDS.numpy().astype(dtype))
    ids = load_batch(tmp_path / "batch.npz")["document_ids"]
    assert isinstance(ids, Tensor)
    assert listed(ids.long()) == listed(_IDS)


def test_an_array_that_no_tensor_can_hold_is_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", document_ids=_IDS.numpy().astype(np.longdouble))
    if np.dtype(np.longdouble) == np.float64:
        pytest.skip("here a longdouble is a double")
    with pytest.raises(BatchFileError, match="document_ids is an array of"):
        load_batch(tmp_path / "batch.npz")


@pytest.mark.parametrize("path", [None, 3, b"batch.npz"])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(BatchFileError, match="must be a str or a Path"):
        load_batch(path)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_missing_and_unknown_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BatchFileError, match="no such file"):
        load_batch(tmp_path / "batch.pt")
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(BatchFileError, match="no such file"):
        load_batch(tmp_path / "folder.pt")
    (tmp_path / "batch.pkl").write_bytes(b"")
    with pytest.raises(BatchFileError, match=r"unknown kind, '\.pkl'"):
        load_batch(tmp_path / "batch.pkl")


def test_safetensors_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "batch.safetensors").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(BatchFileError, match="pip install safetensors"):
        load_batch(tmp_path / "batch.safetensors")


def test_arrays_hold_real_numbers(tmp_path: Path) -> None:
    for array in (np.array(["a"]), np.array([1j])):
        np.savez(tmp_path / "batch.npz", document_ids=array)
        with pytest.raises(BatchFileError, match="document_ids is an array of"):
            load_batch(tmp_path / "batch.npz")
