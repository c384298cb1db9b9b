"""The batch that a loader yields and a model consumes.

This module does without `from __future__ import annotations`, which would hide from TypedDict which keys are
required.
"""

from typing import Final, Generic, Literal, get_args

from typing_extensions import NotRequired, ReadOnly, TypedDict

from neatpack.contracts.errors import BatchError
from neatpack.contracts.fields import (
    AttentionMask,
    DocumentIds,
    DocumentKeys,
    DocumentStarts,
    GatheredRowOffsets,
    Labels,
    Longest,
    PackedSeqIds,
    PackedTokenIndices,
    PaddingMask,
    PhysicalFlatOffsets,
    PositionIds,
    THDLength,
    TokenIds,
)
from neatpack.contracts.tensors import TensorLike, TensorT, TensorT_co
from neatpack.contracts.validation import Guard, Parse, Validate, checks

BatchOutputFormat = Literal["batched", "thd"]
"""`batched` keeps `[batch, sequence]`; `thd` adds the lengths of every document."""

BATCH_OUTPUT_FORMATS: Final[tuple[BatchOutputFormat, ...]] = get_args(BatchOutputFormat)

LabelShift = Literal["model", "stream", "document"]
"""Who shifted the labels: nobody yet (`model`), the row as a whole (`stream`), or each document on its own."""

LABEL_SHIFTS: Final[tuple[LabelShift, ...]] = get_args(LabelShift)


class TrainingBatch(TypedDict, Generic[TensorT]):
    """One batch of packed rows. Functions replace entries of the mapping; no tensor in it is written to.

    `document_ids` is membership as packed. `attention_document_ids` is membership after policy: 0 at tokens that
    no other token may read, and one id for documents that are joined on purpose. `_packed_seq_ids` is what a loader
    ships for the model: the attention ids, from which a bound model derives all else.

    Example:
        >>> sorted(TrainingBatch.__required_keys__)
        ['input_ids', 'labels', 'padding_mask', 'position_ids']
    """

    input_ids: TokenIds[TensorT]
    labels: Labels[TensorT]
    position_ids: PositionIds[TensorT]
    padding_mask: PaddingMask[TensorT]
    document_ids: NotRequired[DocumentIds[TensorT]]
    attention_document_ids: NotRequired[DocumentIds[TensorT]]
    _packed_seq_ids: NotRequired[PackedSeqIds[TensorT]]
    document_keys: NotRequired[DocumentKeys[TensorT]]
    document_starts: NotRequired[DocumentStarts[TensorT]]
    attention_mask: NotRequired[AttentionMask[TensorT]]
    packed_token_indices: NotRequired[PackedTokenIndices[TensorT]]
    cu_seqlens: NotRequired[GatheredRowOffsets[TensorT]]
    max_seqlen: NotRequired[Longest]
    cu_seq_lens_q: NotRequired[PhysicalFlatOffsets[TensorT]]
    cu_seq_lens_k: NotRequired[PhysicalFlatOffsets[TensorT]]
    max_length_q: NotRequired[Longest]
    max_length_k: NotRequired[Longest]
    seq_lens: NotRequired[THDLength[TensorT]]
    seq_lens_padded: NotRequired[THDLength[TensorT]]
    qkv_format: NotRequired[str]


class TrainingBatchView(TypedDict, Generic[TensorT_co]):
    """`TrainingBatch` for those who only read it: a batch of any tensor class may be passed where this is taken."""

    input_ids: ReadOnly[TokenIds[TensorT_co]]
    labels: ReadOnly[Labels[TensorT_co]]
    position_ids: ReadOnly[PositionIds[TensorT_co]]
    padding_mask: ReadOnly[PaddingMask[TensorT_co]]
    document_ids: ReadOnly[NotRequired[DocumentIds[TensorT_co]]]
    attention_document_ids: ReadOnly[NotRequired[DocumentIds[TensorT_co]]]
    _packed_seq_ids: ReadOnly[NotRequired[PackedSeqIds[TensorT_co]]]
    document_keys: ReadOnly[NotRequired[DocumentKeys[TensorT_co]]]
    document_starts: ReadOnly[NotRequired[DocumentStarts[TensorT_co]]]
    attention_mask: ReadOnly[NotRequired[AttentionMask[TensorT_co]]]
    packed_token_indices: ReadOnly[NotRequired[PackedTokenIndices[TensorT_co]]]
    cu_seqlens: ReadOnly[NotRequired[GatheredRowOffsets[TensorT_co]]]
    max_seqlen: ReadOnly[NotRequired[Longest]]
    cu_seq_lens_q: ReadOnly[NotRequired[PhysicalFlatOffsets[TensorT_co]]]
    cu_seq_lens_k: ReadOnly[NotRequired[PhysicalFlatOffsets[TensorT_co]]]
    max_length_q: ReadOnly[NotRequired[Longest]]
    max_length_k: ReadOnly[NotRequired[Longest]]
    seq_lens: ReadOnly[NotRequired[THDLength[TensorT_co]]]
    seq_lens_padded: ReadOnly[NotRequired[THDLength[TensorT_co]]]
    qkv_format: ReadOnly[NotRequired[str]]


# Declared before they are made: type checkers may infer the parts of a tuple differently.
validate_training_batch: Validate
is_training_batch: Guard[TrainingBatch[TensorLike]]
parse_training_batch: Parse[TrainingBatch[TensorLike]]
validate_training_batch, is_training_batch, parse_training_batch = checks(TrainingBatch[TensorLike], BatchError)
