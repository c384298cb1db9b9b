"""Dense masks, four-dimensional, of bool."""

from __future__ import annotations

from typing import Final

import torch

from benchmarks import inputs, peers
from benchmarks.memory import peak_memory
from benchmarks.records import Goal, Row, Sides, Size
from benchmarks.timing import warm
from neatpack.adapters import build_block_causal_mask

_SHORT: Final = Size(1, 4096, 8)
_LONG: Final = Size(1, 8192, 64)
_LONGEST: Final = Size(1, 16384, 8)


def rows() -> list[Row]:
    """Give the rows of this derivation."""
    name, peer, writing = "build_block_causal_mask", "AutoModel", "writing the result"
    return [
        Row(name, _SHORT, peer, "warm", warm, Goal("faster", 15), _against_automodel),
        Row(name, _LONG, peer, "warm", warm, Goal("faster", 80), _against_automodel),
        Row(name, _SHORT, writing, "warm", warm, Goal("within", 2.2), _against_writing),
        Row(name, _LONG, writing, "warm", warm, Goal("within", 2.2), _against_writing),
        Row(name, _LONGEST, writing, "peak memory", peak_memory, Goal("within", 1.05), _against_writing),
    ]


def _against_automodel(size: Size) -> Sides:
    """AutoModel lets padding see nothing; ours sees itself, and that diagonal is taken off to compare."""
    ids, peer = inputs.document_ids(size), peers.automodel_mask()
    real = (ids > 0)[:, None, :, None]
    return Sides(
        lambda: build_block_causal_mask(ids),
        lambda: peer(ids),
        lambda: (build_block_causal_mask(ids) & real, peer(ids)),
    )


def _against_writing(size: Size) -> Sides:
    ids = inputs.document_ids(size)
    shape = (size.batch, 1, size.sequence, size.sequence)
    return Sides(lambda: build_block_causal_mask(ids), lambda: torch.zeros(shape, dtype=torch.bool))
