"""Offsets over the padded rows: for the flattened batch, row by row, and from positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor

from benchmarks import inputs, peers
from benchmarks.records import Goal, Row, Sides, Size
from benchmarks.timing import cold, warm
from neatpack.adapters import flash_varlen_kwargs, physical_offsets_from_positions
from neatpack.adapters.physical_rows import row_offsets

_LARGE: Final = Size(8, 32768, 256)
_SIZES: Final = (Size(1, 4096, 8), Size(8, 4096, 32), _LARGE, Size(32, 8192, 1), Size(1, 2**20, 8192))


def rows() -> list[Row]:
    """Give the rows of these derivations."""
    varlen, by_row = "flash_varlen_kwargs", "row_offsets"
    crowded = Size(8, 32768, 4096)
    longer = Size(8, 2**19, 4096)
    return [
        Row(varlen, _LARGE, "AutoModel", "warm", warm, Goal("faster", 10), _varlen_against_automodel),
        Row(varlen, _LARGE, "a read of the ids", "warm", warm, Goal("within", 4), _varlen_against_read),
        Row(by_row, _LARGE, "a read of the ids", "warm", warm, Goal("within", 7), _rows_against_read),
        Row(by_row, _LARGE, "a read of the ids", "cold", cold, Goal("within", 4.5), _rows_against_read),
        Row(by_row, crowded, "itself, 1 document per row", "warm", warm, Goal("within", 4), _rows_by_documents),
        # Cold, since the shorter rows alone would fit the caches.
        Row(by_row, longer, "itself, 1/16 of the tokens", "cold", cold, Goal("within", 16), _rows_by_tokens),
        *(
            Row("physical_offsets_from_positions", size, peer, "warm", warm, Goal("faster", 2.5), sides)
            for size in _SIZES
            for peer, sides in (
                ("Transformers", _positions_against_transformers),
                ("torchtitan", _positions_against_torchtitan),
            )
        ),
    ]


def _varlen_against_automodel(size: Size) -> Sides:
    """AutoModel keeps each run of padding whole, so that way is compared for equality; the default is timed."""
    ids, params, kwargs = inputs.document_ids(size), peers.automodel_varlen(), peers.automodel_kwargs()
    return Sides(
        lambda: flash_varlen_kwargs(ids),
        lambda: kwargs(params(ids)),
        lambda: (flash_varlen_kwargs(ids, "run"), kwargs(params(ids))),
    )


def _varlen_against_read(size: Size) -> Sides:
    ids = inputs.document_ids(size)
    return Sides(lambda: flash_varlen_kwargs(ids), ids.sum)


def _rows_against_read(size: Size) -> Sides:
    ids = inputs.document_ids(size)
    return Sides(lambda: row_offsets(ids), ids.sum)


def _rows_by_documents(size: Size) -> Sides:
    many, one = inputs.document_ids(size), inputs.document_ids(Size(size.batch, size.sequence, 1))
    return Sides(lambda: row_offsets(many), lambda: row_offsets(one))


def _rows_by_tokens(size: Size) -> Sides:
    long = inputs.document_ids(size)
    short = inputs.document_ids(Size(size.batch, size.sequence // 16, max(size.documents // 16, 1)))
    return Sides(lambda: row_offsets(long), lambda: row_offsets(short))


def _positions_against_transformers(size: Size) -> Sides:
    """Transformers leaves the longest as a tensor, which a kernel has to read: `int` stands for that read."""
    peer = peers.transformers_varlen()

    def other(positions: Tensor) -> tuple[Tensor, int]:
        (offsets, _), (longest, _) = peer(positions)
        return offsets, int(longest)

    return _from_positions(size, other)


def _positions_against_torchtitan(size: Size) -> Sides:
    peer = peers.torchtitan_varlen()

    def other(positions: Tensor) -> tuple[Tensor, int]:
        metadata = peer(positions)
        return metadata.cu_seq_q, metadata.max_q

    return _from_positions(size, other)


def _from_positions(size: Size, other: Callable[[Tensor], tuple[Tensor, int]]) -> Sides:
    """Take rows without padding: the peers read each place of it as a document."""
    positions = inputs.positions(inputs.document_ids(size, padded=False))

    def answers() -> tuple[object, object]:
        found = physical_offsets_from_positions(positions)
        return (found.cu_seqlens, found.max_seqlen), other(positions)

    return Sides(lambda: physical_offsets_from_positions(positions), lambda: other(positions), answers)
