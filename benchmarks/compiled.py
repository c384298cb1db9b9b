"""How many kernels `torch.compile` leaves of a function, counted in the code that it generates for the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.records import Unavailable

_CALL: Final = re.compile(r"^\s*(?:\w+ = )?(?:torch\.ops\.)?(?:cpp_fused|aten|extern_kernels)[._](\w+)", re.MULTILINE)
"""A call of a fused kernel, or of one that torch brings along."""

_VIEWS: Final = {"view"}
"""What the generated code calls by name and starts no kernel."""


@dataclass(frozen=True)
class Compiled:
    """What is left of a function in the generated code.

    Attributes:
        launches: kernels that one call starts.
    """

    launches: int


def compile_and_count(function: Callable[[Tensor], object], argument: Tensor) -> Compiled:
    """Compile a function of one tensor as one graph, and count.

    Raises:
        Unavailable: torch generated no code, or could not build it: it needs a C++ compiler, and paths without spaces.
    """
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.utils import run_and_get_code  # loads the compiler

    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True)  # pyright: ignore[reportUnknownMemberType]
    try:
        _, codes = run_and_get_code(compiled, argument)
    except BackendCompilerFailed as error:
        raise Unavailable("torch.compile could not build its code") from error
    if len(codes) != 1:
        raise Unavailable(f"torch.compile generated {len(codes)} pieces of code in place of one")
    return Compiled(count_calls(codes[0]))


def count_calls(code: str) -> int:
    """Count the kernels that generated code starts in one call."""
    body = code.partition("def call(")[2]
    return sum(name not in _VIEWS for name in _CALL.findall(body))
