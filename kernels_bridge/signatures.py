"""What functions of optional packages name, checked before they are called."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import suppress

from neatpack.contracts.errors import DependencyError, Problem


def require_keywords(function: object, keywords: Iterable[str], distribution: str, version: str, tested: str) -> None:
    """Refuse a function that does not name everything that it would be called with.

    Args:
        function: what is called.
        keywords: the names.
        distribution: where it comes from.
        version: of that distribution, as installed.
        tested: a version whose function names them all.

    Raises:
        DependencyError: it lacks a keyword, or cannot be asked; a `**kwargs` proves nothing.
    """
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named: list[str] = []
    if callable(function):
        with suppress(TypeError, ValueError):
            parameters = inspect.signature(function).parameters.values()
            named = [parameter.name for parameter in parameters if parameter.kind in by_name]
    missing = [keyword for keyword in keywords if keyword not in named]
    if missing:
        message = f"{getattr(function, '__name__', repr(function))} takes no {', '.join(missing)} by name"
        remedy = f"Install a version that does; {distribution} {tested} does."
        raise DependencyError(Problem(distribution, message, "unsupported", value=version, remedy=remedy))
