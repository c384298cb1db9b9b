"""A watch for training: every so many steps one batch is checked, and a few tokens of it are changed.

What is checked is what the model is called with, since a loop's own view of its batch may be another: a hook before the
forward sees the arguments as they come, before a binding takes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from neatpack.adapters.agreement import ScannedIds, scan_agreeing
from neatpack.adapters.arguments import require_count, require_instance
from neatpack.adapters.boundary_fields import FLASH_FIELDS, IDS, LENGTH_FIELDS, METADATA_FIELDS, PACKED_SEQ_IDS
from neatpack.adapters.labels import mask_labels
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.adapters.segments import Segments
from neatpack.adapters.token_fields import PER_DOCUMENT
from neatpack.contracts.batch import LabelShift
from neatpack.contracts.errors import BatchError, EncodingError, IsolationError, PackingError, Problem
from neatpack.kernels_bridge.audit.borrowing import Borrowed
from neatpack.kernels_bridge.audit.probes import variation
from neatpack.kernels_bridge.audit.random_state import seeded
from neatpack.kernels_bridge.audit.state import borrow_model
from neatpack.kernels_bridge.audit.subject import Subject
from neatpack.kernels_bridge.audit.ways import noise_of
from neatpack.kernels_bridge.binding import get_binding
from neatpack.kernels_bridge.compiling import eagerly
from neatpack.kernels_bridge.entry import ATTENTION_MASK
from neatpack.kernels_bridge.forward_ranks import is_sharded
from neatpack.kernels_bridge.inspect import find_document_ids
from neatpack.kernels_bridge.models import declared_position_policy, positional_arguments, require_module

MOST_PLACES: Final = 512
"""Places of a row that are given to the model to see whether documents move."""

_PLACES_REMEDY: Final = "Give the places of a row to look at: on both sides of a boundary is one at least."

CHANGED_TOKENS: Final = 4
"""Tokens of a document that are changed."""

_SHARDED: Final = "the model is sharded over processes"


@dataclass(frozen=True)
class BatchCheck:
    """One batch that was checked and found right.

    Attributes:
        documents: how many it holds.
        checked_labels: whether it held labels to look at.
        changed: index of the document of which tokens were changed, counted over the batch; None where that was not
            tried: `untried` says why.
        moved: the greatest share of their scale by which logits of other documents moved.
        seconds: how long all of this took.
        untried: why no document was changed, so that nothing is known of the model; empty where one was.
    """

    documents: int
    checked_labels: bool
    changed: int | None
    moved: float
    seconds: float
    untried: str = ""


def check_training_batch(
    model: nn.Module,
    batch: Mapping[str, object],
    *,
    label_shift: LabelShift = "model",
    most_places: int = MOST_PLACES,
    turn: int = 0,
) -> BatchCheck:
    """Check one batch, and whether the model keeps its documents apart, at the cost of two short forwards.

    Document ids must be valid, whatever else speaks of boundaries must agree with them, and no target may cross one.
    Then some tokens of one document are changed, among at most `most_places` places of its row around one of its
    boundaries, without gradients and in evaluation mode: no other document may move. The state of the training run
    stays untouched.

    Args:
        model: a built module, in any wrapper of torch; what is inside is called.
        batch: what the model is called with, by name: `input_ids`, int64 `[batch, sequence]`, and at least one field
            that says where documents end.
        label_shift: who shifted the labels, see `mask_labels`.
        most_places: how much of a row is given to the model. It bounds the cost.
        turn: which document is changed, counted round those that share a row.

    Raises:
        BatchError: the batch is no mapping, or nothing in it says where documents end.
        DocumentIdsError: what says so is malformed.
        EncodingError: entries contradict each other, or a target crosses a boundary.
        IsolationError: a document reaches another; both are named. Or logits are NaN.
        ModelTypeError: `model` is no `torch.nn.Module`.

    Example:
        >>> batch = {"input_ids": torch.arange(4)[None], "document_ids": torch.tensor([[1, 1, 2, 2]])}
        >>> check_training_batch(nn.Embedding(8, 4), batch).moved
        0.0
    """
    started = time.perf_counter()
    require_count(most_places, "most_places", _PLACES_REMEDY, least=2)
    require_count(turn, "turn", "Give the number of the check.")
    inner = require_module(model)
    require_instance(batch, Mapping, "batch", "Give what the model is called with, by name.", error=BatchError)
    given = {name: value for name, value in batch.items() if value is not None}
    name, ids = _document_ids(given)
    scanned = scan_agreeing(ids, given, field=name, position_policy=declared_position_policy(inner))
    labels = given.get("labels")
    if isinstance(labels, Tensor):
        _check_labels(labels, scanned, label_shift)
    # Ranks that share weights would have to call the model in step, whatever each of them finds in its batch.
    alone = not (is_sharded(model) or is_sharded(inner))
    trial = _trial(inner, given, ids, scanned.attention, most_places, turn) if alone else _SHARDED
    untried, changed, moved = (trial, None, 0.0) if isinstance(trial, str) else ("", trial.number, _moved(inner, trial))
    seconds = time.perf_counter() - started
    documents = len(scanned.attention.documents.rows)
    return BatchCheck(documents, isinstance(labels, Tensor), changed, moved, seconds, untried)


@dataclass(eq=False)
class PackingWatch:
    """Checks one batch every so many forwards in training mode; made by `watch_packing`, and ended by `remove`.

    Attributes:
        every: forwards between two checks; 0 where only `arm` asks for one.
        on_problem: what is done with a problem.
        checks: what was checked and found right, the last 100 of it.
        problems: how many problems were found.
        seconds: how long all checks took.
    """

    every: int
    label_shift: LabelShift
    most_places: int
    on_problem: Callable[[PackingError], None]
    checks: list[BatchCheck] = field(default_factory=list[BatchCheck])
    problems: int = 0
    seconds: float = 0.0
    _forwards: int = 0
    _armed: bool = False
    _busy: bool = False
    _started: float = field(default_factory=time.perf_counter)
    _handle: RemovableHandle | None = None

    @property
    def share(self) -> float:
        """The share of the time since the watch began that checks took."""
        return self.seconds / max(time.perf_counter() - self._started, 1e-9)

    def arm(self) -> None:
        """Check the batch of the next forward in training mode."""
        self._armed = True

    def install(self, model: nn.Module) -> None:
        """Put the hook on an unwrapped model, before all others: a binding takes document ids away."""
        self.remove()
        self._handle = model.register_forward_pre_hook(self, prepend=True, with_kwargs=True)

    def remove(self) -> None:
        """Take the hook off the model. Removing twice changes nothing."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    @eagerly
    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """See the arguments of one forward: the pre-hook. What runs while a binding is suspended is not packed.

        Raises:
            PackingError: whatever `on_problem` raises.
        """
        binding = get_binding(module)
        if self._busy or not module.training or (binding is not None and binding.is_suspended):
            return
        due = self._armed or (self.every > 0 and self._forwards % self.every == 0)
        self._forwards += 1
        if not due:
            return
        self._armed, self._busy = False, True
        started = time.perf_counter()
        try:
            batch = {**dict(zip(positional_arguments(module), args, strict=False)), **kwargs}
            self._check(module, batch)
        finally:
            self._busy = False
            self.seconds += time.perf_counter() - started

    def _check(self, module: nn.Module, batch: Mapping[str, object]) -> None:
        turn = len(self.checks) + self.problems
        try:
            check = check_training_batch(
                module, batch, label_shift=self.label_shift, most_places=self.most_places, turn=turn
            )
        except PackingError as error:
            self.problems += 1
            self.on_problem(error)
        else:
            self.checks = [*self.checks[-99:], check]


