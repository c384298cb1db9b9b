"""Numbers of numpy's, of whatever width, in place of Python's: the same answer, of the same types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from neatpack import adapters
from tests.adapters.batches import training_batch

Number = Callable[[int], Any]

_IDS: Final = adapters.document_ids_from_lengths([[3, 100]] * 3, 120)
_PADDING: Final = torch.zeros(50, 3, dtype=torch.int64)
_LENGTHS: Final = adapters.thd_lengths(_IDS)
_METADATA: Final = adapters.build_packed_sequence_metadata(_IDS)
_FLAT: Final = adapters.gathered_flat(_IDS)


_CALLS: Final[dict[str, Callable[[Number], object]]] = {
    "rows and places of NEAT metadata": lambda number: adapters.flatten_packed_sequence_metadata(
        _METADATA["packed_token_indices"], _METADATA["cu_seqlens"], number(3), number(120)
    ),
    "rows and places of a stream": lambda number: adapters.flatten_packed_sequence_metadata(
        _FLAT.token_indices, _FLAT.cu_seqlens, number(3), number(120)
    ),
    "shape of a stream": lambda number: adapters.document_ids_from_metadata(
        _FLAT.token_indices, _FLAT.cu_seqlens, (number(3), number(120))
    ),
    "places of THD lengths": lambda number: adapters.flatten_thd_lengths(_LENGTHS, number(120)),
    "ids of THD lengths": lambda number: adapters.document_ids_from_thd_lengths(_LENGTHS, number(120)),
    "ids of a length matrix": lambda number: adapters.document_ids_from_length_matrix(
        adapters.length_matrix(_IDS), number(120)
    ),
    "lengths": lambda number: adapters.document_ids_from_lengths([[number(3), number(100)]] * 3, number(120)),
    "longest padding": lambda number: adapters.flash_varlen_kwargs(_IDS[:, 80:], longest_padding=number(4)),
    "longest padding above": lambda number: adapters.physical_offsets(_PADDING, longest_padding=number(2)),
    "width": lambda number: adapters.row_offsets(_IDS, width=number(121)),
    "start": lambda number: adapters.build_position_ids(_IDS, number(100)),
    "axes": lambda number: adapters.repeat_on_axes(_IDS, number(3)),
    "depth": lambda number: adapters.mtp_targets(_IDS, _IDS, number(2), "model"),
    "spans": lambda number: adapters.place_spans(_IDS[:1], [[(number(0), number(2))], [(number(90), number(100))]]),
    "marked spans": lambda number: adapters.mark_spans(_IDS[:1], [[(number(0), number(2))], [(number(9), number(99))]]),
    "multiple of documents": lambda number: adapters.pad_documents(training_batch(_IDS), number(64)),
    "multiple of padding": lambda number: adapters.pad_documents(training_batch(_PADDING), number(64)),
    "multiple of rows": lambda number: adapters.pad_rows(training_batch(_PADDING), number(64), pad_token_id=number(9)),
    "rank": lambda number: adapters.context_places(_IDS, number(1), number(2), "contiguous"),
    "places of a stream": lambda number: adapters.real_places(adapters.thd_flat(_IDS[:1]), number(125)),
    "shape and strides": lambda number: adapters.farthest_element((number(100), number(100)), (number(100), number(1))),
    "window of a kernel": lambda number: adapters.window_size(number(100)),
    "bytes of a mask": lambda number: adapters.block_causal_mask_bytes(number(4), number(100)),
    "end token": lambda number: adapters.document_ids_from_tokens(_IDS, eos_token_id=number(1), bos_token_id=number(2)),
    "padding token": lambda number: adapters.document_ids_from_tokens(
        _IDS, bos_token_id=[number(2)], pad_token_id=number(0)
    ),
    "groups": lambda number: adapters.document_rows(_IDS[:1], [[number(1)], [number(0)]]),
    "window": lambda number: adapters.build_block_causal_mask(_IDS, window=number(100)),
    "chunk": lambda number: adapters.build_block_causal_mask(_IDS, chunk=number(100)),
    "window of counts": lambda number: adapters.count_seen_keys(_IDS, window=number(100)),
    "window of two": lambda number: adapters.sees(_IDS, _IDS, _IDS, _IDS, window=number(100)),
    "window of a layer": lambda number: adapters.LayerView(window=number(100), chunk=number(9)),
    "size of blocks": lambda number: adapters.build_block_mask(_IDS, block_size=number(32)).BLOCK_SIZE,
    "sizes of blocks": lambda number: adapters.build_block_mask(_IDS, block_size=(number(32), number(8))).BLOCK_SIZE,
    "microbatches": lambda number: adapters.split_rows(training_batch(_IDS), number(3)),
}


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint16, np.int64, np.uint64], ids=lambda kind: cast("type", kind).__name__
)
@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_numbers_of_numpy_count_as_ints(call: Callable[[Number], object], kind: Number) -> None:
    _assert_same(call(kind), call(int))


def _assert_same(found: object, expected: object) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, Mapping):
        _assert_same(list(cast("Any", found).items()), list(cast("Any", expected).items()))
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(cast("Any", found), cast("Any", expected), strict=True):
            _assert_same(one, other)
    elif is_dataclass(expected):
        for field in fields(expected):
            _assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(cast("Any", found), cast("Any", expected))
    else:
        assert found == expected
