"""Every function of fixed shapes starts few kernels once it is compiled, counted in the code that torch generates."""

from __future__ import annotations

import sys

import pytest

from benchmarks import inputs
from benchmarks.compiled import compile_and_count
from benchmarks.records import Size
from benchmarks.rows.device_cost import STATIC, bounded
from neatpack import adapters

MOST = 20
SMALL = Size(2, 256, 4)


@pytest.mark.slow
@pytest.mark.skipif(" " in sys.prefix, reason="torch's compiler takes no paths with spaces")
@pytest.mark.parametrize("longest_per_row", [1, 2])
@pytest.mark.parametrize("name", STATIC)
def test_compiled_functions_of_fixed_shapes_start_few_kernels(name: str, longest_per_row: int) -> None:
    function = bounded(STATIC[name][1], longest_per_row=longest_per_row)
    assert compile_and_count(function, inputs.document_ids(SMALL)).launches <= MOST


def test_every_function_of_fixed_shapes_is_counted() -> None:
    assert set(STATIC) == {name for name in adapters.__all__ if name.startswith("static_")}
