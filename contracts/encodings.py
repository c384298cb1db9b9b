"""One class per encoding of document boundaries: the coordinate system is in the type.

The dataclasses are what neatpack's own functions take and return. Each is equal to itself alone, since tensors answer
`==` with a tensor: compare their fields. The TypedDicts at the end are the same facts under the bare names that kernels
and frameworks demand; they appear only at that edge.

This module does without `from __future__ import annotations`, which would hide from TypedDict which keys are
required.
"""

from dataclasses import dataclass
from typing import Generic

from typing_extensions import TypedDict

from neatpack.contracts.errors import EncodingError
from neatpack.contracts.fields import (
    FlatTokenIndices,
    GatheredFlatOffsets,
    GatheredRowOffsets,
    GatheredStateOffsets,
    Longest,
    LongestPerRow,
    PackedTokenIndices,
    PaddedDocumentOffsets,
    PhysicalFlatOffsets,
    PhysicalRowOffsets,
    PhysicalStateOffsets,
    RowLengths,
    SegmentIds,
    THDLength,
    TokenCount,
)
from neatpack.contracts.tensors import TensorLike, TensorT
from neatpack.contracts.validation import Guard, Parse, Validate, checks


@dataclass(frozen=True, eq=False)
class GatheredRows(Generic[TensorT]):
    """Gathered, row by row: the kept tokens of each row, and the offsets of its documents among them. NEAT metadata.

    Every tensor has `batch` first, so a pipeline schedule may cut it along the rows.
    """

    packed_token_indices: PackedTokenIndices[TensorT]
    cu_seqlens: GatheredRowOffsets[TensorT]
    max_seqlen: Longest


@dataclass(frozen=True, eq=False)
class GatheredFlat(Generic[TensorT]):
    """Gathered, one stream: the kept tokens of all rows, which is what a varlen kernel takes after a gather."""

    token_indices: FlatTokenIndices[TensorT]
    cu_seqlens: GatheredFlatOffsets[TensorT]
    max_seqlen: Longest


@dataclass(frozen=True, eq=False)
class PhysicalFlat(Generic[TensorT]):
    """Physical, one stream: offsets over the flattened `batch * sequence` places; padding is segments of its own."""

    cu_seqlens: PhysicalFlatOffsets[TensorT]
    max_seqlen: Longest


@dataclass(frozen=True, eq=False)
class PhysicalRows(Generic[TensorT]):
    """Physical, row by row: offsets within each padded row; unused entries repeat the row length."""

    cu_seqlens: PhysicalRowOffsets[TensorT]
    max_seqlen: LongestPerRow[TensorT]


@dataclass(frozen=True, eq=False)
class THDLengths(Generic[TensorT]):
    """Lengths, row by row: of each document, real and with its own padding; unused entries are -1000."""

    seq_lens: THDLength[TensorT]
    seq_lens_padded: THDLength[TensorT]


@dataclass(frozen=True, eq=False)
class THDFlat(Generic[TensorT]):
    """Gathered and physical, one stream: the documents of all rows, each followed by its own padding.

    `cu_seqlens` counts real tokens alone; `cu_seqlens_padded` counts every place, and says where a document stands.
    Neither may be taken for the other. `max_seqlen` is the longest document with its padding.
    """

    cu_seqlens: GatheredFlatOffsets[TensorT]
    cu_seqlens_padded: PaddedDocumentOffsets[TensorT]
    max_seqlen: Longest
    real_tokens: TokenCount
    total_tokens: TokenCount

    @property
    def pad_between_seqs(self) -> bool:
        """Whether any document has padding, so that real and padded offsets differ."""
        return self.real_tokens != self.total_tokens


@dataclass(frozen=True, eq=False)
class LengthMatrix(Generic[TensorT]):
    """Lengths, row by row: of each document, real; unused entries are 0."""

    lengths: RowLengths[TensorT]


@dataclass(frozen=True, eq=False)
class SegmentIndex(Generic[TensorT]):
    """Physical, row by row: the segment of every place, as convolution and state-space kernels take it."""

    seq_idx: SegmentIds[TensorT]


@dataclass(frozen=True, eq=False)
class GatheredStates(Generic[TensorT]):
    """Gathered, one stream: where state restarts among the kept tokens, on the device and once more on the host."""

    token_indices: FlatTokenIndices[TensorT]
    cu_seqlens: GatheredStateOffsets[TensorT]
    cu_seqlens_cpu: GatheredStateOffsets[TensorT]


@dataclass(frozen=True, eq=False)
class PhysicalStates(Generic[TensorT]):
    """Physical, one stream: where state restarts in the flattened rows, on the device and once more on the host."""

    cu_seqlens: PhysicalStateOffsets[TensorT]
    cu_seqlens_cpu: PhysicalStateOffsets[TensorT]


class PackedSequenceMetadata(TypedDict, Generic[TensorT]):
    """`GatheredRows` under the names that native FlashAttention-4 and recurrent models read."""

    packed_token_indices: PackedTokenIndices[TensorT]
    cu_seqlens: GatheredRowOffsets[TensorT]
    max_seqlen: Longest


