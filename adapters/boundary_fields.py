"""The entries of a batch that speak of boundaries, by the names under which they travel."""

from __future__ import annotations

from typing import Final

from neatpack.contracts.encodings import FLAKwargs, TransformerEngineKwargs, VarlenKernelKwargs

PACKED_SEQ_IDS: Final = "_packed_seq_ids"
ATTENTION_IDS: Final = (PACKED_SEQ_IDS, "attention_document_ids")
IDS: Final = (*ATTENTION_IDS, "document_ids")
"""Where the ids that attention goes by stand, the first that is there: those as packed where there is no policy."""

TOKEN_FIELDS: Final = (*IDS, "seq_idx", "padding_mask", "position_ids", "attention_mask")
FLASH_FIELDS: Final = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
METADATA_FIELDS: Final = ("packed_token_indices", "cu_seqlens", "max_seqlen")
READ_TOGETHER: Final = (FLASH_FIELDS, METADATA_FIELDS)
"""Entries that say nothing one without the others."""

LENGTH_FIELDS: Final = ("seq_lens", "seq_lens_padded")

KERNEL_FIELDS: Final = frozenset(
    name
    for arguments in (VarlenKernelKwargs, TransformerEngineKwargs, FLAKwargs)
    for name in arguments.__annotations__
    if name.startswith(("cu_seqlens_", "max_seqlen_"))
) | {"cu_seqlens_padded", "packed_seq_params"}
"""Arguments of kernels, whose names do not tell which places they count: they cannot be compared."""
