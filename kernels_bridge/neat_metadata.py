"""NEAT metadata at model entry: for native FlashAttention-4 and for recurrent layers, in the form that each reads."""

from __future__ import annotations

from typing import Final

from torch import nn

from neatpack.adapters.boundary_fields import METADATA_FIELDS
from neatpack.adapters.gathered import gathered_flat
from neatpack.adapters.neat_metadata import build_packed_sequence_metadata
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.models import forward_arguments

NEEDED: Final[tuple[str, ...]] = METADATA_FIELDS[:2]
"""What a forward has to name; `max_seqlen` is given where it is named as well."""


def metadata_arguments(model: nn.Module, call: PackedCall) -> dict[str, object]:
    """Give what the forward names of NEAT metadata: nothing, unless the model was configured to need it.

    Native FlashAttention-4 reads one stream, everyone else `[batch, ...]`. A batch of padding has zero documents.
    """
    names = forward_arguments(model) or ()
    if not call.capabilities.requires_packed_sequence_metadata or not set(names).intersection(METADATA_FIELDS):
        return {}
    if call.capabilities.uses_native_fa4:
        flat = gathered_flat(call.segments)
        values = (flat.token_indices, flat.cu_seqlens, flat.max_seqlen)
    else:
        metadata = build_packed_sequence_metadata(call.segments, allow_empty=True)
        values = (metadata["packed_token_indices"], metadata["cu_seqlens"], metadata["max_seqlen"])
    return {name: value for name, value in zip(METADATA_FIELDS, values, strict=True) if name in names}
