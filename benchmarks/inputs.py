"""The inputs of a size: the same for every run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.records import Size

_SEED = 20260


def document_ids(size: Size, *, padded: bool = True) -> Tensor:
    """Make ids 1, 2, ... of documents of random lengths in each row, int64; a twentieth of each row is padding."""
    random = np.random.default_rng(_SEED)
    used = size.sequence - size.sequence // 20 if padded else size.sequence
    ids = np.zeros((size.batch, size.sequence), np.int64)
    for row in ids:
        cuts = np.sort(random.choice(used - 1, size.documents - 1, replace=False) + 1)
        row[:used] = np.repeat(np.arange(1, size.documents + 1), np.diff(cuts, prepend=0, append=used))
    return torch.from_numpy(ids)  # pyright: ignore[reportUnknownMemberType]


def positions(ids: Tensor) -> Tensor:
    """Number the tokens of each document from 0, without use of what is measured."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    opens = torch.ones_like(ids, dtype=torch.bool)
    opens[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return places - torch.where(opens, places, 0).cummax(dim=1).values


def offsets(ids: Tensor) -> Tensor:
    """Give the offsets of all runs of the flattened batch, int32, without use of what is measured."""
    starts = (positions(ids).flatten() == 0).nonzero().flatten()
    return torch.cat([starts, torch.tensor([ids.numel()])]).to(torch.int32)


def lognormal_lengths(count: int, capacity: int, *, median: float = 600, spread: float = 1.0) -> npt.NDArray[np.int64]:
    """Draw lengths around a median of so many tokens, few of them long, none longer than a row."""
    random = np.random.default_rng(_SEED)
    return np.minimum(random.lognormal(np.log(median), spread, count).astype(np.int64) + 1, capacity)


def tokens(size: Size) -> list[Tensor]:
    """Make documents of random tokens, together about as many as the size has places."""
    random = np.random.default_rng(_SEED)
    lengths = random.lognormal(0.0, 0.7, size.documents)
    lengths = np.maximum(lengths * (size.batch * size.sequence / lengths.sum()), 1).astype(np.int64)
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randint(1, 50_000, (length,), generator=generator) for length in lengths.tolist()]
