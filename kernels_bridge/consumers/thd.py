"""`thd`: models whose layers take their documents as lengths of one stream: Transformer Engine, Megatron.

The model gets its tokens as rows. Its layers flatten states to `[batch * sequence, heads, head_dim]`, in which the
padded offsets say where each document stands. It names one or more of three forms: lengths per row, the arguments of
Transformer Engine's attention, or Megatron's `PackedSeqParams`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from typing import Final

from torch import nn

from neatpack.adapters.kernel_arguments import packed_seq_params_kwargs, transformer_engine_kwargs
from neatpack.adapters.thd import thd_flat, thd_lengths
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.encodings import PackedSeqParamsKwargs
from neatpack.contracts.errors import DependencyError, Problem
from neatpack.contracts.kernels import Accepted, Attachment, Decision, Rejected
from neatpack.kernels_bridge.attachments import NothingAttached
from neatpack.kernels_bridge.entry import ATTENTION_MASK, PackedCall
from neatpack.kernels_bridge.models import NATIVE_FA4, declared_flag, declared_mask_type, forward_arguments
from neatpack.kernels_bridge.neat_metadata import NEEDED
from neatpack.kernels_bridge.own_models import own_arguments, reason_unnamed
from neatpack.kernels_bridge.signatures import require_keywords

LENGTHS: Final = ("seq_lens", "seq_lens_padded")
TRANSFORMER_ENGINE: Final = (
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "cu_seqlens_q_padded",
    "cu_seqlens_kv_padded",
    "max_seqlen_q",
    "max_seqlen_kv",
)
"""Without the padded offsets, the padding of one document would be taken for tokens of the next."""
PACKED_SEQ_PARAMS: Final = ("packed_seq_params",)

_FORMS: Final = (LENGTHS, TRANSFORMER_ENGINE, PACKED_SEQ_PARAMS)
_MEGATRON: Final = "megatron-core"
_PARAMS_MODULE: Final = "megatron.core.packed_seq_params"
_TESTED: Final = "0.19.0"


class THDConsumer:
    """Takes models that declare `uses_thd` and whose forward names a form of it."""

    name: Final = "thd"

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        """Accept a model that takes lengths in a form that its forward names in full."""
        if not declared_flag(model, "uses_thd"):
            return Rejected("it does not declare `uses_thd: bool = True`")
        if attn_implementation == NATIVE_FA4:
            return Rejected(f"it runs with {NATIVE_FA4!r}, which refuses THD")
        own_type = declared_mask_type(model)
        if own_type not in (None, "document_ids"):
            return Rejected(f"it declares that it takes {own_type!r}, and THD is made from 'document_ids'")
        requires_metadata = declared_flag(model, "requires_packed_sequence_metadata")
        reason = reason_unnamed(model, NEEDED if requires_metadata else ()) or _reason_against(model)
        if reason is not None:
            return Rejected(reason)
        evidence = "the model declares it, and its forward names the arguments"
        return Accepted(PackingCapabilities("document_ids", requires_metadata, takes_holes=False), evidence)

    def attach(self, model: nn.Module) -> Attachment:
        """Set up nothing: the model's own layers call the kernel. What they are given must exist.

        Raises:
            DependencyError: the installed Megatron has no `PackedSeqParams` that takes what it would be given.
        """
        if _names(model).issuperset(PACKED_SEQ_PARAMS):
            _packed_seq_params_class()
        return NothingAttached()

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        """Give the forms that the forward names, and of ids, metadata and positions what it names; never a mask."""
        names = _names(model)
        arguments = own_arguments(model, call)
        if ATTENTION_MASK in names:
            arguments[ATTENTION_MASK] = None
        if names.issuperset(LENGTHS):
            lengths = thd_lengths(call.segments)
            arguments.update(seq_lens=lengths.seq_lens, seq_lens_padded=lengths.seq_lens_padded)
        if names.issuperset(TRANSFORMER_ENGINE) or names.issuperset(PACKED_SEQ_PARAMS):
            flat = thd_flat(call.segments)
            given = transformer_engine_kwargs(flat)
            arguments.update((name, value) for name, value in given.items() if name in names)
            if names.issuperset(PACKED_SEQ_PARAMS):
                arguments["packed_seq_params"] = _packed_seq_params_class()(**packed_seq_params_kwargs(flat))
        if "qkv_format" in names:
            arguments["qkv_format"] = "thd"
        return arguments


CONSUMER: Final = THDConsumer()


def _names(model: nn.Module) -> set[str]:
    return set(forward_arguments(model) or ())


def _reason_against(model: nn.Module) -> str | None:
    names = _names(model)
    if not any(names.issuperset(form) for form in _FORMS):
        partly = next((form for form in _FORMS if names.intersection(form)), None)
        if partly is not None:
            return reason_unnamed(model, partly)
        forms = "; ".join(", ".join(f"`{name}`" for name in form) for form in _FORMS)
        return f"{type(model).__name__}.forward names no form of THD: add the arguments of one of: {forms}"
    if names.issuperset(PACKED_SEQ_PARAMS) and not _has_megatron():
        return f"its forward takes `packed_seq_params`, and {_MEGATRON} is not installed"
    return None


def _has_megatron() -> bool:
    if _PARAMS_MODULE in sys.modules:
        return True
    try:
        metadata.version(_MEGATRON)
    except metadata.PackageNotFoundError:
        return False
    return True


def _packed_seq_params_class() -> Callable[..., object]:
    try:
        found: Callable[..., object] = import_module(_PARAMS_MODULE).PackedSeqParams
    except (ImportError, AttributeError, OSError) as error:
        message = f"gives no {_PARAMS_MODULE}.PackedSeqParams: {type(error).__name__}: {error}"
        raise DependencyError(Problem(_MEGATRON, message, "missing", remedy="Repair that installation.")) from error
    require_keywords(found, PackedSeqParamsKwargs.__annotations__, _MEGATRON, "as installed", _TESTED)
    return found
