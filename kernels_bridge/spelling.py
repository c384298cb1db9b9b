"""The way out of a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_ALIKE: Final = 0.5
"""How much of two names must match, of 1, before one is taken for the other."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Name the known name that is nearest to `name`, in whatever case, or all of them where none is near.

    Example:
        >>> suggest("spda", ["sdpa", "eager"])
        "Did you mean 'sdpa'?"
        >>> suggest("SDPA", ["sdpa", "eager"])
        "Did you mean 'sdpa'?"
        >>> suggest("nope", ["sdpa", "eager"])
        "Known are 'eager', 'sdpa'."
    """
    names = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=_ALIKE)
    return f"Did you mean {names[near[0]]!r}?" if near else f"Known are {', '.join(map(repr, names.values()))}."
