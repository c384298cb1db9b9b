"""What is known of the families of Hugging Face models: which ways of giving them packed rows keep documents apart.

It was measured by the audit, on tiny models of each type, and binds only the versions on which it was measured. What a
config says of its layers and its rotary positions holds for every version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Final, Literal, cast, get_args

from torch import nn

from neatpack.contracts.errors import CapabilitiesError, Problem
from neatpack.kernels_bridge.family_table import FINDINGS, MEASURED_ON
from neatpack.kernels_bridge.models import text_config
from neatpack.kernels_bridge.rope import coupled_rope

Way = Literal["varlen", "masks", "padded", "positions"]
"""Varlen offsets for an attention function; a dense mask for each kind of layer; one document per row, padded to the
longest, with a 2-D mask; positions that restart, and nothing else, which no consumer relies on."""

WAYS: Final[tuple[Way, ...]] = get_args(Way)
"""In the order of the columns of the table."""

CLEAN: Final = "clean"

_COUNTS_FROM_PADDING: Final = ("create_position_ids_from_input_ids", "create_position_ids_from_inputs_embeds")
"""What Transformers calls the methods of embeddings that make positions which begin after the padding token."""

_WHOLE_ROWS: Final[frozenset[Way]] = frozenset({"varlen", "masks"})
"""Ways that reach attention alone, in which layers of other kinds would mix documents."""

RECURRENT: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "bamba",
            "falcon_h1",
            "granitemoehybrid",
            "lfm2",
            "lfm2_moe",
            "nemotron_h",
            "olmo_hybrid",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_next",
            "zamba2",
        ),
        ("seq_idx",),
    ),
    **dict.fromkeys(("bailing_hybrid", "kimi_linear"), ("seq_idx", "cu_seqlens")),
}
"""What the kernels of recurrent layers read beside flash varlen kwargs, by model type: convolutions and state spaces
the number of the segment of each place, one kind of delta rule offsets by a name of its own. Measured with stand-ins
for the kernels, on the same versions as the table."""

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
        return (FULL,) if sliding_window(model) is None else (SLIDING,)
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        remedy = f"Give one name per layer, such as '{FULL}', or None where all layers are alike."
        problem = Problem("config.layer_types", "must list names", "type", value=repr(listed), remedy=remedy)
        raise CapabilitiesError(problem)
    return tuple(dict.fromkeys(map(str, cast("Iterable[object]", listed))))


def sliding_window(model: nn.Module) -> int | None:
    """Tell how many places a token of a sliding layer sees, its own included; None where there is no window.

    Some configs say 0 where the window is switched off.
    """
    window: object = getattr(text_config(model), "sliding_window", None)
    return window if isinstance(window, int) and window > 0 else None


KIND_TEXTS: Final[Mapping[str, str]] = {
    "leak: kwargs_dropped": "boundaries do not arrive at its attention",
    "leak: kernel_not_called": "its attention does not go through Transformers' interface",
    "leak: attention": "its attention mixes documents",
    "leak: convolution": "a convolution reaches over boundaries",
    "leak: recurrence": "a state is carried over boundaries",
    "leak: token_shift": "a layer looks back over boundaries",
    "leak: router": "experts are chosen over documents",
    "leak: mixing": "a layer mixes documents",
    "leak: padding": "padding reaches documents",
    "differs: window": "its window is lost",
    "differs: positions": "documents have other positions than alone",
    "differs: length": "the longest row changes the others",
    "differs: causality": "tokens see later tokens",
    "differs: mask": "tokens see others than by the model's own mask",
    "differs: unexplained": "documents answer otherwise than alone",
    "leak: causality": "tokens see later tokens, and other documents",
    "inconclusive: gradient_unseen": "no gradient could be watched",
    "refused": "boundaries do not arrive, or Transformers refuses them",
    "error": "it raises",
}
"""What a finding means, in words that complete "documents do not stay apart: ..."."""


@dataclass(frozen=True)
class Knowledge:
    """What is known of one way of giving a model packed rows.

    Attributes:
        is_right: whether documents stay apart; None where nobody has measured it.
        evidence: what that rests on.
        verified: whether it was measured on the installed versions.
    """

    is_right: bool | None
    evidence: str
    verified: bool


def knowledge(model: nn.Module, way: Way) -> Knowledge:
    """Tell what is known of a built model and one way of giving it packed rows.

    Example:
        >>> knowledge(nn.Linear(2, 2), "varlen").evidence
        'unverified: no measurement of this model'
    """
    rope = coupled_rope(model)
    if rope is not None:
        return Knowledge(False, f"its rotary positions of the kind {rope!r} are scaled by the longest row", True)
    reason = attention_is_not_enough(model) if way in _WHOLE_ROWS else None
    if reason is not None:
        return Knowledge(False, reason, True)
    finding = _finding(model, way)
    if finding is None:
        return Knowledge(None, "unverified: no measurement of this model", False)
    return _on_installed_versions(finding)


def recurrent_arguments(model: nn.Module) -> tuple[str, ...]:
    """Name what the recurrent layers of a model read beside flash varlen kwargs; empty where it is not known."""
    return RECURRENT.get(_model_type(model), ()) if _is_transformers_own(model) else ()


def recurrent_knowledge(model: nn.Module) -> Knowledge:
    """Tell what is known of a model whose layers keep a state, and of the arguments that their kernels take."""
    rope = coupled_rope(model)
    if rope is not None:
        return Knowledge(False, f"its rotary positions of the kind {rope!r} are scaled by the longest row", True)
    if not recurrent_arguments(model):
        return Knowledge(False, "of no kernel of its layers is it known that it takes boundaries", True)
    return _on_installed_versions(CLEAN)


def counts_from_elsewhere(model: nn.Module) -> bool:
    """Tell whether a model's own positions do not begin at zero: after its padding token, as RoBERTa's do, or where its
    buffer of positions does."""
    return any(_begins_elsewhere(module) for module in model.modules())


def _begins_elsewhere(module: nn.Module) -> bool:
    own = dict(module.named_buffers(recurse=False)).get("position_ids")
    late = own is not None and own.numel() > 0 and int(own.flatten()[0]) != 0
    return late or any(hasattr(type(module), name) for name in _COUNTS_FROM_PADDING)


def _on_installed_versions(finding: str) -> Knowledge:
    """Judge a finding by the versions it was measured on."""
    on = ", ".join(f"{name} {version}" for name, version in MEASURED_ON.items())
    meaning = "" if finding == CLEAN else f": {KIND_TEXTS.get(finding, finding)}"
    evidence = f"{'clean' if finding == CLEAN else 'documents do not stay apart'} on {on}{meaning}"
    if _installed() == dict(MEASURED_ON):
        return Knowledge(finding == CLEAN, evidence, True)
    here = ", ".join(f"{name} {version}" for name, version in _installed().items())
    return Knowledge(None if finding == CLEAN else False, f"unverified on {here}; {evidence}", False)


def attention_is_not_enough(model: nn.Module) -> str | None:
    """Say why attention boundaries alone cannot keep documents apart in this model; None where nothing says so."""
    for kind in layer_types(model):
        if kind not in _KEPT_APART:
            reason = _REASONS.get(kind, "is of a kind of which this has not been measured")
            return f"its config has layers of the type {kind!r}, which {reason}"
    return None


def _finding(model: nn.Module, way: Way) -> str | None:
    findings = FINDINGS.get(_model_type(model)) if _is_transformers_own(model) else None
    return None if findings is None else findings[WAYS.index(way)]


def _model_type(model: nn.Module) -> str:
    return str(getattr(text_config(model), "model_type", ""))


def _is_transformers_own(model: nn.Module) -> bool:
    """Whether all of a model is the code that was measured: a layer of someone else's makes it another model."""
    return {type(module).__module__.partition(".")[0] for module in model.modules()} <= {"transformers", "torch"}


@cache
def _installed() -> dict[str, str]:
    """Give the installed versions of what the measurements depend on, without the build of torch."""
    return {name: _version(name) for name in MEASURED_ON}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return "none"
