"""One document in a call of its own: what goes with its tokens."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final, cast

import torch
from torch import Tensor, nn

from neatpack.adapters.boundary_fields import FLASH_FIELDS, IDS, LENGTH_FIELDS, METADATA_FIELDS, PACKED_SEQ_IDS
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.contracts.declarations import declared
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.entry import ATTENTION_MASK

BOUNDARY_FIELDS: Final = frozenset(
    {*IDS, *FLASH_FIELDS, *METADATA_FIELDS, *LENGTH_FIELDS, "seq_idx", "padding_mask", ATTENTION_MASK, "qkv_format"}
)
"""The fields of a batch that say where documents end, or what is padding."""


def fields_of_one(length: int, model: nn.Module, device: torch.device) -> dict[str, object]:
    """Describe one document of `length` tokens under every name by which models read boundaries: row `[1, length]`."""
    ids = torch.ones(1, length, dtype=torch.int64, device=device)
    offsets = torch.tensor([0, length], dtype=torch.int32, device=device)
    takes_ids = declared(model, "packed_mask_type") == "document_ids"
    return {
        **dict.fromkeys(IDS, ids),
        **flash_varlen_kwargs(ids),
        **dict.fromkeys(LENGTH_FIELDS, torch.tensor([[length]], device=device)),
        "packed_token_indices": torch.arange(length, device=device)[None],
        "cu_seqlens": offsets[None],
        "max_seqlen": length,
        "seq_idx": torch.zeros(1, length, dtype=torch.int32, device=device),
        "padding_mask": torch.zeros(1, length, dtype=torch.bool, device=device),
        "position_ids": torch.arange(length, device=device)[None],
        ATTENTION_MASK: ids if takes_ids else build_block_causal_mask(ids),
    }


def arguments_alone(model: nn.Module, packed: PackedDocuments, document: int) -> dict[str, object]:
    """What goes with the tokens of one document: no cache, and of its description only what the forward cannot do
    without."""
    arguments: dict[str, object] = {"use_cache": False}
    needed = required_arguments(model)
    if needed:
        fields = fields_of_one(packed.tokens_of(document).numel(), model, packed.input_ids.device)
        arguments.update((name, value) for name, value in fields.items() if name in needed)
    return arguments


def required_arguments(model: nn.Module) -> frozenset[str]:
    """The arguments for which the forward has no default, tokens aside. Where ids are among them, so are those of a
    binding, without which a bound model takes no others."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = {one.name for one in parameters if one.default is one.empty and one.kind in kinds} - {"input_ids"}
    return frozenset({*required, PACKED_SEQ_IDS} if required & set(IDS) else required)


def cut_to_document(arguments: Mapping[str, object], packed: PackedDocuments, document: int) -> dict[str, object]:
    """Cut what went with a whole batch, boundaries aside, to the tokens of one document.

    Axes are known by their size: `[batch, sequence, ...]`, `[axes, batch, sequence]` and `[batch, ...]`. Positions of
    one axis are counted anew, from where those of the first document begin that has its first token.
    """
    batch, sequence = packed.input_ids.shape
    row, tokens = packed.places[document].row, packed.tokens_of(document)
    cut: dict[str, object] = {}
    for name, value in arguments.items():
        if name in BOUNDARY_FIELDS:
            continue
        if name == "position_ids" and isinstance(value, Tensor) and value.ndim == 2:
            first = next(
                (place for index, place in enumerate(packed.places) if index not in packed.begun_late), packed.places[0]
            )
            cut[name] = torch.arange(tokens.numel(), device=tokens.device)[None] + value[first.row, first.start]
        elif isinstance(value, Tensor) and value.shape[:2] == (batch, sequence):
            cut[name] = value[row, tokens][None]
        elif isinstance(value, Tensor) and value.ndim == 3 and value.shape[1:] == (batch, sequence):
            cut[name] = value[:, row : row + 1, tokens]
        elif isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == batch:
            cut[name] = value[row : row + 1]
        else:
            cut[name] = value
    return cut


def cut_mask(mask: object, packed: PackedDocuments, document: int) -> object:
    """Cut a mask of a batch, one per kind of layer too, to one document: `[batch, sequence]` or `[batch, heads,
    sequence, sequence]`."""
    if isinstance(mask, Mapping):
        masks = cast("Mapping[str, object]", mask)
        return {kind: cut_mask(one, packed, document) for kind, one in masks.items()}
    row, tokens = packed.places[document].row, packed.tokens_of(document)
    if isinstance(mask, Tensor) and mask.ndim == 4:
        return mask[row : row + 1][:, :, tokens][:, :, :, tokens]
    return (mask[row, tokens][None] > 0).to(mask.dtype) if isinstance(mask, Tensor) and mask.ndim == 2 else mask