def watch_packing(
    model: nn.Module,
    every: int = 100,
    *,
    label_shift: LabelShift = "model",
    most_places: int = MOST_PLACES,
    on_problem: Callable[[PackingError], None] | None = None,
) -> PackingWatch:
    """Watch the batches that a model is trained on.

    Args:
        model: a built module, in any wrapper of torch.
        every: forwards in training mode from one check to the next, the first one included; 0 for those alone that
            `arm` asks for.
        label_shift: who shifted the labels, see `mask_labels`.
        most_places: how much of a row is given to the model in a check.
        on_problem: called with each problem; where None, it is raised in the forward.

    Raises:
        ModelTypeError: `model` is no `torch.nn.Module`.
        EncodingError: a number is none, or negative.

    Example:
        >>> model = nn.Embedding(8, 4)
        >>> with watch_packing(model) as watch:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.BatchError: batch: nothing in it says where documents end. ...
    """
    inner = require_module(model)
    require_count(every, "every", "Give the forwards between two checks.")
    if on_problem is not None and not callable(cast("object", on_problem)):
        remedy = "Give a function of one error, or None to raise it."
        raise EncodingError(
            Problem("on_problem", "must be callable", "type", value=type(on_problem).__name__, remedy=remedy)
        )
    require_count(most_places, "most_places", _PLACES_REMEDY, least=2)
    watch = PackingWatch(every, label_shift, most_places, _raise if on_problem is None else on_problem)
    watch.install(inner)
    return watch