class FlashVarlenKwargs(TypedDict, Generic[TensorT]):
    """`PhysicalFlat` under the names that Hugging Face flash attention reads; it needs all four."""

    cu_seq_lens_q: PhysicalFlatOffsets[TensorT]
    cu_seq_lens_k: PhysicalFlatOffsets[TensorT]
    max_length_q: Longest
    max_length_k: Longest


class VarlenKernelKwargs(TypedDict, Generic[TensorT]):
    """`GatheredFlat` or `PhysicalFlat` under the names that flash-attn's varlen functions read."""

    cu_seqlens_q: GatheredFlatOffsets[TensorT]
    cu_seqlens_k: GatheredFlatOffsets[TensorT]
    max_seqlen_q: Longest
    max_seqlen_k: Longest


class TransformerEngineKwargs(TypedDict, Generic[TensorT]):
    """`THDFlat` under the names that Transformer Engine's attention reads; the padded offsets are always given."""

    qkv_format: str
    cu_seqlens_q: GatheredFlatOffsets[TensorT]
    cu_seqlens_kv: GatheredFlatOffsets[TensorT]
    cu_seqlens_q_padded: PaddedDocumentOffsets[TensorT]
    cu_seqlens_kv_padded: PaddedDocumentOffsets[TensorT]
    max_seqlen_q: Longest
    max_seqlen_kv: Longest
    pad_between_seqs: bool


class PackedSeqParamsKwargs(TransformerEngineKwargs[TensorT], Generic[TensorT]):
    """`THDFlat` under the names of Megatron's `PackedSeqParams`; recurrent layers need `total_tokens`."""

    total_tokens: TokenCount


class FLAKwargs(TypedDict, Generic[TensorT]):
    """`GatheredStates` or `PhysicalStates` under the names that flash-linear-attention reads."""

    cu_seqlens: GatheredStateOffsets[TensorT]
    cu_seqlens_cpu: GatheredStateOffsets[TensorT]


# Declared before they are made: type checkers may infer the parts of a tuple differently.
validate_gathered_rows: Validate
is_gathered_rows: Guard[GatheredRows[TensorLike]]
parse_gathered_rows: Parse[GatheredRows[TensorLike]]
validate_gathered_rows, is_gathered_rows, parse_gathered_rows = checks(GatheredRows[TensorLike], EncodingError)

validate_gathered_flat: Validate
is_gathered_flat: Guard[GatheredFlat[TensorLike]]
parse_gathered_flat: Parse[GatheredFlat[TensorLike]]
validate_gathered_flat, is_gathered_flat, parse_gathered_flat = checks(GatheredFlat[TensorLike], EncodingError)

validate_physical_flat: Validate
is_physical_flat: Guard[PhysicalFlat[TensorLike]]
parse_physical_flat: Parse[PhysicalFlat[TensorLike]]
validate_physical_flat, is_physical_flat, parse_physical_flat = checks(PhysicalFlat[TensorLike], EncodingError)

validate_physical_rows: Validate
is_physical_rows: Guard[PhysicalRows[TensorLike]]
parse_physical_rows: Parse[PhysicalRows[TensorLike]]
validate_physical_rows, is_physical_rows, parse_physical_rows = checks(PhysicalRows[TensorLike], EncodingError)

validate_thd_lengths: Validate
is_thd_lengths: Guard[THDLengths[TensorLike]]
parse_thd_lengths: Parse[THDLengths[TensorLike]]
validate_thd_lengths, is_thd_lengths, parse_thd_lengths = checks(THDLengths[TensorLike], EncodingError)

validate_thd_flat: Validate
is_thd_flat: Guard[THDFlat[TensorLike]]
parse_thd_flat: Parse[THDFlat[TensorLike]]
validate_thd_flat, is_thd_flat, parse_thd_flat = checks(THDFlat[TensorLike], EncodingError)

validate_length_matrix: Validate
is_length_matrix: Guard[LengthMatrix[TensorLike]]
parse_length_matrix: Parse[LengthMatrix[TensorLike]]
validate_length_matrix, is_length_matrix, parse_length_matrix = checks(LengthMatrix[TensorLike], EncodingError)

validate_segment_index: Validate
is_segment_index: Guard[SegmentIndex[TensorLike]]
parse_segment_index: Parse[SegmentIndex[TensorLike]]
validate_segment_index, is_segment_index, parse_segment_index = checks(SegmentIndex[TensorLike], EncodingError)

validate_packed_sequence_metadata: Validate
is_packed_sequence_metadata: Guard[PackedSequenceMetadata[TensorLike]]
parse_packed_sequence_metadata: Parse[PackedSequenceMetadata[TensorLike]]
validate_packed_sequence_metadata, is_packed_sequence_metadata, parse_packed_sequence_metadata = checks(
    PackedSequenceMetadata[TensorLike], EncodingError
)

validate_flash_varlen_kwargs: Validate
is_flash_varlen_kwargs: Guard[FlashVarlenKwargs[TensorLike]]
parse_flash_varlen_kwargs: Parse[FlashVarlenKwargs[TensorLike]]
validate_flash_varlen_kwargs, is_flash_varlen_kwargs, parse_flash_varlen_kwargs = checks(
    FlashVarlenKwargs[TensorLike], EncodingError
)
