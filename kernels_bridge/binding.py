"""The binding of one model to one consumer. It is the forward pre-hook itself, so it lives where the model lives."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from torch import Tensor, nn

from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BoundariesMissingError, ConsumerError, ModelError, Problem
from neatpack.contracts.kernels import Attachment, RestoringConsumer
from neatpack.kernels_bridge.calls import CallRecord, start_record, stop_record
from neatpack.kernels_bridge.compiling import eagerly
from neatpack.kernels_bridge.entry import PackedCall, name_arguments, read_call
from neatpack.kernels_bridge.forward_ranks import WRAPPERS, Agreement, agreeing
from neatpack.kernels_bridge.models import require_module
from neatpack.kernels_bridge.registry import get_consumer

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_PRE_HOOKS: Final = "_forward_pre_hooks"
_HOOKS: Final = "_forward_hooks"
_ATTACHMENT: Final = ("counts_calls", "pause", "resume", "detach")


class Binding:
    """What makes a model take packed batches; found by `get_binding`, made by `configure_packing`.

    On every call of the model it takes `_packed_seq_ids` out of the arguments, checks them, and puts in what the
    consumer derives from them. It is copied and pickled with its model, and sits inside every wrapper of it. Calling
    the model's `forward` directly goes round it, as round any hook; bound attention functions then raise. In eval mode
    a call without ids passes by design, as if nothing were bound, so that the model can generate; training mode raises.

    Attributes:
        consumer: name of the consumer.
        implementation: what the model runs with when nothing is bound.
        capabilities: what the loader has to emit.
        agree_across: the ranks on all of which a training step raises if the checks of one fail: those of a group,
            those that the model's wrappers make run together, or none. A copy belongs to no group, but to its wrappers.
    """

    def __init__(
        self,
        consumer: str,
        implementation: str,
        capabilities: PackingCapabilities,
        attachment: Attachment,
        agree_across: Agreement = WRAPPERS,
    ) -> None:
        self.consumer = consumer
        self.implementation = implementation
        self.capabilities = capabilities
        self.agree_across: Agreement = agree_across
        self._attachment = attachment
        self._suspended = 0
        self._call: PackedCall | None = None
        self._record = CallRecord()
        self._model: weakref.ref[nn.Module] | None = None

    def __repr__(self) -> str:
        return f"Binding(consumer={self.consumer!r}, implementation={self.implementation!r}, {self.capabilities})"

    def __getstate__(self) -> dict[str, object]:
        fresh = {"_model": None, "_record": CallRecord(), "_call": None, "_suspended": 0}
        return {**self.__dict__, **fresh, "agree_across": None if self.agree_across is None else WRAPPERS}

    @property
    def calls(self) -> int:
        """How often the bound attention function was called in the last packed forward."""
        return self._record.calls

    @property
    def boundaries(self) -> Tensor | None:
        """What the bound attention function was last given to tell documents apart: int32 offsets, or a 4-D mask."""
        return self._record.boundaries

    @property
    def block_mask(self) -> BlockMask | None:
        """What FlexAttention was last given in their place."""
        return self._record.block_mask

    @property
    def model(self) -> nn.Module:
        """The module that this binding is a hook of.

        Raises:
            ModelError: it has been removed, or the module is gone.
        """
        model = None if self._model is None else self._model()
        if model is None:
            raise ModelError(Problem("binding", "is bound to no model", "missing", remedy="Use get_binding(model)."))
        return model

    def locate(self, model: nn.Module) -> None:
        """Remember the module that carries this hook: a copied model carries a copied binding."""
        self._model = weakref.ref(model)

    def remove(self) -> None:
        """Take the hooks off the model, and back what was set up for it. Removing twice changes nothing."""
        model = None if self._model is None else self._model()
        if model is not None:
            _remove_hooks(model, self)
        self._model = None
        self._attachment.detach()

    @property
    def is_suspended(self) -> bool:
        """Whether the model computes as if nothing were bound."""
        return self._suspended > 0

    @contextmanager
    def suspended(self) -> Generator[None, None, None]:
        """Let the model compute as if nothing were bound, for the length of a `with` block."""
        self._suspended += 1
        self._attachment.pause()
        try:
            yield
        finally:
            self._suspended -= 1
            if not self._suspended:
                self._attachment.resume()

    @eagerly
    def __call__(
        self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        """Rewrite the arguments of one call: the pre-hook.

        Raises:
            DocumentIdsError: the ids are malformed.
            EncodingError: the ids do not fit the tokens, or something in the call contradicts them.
            BoundariesMissingError: there are no ids, and the model is in training mode.
            ConsumerError: the consumer derived no arguments.
        """
        if self._suspended:
            return None
        self._call = None
        self._record = CallRecord()  # which lets go of the last mask before the next is built
        with agreeing(module, self.agree_across):
            return self._rewrite(module, *name_arguments(module, args, kwargs))

    def _rewrite(
        self, module: nn.Module, args: tuple[object, ...], named: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        call = read_call(module, args, named, self.capabilities)
        if call is None:
            self._pass_through(named)
            return None
        derived = _derived(self.consumer, module, call)
        self._attachment.resume()
        self._call = call
        self._record = start_record()
        return args, {**call.arguments, **derived}

    @eagerly
    def leave(self, module: nn.Module, args: object, output: object) -> object:
        """End one call, and give its output in the layout of the packed rows: the forward hook.

        Raises:
            BoundariesMissingError: the bound attention function was never called.
        """
        del args
        if self._suspended:
            return output
        call, self._call = self._call, None
        if call is not None:
            stop_record(self._record)
        self._attachment.resume()
        unseen = call is not None and self._attachment.counts_calls and self.calls == 0
        # The output is None where the forward raised: that error is the one to see.
        if unseen and output is not None:
            message = f"the attention function of consumer {self.consumer!r} was never called in a forward of"
            remedy = "Choose another consumer; if the attention implementation was changed since, configure again."
            name = type(module).__name__
            raise BoundariesMissingError(Problem("model", f"{message} {name}", "missing", remedy=remedy))
        if call is None or output is None:
            return output
        consumer = get_consumer(self.consumer)
        if not isinstance(consumer, RestoringConsumer):
            return output
        return cast("RestoringConsumer[nn.Module, PackedCall]", consumer).restore(module, call, output)

    def _pass_through(self, named: Mapping[str, object]) -> None:
        """Let one call compute as if nothing were bound, until `leave`."""
        cache = named.get("past_key_values")
        mask = named.get("attention_mask")
        masks = list(cast("dict[str, object]", mask).values()) if isinstance(mask, dict) else [mask]
        if self._attachment.counts_calls and _is_static(cache) and all(mask is None for mask in masks):
            message = "generation with a static cache makes its masks before the forward, by the bound name"
            remedy = "Generate inside `with get_binding(model).suspended():`."
            raise ModelError(Problem("past_key_values", message, "unsupported", remedy=remedy))
        self._attachment.pause()


def get_binding(model: nn.Module) -> Binding | None:
    """Find the binding of a model, through any wrapper of torch, by looking at its hooks.

    Args:
        model: a built module.

    Returns:
        The binding, or None where the model is not bound.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.

    Example:
        >>> get_binding(nn.Linear(2, 2)) is None
        True
    """
    inner = require_module(model)
    binding = next((hook for hook in _hooks(inner, _PRE_HOOKS).values() if isinstance(hook, Binding)), None)
    if binding is not None:
        binding.locate(inner)
    return binding


def bind(
    model: nn.Module,
    consumer: str,
    implementation: str,
    capabilities: PackingCapabilities,
    agree_across: Agreement = WRAPPERS,
) -> Binding:
    """Bind an unwrapped model in place of what binds it now. If that fails, nothing has changed.

    Args:
        model: the module that gets the hooks.
        consumer: name of a consumer that accepted the model.
        implementation: what the model runs with.
        capabilities: what the consumer asked for.
        agree_across: the ranks that fail together, if any.
    """
    before = get_binding(model)
    if before is not None and _choices(before) == (consumer, implementation, capabilities, agree_across):
        return before
    with restored_if_refused(model):
        if before is not None:
            before.remove()
        binding = Binding(consumer, implementation, capabilities, _attached(consumer, model), agree_across)
        binding.locate(model)
        model.register_forward_pre_hook(binding, with_kwargs=True)
        model.register_forward_hook(binding.leave, always_call=True)
    return binding


def _attached(consumer: str, model: nn.Module) -> Attachment:
    """Let a consumer set up what it needs. What others return is not known to be what the Protocol says.

    Raises:
        ConsumerError: it returned no attachment.
    """
    attachment = get_consumer(consumer).attach(model)
    if not all(hasattr(attachment, member) for member in _ATTACHMENT):
        remedy = "Return an Attachment: NothingAttached() where the hook is enough."
        raise ConsumerError(_returned(consumer, "attach", attachment, remedy))
    return attachment


def _derived(consumer: str, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
    """Let a consumer derive the arguments of one call.

    Raises:
        ConsumerError: it returned no mapping.
    """
    derived = get_consumer(consumer).derive(model, call)
    if not isinstance(cast("object", derived), Mapping):
        raise ConsumerError(_returned(consumer, "derive", derived, "Return the arguments of the forward by name."))
    return derived


def _returned(consumer: str, method: str, value: object, remedy: str) -> Problem:
    message = f"its {method} returned {type(value).__name__}"
    return Problem("consumer", message, "type", value=repr(consumer), remedy=remedy)


@contextmanager
def restored_if_refused(model: nn.Module) -> Generator[None, None, None]:
    """If the `with` block raises, bind the model again as it was bound before, or not at all."""
    before = get_binding(model)
    try:
        yield
    except BaseException:
        now = get_binding(model)
        if now is not before and now is not None:
            now.remove()
        if now is not before and before is not None:
            bind(model, *_choices(before))
        raise


def _choices(binding: Binding) -> tuple[str, str, PackingCapabilities, Agreement]:
    return binding.consumer, binding.implementation, binding.capabilities, binding.agree_across


def _hooks(model: nn.Module, kind: str) -> dict[int, object]:
    """Give torch's own table of hooks: it has no public way to list them, and handles do not survive copies."""
    return cast("dict[int, object]", getattr(model, kind))


def _remove_hooks(model: nn.Module, binding: Binding) -> None:
    for kind, options in ((_PRE_HOOKS, "_forward_pre_hooks_with_kwargs"), (_HOOKS, "_forward_hooks_always_called")):
        hooks = _hooks(model, kind)
        for key in [key for key, hook in hooks.items() if hook in (binding, binding.leave)]:
            del hooks[key]
            _hooks(model, options).pop(key, None)


def _is_static(cache: object) -> bool:
    return bool(getattr(cache, "is_compileable", False)) and type(cache).__name__ != "DynamicCache"
