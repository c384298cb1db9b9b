"""Hypothesis strategies for document ids, batches and encodings, valid and invalid in named ways. Needs hypothesis.

For the tests of whoever takes or makes packed batches: a model, a loader, a kernel.
"""

from __future__ import annotations

from neatpack.adapters.arguments import INTEGER_DTYPES
from neatpack.adapters.batch_strategies import BATCH_FAULTS, BatchFault, contradicting_batches, training_batches
from neatpack.adapters.encoding_strategies import (
    ENCODING_FAULTS,
    ENCODING_NAMES,
    Encoded,
    EncodingFault,
    EncodingName,
    encodings,
    malformed_encodings,
)
from neatpack.adapters.id_strategies import (
    IDS_FAULTS,
    PADDING_PLACES,
    IdsFault,
    PaddingPlaces,
    attention_document_ids,
    document_ids,
    malformed_document_ids,
)

__all__ = [
    "BATCH_FAULTS",
    "ENCODING_FAULTS",
    "ENCODING_NAMES",
    "IDS_FAULTS",
    "INTEGER_DTYPES",
    "PADDING_PLACES",
    "BatchFault",
    "Encoded",
    "EncodingFault",
    "EncodingName",
    "IdsFault",
    "PaddingPlaces",
    "attention_document_ids",
    "contradicting_batches",
    "document_ids",
    "encodings",
    "malformed_document_ids",
    "malformed_encodings",
    "training_batches",
]
