"""What a Hugging Face config says about whether attention boundaries are all that its model needs. Data, not code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from torch import nn

from neatpack.contracts.errors import CapabilitiesError, Problem
from neatpack.kernels_bridge.models import text_config

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"

_KEPT_APART: Final = frozenset({FULL, SLIDING, "moe"})
"""Layer types whose documents attention boundaries keep apart. `moe` has no attention."""

_STATE: Final = "carries a state from token to token that attention boundaries do not reset"
_OWN_MASK: Final = "chooses keys by a rule of its own that attention boundaries do not reach"
_REASONS: Final = {
    "linear_attention": _STATE,
    "conv": _STATE,
    "hybrid": _STATE,
    "hybrid_sliding": _STATE,
    "chunked_attention": "cuts attention into chunks that are counted from the start of the row",
    "indexed_attention": _OWN_MASK,
    "compressed_sparse_attention": "pools keys across documents",
    "heavily_compressed_attention": "pools keys across documents",
    "minimax_m3_sparse": _OWN_MASK,
    "reference_sliding_attention": _OWN_MASK,
}


def layer_types(model: nn.Module) -> tuple[str, ...]:
    """Name the kinds of layers of a model's text config, each once; one kind where the config lists none.

    Raises:
        CapabilitiesError: the config lists something other than names.
    """
    config = text_config(model)
    listed: object = getattr(config, "layer_types", None)
    if listed is None:
        return (FULL,) if getattr(config, "sliding_window", None) is None else (SLIDING,)
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        raise CapabilitiesError(Problem("config.layer_types", "must list names", "type", value=repr(listed)))
    return tuple(dict.fromkeys(map(str, cast("Iterable[object]", listed))))


def sliding_window(model: nn.Module) -> int | None:
    """Tell how many places a token of a sliding layer sees, its own included."""
    window: object = getattr(text_config(model), "sliding_window", None)
    return window if isinstance(window, int) else None


def attention_is_not_enough(model: nn.Module) -> str | None:
    """Say why attention boundaries alone cannot keep documents apart in this model; None where nothing says so."""
    for kind in layer_types(model):
        if kind not in _KEPT_APART:
            reason = _REASONS.get(kind, "is of a kind of which this has not been measured")
            return f"its config has layers of the type {kind!r}, which {reason}"
    return None
