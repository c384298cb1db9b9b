"""The rows of the table, one module per derivation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.records import Row, Sides
from benchmarks.rows import block_mask, device_cost, gathered, masks, packing, per_document, physical, positions


def all_rows() -> list[Row]:
    """Give every row, in the order of the table."""
    modules = (gathered, physical, positions, block_mask, packing, masks, per_document, device_cost)
    return [row for module in modules for row in module.rows()]


def counted_cases() -> Mapping[str, Callable[[], Sides]]:
    """Give what is measured in a process of its own, by name."""
    return {gathered.COUNTED: partial(gathered.against_automodel, gathered.MEDIUM)}
