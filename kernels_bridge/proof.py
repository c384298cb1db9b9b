"""Proof by call: a few documents through the bound model itself show whether their boundaries arrive."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from neatpack.adapters.boundary_fields import PACKED_SEQ_IDS
from neatpack.contracts.errors import ModelError, Problem
from neatpack.kernels_bridge.audit.borrowing import Borrowed
from neatpack.kernels_bridge.audit.configured import kernel_calls
from neatpack.kernels_bridge.audit.documents import pack_documents
from neatpack.kernels_bridge.audit.probes import Ask, Measurement, answers_to_earlier_tokens, measure
from neatpack.kernels_bridge.audit.state import borrow_model
from neatpack.kernels_bridge.audit.subject import Subject
from neatpack.kernels_bridge.audit.targets import layer_windows
from neatpack.kernels_bridge.audit.ways import noise_of
from neatpack.kernels_bridge.binding import Binding
from neatpack.kernels_bridge.forward_ranks import is_sharded
from neatpack.kernels_bridge.models import require_module

_TEXT: Final = bytes(range(256))
"""What the documents are cut from: token ids that follow one another."""


def prove(model: nn.Module, binding: Binding) -> None:
    """Run two small packed rows through a bound model, again and again with one document changed.

    Weights, gradients, buffers, modes, random state and what the binding remembers are afterwards as they were. A
    compiled model runs uncompiled for this; hooks of others see the calls.

    Args:
        model: a built module, in any wrapper of torch.
        binding: what it is bound by.

    Raises:
        ModelError: boundaries do not arrive, or it cannot be seen whether they do: no token answers to an earlier one,
            the forward takes no token ids or fails on them, weights are sharded or on the meta device.
    """
    inner = require_module(model)
    _require_own_weights(model)
    with _undisturbed(inner):
        try:
            reason = _reason_against(inner, binding)
        except Exception as error:
            raise _unproved(inner, f"a trial forward raised {type(error).__name__}: {error}") from error
    if reason is not None:
        raise _unproved(inner, reason)


def _reason_against(model: nn.Module, binding: Binding) -> str | None:
    """Say what was seen that speaks against the binding; None where all is as it should be."""
    subject = Subject(model, hooked=frozenset({PACKED_SEQ_IDS}))
    packed = pack_documents([_TEXT], subject.vocabulary(), _device(model))
    ask: Ask = partial(subject.packed, packed, {PACKED_SEQ_IDS: packed.document_ids})
    answer = ask()
    seen = kernel_calls(binding, packed, layer_windows(model))
    if seen is not None and not seen.boundaries_seen:
        return f"its attention was called {seen.calls} times, and not with the boundaries of the batch"
    noise = noise_of(model)
    reason = _leak(measure(ask, answer, packed, None), noise)
    if reason is None and answers_to_earlier_tokens(ask, answer, packed) <= noise:
        reason = "no token of a document answers to an earlier one, so that a leak could not be seen"
    return reason


def _leak(measurement: Measurement, noise: float) -> str | None:
    moved = measurement.perturbation
    if not measurement.finite:
        return "its outputs are not finite numbers"
    if moved.cross > noise:
        pair = f"document {moved.source + 1} changes the outputs of document {moved.target + 1}"
        return f"{pair} by {moved.cross:.1e} of how far outputs vary: boundaries do not arrive"
    if measurement.padding > noise:
        return f"padding changes the outputs of documents by {measurement.padding:.1e} of how far they vary"
    if measurement.scale == 0 or moved.own <= noise:
        return "outputs do not change when a document's own tokens do, so that a leak could not be seen"
    return None


def _unproved(model: nn.Module, reason: str) -> ModelError:
    remedy = (
        "`neatpack audit` shows which ways keep its documents apart. If it is the trial that does not suit the model, "
        "configure without verify."
    )
    return ModelError(Problem("verify", f"{type(model).__name__} was tried: {reason}", "unsupported", remedy=remedy))


def _require_own_weights(model: nn.Module) -> None:
    """Refuse a model that this process cannot run by itself."""
    if any(tensor.is_meta for tensor in _tensors(model)):
        message, remedy = "its weights are on the meta device", "Verify once they are materialised."
    elif is_sharded(model):
        message, remedy = "its weights are sharded over processes", "Verify before it is sharded; bindings stay."
    else:
        return
    raise ModelError(Problem("verify", f"the model cannot be tried: {message}", "unsupported", remedy=remedy))


@contextmanager
def _undisturbed(model: nn.Module) -> Generator[None, None, None]:
    """Within: evaluation mode, no gradients, nothing compiled. Afterwards all is as it was."""
    with Borrowed() as borrowed, torch.no_grad(), torch.compiler.set_stance("force_eager"):
        borrow_model(borrowed, model, gradients=False)
        for module in model.modules():
            module.training = False
        yield


def _tensors(model: nn.Module) -> Iterable[Tensor]:
    return (*model.parameters(), *model.buffers())


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in _tensors(model)), torch.device("cpu"))
