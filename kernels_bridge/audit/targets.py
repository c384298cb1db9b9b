"""What is audited: a model type of Transformers, or a callable that builds a module."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, cast

import torch
from torch import nn

from neatpack.contracts.errors import ModelError, ModelTypeError, PackingError, Problem
from neatpack.kernels_bridge.audit.borrowing import Borrowed
from neatpack.kernels_bridge.audit.images import ImageFeed
from neatpack.kernels_bridge.audit.inputs import CHUNKED, LayerWindows
from neatpack.kernels_bridge.audit.paths import Attention
from neatpack.kernels_bridge.audit.random_state import seeded
from neatpack.kernels_bridge.audit.state import redraw_zeros
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model, require_model_type, tiny_model_class
from neatpack.kernels_bridge.audit.witness import NAME, Witness, attention_registries, registered
from neatpack.kernels_bridge.hf_masks import mask_kinds
from neatpack.kernels_bridge.models import text_config

__all__ = [
    "Builder",
    "ModelType",
]

_GIVE_A_BUILDER: Final = "Give a callable without arguments that returns the built torch.nn.Module."


@dataclass(frozen=True)
class Variant:
    """A model of its own, built with one attention.

    Attributes:
        model: in evaluation mode, fp32.
        witness: the kernel that is bound to it; None where the attention is the model's own.
        images: whether it reads images, which it is given with the tokens.
    """

    model: nn.Module
    witness: Witness | None = None
    images: bool = False


class Target(Protocol):
    """Something that can be built, with any attention, always with the same weights."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        ...

    @property
    def custom(self) -> bool:
        """Whether it is somebody's own module, of which nothing is known."""
        ...

    def variant(self, attention: Attention) -> AbstractContextManager[Variant]:
        """Build it with `attention`, and undo at the end whatever was bound for it."""
        ...


@dataclass(frozen=True)
class ModelType:
    """A model type of Transformers, such as "llama", at a tiny size."""

    name: str

    @property
    def custom(self) -> bool:
        """Families of Transformers are known by measurement."""
        return False

    @contextmanager
    def variant(self, attention: Attention) -> Generator[Variant, None, None]:
        """Build it with `attention`; the weights are the same every time."""
        if attention != "kernel":
            yield self._built(None if attention == "built" else attention)
            return
        witness = Witness()
        with registered(witness, attention_registries([tiny_model_class(self.name)])):
            yield self._built(NAME, witness)

    def _built(self, attention: str | None, witness: Witness | None = None) -> Variant:
        model = build_tiny_model(self.name, attention)
        images = self.name.endswith("@images")
        if images:
            model.register_forward_pre_hook(ImageFeed(model), with_kwargs=True)
        return Variant(model, witness, images)


@dataclass(eq=False)
class Builder:
    """A callable that builds a module. The weights of what it builds first are given to all that it builds later.

    Attributes:
        name: what the report calls it.
        build: makes the module.
        weights: of what was built first.
        custom: whether it is somebody's own module, of which nothing is known.
    """

    name: str
    build: Callable[[], object]
    weights: dict[str, torch.Tensor] | None = None
    custom: bool = True

    @contextmanager
    def variant(self, attention: Attention) -> Generator[Variant, None, None]:
        """Build it; where Transformers dispatches its attention, with `attention`, else with its own."""
        model = self._build()
        config = text_config(model)
        if attention == "built" or config is None:
            yield Variant(model)
        elif attention == "kernel":
            witness = Witness()
            classes = {type(module) for module in model.modules()}
            with registered(witness, attention_registries(classes)), _dispatched_to(config, NAME):
                yield Variant(model, witness)
        else:
            with _dispatched_to(config, attention):
                yield Variant(model)

    def _build(self) -> nn.Module:
        with seeded():
            model = self.build()
        if not isinstance(model, nn.Module):
            found = type(model).__name__
            raise ModelTypeError(Problem(self.name, "built no module", "type", value=found, remedy=_GIVE_A_BUILDER))
        model = model.float().eval()
        if self.weights is None:
            self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self.weights)
        return model


@dataclass(frozen=True)
class _Changed:
    """A target that is changed while it is built."""

    target: Target

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.target.name

    @property
    def custom(self) -> bool:
        """Whether it is somebody's own module, of which nothing is known."""
        return self.target.custom


