"""A saved batch, looked at: where its documents lie, and whether all that it holds says the same about that."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias, cast

import torch
from torch import Tensor

from neatpack.adapters.agreement import check_agreement
from neatpack.adapters.batch_entries import batch_shape
from neatpack.adapters.batch_files import BatchEntry
from neatpack.adapters.boundary_fields import FLASH_FIELDS, METADATA_FIELDS, PACKED_SEQ_IDS
from neatpack.adapters.document_ids import (
    canonical_document_ids,
    document_ids_from_lengths,
    document_ids_from_positions,
)
from neatpack.adapters.host_arrays import read_on_host, read_together
from neatpack.adapters.indexed_masks import is_indexed_packed_mask
from neatpack.adapters.neat_metadata import document_ids_from_metadata
from neatpack.adapters.physical import document_ids_from_flash_varlen
from neatpack.adapters.segments import Segments, scan_segments
from neatpack.adapters.token_tensors import integer_rows_problems
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.encodings import FlashVarlenKwargs, parse_flash_varlen_kwargs
from neatpack.contracts.errors import BatchError, EncodingError, PackingError, Problem
from neatpack.kernels_bridge.terminal import Line, Span, Style, line

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_STYLES: Final[tuple[Style, ...]] = ("green", "yellow", "cyan", "magenta", "blue", "red")
_PADDING: Final = "."
_HOLE: Final = "_"


RowLengths: TypeAlias = tuple[tuple[int, ...], ...]
"""The lengths of the documents of each row."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """What was found in a batch.

    Attributes:
        source: the field from which the documents were read.
        document_ids: canonical, int64 `[batch, sequence]`; 0 at padding and holes.
        segments: the runs of these ids.
        holes: bool `[batch, sequence]`, True at tokens of a document that no other token may read.
        agreeing: the other fields that say the same.
        disagreements: for each that does not, what it says, and where.
        uncompared: the entries that were neither read nor compared.
        said: by field, the lengths of the documents of each row by it; of every field that says as much.
    """

    source: str
    document_ids: Tensor
    segments: Segments
    holes: Tensor
    agreeing: tuple[str, ...]
    disagreements: tuple[str, ...]
    uncompared: tuple[str, ...] = ()
    said: Mapping[str, RowLengths] = field(default_factory=dict[str, RowLengths])


def inspect_batch(entries: Mapping[str, BatchEntry]) -> Inspection:
    """Find the documents of a batch, and compare with them everything else that speaks of documents.

    Ids after policy are taken before ids as packed, and ids before other encodings.

    Args:
        entries: the batch, as `load_batch` returns it.

    Raises:
        BatchError: nothing in it says where documents end.
        DocumentIdsError: the field from which the documents are read is malformed.
        EncodingError: likewise.

    Example:
        >>> ids = torch.tensor([[1, 1, 2, 0]])
        >>> found = inspect_batch({"document_ids": ids, "position_ids": torch.tensor([[0, 0, 0, 0]])})
        >>> found.disagreements
        ('position_ids[row 0, position 1] = 0: restarts inside a document.',)
    """
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    source = _find_source(tensors)
    ids = canonical_document_ids(_SOURCES[source](entries))
    segments = scan_segments(ids, field=source)
    agreeing, disagreements = _compare(source, ids, entries)
    others = {name: tensors[name] for name in agreeing if name in tensors and source != "document_ids"}
    holes = _find_holes(ids, segments, others)
    uncompared = _uncompared(source, entries)
    return Inspection(source, ids, segments, holes, agreeing, disagreements, uncompared, _said(entries))


def find_document_ids(entries: Mapping[str, BatchEntry]) -> Tensor:
    """Read the documents of a batch from the most trustworthy field that speaks of them, `[batch, sequence]`.

    Raises:
        BatchError: nothing in it says where documents end.
        DocumentIdsError: the field that does is malformed.
        EncodingError: likewise.

    Example:
        >>> find_document_ids({"position_ids": torch.tensor([[0, 1, 0]])})
        tensor([[1, 1, 2]])
    """
    source = _find_source({name: value for name, value in entries.items() if isinstance(value, Tensor)})
    return _SOURCES[source](entries)


def inspection_lines(inspection: Inspection, width: int) -> list[Line]:
    """Draw the rows of a batch: one letter per document, or per several tokens where a row is too long.

    Args:
        inspection: what was found.
        width: columns to keep to.
    """
    segments = inspection.segments
    documents = segments.documents
    places = segments.batch * segments.sequence
    padding = int((inspection.document_ids == 0).sum()) - int(inspection.holes.sum())
    rows = f"{segments.batch} rows of {segments.sequence} places, read from {inspection.source}"
    counts = (
        f"{documents.rows.size} documents, {int(documents.lengths.sum())} tokens, {padding} padding "
        f"({100 * padding / places:.0f} %), {int(inspection.holes.sum())} holes; longest {documents.longest}"
    )
    lines = [*_wrapped(rows, width, "bold"), *_wrapped(counts, width, ""), line("")]
    for row in range(segments.batch):
        lines += _row_lines(inspection, row, width)
    lines.append(line(""))
    lines += _said_lines(inspection, width)
    if inspection.agreeing:
        lines += _wrapped(f"agree: {', '.join(inspection.agreeing)}", width, "green")
    for disagreement in inspection.disagreements:
        lines += _wrapped(f"DISAGREES: {disagreement}", width, "bold red")
    if inspection.uncompared:
        lines += _wrapped(f"not compared: {', '.join(inspection.uncompared)}", width, "dim")
    return lines


def _find_source(tensors: Mapping[str, Tensor]) -> str:
    source = next((name for name in _SOURCES if _has(name, tensors)), None)
    if source is None:
        remedy = f"Give one of {', '.join(_SOURCES)}."
        raise BatchError(Problem("batch", "nothing in it says where documents end", "missing", remedy=remedy))
    return source


def _said(entries: Mapping[str, BatchEntry]) -> dict[str, RowLengths]:
    """Read the documents from every field that can be read on its own."""
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    said: dict[str, RowLengths] = {}
    for name, read in _SOURCES.items():
        if _has(name, tensors):
            with suppress(PackingError):  # what is malformed is told as a disagreement
                documents = scan_segments(read(entries)).documents
                rows = range(documents.counts.size)
                said[name] = tuple(tuple(documents.lengths[documents.rows == row].tolist()) for row in rows)
    return said


def _said_lines(inspection: Inspection, width: int) -> Iterator[Line]:
    """Say where each field has documents end that is not the one that was drawn, one line each."""
    drawn = inspection.said.get(inspection.source)
    names = [name for name in inspection.said if name != inspection.source]
    longest = max(map(len, names), default=0)
    for name in names:
        rows = inspection.said[name]
        words = "as drawn" if rows == drawn else "; ".join(" ".join(map(str, row)) or "none" for row in rows)
        text = textwrap.shorten(words, max(10, width - longest - 7), placeholder=" ...")
        yield (Span(f"{name:<{longest}}  says "[: width - 10], "dim"), Span(text, "" if rows == drawn else "yellow"))


def _row_lines(inspection: Inspection, row: int, width: int) -> Iterator[Line]:
    ids, holes = (array.tolist() for array in read_together(inspection.document_ids[row], inspection.holes[row]))
    documents = inspection.segments.documents
    here = documents.rows == row
    lengths = dict(zip(documents.ids[here].tolist(), documents.lengths[here].tolist(), strict=True))
    label = f"{row:>{len(str(inspection.segments.batch - 1))}} "
    step = max(1, -(-len(ids) // max(1, width - len(label))))
    cells = [_cell(ids[at : at + step], holes[at : at + step], lengths) for at in range(0, len(ids), step)]
    strip = (Span("".join(text for text, _ in run), style) for style, run in groupby(cells, key=itemgetter(1)))
    yield (Span(label, "dim"), *strip)
    padding = ids.count(0) - sum(holes)
    words = f"lengths {' '.join(map(str, lengths.values())) or 'none'}, padding {padding}"
    words += f", holes {sum(holes)}" if any(holes) else ""
    yield from _wrapped(words, width, "dim", margin=" " * len(label))


def _wrapped(text: str, width: int, style: Style, margin: str = "") -> Iterator[Line]:
    for part in textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin):
        yield line(part, style)


def _cell(ids: Sequence[int], holes: Sequence[bool], lengths: Mapping[int, int]) -> tuple[str, Style]:
    """One character for one or several places: of the shortest document there, so that it stays visible."""
    if any(holes):
        return _HOLE, "reverse"
    document = min(ids, key=lambda one: lengths.get(one, sys.maxsize))
    if document == 0:
        return _PADDING, "dim"
    return _LETTERS[(document - 1) % len(_LETTERS)], _STYLES[(document - 1) % len(_STYLES)]


def _compare(source: str, ids: Tensor, entries: Mapping[str, BatchEntry]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check every other encoding against the ids, each on its own."""
    agreeing: list[str] = []
    disagreements: list[str] = []
    for name, fields in _ENCODINGS.items():
        if name == source or name not in entries:
            continue
        if name == "padding_mask" and (source == "document_ids" or "document_ids" in agreeing):
            fields = ("document_ids", *fields)  # padding is what belongs to no document as packed
        try:
            present = [field for field in fields if field in entries]
            check_agreement(ids, {_CHECKED_AS.get(field, field): entries[field] for field in present})
        except PackingError as error:
            disagreements += [_without_remedy(problem, name) for problem in error.problems]
        else:
            agreeing.append(name)
    return tuple(agreeing), tuple(disagreements)


