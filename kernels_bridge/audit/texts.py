"""Real text as bytes: excerpts of files, cut to the lengths that the audit asks for."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from neatpack.contracts.errors import BatchError, Problem

FILES: Final = 32
"""Files read at most, in the order of their names."""

BYTES_PER_FILE: Final = 4096


def default_paths() -> list[Path]:
    """The source files of the running Python's standard library: text that every machine has."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def read_texts(paths: Iterable[Path]) -> list[bytes]:
    """Read the beginning of each file, and of each file in each folder.

    Raises:
        BatchError: a path does not exist or cannot be read, or there is no text at all.
    """
    files = [file for path in paths for file in _files(path)]
    texts = [text for file in files[:FILES] if (text := _beginning(file)).strip()]
    if not texts:
        raise BatchError(Problem("text", "holds no text", "missing", remedy="Give --text a file or folder of text."))
    return texts


def excerpts(texts: Sequence[bytes], lengths: Iterable[int]) -> list[bytes]:
    """Cut one excerpt per length, each from another text while there are any, and no byte twice.

    Raises:
        BatchError: the texts are too short for the lengths.

    Example:
        >>> excerpts([b"to be or not", b"what light"], [5, 4, 6])
        [b'to be', b'what', b' or no']
    """
    unread = dict(enumerate(texts))
    order = count()
    return [_take(unread, length, next(order)) for length in lengths]


def _take(unread: dict[int, bytes], length: int, turn: int) -> bytes:
    for step in range(len(unread)):
        index = (turn + step) % len(unread)
        if len(unread[index]) >= length:
            taken, unread[index] = unread[index][:length], unread[index][length:]
            return taken
    message = f"is too short: no text has {length} more bytes"
    raise BatchError(Problem("text", message, "value", remedy="Give --text longer files, or more of them."))


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _beginning(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(BYTES_PER_FILE)
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        remedy = "Give --text files that exist and that this user may read."
        raise BatchError(Problem("text", message, "value", value=str(file), remedy=remedy)) from error
