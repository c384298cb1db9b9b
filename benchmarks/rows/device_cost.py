"""What a GPU would pay: waits of the host, and launches. Counted, since no GPU is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor

from benchmarks import inputs, peers
from benchmarks.device import count, host_reads
from benchmarks.records import Goal, Row, Sides, Size
from neatpack.adapters import (
    build_block_causal_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    flash_varlen_kwargs,
    gathered_flat,
    scan_segments,
)

_ROWS: Final = Size(32, 4096, 8)


def rows() -> list[Row]:
    """Give the rows of these counts."""
    reads: dict[str, tuple[Callable[[Tensor], object], str, Callable[[], Callable[[Tensor], object]]]] = {
        "build_packed_sequence_metadata": (build_packed_sequence_metadata, "AutoModel", peers.automodel_metadata),
        "gathered_flat": (gathered_flat, "AutoModel", peers.automodel_unpad),
        "flash_varlen_kwargs": (flash_varlen_kwargs, "AutoModel", peers.automodel_varlen),
        "every encoding of a batch": (_everything, "AutoModel, metadata alone", peers.automodel_metadata),
    }
    return [
        Row(name, _ROWS, peer, "host reads", host_reads, Goal("number", 1), _counted(ours, find))
        for name, (ours, peer, find) in reads.items()
    ]


def _counted(
    ours: Callable[[Tensor], object], find: Callable[[], Callable[[Tensor], object]]
) -> Callable[[Size], Sides]:
    def sides(size: Size) -> Sides:
        ids, peer = inputs.document_ids(size), find()
        return Sides(lambda: count(ours, ids), lambda: count(peer, ids))

    return sides


def _everything(ids: Tensor) -> list[object]:
    segments = scan_segments(ids)
    derive = (
        build_packed_sequence_metadata,
        gathered_flat,
        flash_varlen_kwargs,
        build_position_ids,
        build_block_causal_mask,
    )
    return [function(segments) for function in derive]
