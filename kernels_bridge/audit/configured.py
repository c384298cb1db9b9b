"""The path that a training job takes: a model bound by `configure_packing`, and the calls that its kernel saw."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from neatpack.adapters.block_mask import build_block_mask
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.physical import physical_offsets
from neatpack.adapters.segments import scan_segments
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import PackingError
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.inputs import LayerWindows, layer_mask
from neatpack.kernels_bridge.audit.report import Configured
from neatpack.kernels_bridge.audit.verdicts import KernelCalls
from neatpack.kernels_bridge.binding import Binding, get_binding
from neatpack.kernels_bridge.configure import configure_packing
from neatpack.kernels_bridge.models import get_model_attn_implementation


@dataclass(frozen=True)
class ConfiguredModel:
    """A model after `configure_packing`.

    Attributes:
        choice: what was chosen, or why not.
        binding: what was installed on the model, if anything.
        refusal: the error of `configure_packing`.
    """

    choice: Configured
    binding: Binding | None = None
    refusal: PackingError | None = None


@contextmanager
def configured(model: nn.Module) -> Generator[ConfiguredModel, None, None]:
    """Configure a model as a training job would, and remove at the end what that installed."""
    attention = get_model_attn_implementation(model)
    try:
        capabilities = configure_packing(attention, model)
    except PackingError as error:
        yield ConfiguredModel(Configured(attention=attention, refused=str(error)), refusal=error)
        return
    binding = get_binding(model)
    choice = _choice(attention, binding, capabilities)
    try:
        yield ConfiguredModel(choice, binding)
    finally:
        if binding is not None:
            binding.remove()


def choice_of(model: nn.Module, binding: Binding) -> Configured:
    """Say what was chosen for a model that is bound."""
    return _choice(get_model_attn_implementation(model), binding, binding.capabilities)


def _choice(attention: str, binding: Binding | None, capabilities: PackingCapabilities) -> Configured:
    return Configured(
        attention=attention,
        consumer=None if binding is None else binding.consumer,
        packed_mask_type=capabilities.packed_mask_type,
        requires_packed_sequence_metadata=capabilities.requires_packed_sequence_metadata,
        uses_native_fa4=capabilities.uses_native_fa4,
    )


def kernel_calls(binding: Binding, packed: PackedDocuments, windows: LayerWindows) -> KernelCalls | None:
    """Say what the attention function of a binding saw in the last forward; None where there is none to see it."""
    seen = binding.boundaries if binding.block_mask is None else binding.block_mask
    return (
        None
        if binding.calls == 0 and seen is None
        else KernelCalls(binding.calls, _are_boundaries(seen, packed, windows))
    )


def _are_boundaries(seen: Tensor | BlockMask | None, packed: PackedDocuments, windows: LayerWindows) -> bool:
    """Whether offsets, or the mask of a layer, say what the document ids say."""
    if seen is None:
        return False
    ids = packed.document_ids
    if not isinstance(seen, Tensor):
        built = [build_block_mask(ids, window=window) for window in windows.values()]
        return any(_same_blocks(seen, mask) for mask in built)
    if seen.ndim == 1:
        segments = scan_segments(ids)
        right = [gathered_flat(segments).cu_seqlens]
        if not segments.holes.size:
            right.append(physical_offsets(segments).cu_seqlens)
    else:
        right = [layer_mask(packed, kind, window, torch.bool) for kind, window in windows.items()]
        return any(_keeps_apart(seen, mask) for mask in right)
    return any(torch.equal(seen, boundaries) for boundaries in right)


def _keeps_apart(seen: Tensor, right: Tensor) -> bool:
    """Whether a mask lets tokens see nothing but what they should, and something of that.

    A layer may add to the mask that it was given: biases, or keys that it chooses to leave out.
    """
    if seen.shape[0] != right.shape[0] or seen.shape[-2:] != right.shape[-2:]:
        return False
    visible = seen > torch.finfo(seen.dtype).min / 2 if seen.is_floating_point() else seen.bool()
    nothing_else = not bool((visible & ~right).any())
    return nothing_else and bool((visible.any(-1) | ~right.any(-1)).all())


def _same_blocks(one: BlockMask, other: BlockMask) -> bool:
    """Whether two masks of FlexAttention let the same pairs of tokens see each other."""
    return bool((_dense(one) == _dense(other)).all())


def _dense(mask: BlockMask) -> Tensor:
    """Ask the mask function about every pair of tokens: `[batch, sequence, sequence]`. Only tiny batches come here."""
    batch, _, queries, keys = mask.shape
    device = mask.kv_num_blocks.device
    rows, query, key = (torch.arange(size, device=device) for size in (batch, queries, keys))
    return mask.mask_mod(rows[:, None, None], torch.zeros_like(rows[0]), query[:, None], key)
