"""Positions and segment numbers of every token, from the boundaries alone."""

from __future__ import annotations

from typing import Final

from benchmarks import inputs, peers
from benchmarks.records import Goal, Row, Sides, Size
from benchmarks.timing import warm
from neatpack.adapters import build_position_ids, scan_segments
from neatpack.adapters.recurrent import segment_ids_from_offsets

_LARGE: Final = Size(8, 32768, 256)


def rows() -> list[Row]:
    """Give the rows of these derivations."""
    peer = "flash-linear-attention"
    return [
        Row("build_position_ids", _LARGE, peer, "warm", warm, Goal("faster", 8), _positions),
        Row("segment_ids_from_offsets", _LARGE, peer, "warm", warm, Goal("faster", 15), _segment_ids),
    ]


def _positions(size: Size) -> Sides:
    """Both start from known boundaries. The peer caches by the identity of its argument, so it gets a new view."""
    ids = inputs.document_ids(size, padded=False)
    offsets, segments, peer = inputs.offsets(ids).long(), scan_segments(ids), peers.fla_positions()
    return Sides(
        lambda: build_position_ids(segments),
        lambda: peer(offsets[:]),
        lambda: (build_position_ids(segments).flatten(), peer(offsets[:])),
    )


def _segment_ids(size: Size) -> Sides:
    offsets, peer = inputs.offsets(inputs.document_ids(size, padded=False)), peers.fla_sequence_ids()
    return Sides(
        lambda: segment_ids_from_offsets(offsets),
        lambda: peer(offsets[:]),
        lambda: (segment_ids_from_offsets(offsets).long(), peer(offsets[:])),
    )
