"""Tiny models of Transformers' own families, built locally from a shrunk configuration, with redrawn weights."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

import torch
from torch import nn

from neatpack.contracts.errors import DependencyError, ModelError, Problem
from neatpack.kernels_bridge.audit.random_state import seeded
from neatpack.kernels_bridge.audit.tiny_sizes import (
    ALWAYS_SET,
    EXCEPTIONS,
    IMAGE_FAMILIES,
    KEY_VALUE_HEADS,
    LAYER_COUNTS,
    LAYER_KINDS,
    NOT_ALONE,
    OTHER_IMAGES,
    SIZES,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = ["build_tiny_model"]

LARGEST: Final = 2_000_000
"""Parameters above which a shrunk model is not built: a size that is not known here was left large."""


Task = Literal["causal", "encoder", "images"]
"""What a model is built for: to predict the next token, or tokens that are masked, or text about images."""

_MAPPINGS: Final[Mapping[Task, str]] = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "encoder": "MODEL_FOR_MASKED_LM_MAPPING",
    "images": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
}
"""Where Transformers lists the classes for a task."""

_OF_DECODERS: Final = ("is_decoder", "causal")
"""Fields by which an encoder comes as a causal language model."""

_AUDIT_YOUR_OWN: Final = "Audit a module of your own as package.module:callable, with --batch FILE of what it takes."


def model_types(task: Task = "causal") -> list[str]:
    """List the model types of the installed Transformers that can be built for a task, such as "bert@encoder".

    The causal language models have no `@`. What has a decoder behind its encoder is no encoder.

    Raises:
        DependencyError: Transformers is not installed.
    """
    try:
        auto = import_module("transformers.models.auto.modeling_auto")
    except ImportError as error:
        remedy = "Install neatpack[hf], or audit a module of your own as package.module:callable."
        raise DependencyError(
            Problem("transformers", "is needed to build a model type", "missing", remedy=remedy)
        ) from error
    names = cast("Iterable[str]", getattr(auto, f"{_MAPPINGS[task]}_NAMES"))
    if task == "causal":
        return sorted(names)
    if task == "images":
        return sorted(f"{name}@{task}" for name in names)
    return sorted(f"{name}@{task}" for name in names if name not in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)


def every_model_type() -> list[str]:
    """List the model types of all tasks, causal language models first.

    Raises:
        DependencyError: Transformers is not installed.
    """
    return [name for task in get_args(Task) for name in model_types(task)]


def require_model_type(name: str) -> None:
    """Check that `name` is a model type that the installed Transformers knows.

    Raises:
        ModelError: it is not; the nearest known names are given.
        DependencyError: Transformers is not installed.
    """
    known = every_model_type()
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    remedy = f"Did you mean {', '.join(near)}?" if near else "Known are those of AutoModelForCausalLM."
    remedy = f"{remedy} A module of your own is named package.module:callable."
    raise ModelError(Problem("model type", "is unknown to this Transformers", "value", value=name, remedy=remedy))


@cache
def tiny_config(name: str) -> PreTrainedConfig:
    """Shrink the default configuration of a model type, keeping one layer of every kind. Of several towers, the text.

    The configuration is one object every time: copy it before it is changed.

    Raises:
        ModelError: `name` is unknown, does not answer to tokens alone, or reads images in a form that is not made here.
    """
    require_model_type(name)
    model_type, task = _split(name)
    reason = NOT_ALONE.get(model_type)
    if task == "images" and model_type not in IMAGE_FAMILIES:
        reason = OTHER_IMAGES.get(model_type, "reads images in a form that is not made here")
    if reason is not None:
        raise ModelError(Problem("model type", reason, "unsupported", value=name, remedy=_AUDIT_YOUR_OWN))
    default = import_module("transformers").CONFIG_MAPPING[model_type]()
    if task != "causal":
        return shrunk(default)
    config = shrunk(default.get_text_config() if "text_config" in default.sub_configs else default)
    for field in _OF_DECODERS:
        if getattr(config, field, None) is False:
            setattr(config, field, True)
    return config


def shrunk(default: PreTrainedConfig) -> PreTrainedConfig:
    """Make a configuration, and those inside it, tiny."""
    fields = cast("dict[str, object]", default.to_dict())
    exceptions = EXCEPTIONS.get(default.model_type, {})
    parts = {
        name: shrunk(part)
        for name in _parts_of(default)
        if name not in exceptions and (part := getattr(default, name, None)) is not None
    }
    build = cast("Callable[..., PreTrainedConfig]", type(default))
    return build(**{**_small_fields(fields), **parts, **exceptions})


def _parts_of(config: PreTrainedConfig) -> list[str]:
    """Name the configurations inside one."""
    return list(cast("Mapping[str, object]", getattr(config, "sub_configs")))  # noqa: B009  # typed as Unknown


def tiny_model_class(name: str) -> type[nn.Module]:
    """Return the class that `build_tiny_model` builds.

    Raises:
        ModelError: `name` is unknown, or its text tower is no causal language model.
    """
    transformers = import_module("transformers")
    model_type, task = _split(name)
    known = getattr(transformers, _MAPPINGS[task])
    config_class = type(tiny_config(name))
    if config_class in known:
        return cast("type[nn.Module]", known[config_class])
    whole = known[transformers.CONFIG_MAPPING[model_type]]
    if whole.config_class is not config_class:
        message = f"has no causal language model for its text ({config_class.__name__})"
        raise ModelError(Problem("model type", message, "unsupported", value=name, remedy=_AUDIT_YOUR_OWN))
    return cast("type[nn.Module]", whole)


def build_tiny_model(name: str, attention: str | None = None) -> nn.Module:
    """Build a model type at a tiny size, fp32, in evaluation mode, with weights that hide no leak.

    Args:
        name: a model type, such as "llama" or "bert@encoder".
        attention: the attention implementation; None for the one that the model picks by itself.

    Raises:
        ModelError: `name` is unknown, or no tiny size is known for it.

    Example:
        >>> model = build_tiny_model("gpt2")
        >>> sum(parameter.numel() for parameter in model.parameters()) < LARGEST
        True
    """
    require_tiny(name)
    with seeded():
        model = _build(name, attention)
    redraw_weights(model)
    return model.eval()


def redraw_weights(model: nn.Module, seed: int = 0) -> None:
    """Redraw every matrix of `model`, in place, from N(0, 1 / fan-in), and scale the entries of vectors that are all
    ones each by its own factor.

    Freshly initialised weights are so small that a leak through them can be lost in rounding, and a norm that weighs
    all channels alike hides what depends on the angle of rotary positions. Other vectors (biases, decay rates) stay as
    they are, and so do tables that are not learned.
    """
    generator = torch.Generator().manual_seed(seed)
    of_vectors = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            with torch.no_grad():
                if parameter.dim() > 1 and not _is_formula(module, parameter):
                    parameter.normal_(0.0, _fan_in(module, parameter) ** -0.5, generator=generator)
                elif parameter.dim() == 1 and bool((parameter == 1).all()):
                    parameter.uniform_(0.5, 1.5, generator=of_vectors)


def _is_formula(module: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether a table holds what a formula says, such as sines of places."""
    return isinstance(module, nn.Embedding) and not parameter.requires_grad


