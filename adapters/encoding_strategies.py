"""Hypothesis strategies for encodings of document ids, valid and invalid in named ways. Part of `strategies`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.arguments import require_choice, require_instance
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.length_matrix import length_matrix
from neatpack.adapters.neat_metadata import gathered_rows
from neatpack.adapters.physical import physical_offsets
from neatpack.adapters.physical_rows import row_offsets
from neatpack.adapters.recurrent import gathered_states, physical_states, segment_index
from neatpack.adapters.thd import thd_flat, thd_lengths
from neatpack.contracts.encodings import (
    GatheredFlat,
    GatheredRows,
    GatheredStates,
    LengthMatrix,
    PhysicalFlat,
    PhysicalRows,
    PhysicalStates,
    SegmentIndex,
    THDFlat,
    THDLengths,
)

EncodingName = Literal[
    "gathered_rows", "gathered_flat", "physical_flat", "physical_rows", "thd_lengths", "thd_flat", "length_matrix",
    "segment_index", "gathered_states", "physical_states",
]  # fmt: skip
"""An encoding of document ids, by the name of its class."""

ENCODING_NAMES: Final[tuple[EncodingName, ...]] = get_args(EncodingName)

EncodingFault = Literal[
    "index_outside", "index_twice", "offsets_fall", "tokens_uncovered", "batch_uncovered", "segment_over_rows",
    "row_uncovered", "longer_than_slot", "slots_uncovered", "slot_too_short", "negative_length", "row_too_long",
    "number_returns", "stream_uncovered", "offset_repeats",
]  # fmt: skip
"""What may be wrong with an encoding."""

ENCODING_FAULTS: Final[tuple[EncodingFault, ...]] = get_args(EncodingFault)

_STRATEGY_REMEDY: Final = 'Give a strategy: document_ids(padding="trailing", canonical=True).'

Encoding: TypeAlias = (
    GatheredRows[Tensor]
    | GatheredFlat[Tensor]
    | PhysicalFlat[Tensor]
    | PhysicalRows[Tensor]
    | THDLengths[Tensor]
    | THDFlat[Tensor]
    | LengthMatrix[Tensor]
    | SegmentIndex[Tensor]
    | GatheredStates[Tensor]
    | PhysicalStates[Tensor]
)


class Encoded(NamedTuple):
    """An encoding, and the canonical ids that it was made of."""

    document_ids: Tensor
    encoding: Encoding


_ENCODE: Final[dict[EncodingName, Callable[[Tensor], Encoding]]] = {
    "gathered_rows": gathered_rows,
    "gathered_flat": gathered_flat,
    "physical_flat": physical_offsets,
    "physical_rows": row_offsets,
    "thd_lengths": thd_lengths,
    "thd_flat": thd_flat,
    "length_matrix": length_matrix,
    "segment_index": segment_index,
    "gathered_states": gathered_states,
    "physical_states": physical_states,
}


def encodings(name: EncodingName, document_ids: st.SearchStrategy[Tensor]) -> st.SearchStrategy[Encoded]:
    """Draw an encoding that is right, with its ids.

    Args:
        name: which encoding.
        document_ids: canonical ids that it can express; those with trailing padding always are.

    Raises:
        EncodingError: there is no such encoding, or `document_ids` is no strategy.

    Example:
        >>> from hypothesis import given, settings
        >>> from neatpack.adapters.strategies import document_ids
        >>> @settings(max_examples=5)
        ... @given(encodings("thd_lengths", document_ids(padding="trailing", canonical=True)))
        ... def check(encoded: Encoded) -> None:
        ...     assert encoded.encoding.seq_lens.shape[0] == encoded.document_ids.shape[0]
        >>> check()
    """
    require_choice(name, ENCODING_NAMES, "name")
    require_instance(document_ids, st.SearchStrategy, "document_ids", _STRATEGY_REMEDY)
    return _encodings(name, document_ids)


@st.composite
def _encodings(draw: st.DrawFn, name: EncodingName, document_ids: st.SearchStrategy[Tensor]) -> Encoded:
    ids = draw(document_ids).to(torch.int64)
    return Encoded(ids, _ENCODE[name](ids))


def malformed_encodings(fault: EncodingFault, document_ids: st.SearchStrategy[Tensor]) -> st.SearchStrategy[Encoded]:
    """Draw an encoding that is wrong in the named way, with the ids of the right one.

    Args:
        fault: what is wrong.
        document_ids: as `encodings` takes them. Where they leave no room for the fault, others are drawn.

    Raises:
        EncodingError: there is no such fault, or `document_ids` is no strategy.

    Example:
        >>> from hypothesis import given, settings
        >>> from neatpack.adapters.strategies import document_ids
        >>> @settings(max_examples=5)
        ... @given(malformed_encodings("negative_length", document_ids(padding="trailing", canonical=True)))
        ... def check(encoded: Encoded) -> None:
        ...     assert bool((encoded.encoding.lengths < 0).any())
        >>> check()
    """
    require_choice(fault, ENCODING_FAULTS, "fault")
    require_instance(document_ids, st.SearchStrategy, "document_ids", _STRATEGY_REMEDY)
    return _malformed_encodings(fault, document_ids)


@st.composite
def _malformed_encodings(draw: st.DrawFn, fault: EncodingFault, document_ids: st.SearchStrategy[Tensor]) -> Encoded:
    name, needs, spoil = _FAULTS[fault]
    ids = draw(document_ids.filter(needs)).to(torch.int64)
    return Encoded(ids, spoil(draw, _ENCODE[name](ids), ids))


def _any_token(ids: Tensor) -> bool:
    return bool((ids != 0).any())


def _two_tokens(ids: Tensor) -> bool:
    return bool(((ids != 0).sum(1) > 1).any())


def _two_rows(ids: Tensor) -> bool:
    return ids.shape[0] > 1 and _any_token(ids)


def _two_documents(ids: Tensor) -> bool:
    return bool((ids == 2).any())


def _pick(draw: st.DrawFn, where: Tensor) -> tuple[int, ...]:
    """Draw one of the places that are True."""
    places = where.nonzero()
    return tuple(int(axis) for axis in places[draw(st.integers(0, len(places) - 1))])


def _put(tensor: Tensor, place: tuple[int, ...], value: int | Tensor) -> Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


def _changed(encoding: Any, **entries: Tensor) -> Encoding:
    return cast("Encoding", replace(encoding, **entries))


def _last_offsets(offsets: Tensor) -> Tensor:
    return (offsets > 0) & (offsets == offsets.max(1, keepdim=True).values)


def _index_outside(draw: st.DrawFn, rows: Any, ids: Tensor) -> Encoding:
    indices = rows.packed_token_indices
    beyond = ids.shape[1] + draw(st.integers(0, 3))
    return _changed(rows, packed_token_indices=_put(indices, _pick(draw, indices >= 0), beyond))


def _index_twice(draw: st.DrawFn, rows: Any, ids: Tensor) -> Encoding:
    indices = rows.packed_token_indices
    row, place = _pick(draw, (ids != 0) & ((ids != 0).cumsum(1) > 1))
    before = indices[row, :place].max()
    return _changed(rows, packed_token_indices=_put(indices, (row, place), before))


def _offsets_fall(draw: st.DrawFn, rows: Any, ids: Tensor) -> Encoding:
    offsets = rows.cu_seqlens
    row, last = _pick(draw, _last_offsets(offsets))
    # One entry more in every row, so that the last offset comes after one that is above it.
    longer = torch.cat([offsets, torch.full_like(offsets[:, :1], -1)], dim=1)
    longer = _put(longer, (row, last + 1), offsets[row, last])
    return _changed(rows, cu_seqlens=_put(longer, (row, last), ids.shape[1] + draw(st.integers(1, 3))))


def _tokens_uncovered(draw: st.DrawFn, rows: Any, _: Tensor) -> Encoding:
    offsets = rows.cu_seqlens
    place = _pick(draw, _last_offsets(offsets))
    return _changed(rows, cu_seqlens=_put(offsets, place, offsets[place] - 1))


def _batch_uncovered(draw: st.DrawFn, flat: Any, ids: Tensor) -> Encoding:
    end = ids.numel() + draw(st.sampled_from((-1, 1)))
    return _changed(flat, cu_seqlens=_put(flat.cu_seqlens, (-1,), end))


def _segment_over_rows(draw: st.DrawFn, flat: Any, ids: Tensor) -> Encoding:
    edge = ids.shape[1] * draw(st.integers(1, ids.shape[0] - 1))
    return _changed(flat, cu_seqlens=flat.cu_seqlens[flat.cu_seqlens != edge])


def _row_uncovered(draw: st.DrawFn, rows: Any, ids: Tensor) -> Encoding:
    row = draw(st.integers(0, ids.shape[0] - 1))
    return _changed(rows, cu_seqlens=_put(rows.cu_seqlens, (row, -1), ids.shape[1] + 1))


def _longer_than_slot(draw: st.DrawFn, lengths: Any, _: Tensor) -> Encoding:
    place = _pick(draw, lengths.seq_lens > 0)
    return _changed(lengths, seq_lens=_put(lengths.seq_lens, place, lengths.seq_lens_padded[place] + 1))


def _slots_uncovered(draw: st.DrawFn, lengths: Any, _: Tensor) -> Encoding:
    padded = lengths.seq_lens_padded
    place = _pick(draw, padded > 0)
    return _changed(lengths, seq_lens_padded=_put(padded, place, padded[place] + 1))


def _slot_too_short(draw: st.DrawFn, flat: Any, _: Tensor) -> Encoding:
    (slot,) = _pick(draw, flat.cu_seqlens.diff() > 0)
    slots = flat.cu_seqlens_padded.diff()
    slots = _put(slots, (slot,), flat.cu_seqlens.diff()[slot] - 1)
    offsets = torch.cat([flat.cu_seqlens_padded[:1], slots.cumsum(0)]).to(torch.int32)
    return _changed(flat, cu_seqlens_padded=offsets)


def _negative_length(draw: st.DrawFn, matrix: Any, _: Tensor) -> Encoding:
    place = _pick(draw, matrix.lengths >= 0)
    return LengthMatrix(_put(matrix.lengths, place, -draw(st.integers(1, 9))))


def _row_too_long(draw: st.DrawFn, matrix: Any, ids: Tensor) -> Encoding:
    place = _pick(draw, matrix.lengths > 0)
    return LengthMatrix(_put(matrix.lengths, place, ids.shape[1] + 1))


def _number_returns(draw: st.DrawFn, index: Any, ids: Tensor) -> Encoding:
    row = int((ids == 2).any(1).to(torch.int64).argmax()) if draw(st.booleans()) else _pick(draw, ids == 2)[0]
    numbers = torch.cat([index.seq_idx, torch.full_like(index.seq_idx[:, :1], -1)], dim=1)
    return SegmentIndex(_put(numbers, (row, -1), 0))


def _stream_uncovered(_draw: st.DrawFn, flat: Any, _: Tensor) -> Encoding:
    return cast("Encoding", replace(flat, cu_seqlens=_put(flat.cu_seqlens, (-1,), flat.cu_seqlens[-1] - 1)))


def _offset_repeats(draw: st.DrawFn, states: Any, _: Tensor) -> Encoding:
    offsets = states.cu_seqlens_cpu
    again = draw(st.integers(0, offsets.numel() - 1))
    repeated = torch.cat([offsets[: again + 1], offsets[again:]])
    return cast("Encoding", replace(states, cu_seqlens=repeated, cu_seqlens_cpu=repeated.clone()))


_Spoil: TypeAlias = Callable[[st.DrawFn, Any, Tensor], Encoding]
_FAULTS: Final[dict[EncodingFault, tuple[EncodingName, Callable[[Tensor], bool], _Spoil]]] = {
    "index_outside": ("gathered_rows", _any_token, _index_outside),
    "index_twice": ("gathered_rows", _two_tokens, _index_twice),
    "offsets_fall": ("gathered_rows", _any_token, _offsets_fall),
    "tokens_uncovered": ("gathered_rows", _any_token, _tokens_uncovered),
    "batch_uncovered": ("physical_flat", _any_token, _batch_uncovered),
    "segment_over_rows": ("physical_flat", _two_rows, _segment_over_rows),
    "row_uncovered": ("physical_rows", _any_token, _row_uncovered),
    "longer_than_slot": ("thd_lengths", _any_token, _longer_than_slot),
    "slots_uncovered": ("thd_lengths", _any_token, _slots_uncovered),
    "slot_too_short": ("thd_flat", _any_token, _slot_too_short),
    "negative_length": ("length_matrix", _any_token, _negative_length),
    "row_too_long": ("length_matrix", _any_token, _row_too_long),
    "number_returns": ("segment_index", _two_documents, _number_returns),
    "stream_uncovered": ("gathered_flat", _any_token, _stream_uncovered),
    "offset_repeats": ("physical_states", _any_token, _offset_repeats),
}
"""For each fault the encoding, what the ids must hold so that it is one, and how it is made."""