def _uncompared(source: str, entries: Mapping[str, BatchEntry]) -> tuple[str, ...]:
    looked_at = {field for name, fields in _ENCODINGS.items() if name in entries for field in fields}
    return tuple(name for name in entries if name != source and name not in looked_at)


def _without_remedy(problem: Problem, encoding: str) -> str:
    field = encoding if encoding in _CHECKED_AS else problem.field
    return str(replace(problem, field=field, remedy=""))


def _find_holes(ids: Tensor, segments: Segments, others: Mapping[str, Tensor]) -> Tensor:
    """A hole is a 0 at a token, by the ids as packed or the padding mask; where neither is there, between equal ids."""
    if "document_ids" in others:
        return (ids == 0) & (others["document_ids"] != 0)
    if "padding_mask" in others:
        return (ids == 0) & (others["padding_mask"] == 0)
    holes = torch.zeros(ids.numel(), dtype=torch.bool)
    for run in segments.holes.tolist():
        holes[int(segments.bounds[run]) : int(segments.bounds[run + 1])] = True
    return holes.view(ids.shape)


def _has(name: str, tensors: Mapping[str, Tensor]) -> bool:
    if name == "attention_mask":
        mask = tensors.get(name)
        return mask is not None and mask.ndim == 2 and is_indexed_packed_mask(mask)
    return name in tensors


