"""Gathered coordinates of one stream: kept tokens of all rows end to end, padding and holes removed.

An `attention_mask` here is document ids, or a plain 0/1 or bool mask, which is one document per row.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from neatpack.adapters.indexed_masks import mask_segments, require_documents
from neatpack.adapters.offsets import offsets_of
from neatpack.adapters.segments import Segments, as_segments
from neatpack.contracts.encodings import GatheredFlat


def get_seqlens_in_batch(attention_mask: Tensor | Segments) -> Tensor:
    """Count the tokens of each document, rows in order and documents in row order.

    Args:
        attention_mask: any integer dtype or bool, `[batch, sequence]`, 0 at padding.

    Returns:
        int64 `[documents]`; empty where all is padding.

    Raises:
        DocumentIdsError: the mask is malformed.

    Example:
        >>> import torch
        >>> get_seqlens_in_batch(torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]]))
        tensor([2, 1, 1, 3])
    """
    segments = mask_segments(attention_mask)
    return segments.tensor(np.array(segments.documents.lengths))


def document_lengths(document_ids: Tensor | Segments) -> Tensor:
    """Count the tokens of each document, rows in order and documents in row order; int64 `[documents]`.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> import torch
        >>> document_lengths(torch.tensor([[1, 1, 2, 0], [4, 0, 4, 4]]))
        tensor([2, 1, 3])
    """
    segments = as_segments(document_ids)
    return segments.tensor(np.array(segments.documents.lengths))


def host_offsets(document_ids: Tensor | Segments) -> tuple[int, ...]:
    """Give the offsets of `gathered_flat` as Python ints, for calls in which a tensor on the host would be in the way.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.

    Returns:
        0 and then the end of each document among the kept tokens of all rows, `documents + 1` ints.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> import torch
        >>> host_offsets(torch.tensor([[1, 1, 2, 0], [4, 0, 4, 4]]))
        (0, 2, 3, 6)
    """
    offsets: list[int] = offsets_of(as_segments(document_ids).documents.lengths).tolist()
    return tuple(offsets)


def get_unpad_data(attention_mask: Tensor | Segments) -> tuple[Tensor, Tensor, int]:
    """Give what unpads a batch for a varlen kernel: the kept tokens of all rows as one gathered stream.

    Args:
        attention_mask: any integer dtype or bool, `[batch, sequence]`, 0 at padding.

    Returns:
        Indices of kept tokens in the flattened `batch * sequence`, int64 `[tokens]`; gathered offsets, int32
        `[documents + 1]`; and the tokens of the longest document.

    Raises:
        DocumentIdsError: the mask is malformed, or all is padding.

    Example:
        >>> import torch
        >>> get_unpad_data(torch.tensor([[1, 1, 0], [1, 2, 2]]))
        (tensor([0, 1, 3, 4, 5]), tensor([0, 2, 3, 5], dtype=torch.int32), 2)
    """
    segments = mask_segments(attention_mask)
    flat = gathered_flat(segments)
    require_documents(flat.max_seqlen, "Leave such batches out, or use gathered_flat.")
    return flat.token_indices, flat.cu_seqlens, flat.max_seqlen


def gathered_flat(document_ids: Tensor | Segments) -> GatheredFlat[Tensor]:
    """Give the kept tokens of all rows as one stream; a batch of padding alone has no token and the offsets `[0]`.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes.

    Returns:
        `token_indices`, int64 `[tokens]`: places of kept tokens in the flattened `batch * sequence`. `cu_seqlens`,
        int32 `[documents + 1]`: gathered offsets. `max_seqlen`: the tokens of the longest document, 0 without any.

    Raises:
        DocumentIdsError: the ids are malformed.

    Example:
        >>> import torch
        >>> flat = gathered_flat(torch.tensor([[1, 0, 1], [1, 0, 0]]))
        >>> flat.token_indices, flat.cu_seqlens
        (tensor([0, 2, 3]), tensor([0, 2, 3], dtype=torch.int32))
    """
    segments = as_segments(document_ids)
    documents = segments.documents
    starts, lengths = segments.bounds[segments.kept], segments.lengths[segments.kept]
    stops = starts + lengths
    # How much each index is greater than the one before it.
    rises = np.ones(int(lengths.sum()), np.int64)
    rises[:1] = starts[:1]
    rises[(np.cumsum(lengths) - lengths)[1:]] = starts[1:] - stops[:-1] + 1
    indices = np.cumsum(rises, out=rises)
    return GatheredFlat(segments.tensor(indices), segments.tensor(offsets_of(documents.lengths)), documents.longest)
