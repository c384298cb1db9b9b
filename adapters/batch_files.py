"""Saved batches, read without running code from the file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import repeated, tensor_problems
from neatpack.adapters.host_arrays import to_tensor
from neatpack.contracts.errors import BatchFileError, Problem, ProblemKind

BatchEntry: TypeAlias = Tensor | int | str
"""What an entry of a saved batch may be."""

_ENTRIES: Final = "Save tensors, ints and strings; in JSON, nested lists of numbers or bools in place of tensors."


def load_batch(path: str | Path) -> dict[str, BatchEntry]:
    """Read a batch from a file: a mapping from field names to tensors, ints and strings.

    Args:
        path: `.pt` or `.pth` (`torch.save` of a dict, read with `weights_only=True`), `.safetensors`, `.npz` (read
            without pickle), or `.json` (an object of nested lists, numbers and strings).

    Returns:
        The entries in the order of the file, tensors on the CPU.

    Raises:
        BatchFileError: `path` is no path, there is no such file, its kind is unknown, it cannot be read without running
            code from it, it holds something else than a batch, or two entries have one name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "batch.json")
        ...     _ = path.write_text('{"document_ids": [[1, 1, 2, 0]], "max_seqlen": 2}')
        ...     load_batch(path)
        {'document_ids': tensor([[1, 1, 2, 0]]), 'max_seqlen': 2}
    """
    path = _path(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        remedy = f"Save it as one of {', '.join(sorted(_READERS))}."
        raise _error(path, f"is of an unknown kind, {path.suffix!r}", "unsupported", remedy)
    try:
        missing = not path.is_file()
    except OSError as error:
        raise _error(path, f"is no path of a file ({error.strerror})", "value", "Check the path.") from error
    if missing:
        raise _error(path, "there is no such file", "missing", "Check the path.")
    return {name: _entry(path, name, value) for name, value in _mapping(path, read(path)).items()}


def _path(path: object) -> Path:
    if isinstance(path, (str, Path)):
        return Path(path)
    remedy = "Give the path of a saved batch."
    raise BatchFileError(Problem("path", "must be a str or a Path", "type", value=type(path).__name__, remedy=remedy))


def _read_torch(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about pickles that are refused anyway
            return cast("object", torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # Of a broken file, torch raises anything.
        remedy = "Save a plain dict of tensors; whatever needs code to be rebuilt is refused."
        raise _error(path, "cannot be read as weights only", "unsupported", remedy) from error


def _read_safetensors(path: Path) -> object:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise _error(path, "needs safetensors", "missing", "Run `pip install safetensors`.") from error
    try:
        tensors = load_file(path)
        with path.open("rb") as file:
            header = file.read(int.from_bytes(file.read(8), "little"))
    except (SafetensorError, OSError) as error:
        raise _error(path, f"is no safetensors file ({error})", "value", "Save it again.") from error
    named = cast("list[tuple[str, object]]", json.loads(header, object_pairs_hook=list))
    return _named_once(path, [(name, tensors[name]) for name, _ in named if name in tensors])


def _read_numpy(path: Path) -> object:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _named_once(path, [(name, arrays[name]) for name in arrays.files])
    except BatchFileError:
        raise
    except Exception as error:  # Of a broken file, numpy and the codecs of zip files raise anything.
        remedy = "Save it with `numpy.savez`, arrays of numbers only."
        # Whatever is no zip file, numpy takes for a pickle.
        other = not isinstance(error, OSError) and not is_zipfile(path)
        message = "is no npz file" if other else f"cannot be read without pickle ({error})"
        raise _error(path, message, "unsupported", remedy) from error


def _read_json(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
        content = cast("object", json.loads(text, object_pairs_hook=partial(_named_once, path)))
    except BatchFileError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        remedy = "Save an object of nested lists, numbers and strings."
        raise _error(path, f"is no JSON of a batch ({error})", "value", remedy) from error
    if not isinstance(content, dict):
        return content
    entries = cast("dict[str, object]", content)
    return {
        name: value if not isinstance(value, list) else _from_lists(path, name, cast("object", value))
        for name, value in entries.items()
    }


def _named_once(path: Path, entries: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Make a mapping of entries, of whose names none may come again: the last one would be taken in silence."""
    twice = repeated(name for name, _ in entries)
    if twice:
        raise _error(path, f"has more than one entry called {twice[0]!r}", "value", "Save each entry once.")
    return dict(entries)


def _from_lists(path: Path, name: str, lists: object) -> npt.NDArray[Any]:
    """Make an array of nested lists; numpy would also take bools for ints, and round ints that it has no type for."""
    try:
        array: npt.NDArray[Any] = np.array(lists)
    except ValueError as error:
        remedy = "Save nested lists, with rows of equal length."
        raise _error(path, f"{name} is no array ({error})", "shape", remedy) from error
    leaves = cast("list[object]", np.array(lists, object).ravel().tolist())
    kinds = set(map(type, leaves))
    if bool in kinds and kinds != {bool}:
        raise _error(path, f"{name} holds bools beside others", "type", "Save lists of one kind.")
    if kinds == {int} and array.dtype.kind in "fO":
        numbers = cast("list[int]", leaves)
        if min(numbers) < 0 or max(numbers) >= 2**64:
            raise _error(path, f"{name} holds ints that no tensor holds together", "value", "Save ints of 64 bits.")
        return np.array(lists, np.uint64)
    return array


_READERS: Final[Mapping[str, Callable[[Path], object]]] = {
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".safetensors": _read_safetensors,
    ".npz": _read_numpy,
    ".json": _read_json,
}


def _mapping(path: Path, content: object) -> Mapping[str, object]:
    remedy = "Save one mapping from field names to tensors."
    if not isinstance(content, Mapping) or not content:
        raise _error(path, "must hold a mapping with entries", "type", remedy)
    for name in cast("Mapping[object, object]", content):
        if not isinstance(name, str):
            raise _error(path, f"calls an entry {name!r}, which is no str", "type", remedy)
    return cast("Mapping[str, object]", content)


def _entry(path: Path, name: str, value: object) -> BatchEntry:
    if isinstance(value, np.ndarray):
        value = _from_array(path, name, cast("npt.NDArray[Any]", value))
    if isinstance(value, bool) or not isinstance(value, (Tensor, int, str)):
        raise _error(path, f"{name} is of type {type(value).__name__}", "type", _ENTRIES)
    problems = tensor_problems(value, name) if isinstance(value, Tensor) else []
    if problems:
        raise _error(path, f"{name} {problems[0].message}", problems[0].kind, problems[0].remedy)
    return value


def _from_array(path: Path, name: str, array: npt.NDArray[Any]) -> object:
    if array.ndim == 0:
        return cast("object", array.item())
    if array.dtype.kind not in "biuf":
        raise _error(path, f"{name} is an array of {array.dtype}", "type", _ENTRIES)
    try:
        # Of numpy's types of one width torch knows one, in the machine's byte order.
        return to_tensor(array.astype(f"{array.dtype.kind}{array.dtype.itemsize}"))
    except TypeError as error:
        raise _error(path, f"{name} is an array of {array.dtype}, which torch lacks", "dtype", _ENTRIES) from error


def _error(path: Path, message: str, kind: ProblemKind, remedy: str) -> BatchFileError:
    return BatchFileError(Problem(str(path), message, kind, remedy=remedy))
