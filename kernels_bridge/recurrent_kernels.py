"""Which kernels the recurrent layers of a Hugging Face model really call, and whether boundaries reach them.

Transformers looks for the packages when a modeling module is imported, and wraps each kernel in a function that leaves
out whatever its signature does not name. Without the package it computes in plain torch, and refuses boundaries. What
was found is read from those functions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Final, cast

from torch import nn

BOUNDARIES: Final[Mapping[str, str]] = {
    "causal_conv1d_fn": "seq_idx",
    "mamba_chunk_scan_combined": "seq_idx",
    "mamba_split_conv1d_scan_combined": "seq_idx",
    "chunk_gated_delta_rule": "cu_seqlens",
    "chunk_kda": "cu_seqlens",
}
"""The argument by which each kernel that sees whole rows learns where segments end."""

STEPS: Final = frozenset(
    {"causal_conv1d_update", "selective_state_update", "fused_recurrent_gated_delta_rule", "fused_recurrent_kda"}
)
"""Kernels that generate token by token, which packed rows never call."""


def kernels_reason(model: nn.Module) -> str | None:
    """Say why boundaries would not reach the kernels of a model's recurrent layers; None where they would.

    Example:
        >>> kernels_reason(nn.Linear(2, 2))
        'no kernel of its layers could be found'
    """
    found = dict(_found_kernels(model))
    missing = [name for name, (is_there, _) in found.items() if not is_there]
    if missing:
        return f"its layers compute {', '.join(missing)} in plain torch, which takes no boundaries: install the kernels"
    for name, (_, arguments) in found.items():
        if name not in BOUNDARIES:
            return f"of the kernel {name} it is not known how it takes boundaries"
        if BOUNDARIES[name] not in arguments:
            return f"the installed {name} takes no {BOUNDARIES[name]}, and would leave it out without a word"
    return None if found else "no kernel of its layers could be found"


def _found_kernels(model: nn.Module) -> Iterator[tuple[str, tuple[bool, Collection[str]]]]:
    """Give each kernel that sees whole rows: whether it is there, and what its signature names."""
    for module in sorted({type(layer).__module__ for layer in model.modules()}):
        for value in list(vars(sys.modules[module]).values()):
            if not inspect.isfunction(value) or not hasattr(value, "__wrapped__"):
                continue
            known: Mapping[str, object] = inspect.getclosurevars(value).nonlocals
            name = known.get("func_name")
            if "is_new_implementation" in known and isinstance(name, str) and name not in STEPS:
                yield name, (bool(known["is_new_implementation"]), cast("Collection[str]", known["applicable_params"]))
