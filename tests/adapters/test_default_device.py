"""Where tensors lie follows from the tensors that came in: what torch.set_default_device says changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

import neatpack.adapters.host_arrays
from neatpack import adapters
from neatpack.adapters import StaticBounds
from tests.adapters.batches import training_batch
from tests.adapters.static_functions import flattened

_IDS: Final = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])
_PADDING: Final = _IDS == 0
_POSITIONS: Final = torch.tensor([[0, 1, 0, 1]])
_PLACES: Final = torch.tensor([[0, 1, -1], [3, -1, 2]])
_VALUES: Final = torch.arange(16.0).view(2, 4, 2)
_KEYS: Final = torch.tensor([[3, 0], [1, 2]])
_METADATA: Final = adapters.build_packed_sequence_metadata(_IDS)
_KWARGS: Final = adapters.flash_varlen_kwargs(_IDS)
_FLAT: Final = adapters.thd_flat(_IDS)
_HOLES: Final = _IDS * torch.tensor([1, 1, 0, 1])
_BATCH: Final = training_batch(_IDS, kinds=_IDS.to(torch.uint16), tiny=_IDS.to(torch.uint64))
_BOUNDS: Final = StaticBounds(3, 9, 4)


def _blocks(mask: BlockMask) -> list[Tensor]:
    return [entry for entry in mask.as_tuple() if isinstance(entry, Tensor)]


_CALLS: Final[dict[str, Callable[[], Any]]] = {
    "ids from positions": lambda: adapters.document_ids_from_positions(_IDS, _PADDING),
    "ids from tokens": lambda: adapters.document_ids_from_tokens(_IDS, eos_token_id=2, padding_mask=_PADDING),
    "ids from metadata": lambda: adapters.document_ids_from_metadata(
        _METADATA["packed_token_indices"], _METADATA["cu_seqlens"]
    ),
    "ids from offsets": lambda: adapters.document_ids_from_flash_varlen(_KWARGS, _PADDING),
    "ids from lengths": lambda: adapters.document_ids_from_lengths([[2, 1], [4]], 4),
    "gathered": lambda: adapters.gathered_rows(_IDS),
    "physical": lambda: adapters.physical_offsets(_IDS),
    "physical from positions": lambda: adapters.physical_offsets_from_positions(_POSITIONS),
    "states": lambda: adapters.gathered_states(_IDS),
    "segment numbers": lambda: adapters.segment_index(_IDS),
    "places of tokens": lambda: adapters.real_places(_FLAT),
    "positions": lambda: adapters.build_position_ids(_IDS),
    "labels": lambda: adapters.mask_labels(_IDS, _IDS, "model", document_ids=_IDS.clone()),
    "targets": lambda: adapters.mtp_targets(_IDS, _IDS, 1, "stream"),
    "weights": lambda: adapters.loss_weights(_IDS, _IDS, "document"),
    "reduced": lambda: adapters.reduce_by_document(_VALUES, _IDS, "mean"),
    "unpacked": lambda: adapters.unpack(_VALUES, _IDS, _KEYS),
    "dense mask": lambda: adapters.build_block_causal_mask(_IDS, torch.float32, window=2),
    "blocks": lambda: _blocks(adapters.build_block_mask(_IDS, block_size=1)),
    "blocks with holes": lambda: _blocks(adapters.build_block_mask(_HOLES)),
    "seen keys": lambda: adapters.count_seen_keys(_IDS),
    "agreement": lambda: adapters.check_agreement(
        _IDS, {"padding_mask": _PADDING, "attention_mask": adapters.build_block_causal_mask(_IDS)}
    ).locate(1),
    "moved": lambda: adapters.take_places(_BATCH, _PLACES),
    "padded": lambda: adapters.pad_documents(_BATCH, 4),
    "rows padded": lambda: adapters.pad_rows(_BATCH, 3),
    "sharded": lambda: adapters.shard_tokens(_BATCH, 1, 2, "contiguous", label_shift="model").batch,
    "rows of documents": lambda: adapters.document_rows(_IDS).take(_VALUES, 0),
    "scanned": lambda: adapters.scan_static(_IDS, _BOUNDS),
    "static rows": lambda: adapters.static_gathered_rows(_IDS, _BOUNDS),
    "static lengths": lambda: adapters.static_thd_lengths(torch.tensor([[1, 1, 0]], device="cpu"), _BOUNDS),
    "static mask": lambda: adapters.static_block_causal_mask(_IDS, _BOUNDS, torch.float16),
    "static blocks": lambda: _blocks(adapters.static_block_mask(_IDS, _BOUNDS, block_size=2)[0]),
}


def _tensors(value: Any) -> list[Tensor]:
    leaves = flattened([*value.values()] if isinstance(value, dict) else value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["host", "read from a device"])
@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_results_do_not_follow_the_default_device(
    call: Callable[[], Any], elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _tensors(call())
    if elsewhere:

        def lies_elsewhere(_: Tensor) -> bool:
            return False

        monkeypatch.setattr(neatpack.adapters.host_arrays, "_lies_on_host", lies_elsewhere)
    with torch.device("meta"):
        found = _tensors(call())
    assert [each.device.type for each in found] == ["cpu"] * len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
