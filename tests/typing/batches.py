"""What the type checkers hold authors to when they build, read and grow a `TrainingBatch`."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from typing_extensions import NotRequired, ReadOnly, Required, assert_type

from neatpack import TensorLike, TrainingBatch, TrainingBatchView, is_training_batch

TensorT = TypeVar("TensorT", bound=TensorLike)


def build(ids: Tensor) -> TrainingBatch[Tensor]:
    return {"input_ids": ids, "labels": ids, "position_ids": ids, "padding_mask": ids == 0}


def fill(batch: TrainingBatch[TensorT], document_ids: TensorT) -> TrainingBatch[TensorT]:
    batch["document_ids"] = document_ids
    return batch


def consume(batch: TrainingBatchView[TensorLike]) -> int:
    if "document_ids" in batch:
        return len(batch["document_ids"].shape)
    return len(batch["input_ids"].shape)


def consume_any(batch: TrainingBatch[TensorLike]) -> None:
    del batch


class ImageBatch(TrainingBatch[Tensor]):
    pixel_values: NotRequired[Tensor]


class WrittenWithIds(TrainingBatch[Tensor]):
    # A key that others may leave out cannot be required of a mapping that they write.
    document_ids: Required[Tensor]  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]


class ReadWithIds(TrainingBatchView[Tensor]):
    document_ids: ReadOnly[Required[Tensor]]


BATCH = build(torch.ones(1, 4, dtype=torch.int64))
assert_type(BATCH["input_ids"], Tensor)
assert_type(BATCH.get("document_ids"), "Tensor | None")
assert_type(fill(BATCH, torch.ones(1, 4)), TrainingBatch[Tensor])
GROWN: TrainingBatch[Tensor] = {**BATCH, "max_seqlen": 4, "document_ids": torch.ones(1, 4)}

# A batch of one library's tensors is read, but not written, as a batch of any.
RANK = consume(BATCH)
consume_any(BATCH)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

IMAGES: ImageBatch = {**BATCH, "pixel_values": torch.ones(1, 3, 2, 2)}
IMAGE_RANK = consume(IMAGES)


def misuse(view: TrainingBatchView[Tensor], ids: Tensor) -> None:
    missing: TrainingBatch[Tensor] = {"input_ids": ids, "labels": ids, "position_ids": ids}  # type: ignore[typeddict-item]  # pyright: ignore[reportAssignmentType]
    wrong_key: TrainingBatch[Tensor] = {**BATCH, "cu_seqlen": ids}  # type: ignore[typeddict-unknown-key]  # pyright: ignore[reportAssignmentType]
    wrong_value: TrainingBatch[Tensor] = {**BATCH, "max_seqlen": ids}  # type: ignore[typeddict-item]  # pyright: ignore[reportAssignmentType]
    view["labels"] = ids  # type: ignore[typeddict-readonly-mutated]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    view.update({"labels": ids})  # type: ignore[typeddict-readonly-mutated]  # pyright: ignore[reportArgumentType, reportCallIssue]
    # Only pyright asks for the check that an optional key is there.
    unguarded = BATCH["document_ids"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    del missing, wrong_key, wrong_value, unguarded


def segment(batch: ReadWithIds) -> Tensor:
    return batch["document_ids"]


# Only mypy sees that the key may be missing here.
SEGMENTS = segment(GROWN)  # type: ignore[arg-type]


def narrowed(value: object) -> None:
    if is_training_batch(value):
        assert_type(value, TrainingBatch[TensorLike])
