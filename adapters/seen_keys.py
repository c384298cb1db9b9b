"""How many keys each query sees, which is the work of attention, counted without a mask."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from neatpack.adapters.arguments import require_flag
from neatpack.adapters.host_arrays import to_tensor
from neatpack.adapters.segments import Segments, as_segments
from neatpack.adapters.visibility import require_window, seen_range


def count_seen_keys(document_ids: Tensor | Segments, *, window: int | None = None, causal: bool = True) -> Tensor:
    """Count the keys that each query sees, its own among them: the row sums of the mask, without the mask.

    Args:
        document_ids: any integer dtype, `[batch, sequence]`, 0 at padding and holes, which see themselves alone.
        window: how many places a query sees, its own included, and without a causal mask as many after its own;
            None for no limit.
        causal: whether a query sees no key that comes after it.

    Returns:
        int64 `[batch, sequence]`.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: the window is not a positive int, or `causal` no bool.

    Example:
        >>> import torch
        >>> count_seen_keys(torch.tensor([[1, 1, 1, 2, 0]]), window=2)
        tensor([[1, 2, 2, 1, 1]])
    """
    window = require_window(window)
    require_flag(causal, "causal")
    segments = as_segments(document_ids)
    places = np.arange(segments.batch * segments.sequence)
    kept = np.repeat(segments.ids != 0, segments.lengths)
    owners = np.repeat(segments.owners, segments.lengths[segments.kept])
    tokens, starts, stops = (
        to_tensor(array) for array in (places[kept], segments.documents.starts[owners], segments.documents.ends[owners])
    )
    first, last = seen_range(tokens, starts, stops, window=window, causal=causal)
    before = np.append(0, np.cumsum(kept))
    counts = np.ones(places.size, np.int64)
    counts[kept] = before[last.numpy() + 1] - before[first.numpy()]
    return segments.tensor(counts).view(segments.batch, segments.sequence)
