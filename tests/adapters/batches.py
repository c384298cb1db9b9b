"""Batches as a loader collates them, and what an error says of them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from neatpack.adapters.positions import build_position_ids
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.errors import PackingError
from tests.adapters.layouts import Rows, tensor


def training_batch(rows: Rows | Tensor, **entries: Any) -> TrainingBatch[Tensor]:
    """A batch in which every token is another one."""
    ids = rows if isinstance(rows, Tensor) else tensor(rows)
    tokens = torch.arange(1000, 1000 + ids.numel()).view(ids.shape)
    batch: TrainingBatch[Tensor] = {
        "input_ids": tokens,
        "labels": tokens,
        "position_ids": build_position_ids(ids),
        "padding_mask": ids == 0,
        "document_ids": ids,
    }
    return cast("TrainingBatch[Tensor]", {**batch, **entries})


def fault(error: type[PackingError], call: Any) -> tuple[str, object]:
    """Give the field and the value of the first problem that a call is refused with."""
    with pytest.raises(error) as caught:
        call()
    return caught.value.problems[0].field, caught.value.problems[0].value