def _from_positions(entries: Mapping[str, BatchEntry]) -> Tensor:
    padding = entries.get("padding_mask")
    mask = padding if isinstance(padding, Tensor) else None
    return document_ids_from_positions(_tensor(entries, "position_ids"), mask)


def _from_flash(entries: Mapping[str, BatchEntry]) -> Tensor:
    padding = entries.get("padding_mask")
    if not isinstance(padding, Tensor):
        padding = torch.zeros_like(_tensor(entries, "input_ids"), dtype=torch.bool)
    kwargs = parse_flash_varlen_kwargs({name: entries[name] for name in FLASH_FIELDS if name in entries})
    return document_ids_from_flash_varlen(cast("FlashVarlenKwargs[Tensor]", kwargs), padding)


def _from_lengths(entries: Mapping[str, BatchEntry]) -> Tensor:
    given = _tensor(entries, "seq_lens")
    problems = integer_rows_problems(given, "seq_lens")
    if problems:
        raise EncodingError(*problems)
    rows = read_on_host(given)
    lengths = [[length for length in row if length > 0] for row in rows.tolist()]
    return document_ids_from_lengths(lengths, batch_shape(cast("TrainingBatch[Tensor]", entries))[1])


def _tensor(entries: Mapping[str, BatchEntry], name: str) -> Tensor:
    value = entries.get(name)
    if isinstance(value, Tensor):
        return value
    message = "is needed to read the documents, and must be a tensor"
    raise BatchError(Problem(name, message, "missing", remedy="Save it too, or document_ids alone."))


_SOURCES: Final[Mapping[str, Callable[[Mapping[str, BatchEntry]], Tensor]]] = {
    "attention_document_ids": lambda entries: _tensor(entries, "attention_document_ids"),
    PACKED_SEQ_IDS: lambda entries: _tensor(entries, PACKED_SEQ_IDS),
    "document_ids": lambda entries: _tensor(entries, "document_ids"),
    "attention_mask": lambda entries: _tensor(entries, "attention_mask"),
    "packed_token_indices": lambda entries: document_ids_from_metadata(
        _tensor(entries, "packed_token_indices"), _tensor(entries, "cu_seqlens")
    ),
    "seq_lens": _from_lengths,
    "cu_seq_lens_q": _from_flash,
    "position_ids": _from_positions,
}
"""How documents are read from each field, the most trustworthy first."""


_ENCODINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "attention_document_ids": ("attention_document_ids",),
    PACKED_SEQ_IDS: (PACKED_SEQ_IDS,),
    "document_ids": ("document_ids",),
    "padding_mask": ("padding_mask",),
    "attention_mask": ("attention_mask",),
    "packed_token_indices": METADATA_FIELDS,
    "seq_lens": ("seq_lens",),
    "seq_lens_padded": ("seq_lens_padded",),
    "cu_seq_lens_q": FLASH_FIELDS,
    "position_ids": ("position_ids",),
}
"""The fields that speak of documents, each with those that belong to it."""

_CHECKED_AS: Final[Mapping[str, str]] = {"attention_document_ids": PACKED_SEQ_IDS}
"""Under which name a field is compared: these two hold the same."""
