"""What is not given is what the docstring says: each default, beside another value that makes another result."""

# Torch leaves Tensor.tolist without a type.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from hypothesis import find

from neatpack import adapters
from neatpack.adapters import strategies
from neatpack.contracts.capabilities import PackingCapabilities
from tests.adapters.batches import training_batch

_IDS: Final = torch.tensor([[1, 1, 1, 1, 2, 2, 0, 0]])
_PLACES: Final = torch.arange(8)
_CONTRACT: Final = PackingCapabilities("flash_varlen")


def _joined(**options: Any) -> object:
    batch = adapters.enable_xdoc_attention(
        adapters.adapt_model_inputs(training_batch(_IDS)), PackingCapabilities("document_ids")
    )
    applied = adapters.apply_packing_contract(
        batch, PackingCapabilities("document_ids"), label_shift="model", **options
    )
    return applied["labels"].tolist()


_DEFAULTS: Final[dict[str, tuple[Callable[..., Any], str, Any, Any]]] = {
    "counted window": (lambda **o: adapters.count_seen_keys(_IDS, **o).tolist(), "window", None, 2),
    "counted causal": (lambda **o: adapters.count_seen_keys(_IDS, **o).tolist(), "causal", True, False),
    "seen window": (
        lambda **o: adapters.sees(_IDS.mT, _IDS, _PLACES[:, None], _PLACES, **o).tolist(),
        "window",
        None,
        2,
    ),
    "seen causal": (
        lambda **o: adapters.sees(_IDS.mT, _IDS, _PLACES[:, None], _PLACES, **o).tolist(),
        "causal",
        True,
        False,
    ),
    "dense window": (lambda **o: adapters.build_block_causal_mask(_IDS, **o).tolist(), "window", None, 2),
    "dense chunk": (lambda **o: adapters.build_block_causal_mask(_IDS, **o).tolist(), "chunk", None, 2),
    "dense dtype": (
        lambda **o: adapters.build_block_causal_mask(_IDS, **o).tolist(),
        "dtype",
        torch.bool,
        torch.float32,
    ),
    "blocks of": (lambda **o: adapters.build_block_mask(_IDS, **o).BLOCK_SIZE, "block_size", (128, 128), 4),
    "positions from": (lambda **o: adapters.build_position_ids(_IDS, **o).tolist(), "start", 0, 2),
    "padding of varlen": (
        lambda **o: adapters.physical_offsets(_IDS, **o).cu_seqlens.tolist(),
        "longest_padding",
        None,
        1,
    ),
    "padded with": (
        lambda **o: adapters.pad_documents(training_batch(_IDS), 8, **o)["input_ids"].tolist(),
        "pad_token_id",
        0,
        9,
    ),
    "placed with": (
        lambda **o: adapters.take_places(training_batch(_IDS), torch.tensor([[0, -1]]), **o)["input_ids"].tolist(),
        "pad_token_id",
        0,
        9,
    ),
    "applied flat": (
        lambda **o: sorted(adapters.apply_packing_contract(training_batch(_IDS), _CONTRACT, label_shift="model", **o)),
        "flat",
        False,
        True,
    ),
    "labels inside documents": (_joined, "inside_documents", False, True),
}


@pytest.mark.parametrize(("call", "name", "default", "other"), _DEFAULTS.values(), ids=_DEFAULTS)
def test_what_is_not_given_is_the_default(
    call: Callable[..., object], name: str, default: object, other: object
) -> None:
    assert call() == call(**{name: default}) != call(**{name: other})


def test_strategies_draw_up_to_their_default_sizes_and_any_numbers() -> None:
    for strategy in (strategies.document_ids(), strategies.attention_document_ids()):
        assert find(strategy, lambda ids: ids.shape[0] == 4).shape[0] == 4
        assert find(strategy, lambda ids: ids.shape[1] == 16).shape[1] == 16
    # As a list, since torch compares no unsigned integers wider than 8 bits.
    gapped = find(
        strategies.document_ids(), lambda ids: max(numbers := ids.flatten().tolist()) > 1 and 1 not in numbers
    )
    assert int(gapped.max()) > 1
