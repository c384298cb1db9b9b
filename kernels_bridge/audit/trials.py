"""Further batches for one way of giving documents to a model: each shows what the usual one cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import torch
from torch import nn

from neatpack.adapters.document_ids import document_ids_from_lengths
from neatpack.kernels_bridge.audit.documents import CAPACITY, PackedDocuments, pack_ids
from neatpack.kernels_bridge.audit.report import PathReport, Trial
from neatpack.kernels_bridge.audit.spans import longest_span, most_positions
from neatpack.kernels_bridge.audit.subject import ANYTHING
from neatpack.kernels_bridge.audit.ways import Way

SHAPE_LENGTHS: Final = ((3, 7, 2, 5), (15, 4))
"""Documents for two rows of the usual 19 places that end elsewhere; the last row is full."""

USUAL_LENGTHS: Final = ((6, 1, 9), (12, 4))
"""The usual documents, in rows with padding."""

FULL_LENGTHS: Final = ((6, 1, 12), (10, 9))
"""Documents that leave no padding, for models that cannot take any."""

BLOCK_LENGTHS: Final = ((30, 1, 40, 16), (41, 25))
"""Documents for rows of whole blocks of places, for models that take no others."""

BLOCKS: Final = 128
"""Places of those rows: a multiple of all sizes of blocks that are usual."""

MANY: Final = 260
"""Documents in one row: more than a byte can count."""

LONG: Final = 160
"""Tokens of a long document: more than windows and offsets of a byte hold."""

LONG_ROW: Final = 384
"""Places of the rows that hold these: a multiple of 128, at which kernels change."""

FULL_ROW: Final = (30, 1, 40, 16, 41)
"""Documents that fill one row of 128 places."""

WIDE: Final = 1 << 60
"""Ids from here on that differ by 2**32 are one and the same to who keeps 32 bits of them, or a floating number."""

MOST_PLACES: Final = 2048
"""Places of the longest row that is tried where a model tells of a span that no other document is longer than."""

NOTES: Final[dict[Trial, str]] = {
    "plain": "",
    "ids": "Only where document ids fall and have gaps: ",
    "full": "Only in one full row of several documents: ",
    "shape": "Only in a second batch of the same shape, whose documents end elsewhere: ",
    "gaps": "Only with padding before documents or between them: ",
    "holes": "Not so with holes in documents: ",
    "many": f"Only in long rows, of up to {MANY} documents of up to {LONG} tokens: ",
    "training": "Only in training mode: ",
    "long": "Only in a document that is longer than all that the model sees at once: ",
    "xdoc": "Only where attention ids join documents: ",
}
"""What a message says first where it is this batch alone that shows something."""


@dataclass(frozen=True)
class Batch:
    """One further batch.

    Attributes:
        trial: what it is called.
        packed: its documents.
        compares: whether packed documents are compared with each alone.
        training: whether the model is in training mode.
        rows: what is said of its rows beside that.
        before: documents in rows of the same shape that the model is given just before, and that nothing is told of.
    """

    trial: Trial
    packed: PackedDocuments
    compares: bool = True
    training: bool = False
    rows: str = ""
    before: PackedDocuments | None = None

    @property
    def note(self) -> str:
        """What a message says first where it is this batch alone that shows something."""
        return f"{NOTES[self.trial].removesuffix(': ')}, {self.rows}: " if self.rows else NOTES[self.trial]

    @property
    def name(self) -> str:
        """What is said of it where a model declines it."""
        return f"{self.trial} {self.rows}".rstrip()


def usual_documents(vocabulary: int, device: torch.device) -> list[PackedDocuments]:
    """Pack documents of random tokens: of the audit's usual lengths, and then for models that do not take those ones
    that leave no padding, and ones in rows of whole blocks."""
    choices = ((USUAL_LENGTHS, CAPACITY), (FULL_LENGTHS, CAPACITY), (BLOCK_LENGTHS, BLOCKS))
    return [pack_ids(document_ids_from_lengths(lengths, row), vocabulary, device) for lengths, row in choices]


def further_batches(usual: PackedDocuments, long: int | None) -> Iterator[Batch]:
    """Make the batches that are tried beside the usual one, with a document of `long` tokens where that is given."""
    vocabulary, device = usual.vocabulary, usual.input_ids.device
    ids = usual.document_ids
    # Of n documents, the first has the greatest id; their lowest bytes are equal, and so are they to who keeps no more.
    rank = ids.amax(dim=1, keepdim=True) - ids
    yield Batch("ids", replace(usual, document_ids=torch.where(ids > 0, rank * 256 + 1, 0)))
    wide = torch.where(ids > 0, (rank << 32) + WIDE + 1, 0)
    yield Batch("ids", replace(usual, document_ids=wide), compares=False, rows="beyond 2^60")
    other = pack_ids(document_ids_from_lengths(SHAPE_LENGTHS, ids.shape[1]), vocabulary, device)
    yield Batch("shape", other)
    yield Batch("training", usual, compares=False, training=True, before=other)
    full = pack_ids(document_ids_from_lengths((FULL_ROW,), sum(FULL_ROW)), vocabulary, device)
    yield Batch("full", full)
    yield Batch("training", full, compares=False, training=True, rows="in one full row")
    yield Batch("gaps", pack_ids(_with_gaps(ids.shape[1]), vocabulary, device), compares=False)
    yield Batch("holes", pack_ids(_with_holes(ids.shape[1]), vocabulary, device), compares=False)
    many = pack_ids(document_ids_from_lengths(_many_lengths(), LONG_ROW), vocabulary, device)
    yield Batch("many", many)
    yield Batch("training", many, compares=False, training=True, rows="in long rows")
    if long is not None:
        lengths = (5, long, 1, long // 2)
        yield Batch("long", pack_ids(document_ids_from_lengths((lengths,), sum(lengths)), vocabulary, device))
    joined = pack_ids((ids > 0).to(torch.int64), vocabulary, device)
    yield Batch("xdoc", replace(joined, structural_ids=ids))


@dataclass(frozen=True)
class Taken:
    """What a model took of the batches and the ways that it was offered.

    Attributes:
        way: how documents are given to it from here on.
        packed: its documents.
        report: what was found.
    """

    way: Way
    packed: PackedDocuments
    report: PathReport


def examine_first_taken(way: Way, batches: Sequence[PackedDocuments]) -> Taken:
    """Examine the first of some batches that a model takes. If it takes none, it is not asked about documents alone,
    which may be too short for it. Raises what the first attempt did where it takes none so either."""
    errors: list[BaseException] = []
    for attempt, packed in product((way, replace(way, asks_alone=False)), batches):
        try:
            report = attempt.examine(packed)
        except ANYTHING as error:  # noqa: PERF203  # what comes next may be taken
            errors.append(error)
        else:
            declined = () if attempt.asks_alone else (f"each document alone: declined ({type(errors[0]).__name__})",)
            return Taken(attempt, packed, replace(report, untried=declined))
    raise errors[0]


def try_further(taken: Taken) -> PathReport:
    """Look for what the usual batch does not show. Whatever a model declines in a further batch is no finding.

    Args:
        taken: the usual batch. The model's mode is switched, and is evaluation mode at the end.

    Returns:
        The worst report: the first leak, or else the first difference, or else a batch that is answered otherwise each
        time, or else that of the usual batch. Few loaders make holes: what shows with them alone is told beside that.
    """
    way, usual, report = taken.way, taken.packed, taken.report
    reports, untried, with_holes = [replace(report, trial="plain")], list(report.untried), ""
    model, long = way.model, _long_document(way.model)
    for batch in further_batches(usual, long):
        if reports[-1].verdict == "leak" or (batch.trial == "xdoc" and _worst(reports).verdict == "differs"):
            break
        try:
            model.train(batch.training)
            if batch.before is not None:
                with suppress(*ANYTHING):
                    way.give(batch.before)
            found = way.examine_further(batch.packed, batch.compares)
            if batch.trial != "holes":
                reports.append(replace(found, trial=batch.trial, message=batch.note + found.message))
            elif found.verdict in ("leak", "differs"):
                with_holes = f" {batch.note}{found.message}"
        except ANYTHING as error:
            untried.append(f"{batch.name}: declined ({type(error).__name__})")
        finally:
            model.eval()
    worst = _named_by_trial(_worst(reports))
    worst = replace(worst, message=worst.message + with_holes) if worst.verdict == "clean" else worst
    return replace(worst, untried=(*untried, *not_reached(model, LONG if long is None else long)))


def not_reached(model: nn.Module, longest: int) -> tuple[str, ...]:
    """Name the span that a model tells of if no document was longer, and one could be: what lies past it was not
    seen."""
    span = longest_span(model)
    if span is None or span.places < longest or span.places >= (most_positions(model) or span.places + 1):
        return ()
    return (f"{span.told_by} is {span.places}, and the longest document has {longest} tokens",)


def _long_document(model: nn.Module) -> int | None:
    """The tokens of a document that is longer than every span of a model; None where others are, or none can be."""
    span = longest_span(model)
    if span is None or span.places < LONG:
        return None
    length = min(span.places + 9, most_positions(model) or MOST_PLACES)
    return length if span.places < length and length + length // 2 + 6 <= MOST_PLACES else None


def _worst(reports: Sequence[PathReport]) -> PathReport:
    worst = [report for verdict in ("leak", "differs") for report in reports if report.verdict == verdict]
    worst += [report for report in reports if report.kind == "not_deterministic"]
    # A difference that one batch does not explain, another may.
    return next((report for report in worst if report.kind != "unexplained"), next(iter(worst), reports[0]))


def _named_by_trial(report: PathReport) -> PathReport:
    """Where a model is wrong in nothing but joined documents, it does not join them."""
    if report.trial != "xdoc" or report.verdict != "differs":
        return report
    message = f"{NOTES['xdoc']}Documents answer otherwise than joined into one: they are kept apart, or start anew."
    return replace(report, kind="joining", message=message)


def _with_gaps(sequence: int) -> torch.Tensor:
    """Four rows with padding before documents, between them, or both."""
    ids = torch.zeros(4, sequence, dtype=torch.int64, device="cpu")
    ids[0, 2:9], ids[0, 12:17] = 1, 2
    ids[1, :8], ids[1, 10:] = 1, 2
    ids[2, 5:9], ids[2, 9:] = 1, 2
    ids[3, 4:] = 1
    return ids


def _with_holes(sequence: int) -> torch.Tensor:
    """Three rows with documents that have holes."""
    ids = torch.zeros(3, sequence, dtype=torch.int64, device="cpu")
    ids[0, :8], ids[0, 8:16] = 1, 2
    ids[1, :9], ids[1, 9:14] = 1, 2
    ids[2, :3], ids[2, 3:4], ids[2, 4:] = 1, 2, 3
    ids[0, 3], ids[1, 5:7], ids[1, 11], ids[2, 9] = 0, 0, 0, 0
    return ids


def _many_lengths() -> tuple[tuple[int, ...], ...]:
    """Many in one row; in the other long ones, with others before and after them."""
    return (1,) * (MANY - 8) + (2, 1, 3, 1, 2, 1, 4, 1), (7, LONG, 1, LONG - 50)
