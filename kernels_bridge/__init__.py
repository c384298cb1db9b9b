"""Models and kernels: the registry of consumers, the binding of built models, and the reference kernel."""

from __future__ import annotations

from neatpack.kernels_bridge.attachments import NothingAttached
from neatpack.kernels_bridge.audit.isolation import IsolationReport, audit_isolation
from neatpack.kernels_bridge.binding import Binding, get_binding
from neatpack.kernels_bridge.capabilities import get_packing_capabilities
from neatpack.kernels_bridge.configure import (
    configure_packing,
    configure_packing_for_models,
    validate_flash_packing_support,
)
from neatpack.kernels_bridge.consumers.native_fa4 import native_fa4_attention
from neatpack.kernels_bridge.entry import PackedCall
from neatpack.kernels_bridge.models import get_model_attn_implementation
from neatpack.kernels_bridge.ranks import raising_together
from neatpack.kernels_bridge.reference import varlen_attention
from neatpack.kernels_bridge.registry import (
    consumer_names,
    decide,
    get_consumer,
    register_consumer,
    unregister_consumer,
    use_consumer,
)
from neatpack.kernels_bridge.watch import BatchCheck, PackingWatch, check_training_batch, watch_packing

__all__ = [
    "BatchCheck",
    "Binding",
    "IsolationReport",
    "NothingAttached",
    "PackedCall",
    "PackingWatch",
    "audit_isolation",
    "check_training_batch",
    "configure_packing",
    "configure_packing_for_models",
    "consumer_names",
    "decide",
    "get_binding",
    "get_consumer",
    "get_model_attn_implementation",
    "get_packing_capabilities",
    "native_fa4_attention",
    "raising_together",
    "register_consumer",
    "unregister_consumer",
    "use_consumer",
    "validate_flash_packing_support",
    "varlen_attention",
    "watch_packing",
]
