"""Attention masks that number documents, and plain ones, which are one document a row: read as document ids."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from neatpack.adapters.arguments import tensor_problems
from neatpack.adapters.document_ids import canonical_document_ids
from neatpack.adapters.segments import Segments, as_segments
from neatpack.contracts.errors import DocumentIdsError, Problem
from neatpack.contracts.tensors import is_dense


def document_ids_from_attention_mask(attention_mask: Tensor) -> Tensor:
    """Read a 2-D attention mask as ids: one that numbers documents, or a plain one, which is one document a row.

    Args:
        attention_mask: any integer dtype or bool, `[batch, sequence]`, 0 at padding.

    Returns:
        Canonical ids, int64 `[batch, sequence]`. Zeros between the tokens of a document are holes.

    Raises:
        DocumentIdsError: the mask is malformed.

    Example:
        >>> document_ids_from_attention_mask(torch.tensor([[7, 7, 3, 0], [0, 1, 1, 1]]))
        tensor([[1, 1, 2, 0],
                [0, 1, 1, 1]])
        >>> document_ids_from_attention_mask(torch.tensor([[True, True, False]]))
        tensor([[1, 1, 0]])
    """
    return canonical_document_ids(mask_segments(attention_mask))


def is_indexed_packed_mask(attention_mask: Tensor | None) -> bool:
    """Tell whether a 2-D mask numbers documents: whether any value is greater than 1.

    A row of one document is a plain 0/1 mask as well, and gives False. This reads from the device.

    Args:
        attention_mask: any dense tensor, or None.

    Raises:
        DocumentIdsError: it is neither, or a tensor without values that can be compared.

    Example:
        >>> is_indexed_packed_mask(torch.tensor([[1, 1, 2, 0]])), is_indexed_packed_mask(torch.tensor([[1, 1, 0]]))
        (True, False)
    """
    mask = cast("object", attention_mask)
    if mask is None:
        return False
    if tensor_problems(mask, "attention_mask") or not isinstance(mask, Tensor) or mask.is_complex():
        sort = f"{mask.dtype} on {mask.device}" if isinstance(mask, Tensor) else type(mask).__name__
        message = "must be None or a dense tensor of real numbers that lies on a device"
        remedy = "Pass the mask as the loader made it."
        raise DocumentIdsError(Problem("attention_mask", message, "type", value=sort, remedy=remedy))
    if mask.ndim != 2 or mask.dtype == torch.bool:
        return False
    # Not every dtype can be compared, and int64 does not hold every uint64. No integer above 1 rounds down to it.
    return mask.numel() > 0 and bool((mask.to(torch.float64) > 1).any())


def mask_segments(attention_mask: Tensor | Segments) -> Segments:
    """Scan a mask as ids.

    Raises:
        DocumentIdsError: the mask is malformed.
    """
    if isinstance(attention_mask, Tensor) and attention_mask.dtype == torch.bool and is_dense(attention_mask):
        return as_segments(attention_mask.view(torch.uint8), field="attention_mask")
    return as_segments(attention_mask, field="attention_mask")


def require_documents(longest: int, remedy: str) -> None:
    """Raise where the longest document of a mask has no token.

    Raises:
        DocumentIdsError: it has none.
    """
    if not longest:
        message = "must contain at least one valid token, but all is padding"
        raise DocumentIdsError(Problem("attention_mask", message, "value", remedy=remedy))