def _split(name: str) -> tuple[str, Task]:
    model_type, _, task = name.partition("@")
    return model_type, cast("Task", task or "causal")


def _fan_in(module: nn.Module, weight: torch.Tensor) -> int:
    if type(module).__name__ == "Conv1D":  # GPT-2's linear layer keeps its weight transposed
        return weight.shape[0]
    if type(module).__name__.startswith("Conv"):
        return weight[0].numel()
    return weight.shape[-1]


def _build(name: str, attention: str | None) -> nn.Module:
    build: Callable[..., object] = getattr(tiny_model_class(name), "_from_config")  # noqa: B009  # private, typed Any
    config = deepcopy(tiny_config(name))
    options: dict[str, object] = {}
    if attention is not None and _split(name)[1] == "images":  # documents are packed in the text tower alone
        towers = dict.fromkeys(_parts_of(config), "eager")
        options["attn_implementation"] = {**towers, "text_config": attention}
    elif attention is not None:
        options["attn_implementation"] = attention
    return cast("nn.Module", build(config, dtype=torch.float32, **options))


@cache
def require_tiny(name: str) -> None:
    """Check the size of a model before any memory is taken for it."""
    with torch.device("meta"):
        model = _build(name, None)
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        largest = max(model.named_parameters(), key=lambda item: item[1].numel())
        message = f"is not tiny when shrunk: {count} parameters, of which {largest[1].numel()} in {largest[0]}"
        remedy = "Audit a small configuration of yours, as package.module:callable."
        raise ModelError(Problem("model type", message, "unsupported", value=name, remedy=remedy))


def _small_fields(default: Mapping[str, object]) -> dict[str, object]:
    """Choose the tiny value of every field that `default` has and that is known here."""
    small: dict[str, object] = {
        field: size
        for field, size in SIZES.items()
        if _is_number(default.get(field)) or (field in ALWAYS_SET and field in default)
    }
    for field in KEY_VALUE_HEADS:
        if _is_number(default.get(field)):
            small[field] = 4 if default[field] == default.get("num_attention_heads") else 2
    kinds = {field: _distinct(default[field]) for field in LAYER_KINDS if default.get(field)}
    layers = max([2, *(len(distinct) for distinct in kinds.values())])
    small.update({field: layers for field in LAYER_COUNTS if _is_number(default.get(field))})
    small.update({field: (distinct * layers)[:layers] for field, distinct in kinds.items()})
    return small


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _distinct(kinds: object) -> list[object]:
    return list(dict.fromkeys(cast("Iterable[object]", kinds)))
