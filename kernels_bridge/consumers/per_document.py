"""`per_document`: any model, around its own forward. Each document gets a row of its own, and its outputs are put back.

The rows are padded to the longest document and go through the model in one call, with a 2-D mask, where that is known
to be right, else in one call per length: a family may let the longest row change the others, or nobody has measured
it. Padding that would cost more than the tokens several times over is avoided by calls of similar lengths.

The first call is the model's own, with other arguments; further ones are made after it, around the binding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from neatpack.adapters.document_rows import DocumentRows, document_rows
from neatpack.adapters.positions import build_position_ids
from neatpack.adapters.segments import Segments
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import ModelError, Problem
from neatpack.contracts.fields import IGNORED_LABEL
from neatpack.contracts.kernels import Accepted, Attachment, Decision, Rejected
from neatpack.kernels_bridge.attachments import NothingAttached
from neatpack.kernels_bridge.binding import get_binding
from neatpack.kernels_bridge.entry import ATTENTION_MASK, PackedCall
from neatpack.kernels_bridge.families import counts_from_elsewhere, knowledge
from neatpack.kernels_bridge.forward_ranks import sharded_parts
from neatpack.kernels_bridge.hf_models import shared_with_another, without_cache
from neatpack.kernels_bridge.models import declared_flag, declared_mask_type, forward_arguments, text_config
from neatpack.kernels_bridge.moved_arguments import COUPLING, LABELS, moved_arguments, require_per_token
from neatpack.kernels_bridge.outputs import mean_of_losses, put_back, sum_of_losses
from neatpack.kernels_bridge.rope import coupled_rope, forget_longest

MOST_PADDING: Final = 4
"""Places per token above which documents of unlike length no longer share a call."""


class PerDocumentConsumer:
    """Takes models that do not take packed rows themselves."""

    name: Final = "per_document"

    def decide(self, model: nn.Module, attn_implementation: str) -> Decision:
        """Accept a model whose forward names its tokens, and that makes no demands of its own on packed rows."""
        del attn_implementation
        reason = _reason_against(model)
        if reason is not None:
            return Rejected(reason)
        padded = knowledge(model, "padded")
        how = "one call, padded to the longest document" if padded.is_right else "a call for each length of document"
        capabilities = PackingCapabilities("document_ids", takes_holes=False)
        return Accepted(capabilities, f"{how} ({padded.evidence})", padded.verified)

    def attach(self, model: nn.Module) -> Attachment:
        """Set up nothing: the model's own forward is what runs."""
        del model
        return NothingAttached()

    def derive(self, model: nn.Module, call: PackedCall) -> Mapping[str, object]:
        """Give the documents of the first call, each in a row of its own.

        Raises:
            DocumentIdsError: a document has a hole.
            EncodingError: an argument is not per token, or asks for what cannot be brought back.
            ModelError: the model is sharded and would have to be called once per length.
        """
        require_per_token(call)
        if coupled_rope(model) is not None:
            forget_longest(model)
        return _arguments(model, call, _rows(model, call.segments), 0)

    def restore(self, model: nn.Module, call: PackedCall, output: object) -> object:
        """Make the other calls, and bring all outputs back to the packed rows.

        Raises:
            ModelError: a field of the output is not per token, and is named.
        """
        rows = _rows(model, call.segments)
        outputs = [output]
        binding = get_binding(model)
        for batch in range(1, len(rows.places)):
            arguments = _arguments(model, call, rows, batch)
            with cast("Any", binding).suspended():
                outputs.append(model(**{**call.arguments, **arguments}))
        return put_back(outputs, rows, partial(_joined_losses, model, call, rows))


CONSUMER: Final = PerDocumentConsumer()


