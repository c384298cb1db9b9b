"""NEAT metadata: `build_packed_sequence_metadata`, validation included."""

from __future__ import annotations

from typing import Final

from benchmarks import inputs, peers
from benchmarks.instructions import instructions
from benchmarks.records import Goal, Row, Sides, Size
from benchmarks.timing import cold, warm
from neatpack.adapters import build_packed_sequence_metadata

COUNTED: Final = "build_packed_sequence_metadata"

MEDIUM: Final = Size(8, 4096, 32)
_LARGE: Final = Size(8, 32768, 256)


def rows() -> list[Row]:
    """Give the rows of this derivation."""
    name, peer = "build_packed_sequence_metadata", "AutoModel"
    wanted = {
        _LARGE: 200,
        Size(1, 2**20, 8192): 3000,
        MEDIUM: 25,
        Size(1, 4096, 8): 8,
        Size(32, 8192, 1): 10,
    }
    return [
        *(
            Row(name, size, peer, "warm", warm, Goal("faster", goal), against_automodel)
            for size, goal in wanted.items()
        ),
        Row(name, _LARGE, peer, "cold", cold, Goal("faster", 70), against_automodel),
        Row(name, MEDIUM, peer, "instructions", instructions(COUNTED), Goal("faster", 25), against_automodel),
    ]


def against_automodel(size: Size) -> Sides:
    """Compare with AutoModel's function of the same name."""
    ids, peer = inputs.document_ids(size), peers.automodel_metadata()
    return Sides(
        lambda: build_packed_sequence_metadata(ids),
        lambda: peer(ids),
        lambda: (build_packed_sequence_metadata(ids), peer(ids)),
    )