class Redrawn(_Changed):
    """A target whose parameters that are all zero are redrawn while it is built."""

    @contextmanager
    def variant(self, attention: Attention) -> Generator[Variant, None, None]:
        """Build it with `attention`; at the end the zeros are back."""
        with self.target.variant(attention) as variant, Borrowed() as borrowed:
            redraw_zeros(borrowed, variant.model)
            yield variant


@dataclass(frozen=True)
class InDtype(_Changed):
    """A target whose parameters and buffers are of another dtype while it is built."""

    dtype: torch.dtype

    @contextmanager
    def variant(self, attention: Attention) -> Generator[Variant, None, None]:
        """Build it with `attention`; at the end its own values are back."""
        with self.target.variant(attention) as variant, Borrowed() as borrowed:
            for tensor in (*variant.model.parameters(), *variant.model.buffers()):
                if tensor.is_floating_point():
                    borrowed.undo_by(setattr, tensor, "data", tensor.data)
                    tensor.data = tensor.data.to(self.dtype)
            yield variant


def prepared(target: Target, *, keep_weights: bool, dtype: torch.dtype) -> Target:
    """Let a target be built in a dtype, and with parameters that are all zero redrawn unless weights are kept."""
    target = target if dtype == torch.float32 else InDtype(target, dtype)
    return target if keep_weights else Redrawn(target)


def parse_target(text: str) -> Target:
    """Read what the command line names: `package.module:callable`, or a model type.

    Raises:
        ModelError: there is no such model type, module or callable; the nearest known model types are named.
        DependencyError: Transformers is needed and not installed.
    """
    module_name, separator, attribute = text.partition(":")
    if not separator:
        require_model_type(text)
        return ModelType(text)
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a script may read a command line as it is imported
        message = f"cannot be found ({type(error).__name__}: {error})"
        remedy = "Write package.module:callable; the module is looked up from the current folder too."
        raise ModelError(Problem(text, message, "missing", remedy=remedy)) from error
    if isinstance(found, nn.Module) or not callable(found):
        message = "is a built module" if isinstance(found, nn.Module) else "is not callable"
        raise ModelError(Problem(text, message, "type", value=type(found).__name__, remedy=_GIVE_A_BUILDER))
    return Builder(text, cast("Callable[[], object]", found))


@contextmanager
def built_model(target: Target) -> Generator[nn.Module, None, None]:
    """Build a target with the attention that it chooses itself.

    Raises:
        ModelError: its code raises or exits.
    """
    with ExitStack() as stack:
        try:
            variant = stack.enter_context(target.variant("built"))
        except PackingError:
            raise
        except (Exception, SystemExit) as error:
            message = f"cannot be built ({type(error).__name__}: {error})"
            remedy = "Build it in Python, where the traceback says which line raises."
            raise ModelError(Problem(target.name, message, "value", remedy=remedy)) from error
        yield variant.model


def layer_windows(model: nn.Module) -> LayerWindows:
    """Say for each kind of attention layer how many keys it sees; None for all."""
    config = text_config(model)
    window = _number(config, "sliding_window")
    windows: dict[str, int | None] = {
        "full_attention": None,
        "sliding_attention": window,
        CHUNKED: _number(config, "attention_chunk_size"),
    }
    kinds: object = getattr(config, "layer_types", None) or mask_kinds(model)
    present = {kind: windows[kind] for kind in dict.fromkeys(cast("Iterable[str]", kinds)) if kind in windows}
    return present or {"full_attention": None}


def _number(config: object, name: str) -> int | None:
    """A number in a config; where layers have each their own, the smallest of them."""
    try:
        values: list[object] = [getattr(config, name, None)]
    except RuntimeError:  # what Transformers raises where the layers differ
        layers = cast("Iterable[object]", getattr(config, "per_layer_config", ()))
        values = [getattr(layer, name, None) for layer in layers]
    return min((value for value in values if isinstance(value, int) and not isinstance(value, bool)), default=None)


@contextmanager
def _dispatched_to(config: object, name: str) -> Generator[None, None, None]:
    """Within, Transformers dispatches the attention of the model of `config` to `name`."""
    field = "_attn_implementation_internal"
    before: object = getattr(config, field)
    setattr(config, field, name)
    try:
        yield
    finally:
        setattr(config, field, before)
