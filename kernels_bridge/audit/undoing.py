"""Giving back what was borrowed, also where giving it back is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack


def undo_by(stack: ExitStack, undo: Callable[..., object], *arguments: object) -> None:
    """Let a stack call `undo` at its end, and once more where an interruption comes just then.

    Args:
        stack: calls it, whatever becomes of its other calls.
        undo: may be called twice.
        arguments: for it.

    Example:
        >>> borrowed = {"mode": "training"}
        >>> with ExitStack() as stack:
        ...     undo_by(stack, borrowed.__setitem__, "mode", "training")
        ...     borrowed["mode"] = "evaluation"
        >>> borrowed["mode"]
        'training'
    """
    stack.callback(_call, undo, *arguments)


def _call(undo: Callable[..., object], *arguments: object) -> None:
    try:
        undo(*arguments)
    except BaseException:
        undo(*arguments)
        raise
