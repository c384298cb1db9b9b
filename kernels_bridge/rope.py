"""Rotary positions whose frequencies depend on the longest row of a call, so that rows of unequal length disturb one
another: dynamic NTK scaling and longrope, as Transformers computes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from torch import nn

from neatpack.kernels_bridge.models import text_config

_KIND: Final = "rope_type"
_CACHED: Final = "max_seq_len_cached"


def coupled_rope(model: nn.Module) -> str | None:
    """Name the kind of rotary positions that depends on the longest row; None where there is none.

    It is told as Transformers tells it, in `modeling_rope_utils.dynamic_rope_update`.

    Example:
        >>> coupled_rope(nn.Linear(2, 2)) is None
        True
    """
    parameters: object = getattr(text_config(model), "rope_parameters", None)
    kinds = _kinds(cast("Mapping[str, object]", parameters)) if isinstance(parameters, Mapping) else ()
    return next((kind for kind in kinds if "dynamic" in kind or kind == "longrope"), None)


def forget_longest(model: nn.Module) -> None:
    """Bring dynamic frequencies back to those of a new model: they remember the longest row seen since it was built.

    Calls whose rows grow from one to the next are then computed as each would be by a new model.
    """
    for module in cast("Iterator[Any]", model.modules()):
        names = list(cast("dict[str, object]", vars(module)))
        for name in (name for name in names if name.endswith(_CACHED)):
            prefix = name.removesuffix(_CACHED)
            longest: object = getattr(module, "original_max_seq_len", None)
            if isinstance(longest, int) and getattr(module, name) > longest:
                original = getattr(module, f"{prefix}original_inv_freq").to(getattr(module, f"{prefix}inv_freq").device)
                module.register_buffer(f"{prefix}inv_freq", original, persistent=False)
                setattr(module, name, longest)


def _kinds(parameters: Mapping[str, object]) -> Iterator[str]:
    """Give the kinds in a config's parameters, which hold one set, or one for each type of layer."""
    if _KIND in parameters:
        yield str(parameters[_KIND])
    for value in parameters.values():
        if isinstance(value, Mapping):
            yield from _kinds(cast("Mapping[str, object]", value))
