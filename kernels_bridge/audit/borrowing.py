"""Giving back what was borrowed, also where that is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from typing_extensions import Self


class Borrowed:
    """What was borrowed, and by which call each thing is given back, the last first.

    It is given back at the end of a `with` block. An interruption just as that block is left comes before: whoever
    must be sure of that as well gives back once more in a `finally` around it.

    Example:
        >>> lent = {"mode": "training"}
        >>> with Borrowed() as borrowed:
        ...     borrowed.undo_by(lent.__setitem__, "mode", "training")
        ...     lent["mode"] = "evaluation"
        >>> lent["mode"]
        'training'
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.give_back()
        finally:
            self.give_back()

    def undo_by(self, undo: Callable[..., object], *arguments: object) -> None:
        """Let `undo` be called at the end, and again if it is interrupted. To be told before anything changes."""
        self._undo.append(partial(undo, *arguments))

    def give_back(self) -> None:
        """Give back whatever has not been yet. A call that raises keeps none of the others from being made."""
        errors: list[Exception] = []
        while self._undo:
            try:
                self._undo[-1]()
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
            self._undo.pop()
        if errors:
            raise errors[0]
