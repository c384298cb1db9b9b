"""What each consumer says of one model, which of them would be bound, and what its loader would have to emit."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

import torch
from torch import nn

from neatpack.adapters import apply_packing_contract, collate_documents, plan_rows
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import ConsumerError, PackingError
from neatpack.contracts.kernels import Accepted, Decision
from neatpack.kernels_bridge.configure import choose
from neatpack.kernels_bridge.models import get_model_attn_implementation, require_module
from neatpack.kernels_bridge.registry import decide, preference
from neatpack.kernels_bridge.terminal import Line, Span, line

SCHEMA_VERSION: Final = 1
_MARGIN: Final = " " * 4


@dataclass(frozen=True)
class Said:
    """What one consumer says of a model.

    Attributes:
        consumer: its name.
        accepted: whether it takes the model.
        why: the reason against, or the evidence.
        verified: False where nothing was measured on the installed versions.
        packed_mask_type: the form that it would ask the loader for; None where it does not take the model.
        preference: why it stands where it does in the order of preference.
    """

    consumer: str
    accepted: bool
    why: str
    verified: bool
    packed_mask_type: str | None
    preference: str


@dataclass(frozen=True)
class Explanation:
    """Why a model is bound as it is.

    Attributes:
        model: what the user calls it.
        class_name: of the built module.
        attention: what it runs with.
        said: what every consumer says, in order of preference.
        chosen: the consumer that `configure_packing` would bind; None where it would raise.
        refusal: what it would raise; empty where it would bind.
        capabilities: what the loader would be asked for.
        loader_fields: the entries of the batch that such a loader yields.
    """

    model: str
    class_name: str
    attention: str
    said: tuple[Said, ...]
    chosen: str | None
    refusal: str
    capabilities: PackingCapabilities | None
    loader_fields: tuple[str, ...]

    def dumps(self) -> str:
        """Give the explanation as JSON."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=2)


def explain_model(model: nn.Module, name: str = "model") -> Explanation:
    """Ask every consumer about a model, and say which would be bound. Nothing is changed.

    Args:
        model: a built module, in any wrapper of torch.
        name: what the explanation calls it.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.
        CapabilitiesError: a declaration of the model is not one.

    Example:
        >>> from typing import Literal
        >>> class Model(nn.Module):
        ...     packed_mask_type: Literal["document_ids"] = "document_ids"
        ...     def forward(self, input_ids, _packed_seq_ids): ...
        >>> explanation = explain_model(Model())
        >>> explanation.chosen, "_packed_seq_ids" in explanation.loader_fields
        ('declared', True)
    """
    inner = require_module(model)
    attention = get_model_attn_implementation(inner)
    said = tuple(_said(consumer, decision) for consumer, decision in decide(inner, attention))
    chosen: str | None = None
    capabilities: PackingCapabilities | None = None
    refusal = ""
    try:
        chosen, capabilities = choose(attention, inner, None)
    except PackingError as error:
        refusal = str(error)
    fields = () if capabilities is None else _loader_fields(capabilities)
    return Explanation(name, type(inner).__name__, attention, said, chosen, refusal, capabilities, fields)


def explanation_lines(explanation: Explanation, width: int) -> list[Line]:
    """Lay an explanation out.

    Args:
        explanation: what to show.
        width: columns to keep to.
    """
    head = (
        Span(explanation.model, "bold"),
        Span(f"  {explanation.class_name}", "dim"),
        Span(f"  runs with {explanation.attention!r}"),
    )
    lines: list[Line] = [head, line("")]
    for said in explanation.said:
        lines += _said_lines(said, said.consumer == explanation.chosen, width)
    return [*lines, line(""), *_conclusion(explanation, width)]


def _said(name: str, decision: Decision) -> Said:
    try:
        order = preference(name)
    except ConsumerError:
        order = ""  # of a name that several have: what is said of it says so
    if isinstance(decision, Accepted):
        kind = decision.capabilities.packed_mask_type
        return Said(name, True, decision.evidence, decision.verified, kind, order)
    return Said(name, False, decision.reason, True, None, order)


def _loader_fields(capabilities: PackingCapabilities) -> tuple[str, ...]:
    """Let a loader's last step make one small batch, and name what is in it."""
    batch = collate_documents([torch.tensor([1, 2]), torch.tensor([3])], plan_rows([2, 1], 4))
    return tuple(apply_packing_contract(batch, capabilities))


def _said_lines(said: Said, is_chosen: bool, width: int) -> Iterator[Line]:
    if is_chosen:
        verdict = Span("CHOSEN  ", "green")
    elif said.accepted:
        verdict = Span("accepts ", "green" if said.verified else "yellow")
    else:
        verdict = Span("rejects ", "dim")
    form = f"  {said.packed_mask_type}" if said.packed_mask_type else ""
    yield (Span(f"  {said.consumer:<16}", "bold" if is_chosen else ""), verdict, Span(form))
    unverified = "" if said.verified else "unverified: "
    for text in (f"{unverified}{said.why}", f"in this place: {said.preference}" if said.accepted else ""):
        yield from (line(part, "dim") for part in _wrapped(text, width))


def _conclusion(explanation: Explanation, width: int) -> Iterator[Line]:
    if explanation.capabilities is None:
        nobody = f"no consumer takes {explanation.class_name}: configure_packing would raise"
        words = explanation.refusal if any(said.accepted for said in explanation.said) else nobody
        yield from (line(part, "bold red") for part in _wrapped(words, width, margin=""))
        return
    needed = explanation.capabilities
    yield line(f"bound by {explanation.chosen}; its loader is asked for", "bold")
    asked = {
        "packed_mask_type": needed.packed_mask_type,
        "requires_packed_sequence_metadata": needed.requires_packed_sequence_metadata,
        "return_document_ids": needed.return_document_ids,
        "max_sequence_length": needed.max_sequence_length,
        "takes_holes": needed.takes_holes,
    }
    for name, value in asked.items():
        yield line(f"  {name} = {value!r}")
    yield from map(line, _wrapped(f"and emits {', '.join(explanation.loader_fields)}", width, margin=""))


def _wrapped(text: str, width: int, margin: str = _MARGIN) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin)