def _raise(error: PackingError) -> None:
    raise error


def _document_ids(given: Mapping[str, object]) -> tuple[str, Tensor]:
    order = (PACKED_SEQ_IDS, "attention_document_ids", "document_ids")
    for name in order:
        value = given.get(name)
        if isinstance(value, Tensor):
            return name, value
    readable = {name: value for name, value in given.items() if isinstance(value, (Tensor, int, str))}
    return "batch", find_document_ids(readable)


def _check_labels(labels: Tensor, scanned: ScannedIds, label_shift: LabelShift) -> None:
    attention = scanned.attention
    wrong = labels != mask_labels(labels, attention, label_shift, document_ids=scanned.packed)
    if label_shift == "model":
        wrong[:, 0] = False  # whoever shifts along the row lets go of this one
    if label_shift == "document" and scanned.structural is attention:
        # Before a hole may stand an own last target: of a document that attention joins to one without a first token.
        places = attention.tensor(attention.bounds[attention.holes] - 1)
        wrong = wrong.flatten().index_fill(0, places, False).view(labels.shape)
    if bool(wrong.any()):
        row, position = (int(axis[0]) for axis in wrong.nonzero(as_tuple=True))
        message = "is a target across a boundary, or at padding"
        remedy = "Set it to -100: apply_packing_contract and mask_labels do."
        raise EncodingError(Problem("labels", message, "value", row, position, int(labels[row, position]), remedy))


@dataclass(frozen=True, eq=False)
class _Trial:
    """One row, or a part of it, to be given to the model twice.

    Attributes:
        tokens: int64 `[1, places]`.
        changed: the same with the last tokens of one document changed.
        arguments: what goes with them.
        ids: int64 `[1, places]`.
        source: the id of that document.
        row: which row of the batch it is.
        first: the position of the first token in that row.
        number: the index of the document, counted over the batch.
    """

    tokens: Tensor
    changed: Tensor
    arguments: Mapping[str, object]
    ids: Tensor
    source: int
    row: int
    first: int
    number: int


def _trial(
    model: nn.Module, given: Mapping[str, object], ids: Tensor, segments: Segments, most_places: int, turn: int
) -> _Trial | str:
    """Choose by turns a boundary and cut its row around it; or tell why there is nothing to try."""
    tokens = given.get("input_ids")
    if not isinstance(tokens, Tensor) or tokens.shape != ids.shape:
        return "there are no input_ids of the shape of the document ids"
    cuts = _cuts_around_boundaries(segments, most_places)
    if not cuts:
        return f"no row holds two documents within {most_places} places"
    number, places = cuts[turn % len(cuts)]
    row, source = int(segments.documents.rows[number]), int(segments.documents.ids[number])
    cut = _cut_row(model, given, ids, row, places)
    if isinstance(cut, str):
        return cut
    own, own_ids = tokens[row : row + 1, places], ids[row : row + 1, places]
    last = (own_ids[0] == source).nonzero()[-CHANGED_TOKENS:, 0]
    changed = own.clone()
    changed[0, last] = _other_tokens(own[0], own[0, last])
    return _Trial(own, changed, cut, own_ids, source, row, places.start, number)


