"""`hf_flash`: Hugging Face models that run FlashAttention 2, 3, 4 or a flash kernel of the hub, with varlen kwargs.

The bound function stands before Transformers' own flash function, checks that the boundaries arrived, and calls it.
Transformers finds the kernel by the name in `module.config`, where the bound name stands now. So the function
passes on a view of the layer whose config reads as it was built; nothing that other threads or models see is changed
for the length of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn

from neatpack.adapters.boundary_fields import FLASH_FIELDS
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.contracts.errors import ModelError, Problem
from neatpack.kernels_bridge.calls import note_call
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.hf_attention import inner_function, missing_boundaries
from neatpack.kernels_bridge.hf_models import HFConsumer
from neatpack.kernels_bridge.models import hf_implementation, is_flash


def attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """Check that all four varlen kwargs and no mask arrived, and call Transformers' flash function.

    Raises:
        BoundariesMissingError: the layer did not pass all four on; without one of them attention would be dense.
        ModelError: the layer made a mask of its own, which the flash function would follow instead.
    """
    missing = [name for name in FLASH_FIELDS if options.get(name) is None]
    offsets = options.get("cu_seq_lens_q")
    if missing or not isinstance(offsets, Tensor):
        raise missing_boundaries(module, ", ".join(missing))
    if attention_mask is not None:
        message = f"{type(module).__name__} made a mask, which flash attention would follow instead of the offsets"
        raise ModelError(Problem("attention_mask", message, "unsupported", remedy="Use the consumer 'block_causal'."))
    note_call(offsets)
    function = inner_function(module, implementation)
    return function(_as_built(module, implementation), query, key, value, None, **options)


class _View:
    """An object seen with some attributes replaced."""

    def __init__(self, seen: object, **replaced: object) -> None:
        self.__dict__.update(replaced, _seen=seen)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_seen"], name)


def _as_built(module: nn.Module, implementation: str) -> _View:
    return _View(module, config=_View(module.config, _attn_implementation=implementation))


def _arguments(_model: nn.Module, call: PackedCall) -> Mapping[str, object]:
    """Give the four varlen kwargs, and no mask, which would beat them."""
    return {**flash_varlen_kwargs(call.segments)}


def _reason_against(model: nn.Module) -> str | None:
    implementation = hf_implementation(model)
    if implementation is not None and is_flash(implementation):
        return None
    return f"it runs with {implementation!r}, which takes no flash varlen kwargs"


CONSUMER: Final = HFConsumer("hf_flash", "flash_varlen", attend, _arguments, _reason_against)
