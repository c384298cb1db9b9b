"""The functions of fixed shapes, bounds that rows keep, and what a status says when nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters import static, static_masks
from neatpack.adapters.static_scan import StaticBounds, scan_static
from neatpack.adapters.static_status import StaticRule, raise_if_invalid
from tests.adapters import oracle_static
from tests.adapters.layouts import Rows, rows_of_ids

FEWER = settings(max_examples=50)
WITH_HOLES = rows_of_ids(holes=True)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "scan_static": scan_static,
    "static_gathered_rows": static.static_gathered_rows,
    "static_gathered_flat": static.static_gathered_flat,
    "static_physical_offsets": static.static_physical_offsets,
    "static_thd_lengths": static.static_thd_lengths,
    "static_segment_index": static.static_segment_index,
    "static_position_ids": static.static_position_ids,
    "static_block_causal_mask": static_masks.static_block_causal_mask,
    "static_block_mask": static_masks.static_block_mask,
}

LAUNCHES: dict[str, tuple[int, int]] = {
    "scan_static": (5, 7),
    "static_gathered_rows": (19, 21),
    "static_gathered_flat": (20, 22),
    "static_physical_offsets": (20, 26),
    "static_thd_lengths": (27, 29),
    "static_segment_index": (22, 24),
    "static_position_ids": (16, 18),
    "static_block_causal_mask": (20, 22),
    "static_block_mask": (70, 72),
}
"""How many launches each function may take uncompiled, at most: where a document may be as long as a row, and where it
may not, so that lengths are looked at, and padding is cut."""


@st.composite
def bounds_of(draw: st.DrawFn, rows: Rows) -> StaticBounds:
    """Bounds that the rows keep, some of them tight."""
    spare = st.sampled_from([0, 1, 2, 3, 50])
    longest = oracle_static.longest(rows) + draw(spare)
    segments = len(oracle_static.physical_offsets(rows, longest)) - 1
    return StaticBounds(oracle_static.most(rows) + draw(spare), segments + draw(spare), longest)


def is_valid(status: Tensor) -> bool:
    raise_if_invalid(status)
    return status.dtype == torch.int32 and status.shape == (4,) and int(status[0]) == StaticRule.VALID


def flattened(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for each in cast("list[Any]", value) for leaf in flattened(each)]
    if isinstance(value, (Tensor, int)):
        return [value]
    return flattened([*cast("dict[str, Any]", vars(value)).values()])