def _cuts_around_boundaries(segments: Segments, most_places: int) -> list[tuple[int, slice]]:
    """Give the index of each document that has company, and places of its row around the boundary to the next document,
    or from the one before. What is left of documents that begin earlier or end later is documents as well."""
    documents = segments.documents
    starts, ends = (places - documents.rows * segments.sequence for places in (documents.starts, documents.ends))
    width = min(most_places, segments.sequence)
    cuts: list[tuple[int, slice]] = []
    for number, (rank, count) in enumerate(zip(documents.ranks, documents.counts[documents.rows], strict=True)):
        before = number if rank + 1 < count else number - 1
        if count == 1 or starts[before + 1] - ends[before] + 2 > width:
            continue
        middle = int(ends[before] + starts[before + 1]) // 2
        first = max(0, min(middle - width // 2, segments.sequence - width))
        cuts.append((number, slice(first, first + width)))
    return cuts


def _other_tokens(known: Tensor, tokens: Tensor) -> Tensor:
    """Give each token another value that occurs in the row, so that it is surely one that the model embeds; next to the
    greatest where all are equal."""
    smallest, greatest = known.min(), known.max()
    other = torch.where(tokens == smallest, greatest, smallest)
    return torch.where(other == tokens, torch.where(tokens > 0, tokens - 1, tokens + 1), other)


def _cut_row(
    model: nn.Module, given: Mapping[str, object], ids: Tensor, row: int, places: slice
) -> dict[str, object] | str:
    """Cut the arguments to some places of one row; or tell why they cannot be."""
    own = ids[row : row + 1, places]
    binding = get_binding(model)
    arguments: dict[str, object] = {"use_cache": False}
    if binding is not None and PACKED_SEQ_IDS not in given:
        return f"the model is bound, and no {PACKED_SEQ_IDS} go to it"
    for name, value in given.items():
        if name in ("input_ids", "labels", *METADATA_FIELDS, *LENGTH_FIELDS, "qkv_format"):
            continue
        if name in FLASH_FIELDS:
            arguments[name] = flash_varlen_kwargs(own)[name]  # type: ignore[literal-required]
        elif name == ATTENTION_MASK:
            arguments[name] = _cut_mask(value, row, places)
        elif not isinstance(value, Tensor) or value.ndim == 0:
            arguments[name] = value
        else:
            part = _cut_tensor(name, value, ids.shape, row, places)
            if part is None:
                return f"{name} = {tuple(value.shape)}: cannot be cut to one row"
            arguments[name] = part
    told = {*IDS, *FLASH_FIELDS, ATTENTION_MASK, "seq_idx", "position_ids"} & set(arguments)
    return arguments if told else "what says where documents end cannot be cut to one row"


def _cut_tensor(name: str, value: Tensor, shape: Sequence[int], row: int, places: slice) -> Tensor | None:
    """Cut to some places of one row; None where axes are not known. What a batch has per row or document is per row."""
    if value.shape[:2] == shape:
        return value[row : row + 1, places]
    if value.ndim == 3 and value.shape[1:] == shape:
        return value[:, row : row + 1, places]
    if name == "position_ids" and value.shape == (1, shape[1]):
        return value[:, places]
    per_row = value.shape[0] == shape[0] and (value.ndim == 1 or name in PER_DOCUMENT)
    return value[row : row + 1] if per_row else None


def _cut_mask(mask: object, row: int, places: slice) -> object:
    if isinstance(mask, Mapping):
        return {kind: _cut_mask(one, row, places) for kind, one in cast("Mapping[str, object]", mask).items()}
    if isinstance(mask, Tensor) and mask.ndim == 4:
        return mask[row : row + 1, :, places, places]
    return mask[row : row + 1, places] if isinstance(mask, Tensor) else mask


def _moved(model: nn.Module, trial: _Trial) -> float:
    """Ask the model about both, and give the greatest movement of another document in shares of the scale."""
    binding = get_binding(model)
    subject = Subject(model, frozenset({PACKED_SEQ_IDS} if binding is not None else ()))
    with Borrowed() as borrowed, torch.no_grad(), seeded():
        borrow_model(borrowed, model, gradients=False)
        model.eval()
        before, after = (subject.logits(tokens, trial.arguments) for tokens in (trial.tokens, trial.changed))
    others = ((trial.ids != trial.source) & (trial.ids != 0))[0]
    finite = before[0].isfinite().all(dim=0) & after[0].isfinite().all(dim=0)
    # Places of a vocabulary that are filled up with infinities are equal, though their difference is no number.
    distances = (before - after)[0].abs().masked_fill(before[0] == after[0], 0.0).amax(dim=1).where(others, 0.0)
    moved = float(distances.max()) / (variation([before[0][:, finite]]) or 1.0)
    if moved <= noise_of(model):
        return moved
    place = int(distances.argmax())  # of a distance that is no number, where there is one
    message = (
        f"document {int(trial.ids[0, place])} moves when tokens of document {trial.source} change, "
        f"by {moved:.0e} of the scale"
    )
    remedy = "Stop: audit_isolation(model, batch) says where documents mix."
    if moved != moved:
        message = (
            f"logits are no numbers, so that nobody can tell whether documents mix, of which {trial.source} was changed"
        )
        remedy = "Look for what overflows before looking for leaks."
    raise IsolationError(Problem("batch", message, "value", trial.row, trial.first + place, remedy=remedy))
