"""What a GPU would pay: waits of the host, and launches. Counted, since no GPU is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor

from benchmarks import inputs, peers
from benchmarks.compiled import compile_and_count
from benchmarks.device import count, host_reads, launches
from benchmarks.records import Goal, Row, Sides, Size
from neatpack.adapters import (
    StaticBounds,
    build_block_causal_mask,
    build_block_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    flash_varlen_kwargs,
    gathered_flat,
    gathered_rows,
    physical_offsets,
    scan_segments,
    static_block_causal_mask,
    static_block_mask,
    static_gathered_flat,
    static_gathered_rows,
    static_physical_offsets,
    static_position_ids,
    static_segment_index,
    static_thd_lengths,
)

_ROWS: Final = Size(32, 4096, 8)

_ONE_ROW: Final = Size(1, 4096, 8)
"""Of a dense mask, which many rows would fill the memory with."""


def _block_mask_tensors(ids: Tensor, bounds: StaticBounds) -> list[object]:
    """Give what a compiled graph can give back of a block mask, and the status."""
    mask, status = static_block_mask(ids, bounds)
    return [*(part for part in mask.as_tuple() if isinstance(part, Tensor)), status]


STATIC: Final[dict[str, tuple[Size, Callable[[Tensor, StaticBounds], object]]]] = {
    "static_gathered_rows": (_ROWS, static_gathered_rows),
    "static_gathered_flat": (_ROWS, static_gathered_flat),
    "static_physical_offsets": (_ROWS, static_physical_offsets),
    "static_thd_lengths": (_ROWS, static_thd_lengths),
    "static_segment_index": (_ROWS, static_segment_index),
    "static_position_ids": (_ROWS, static_position_ids),
    "static_block_causal_mask": (_ONE_ROW, static_block_causal_mask),
    "static_block_mask": (_ROWS, _block_mask_tensors),
}
"""Every function of fixed shapes, and at which size it is compiled."""


def rows() -> list[Row]:
    """Give the rows of these counts."""
    reads: dict[str, tuple[Callable[[Tensor], object], str, Callable[[], Callable[[Tensor], object]]]] = {
        "build_packed_sequence_metadata": (build_packed_sequence_metadata, "AutoModel", peers.automodel_metadata),
        "gathered_flat": (gathered_flat, "AutoModel", peers.automodel_unpad),
        "flash_varlen_kwargs": (flash_varlen_kwargs, "AutoModel", peers.automodel_varlen),
        "every encoding of a batch": (_everything, "AutoModel, metadata alone", peers.automodel_metadata),
    }
    fixed = (
        ("static_gathered_rows", bounded(static_gathered_rows), gathered_rows),
        ("static_physical_offsets", bounded(static_physical_offsets), physical_offsets),
        ("static_position_ids", bounded(static_position_ids), build_position_ids),
    )
    return [
        *(
            Row(name, _ROWS, peer, "host reads", host_reads, Goal("number", 1), _counted(ours, find))
            for name, (ours, peer, find) in reads.items()
        ),
        *(
            Row(
                f"{name}, longest = row",
                _ROWS,
                f"{ours.__name__}, not static",
                what,
                meter,
                Goal("number", most),
                _counted(static, _known(ours)),
            )
            for name, static, ours in fixed
            for what, meter, most in (("host reads", host_reads, 0), ("launches", launches, 20))
        ),
        *(
            Row(
                f"{name}, compiled, longest = half a row",
                size,
                "not compiled",
                "launches",
                launches,
                Goal("number", 20),
                _compiled(bounded(derive, longest_per_row=2)),
            )
            for name, (size, derive) in STATIC.items()
        ),
    ]


def _counted(
    ours: Callable[[Tensor], object], find: Callable[[], Callable[[Tensor], object]]
) -> Callable[[Size], Sides]:
    def sides(size: Size) -> Sides:
        ids, peer = inputs.document_ids(size), find()
        return Sides(lambda: count(ours, ids), lambda: count(peer, ids))

    return sides


def _compiled(static: Callable[[Tensor], object]) -> Callable[[Size], Sides]:
    def sides(size: Size) -> Sides:
        ids = inputs.document_ids(size)
        return Sides(lambda: compile_and_count(static, ids), lambda: count(static, ids))

    return sides


def bounded(
    derive: Callable[[Tensor, StaticBounds], object], *, longest_per_row: int = 1
) -> Callable[[Tensor], object]:
    """Give bounds of documents as long as a row, or as a part of it.

    Where a row is longer than a document may be, there is more to do: lengths to compare, and padding to cut.
    """

    def static(ids: Tensor) -> object:
        batch, sequence = ids.shape
        return derive(ids, StaticBounds(sequence // 8, batch * sequence // 4, sequence // longest_per_row))

    return static


def _known(function: Callable[[Tensor], object]) -> Callable[[], Callable[[Tensor], object]]:
    return lambda: function


def _everything(ids: Tensor) -> list[object]:
    segments = scan_segments(ids)
    derive = (
        build_packed_sequence_metadata,
        gathered_flat,
        flash_varlen_kwargs,
        build_position_ids,
        build_block_causal_mask,
        build_block_mask,
    )
    return [function(segments) for function in derive]