def plan_calls(lengths: Sequence[int], *, alike: bool, together: bool) -> list[list[int]] | None:
    """Group documents into calls, the shorter ones first; None for one call of all, in order.

    Args:
        lengths: tokens of each document.
        alike: whether all documents of a call must have the same length.
        together: whether one call is wanted, whatever its padding costs.

    Example:
        >>> plan_calls([5, 1, 5, 2], alike=True, together=False)
        [[1], [3], [0, 2]]
        >>> plan_calls([100, 1, 1, 2, 1, 1, 1, 90], alike=False, together=False)
        [[1, 2, 4, 5, 6, 3], [7, 0]]
    """
    if not lengths or (not alike and (together or len(lengths) * max(lengths) <= MOST_PADDING * sum(lengths))):
        return None
    calls: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda document: lengths[document]):
        most = 0 if not calls else lengths[calls[-1][0]] * (1 if alike else 2)
        if lengths[document] > most:
            calls.append([])
        calls[-1].append(document)
    return calls


def _reason_against(model: nn.Module) -> str | None:
    own_type = declared_mask_type(model)
    if own_type is not None:
        return f"it declares that it takes {own_type!r} itself"
    own = ("requires_packed_sequence_metadata", "uses_native_fa4", "uses_thd")
    flag = next((name for name in own if declared_flag(model, name)), None)
    if flag is not None:
        return f"it declares `{flag}`, and so takes packed rows itself"
    if "input_ids" not in (forward_arguments(model) or ()):
        return f"{type(model).__name__}.forward does not name `input_ids`, so its tokens cannot be told apart"
    config: object = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return "it reads two sequences, of which the ids describe one"
    for name, what in COUPLING.items():
        if getattr(text_config(model), name, False):
            return f"its config asks for {what}, which cannot be told apart by document: set {name}=False"
    return shared_with_another(model, CONSUMER.name)


def _rows(model: nn.Module, segments: Segments) -> DocumentRows:
    lengths = cast("list[int]", segments.documents.lengths.tolist())
    alike = not knowledge(model, "padded").is_right
    if alike and len(set(lengths)) > 1 and any(sharded_parts(model)):
        message = "is sharded over ranks, and has to be called once per length of a document, which ranks do not share"
        remedy = "Choose another consumer, or give every rank documents of one length."
        raise ModelError(Problem("model", f"{type(model).__name__} {message}", "unsupported", remedy=remedy))
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return document_rows(segments, plan_calls(lengths, alike=alike, together=together))


def _arguments(model: nn.Module, call: PackedCall, rows: DocumentRows, batch: int) -> dict[str, object]:
    """Give the arguments of one call: what is per token moved to the documents' rows, and a mask if they are padded."""
    names = forward_arguments(model) or ()
    arguments = moved_arguments(call, rows, batch)
    if counts_from_elsewhere(model) and _counts_from_zero(call):
        arguments["position_ids"] = None
    arguments.update(without_cache(model))
    if ATTENTION_MASK in names and rows.is_padded(batch):
        arguments[ATTENTION_MASK] = (~rows.padding[batch]).to(torch.int64)
    return arguments


def _counts_from_zero(call: PackedCall) -> bool:
    """Whether the positions of a call are the usual ones, which a model may replace by its own."""
    positions = call.arguments.get("position_ids")
    return isinstance(positions, Tensor) and torch.equal(positions, build_position_ids(call.structural).to(positions))


def _joined_losses(model: nn.Module, call: PackedCall, rows: DocumentRows, losses: list[Tensor]) -> Tensor:
    """Join the losses of several calls as the loss of one would be."""
    if len(losses) == 1:
        return losses[0]
    function: object = getattr(model, "loss_function", None)
    if getattr(function, "__name__", "") != "ForCausalLMLoss":
        message = "the losses of several calls cannot be joined: the model's loss is not Transformers' causal one"
        remedy = "Leave labels out, and compute the loss from the logits."
        raise ModelError(Problem("loss", message, "unsupported", remedy=remedy))
    if call.arguments.get("num_items_in_batch") is not None:
        return sum_of_losses(losses)
    name = next(name for name in reversed(LABELS) if isinstance(call.arguments.get(name), Tensor))
    labels = cast("Tensor", call.arguments[name])
    skipped = 1 if name == "labels" else 0  # the model shifts these, so that the first of a document is no target
    targets = [
        (rows.take(labels, batch, fill=IGNORED_LABEL)[:, skipped:] != IGNORED_LABEL).sum()
        for batch in range(len(rows.places))
    ]
    return mean_of_losses(losses, targets)
