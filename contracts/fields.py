"""Every kind of field that batches and encodings are made of, each with its axes, dtype, fill and unit.

A field that appears in several classes is defined once, here. The offsets are named by the coordinates they
count in, because three incompatible encodings are called `cu_seqlens` in the wild:

- *gathered* coordinates count only kept tokens, padding and holes removed;
- *physical* coordinates count every place of the padded row, or of the flattened `batch * sequence` stream.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from neatpack.contracts.axes import Axes, Count
from neatpack.contracts.tensors import TensorT

UNUSED_OFFSET: Final = -1
"""Fill of row-local gathered offsets and of `packed_token_indices` at padding."""

UNUSED_LENGTH: Final = -1000
"""Fill of unused THD lengths."""

IGNORED_LABEL: Final = -100
"""The label that the loss leaves out: `ignore_index` of `torch.nn.functional.cross_entropy`."""

# One value per token.
TokenIds: TypeAlias = Annotated[TensorT, Axes("batch", "sequence", dtype="integer", unit="token id")]
Labels: TypeAlias = Annotated[
    TensorT, Axes("batch", "sequence", dtype="integer", fill=IGNORED_LABEL, unit="target token id")
]
DocumentIds: TypeAlias = Annotated[
    TensorT, Axes("batch", "sequence", dtype="integer", fill=0, unit="document id, 1-based within the row")
]
PackedSeqIds: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "sequence", dtype="int64", fill=0, unit="attention document id, 1-based within the row"),
]
PositionIds: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "sequence", dtype="integer", unit="position within the document"),
    Axes("axes", "batch", "sequence", dtype="integer", unit="position within the document, per rotary axis"),
]
PaddingMask: TypeAlias = Annotated[TensorT, Axes("batch", "sequence", dtype="bool", unit="True at padding")]
AttentionMask: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "sequence", dtype="integer", fill=0, unit="document id, or 1 at kept tokens"),
    Axes("batch", "sequence", dtype="bool", unit="True at kept tokens"),
    Axes(
        "batch",
        "1",
        "sequence",
        "sequence",
        dtype="mask",
        unit="True, or 0 where additive, where attention is allowed",
    ),
]
SegmentIds: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "sequence", dtype="int32", fill=-1, unit="0-based segment number, increasing over the row"),
]

# Gathered coordinates.
PackedTokenIndices: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "sequence", dtype="int64", fill=UNUSED_OFFSET, unit="row-local index of a kept token"),
]
GatheredRowOffsets: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "boundaries", dtype="int32", fill=UNUSED_OFFSET, unit="gathered offset within the row"),
]
FlatTokenIndices: TypeAlias = Annotated[
    TensorT, Axes("tokens", dtype="int64", unit="index into the flattened batch * sequence")
]
GatheredFlatOffsets: TypeAlias = Annotated[
    TensorT, Axes("boundaries", dtype="int32", unit="gathered offset, all rows in one stream")
]

# Physical coordinates.
PhysicalFlatOffsets: TypeAlias = Annotated[
    TensorT,
    Axes("segment_boundaries", dtype="int32", unit="physical offset into the flattened batch * sequence"),
]
PhysicalRowOffsets: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "row_boundaries", dtype="int32", unit="physical offset within the row, then the row length"),
]
PaddedDocumentOffsets: TypeAlias = Annotated[
    TensorT,
    Axes("boundaries", dtype="int32", unit="physical offset of each document with its own padding"),
]

# Offsets for recurrent layers, which take either width.
GatheredStateOffsets: TypeAlias = Annotated[
    TensorT, Axes("boundaries", dtype="integer", unit="gathered offset, all rows in one stream")
]
PhysicalStateOffsets: TypeAlias = Annotated[
    TensorT,
    Axes("segment_boundaries", dtype="integer", unit="physical offset into the flattened batch * sequence"),
]

# Lengths.
THDLength: TypeAlias = Annotated[TensorT, Axes("batch", "lengths", dtype="int64", fill=UNUSED_LENGTH, unit="tokens")]
"""One for each document that attention sees: under a policy, or in a part of a batch, fewer than those as packed."""
RowLengths: TypeAlias = Annotated[TensorT, Axes("batch", "documents", dtype="int32", fill=0, unit="tokens")]
LongestPerRow: TypeAlias = Annotated[TensorT, Axes("batch", dtype="int32", unit="tokens")]
DocumentKeys: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "documents", dtype="int64", fill=UNUSED_OFFSET, unit="the caller's own index of the document"),
]
DocumentStarts: TypeAlias = Annotated[
    TensorT,
    Axes("batch", "documents", dtype="int64", fill=UNUSED_OFFSET, unit="first token, within the caller's document"),
]

Longest: TypeAlias = Annotated[int, Count(unit="tokens")]
TokenCount: TypeAlias = Annotated[int, Count(unit="tokens")]
