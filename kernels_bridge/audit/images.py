"""Images for tiny models that read them: where they stand among tokens, and what pixels each of them has.

An image belongs to its document, and moves when its document does: its pixels are drawn from the text token beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

import torch
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.tiny_sizes import IMAGE_PLACES, IMAGE_SIZE, IMAGE_TOKEN, PATCH_SIZE

IMAGE_LENGTHS: Final = (7, 1, 10, 8, 9)
"""Lengths of documents such that the first ends with an image, and in the second row one ends with an image where the
next begins with one."""

ENDS_WITH_IMAGE: Final = frozenset({0, 3})
BEGINS_WITH_IMAGE: Final = frozenset({4})

_GRID: Final = (1, 4, 4)
"""Patches of an image in time, height and width, for models that take patches; four of them make one place."""

_CHANNELS: Final = 3


def with_images(documents: Sequence[Tensor]) -> list[Tensor]:
    """Put the places of images into documents of `IMAGE_LENGTHS`."""
    placed = [document.clone() for document in documents]
    for index in ENDS_WITH_IMAGE:
        placed[index][-IMAGE_PLACES:] = IMAGE_TOKEN
    for index in BEGINS_WITH_IMAGE:
        placed[index][:IMAGE_PLACES] = IMAGE_TOKEN
    return placed


@dataclass(frozen=True)
class ImageFeed:
    """A hook on a model that adds the images of the tokens that it is given."""

    model: nn.Module

    def __call__(
        self, _module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Add what the model's processor would give beside the tokens."""
        tokens = cast("Tensor", args[0] if args else kwargs["input_ids"])
        names = _arguments(self.model)
        added: dict[str, object] = {}
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in names:
                added[name] = (tokens == IMAGE_TOKEN).int()
        rows = [image_markers([int(token) for token in row]) for row in tokens]
        if any(rows):
            added.update(_grids(rows) if "image_grid_thw" in names else _planes(rows, "pixel_attention_mask" in names))
            if any("image_sizes" in _arguments(tower) for tower in self._towers):
                added["image_sizes"] = torch.tensor([[IMAGE_SIZE, IMAGE_SIZE]] * sum(map(len, rows)))
        positions = kwargs.get("position_ids")
        if isinstance(positions, Tensor) and positions.ndim == 2 and callable(self._rope_index):
            added["position_ids"] = self.positions_on_axes(tokens, positions)
        return args, {**kwargs, **added}

    def positions_on_axes(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Give each document the positions that the model gives it alone, below its own: `[4, batch, sequence]`."""
        axes = positions.expand(4, *positions.shape).clone()
        for row, (ids, places) in enumerate(zip(tokens, positions, strict=True)):
            starts = [*(int(place) for place in (places == 0).nonzero()[:, 0]), len(places)]
            for start, stop in pairwise(starts):
                if bool((ids[start:stop] == IMAGE_TOKEN).any()):
                    axes[1:, row, start:stop] = self._positions_alone(ids[None, start:stop])[:, 0]
        return axes

    @property
    def _towers(self) -> list[nn.Module]:
        """The modules that see images and nothing else."""
        return [module for module in self.model.modules() if getattr(module, "main_input_name", "") == "pixel_values"]

    @property
    def _rope_index(self) -> object:
        """What computes positions on axes; None in a model without any."""
        return getattr(getattr(self.model, "model", self.model), "get_rope_index", None)

    def _positions_alone(self, document: Tensor) -> Tensor:
        kinds = (document == IMAGE_TOKEN).int()
        grids = torch.tensor([_GRID] * (int(kinds.sum()) // IMAGE_PLACES))
        index = cast("Callable[..., tuple[Tensor, Tensor]]", self._rope_index)
        return index(input_ids=document, mm_token_type_ids=kinds, image_grid_thw=grids)[0]


def _arguments(model: nn.Module) -> frozenset[str]:
    """The names of the arguments of a forward."""
    return frozenset(inspect.signature(type(model).forward).parameters)


def image_markers(row: Sequence[int]) -> list[int]:
    """Find the images of a row, and for each the text token beside it in its own document.

    A run of places holds whole images. The first of them stands behind its document's text, and where nothing is
    before it, or another image is, in front of it.
    """
    markers: list[int] = []
    start = 0
    while start < len(row):
        if row[start] != IMAGE_TOKEN:
            start += 1
            continue
        stop = start
        while stop < len(row) and row[stop] == IMAGE_TOKEN:
            stop += 1
        for image in range((stop - start) // IMAGE_PLACES):
            behind = image == 0 and start > 0
            markers.append(row[start - 1] if behind else row[stop])
        start = stop
    return markers


def pixels_of(marker: int, shape: Sequence[int]) -> Tensor:
    """Draw an image from the token that marks it."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(marker))


def _grids(rows: Sequence[Sequence[int]]) -> dict[str, object]:
    """Images as rows of patches, `[patches, channels * frames * patch * patch]`, and the grid of each."""
    markers = [marker for row in rows for marker in row]
    patches, width = _GRID[1] * _GRID[2], _CHANNELS * 2 * PATCH_SIZE**2
    pixels = torch.cat([pixels_of(marker, (patches, width)) for marker in markers])
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([_GRID] * len(markers))}


def _planes(rows: Sequence[Sequence[int]], by_row: bool) -> dict[str, object]:
    """Images as planes, `[images, channels, height, width]`, or `[batch, images, ...]` with planes of zeros behind."""
    shape = (_CHANNELS, IMAGE_SIZE, IMAGE_SIZE)
    if not by_row:
        return {"pixel_values": torch.stack([pixels_of(marker, shape) for row in rows for marker in row])}
    most = max(map(len, rows))
    pixels = torch.zeros(len(rows), most, *shape)
    for index, row in enumerate(rows):
        for place, marker in enumerate(row):
            pixels[index, place] = pixels_of(marker, shape)
    return {"pixel_values": pixels}
