"""Wrong pieces to plant into the implementation, each of a kind that has been met in real packers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from torch import Tensor

from neatpack.adapters import build_position_ids, yielding
from neatpack.adapters.attention_cost import AttentionCost
from neatpack.adapters.host_arrays import Integers
from neatpack.adapters.row_plans import Piece, RowPlan
from neatpack.adapters.segments import Documents, Segments
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import EncodingError, PackingError, Problem
from tests.adapters import oracle
from tests.adapters.properties import rows_of

Plant = Callable[[Any], Any]
"""Takes the piece that is there, and gives the one to put in its place."""


def swap(value: object) -> Plant:
    """Put something else in the place of a piece."""

    def plant(_: object) -> object:
        return value

    return plant


def returns(value: object) -> Plant:
    """Let a function do nothing but give a value."""

    def planted(*_args: object, **_kwargs: object) -> object:
        return value

    return swap(planted)


def after(change: Callable[[Any], object]) -> Plant:
    """Change what a function gives."""

    def plant(original: Callable[..., Any]) -> Callable[..., object]:
        def planted(*args: object, **kwargs: object) -> object:
            return change(original(*args, **kwargs))

        return planted

    return plant


def before(change: Callable[[Any], object]) -> Plant:
    """Change the first argument of a function."""

    def plant(original: Callable[..., Any]) -> Callable[..., object]:
        def planted(first: object, *args: object, **kwargs: object) -> object:
            return original(change(first), *args, **kwargs)

        return planted

    return plant


def given(**changes: object) -> Plant:
    """Call a function with other keyword arguments; None leaves one out."""

    def plant(original: Callable[..., Any]) -> Callable[..., object]:
        def planted(*args: object, **kwargs: object) -> object:
            changed = {**kwargs, **changes}
            return original(*args, **{name: value for name, value in changed.items() if value is not None})

        return planted

    return plant


def held(change: Callable[[Any], object]) -> Plant:
    """Change what a cached property holds."""

    def plant(original: Any) -> property:
        def planted(self: object) -> object:
            return change(original.func(self))

        return property(planted)

    return plant


def instead(change: Callable[..., object]) -> Plant:
    """Put a function in the place of another, which it is given before the arguments."""

    def plant(original: Callable[..., Any]) -> Callable[..., object]:
        def planted(*args: object, **kwargs: object) -> object:
            return change(original, *args, **kwargs)

        return planted

    return plant


def scanned_as(dtype: npt.DTypeLike) -> Plant:
    """Count in a narrow dtype, so that long documents wrap."""

    def narrow(found: Segments) -> Segments:
        return replace(found, bounds=found.bounds.astype(dtype).astype(np.int64))

    return after(narrow)


def rows_joined(ids: npt.NDArray[Any], device: torch.device) -> Segments:
    """Find runs in the flattened batch, without a boundary where a row begins."""
    flat = ids.ravel()
    starts = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))
    bounds = np.append(starts, flat.size).astype(np.int64)
    return Segments(ids.shape[0], ids.shape[1], device, bounds, flat[starts].astype(np.int64))


def holes_split(segments: Segments) -> Documents:
    """Take every run for a document of its own."""
    runs = segments.kept
    rows, starts = segments.rows[runs], segments.bounds[runs]
    counts = np.bincount(rows, minlength=segments.batch)
    return Documents(rows, segments.ids[runs], starts, segments.bounds[runs + 1], segments.lengths[runs], counts)


def last_document_lost(found: Documents) -> Documents:
    """Leave the last document of the batch out."""
    counts = np.array(found.counts)
    counts[found.rows[-1:]] -= 1
    return Documents(found.rows[:-1], found.ids[:-1], found.starts[:-1], found.ends[:-1], found.lengths[:-1], counts)


def written_in_place(original: Callable[..., Sequence[npt.NDArray[Any]]]) -> Callable[..., object]:
    """Write to what was read, which on the CPU is the caller's tensor."""

    def planted(*tensors: Tensor, **field: str) -> Sequence[npt.NDArray[Any]]:
        arrays = original(*tensors, **field)
        arrays[0][...] = np.where(arrays[0] == 0, 0, 1)
        return arrays

    return planted


def filled_beforehand(check: Callable[..., None]) -> Callable[..., None]:
    """Take tokens out of the caller's own ids."""

    def planted(eligibility: Tensor, document_ids: Tensor) -> None:
        check(eligibility, document_ids)
        document_ids.masked_fill_(~eligibility, 0)

    return planted


def as_packed(original: Callable[..., object], batch: object, name: str, remedy: str) -> object:
    """Take the ids as packed for those that attention goes by."""
    return original(batch, "document_ids" if name == "attention_document_ids" else name, remedy)


def emptied(batch: Any) -> Any:
    """Take an entry out of the caller's own mapping."""
    batch.pop("position_ids", None)
    return batch


def uncut(segments: Segments, _longest: int) -> npt.NDArray[np.int32]:
    """Leave long padding whole."""
    return segments.bounds.astype(np.int32)


def cut_too_long(original: Callable[..., object]) -> Callable[..., object]:
    """Cut padding into pieces one place longer than the longest document."""

    def planted(segments: Segments, longest: int) -> object:
        return original(segments, longest + 1)

    return planted


def cut_everywhere(original: Callable[..., object]) -> Callable[..., object]:
    """Cut documents as well as padding."""

    def planted(segments: Segments, longest: int) -> object:
        return original(replace(segments, ids=np.zeros_like(segments.ids)), longest)

    return planted


def lengths_backwards(lengths: list[list[int]], _sequence: int) -> list[Problem]:
    """Reverse the rows."""
    lengths.reverse()
    return []


def refuses(*_args: object) -> None:
    """Refuse what is right."""
    raise EncodingError(Problem("cu_seqlens", "refused although right", "value"))


def restarts_where_kept(segments: Segments, positions: npt.NDArray[Any]) -> None:
    """Look at the first kept token of a document alone, where policy took out those before it."""
    values, documents = np.broadcast_to(positions, (segments.batch, segments.sequence)).ravel(), segments.documents
    later = np.flatnonzero(documents.ranks)
    if (values[documents.starts[later]] > values[documents.ends[later - 1] - 1]).any():
        refuses()


def without_ids_as_packed(check: Callable[..., None]) -> Callable[..., None]:
    """Hold a mask against the attention ids alone."""

    def checked(segments: Segments, ids: object, given: object, arrays: Mapping[str, object]) -> None:
        check(segments, ids, given, {name: array for name, array in arrays.items() if name != "document_ids"})

    return checked


def restarts_at_zero(segments: Segments, positions: npt.NDArray[Any]) -> None:
    """Know no other start of positions than 0."""
    values, documents = np.broadcast_to(positions, (segments.batch, segments.sequence)).ravel(), segments.documents
    if values[documents.starts[documents.ranks > 0]].any():
        refuses()


def padding_runs_whole(original: Callable[..., object]) -> Callable[[Segments], object]:
    """Ship padding as one segment a run."""

    def planted(segments: Segments) -> object:
        return original(segments, "run")

    return planted


def holes_uncounted(ids: Tensor, start: int = 0) -> Tensor:
    """Count kept tokens, so that a hole uses up no coordinate."""
    found = build_position_ids(ids, start)
    for document in oracle.documents(rows_of(ids)):
        for count, place in enumerate(document.places):
            found[document.row, place] = start + count
    return found


def joined_by_count(segments: Segments, _positions: object) -> Integers:
    """Shift joined documents by the places before them, and not by the greatest coordinate."""
    documents = segments.documents
    shift = np.zeros(segments.ids.size, np.int64)
    shift[segments.kept] = (documents.starts - documents.rows * segments.sequence)[segments.owners]
    return np.repeat(shift, segments.lengths)


def taken_for(one: str, other: str) -> Plant:
    """Take one label shift for another."""

    def plant(original: Callable[..., object]) -> Callable[..., object]:
        def planted(segments: Segments, label_shift: str, own_last: Integers) -> object:
            return original(segments, other if label_shift == one else label_shift, own_last)

        return planted

    return plant


def padding_sees_padding(
    original: Callable[..., Tensor], query_ids: Tensor, key_ids: Tensor, *places: Tensor, **view: Any
) -> Tensor:
    """Take id 0 for a document like any other."""
    return original(query_ids + 1, key_ids + 1, *places, **view)


def later_tokens_seen(plane: Tensor, _window: int | None = None) -> None:
    """Forget that attention is causal."""
    plane.fill_(True)


def window_one_short(plane: Tensor, window: int | None = None) -> None:
    """Leave the token itself out of the window's count."""
    plane.fill_(True).tril_()
    if window is not None:
        plane.triu_(2 - window)


def filled_elsewhere(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Fill where the mask is False."""

    def planted(self: Tensor, mask: Tensor, value: float) -> Tensor:
        return original(self, ~mask, value)

    return planted


def holes_as_tokens(segments: Segments) -> Segments:
    """Give every zero to a document."""
    return replace(segments, ids=np.maximum(segments.ids, 1))


def keys_of_rows(keys: Integers) -> Integers:
    """Number documents within their row, and not as the caller did."""
    return np.where(keys < 0, -1, np.arange(keys.shape[1], dtype=np.int64))


def unbounded(original: Callable[[Any, int, int], object]) -> Callable[[Any, int, int], object]:
    """Forget how many documents a row may hold."""

    def planted(lengths: Any, capacity: int, _most: int) -> object:
        return original(lengths, capacity, 10**6)

    return planted


def next_row_taken(original: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
    """Pass the first row with room by, where another is open."""

    def planted(rooms: Any, length: int) -> int:
        row = original(rooms, length)
        return original(rooms, length) if length < 3 else row

    return planted


def room_left_behind(original: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """Leave room in a row that was handed out."""

    def planted(stream: Any, number: int) -> None:
        leaf, row = stream._open[number].leaf, stream._open[number]
        original(stream, number)
        stream._rooms.put(leaf, max(stream.capacity - row.tokens, 1), 1)

    return planted


def last_row_unseated(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Make a new tree without the row that was opened last."""

    def planted(stream: Any) -> None:
        original(stream)
        for row in list(stream._open.values())[-1:]:
            stream._rooms.put(row.leaf, 0, 0)

    return planted


def numbered_from_one(original: Callable[..., Any]) -> Callable[..., Any]:
    """Count rows from 1."""

    def planted(number: int, *parts: Any) -> Any:
        return original(number + 1, *parts)

    return planted


def one_document_less(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Save that the last document has still to come."""

    def planted(stream: Any) -> Any:
        state = original(stream)
        return {**state, "documents": max(state["documents"] - 1, 0)}

    return planted


def counted_first(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Count a document that is then refused."""

    def planted(stream: Any, item: Any) -> Any:
        try:
            return original(stream, item)
        except PackingError:
            stream.documents += 1
            raise

    return planted


def keys_by_count(original: Callable[[Any, Any], tuple[int, int]]) -> Callable[[Any, Any], tuple[int, int]]:
    """Number documents as they come, whatever the caller calls them."""

    def planted(stream: Any, item: Any) -> tuple[int, int]:
        return stream.documents, original(stream, item)[1]

    return planted


def last_piece_lost(pieces: Any) -> Any:
    """Leave the last piece out."""
    return pieces._make(array[:-1] for array in pieces)


def all_in_one_row(lengths: Integers, _capacity: int, _most: int, _method: str) -> Integers:
    """Place without regard to room."""
    return np.zeros_like(lengths)


def documents_shortened(original: Callable[..., Any]) -> Callable[..., Any]:
    """Count the tokens of documents one too few."""

    def planted(lengths: Integers, capacity: int, most: int) -> Any:
        return original(np.maximum(lengths - 1, 1), capacity, most)

    return planted


def padded_with_ones(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Take no heed of the token for padding."""

    def planted(tokens: object, layout: object, _pad_token_id: int, device: object) -> Tensor:
        return original(tokens, layout, 1, device)

    return planted


def from_its_start(document: int, _start: int, stop: int) -> Piece:
    """Name more than what was left out."""
    return Piece(document, 0, stop)


def highest(bits: int) -> int:
    """Find the highest bit in place of the lowest."""
    return bits.bit_length() - 1


def as_dealt(rows: Integers, _order: Integers, _dealt: Integers) -> Integers:
    """Leave rows in the order of their lengths."""
    return rows


def dropped_pieces_awaited(_keys: Integers, due: Integers, _plan: RowPlan) -> Integers:
    """Let each piece begin where the one before it ended."""
    return due


def counted_on(counted: Integers) -> Integers:
    """Count on from piece to piece."""
    return np.arange(counted.size)


def all_rows(_rows: object, plan: RowPlan) -> Integers:
    """Take no heed of which rows are wanted."""
    return np.arange(len(plan))


def all_in_the_first(row_of: Integers, *_: object) -> Integers:
    """Place everything into one row."""
    return np.zeros_like(row_of)


def cost_of_tokens(cost: AttentionCost, lengths: Integers) -> npt.NDArray[np.float64]:
    """Take no heed of attention."""
    return cost.linear * lengths.astype(np.float64)


def dealt_in_turn(rows: Integers, _costs: object, shape: tuple[int, int]) -> Any:
    """Deal rows as they come."""
    return np.reshape(rows, shape).tolist()


def as_drawn(drawn: Integers, _whole: int) -> Integers:
    """Leave the steps as they were drawn."""
    return drawn


def drawn_anew(count: int, _seed: int) -> Integers:
    """Draw another order each time."""
    return np.random.default_rng().permutation(count)


def window_lost_in_chunks(
    original: Callable[..., object], segments: object, dtype: object, window: object, *, chunk: object, **options: Any
) -> object:
    """Let a chunk stand for the window."""
    return original(segments, dtype, None if chunk else window, chunk=chunk, **options)


def as_it_came(value: object) -> object:
    """Change nothing."""
    return value


def long_by_the_first_row(scan: Any) -> Any:
    """Hold all rows for as long as the first one."""
    return scan._replace(too_long=scan.too_long[:1].expand_as(scan.too_long))


def nothing_done(original: Callable[[Any, int], object]) -> Callable[[Any, int], object]:
    """Forget which steps were done."""

    def planted(plan: Any, _done: int) -> object:
        return original(plan, 0)

    return planted


def one_row_further(rows: Any) -> Any:
    """Count the offsets of a row from somewhere else."""
    return replace(rows, cu_seqlens=rows.cu_seqlens + torch.arange(len(rows.cu_seqlens))[:, None])


def only_with_documents(metadata: Any) -> Any:
    """Let the data decide which keys there are."""
    return metadata if metadata["max_seqlen"] else {}


def mask_for_nobody(fields: Callable[..., object], capabilities: object, segments: Segments, *rest: object) -> object:
    """Build a dense mask, and throw it away."""
    vars(yielding)["build_block_causal_mask"](segments)  # By the name that a test replaces.
    return fields(capabilities, segments, *rest)


def squares_from(start: int, stop: int) -> Plant:
    """Move the edges of the squares within which tokens see each other."""

    def move(squares: Any) -> list[Any]:
        return [replace(square, start=square.start * start, stop=square.stop + stop) for square in squares]

    return after(move)


def first_offset_moved(arrays: Any) -> list[Any]:
    """Read offsets one too low."""
    return [arrays[0], np.maximum(arrays[1] - 1, 0)]


def last_unread(arrays: Any) -> list[Any]:
    """Take the last array, a mask, for empty."""
    return [*arrays[:-1], np.zeros_like(arrays[-1])]


def all_one(ids: Tensor) -> Tensor:
    """Make a row one document."""
    return (ids.to(torch.int64) != 0).to(torch.int64)


def keys_one_longer(kwargs: Any) -> Any:
    """Say that keys are longer than queries."""
    return {**kwargs, "max_seqlen_k": kwargs["max_seqlen_k"] + 1}


def keys_from_elsewhere(kwargs: Any) -> Any:
    """Move the offsets of the keys."""
    return {**kwargs, "cu_seqlens_k": kwargs["cu_seqlens_k"] + 1}


def by_attention(scanned: Any) -> Any:
    return scanned.attention


def without_policy(batch: dict[str, object]) -> dict[str, object]:
    batch.pop("attention_document_ids", None)
    return batch


def query_counted_twice(window: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """Take a model's window for the keys before a query."""
    before, after_it = window
    return None if before is None else before + 1, after_it


def one_entry_too_far(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Take the size for the last entry."""
    return sum(size * stride for size, stride in zip(shape, strides, strict=True))


def capabilities_without(field: str) -> Callable[[Any], object]:
    """Give the default of a field, whatever was said."""

    default: object = getattr(PackingCapabilities("document_ids"), field)

    def change(core: PackingCapabilities) -> PackingCapabilities:
        changes: dict[str, Any] = {field: default}
        return replace(core, **changes)

    return change


def default_options(options: Any) -> Any:
    """Keep the capacity alone."""
    return {"capacity": options["capacity"], "method": "best_fit", "overlong": "refuse", "documents_per_row": None}


def read_what_is_known(model: Any, entries: Any) -> Any:
    """Take no heed of keys that are not known."""
    known = {name: value for name, value in entries.items() if name in model.model_fields}
    return _read(model, known, strict=True)


def read_loosely(model: Any, entries: Any) -> Any:
    """Convert what is of another type."""
    return _read(model, entries, strict=False)


def _read(model: Any, entries: Any, *, strict: bool) -> Any:
    try:
        return model.model_validate(entries, strict=strict)
    except ValidationError as error:
        fields = [".".join(map(str, found["loc"])) for found in error.errors()]
        raise model.error(*(Problem(field, "is wrong", "value") for field in fields)) from error


def of_the_depth_before(original: Callable[..., Any], segments: Segments, depth: int, shifted: object) -> Any:
    """Look for the boundaries one place too near."""
    return original(segments, max(depth - 1, 0), shifted)


def none_shifted(original: Callable[..., Any], segments: Segments, depth: int, _shifted: object) -> Any:
    """Take the last label of a document for that of the next one."""
    return original(segments, depth, None)


def all_shifted(original: Callable[..., Any], segments: Segments, depth: int, _shifted: object) -> Any:
    """Take the last label of a document for its own."""
    return original(segments, depth, segments.documents)


def spans_for_lengths(documents: Documents) -> Documents:
    """Count the holes of a document among its tokens."""
    return replace(documents, lengths=documents.ends - documents.starts)


def owned_by_the_first(original: Callable[[Segments], Integers], segments: Segments) -> Integers:
    """Give what is in no document to the first one."""
    return np.maximum(original(segments), 0)


def other_half(original: Callable[..., Any], segments: Segments, rank: int, ranks: int, *rest: str) -> Any:
    """Give a rank the chunks of its opposite."""
    return original(segments, ranks - 1 - rank, ranks, *rest)


def next_rank(original: Callable[..., Any], segments: Segments, rank: int, ranks: int, *rest: str) -> Any:
    """Give a rank what the next one should have."""
    return original(segments, (rank + 1) % ranks, ranks, *rest)


def window_one_wider(original: Callable[..., Any], *args: object, **kwargs: Any) -> Any:
    """Let a query see one place more than the window holds."""
    window = kwargs.pop("window", None)
    return original(*args, window=window if window is None else window + 1, **kwargs)


def over_the_end_of_the_row(original: Callable[..., Any], segments: Segments, size: int) -> Any:
    """Take the last block of a row for a whole one."""
    begins, _, origins = original(segments, size)
    return begins, begins + size, origins


def without_its_tail(original: Callable[..., Any], ids: object, bounds: object, _tail: str = "empty") -> Any:
    """Leave the places out that follow the last document."""
    return original(ids, bounds, "empty")


def told_where_a_place_is_left_out(original: Callable[..., Any], mark: Tensor, sides: tuple[int, int]) -> Any:
    """Tell a tail that does not fit at every place, ahead of what the ids did wrong."""
    return mark.expand(sides[0] + 1) if mark.dtype == torch.bool else original(mark, sides)


def of_another_scan(original: Callable[..., Any], ids: Any, bounds: object) -> Any:
    """Take all tokens of a scan that was given for those of one document."""
    scan = original(ids, bounds)
    return scan if isinstance(ids, Tensor) else scan._replace(first=scan.first.clamp(max=2))


def places_uncounted(original: Callable[..., Any], real: Integers, _padded: Integers, device: object) -> Any:
    """Count no padding among the places of a stream."""
    return original(real, real, device)


def last_offset_twice(flat: Any) -> Any:
    """End a stream with a document of no token."""
    return replace(flat, cu_seqlens=torch.cat([flat.cu_seqlens, flat.cu_seqlens[-1:]]))


def longest_of_the_batch(rows: Any) -> Any:
    """Tell each row of the longest segment of all."""
    return replace(rows, max_seqlen=rows.max_seqlen.max().expand_as(rows.max_seqlen))


def filled_with_zeros(found: Any) -> Any:
    """Put zeros where an offset is unused, beside the status as it is."""
    rows, status = found
    return replace(rows, cu_seqlens=rows.cu_seqlens.clamp(min=0)), status


def unshifted(labels: Tensor, *_: object, **_named: object) -> Tensor:
    """Take labels for targets."""
    return labels


def whole_for_each(segments: Segments, sizes: list[int]) -> list[Segments]:
    """Give each part the boundaries of the whole."""
    return [segments] * len(sizes)


def padding_as_kept(scan: Any) -> Tensor:
    """Keep the places of padding."""
    return torch.ones_like(scan.ids[:, 2:], dtype=torch.bool)


def cut_from_the_start_of_the_row(_original: object, scan: Any, begins_run: Tensor) -> Tensor:
    """Cut where runs begin, and every so many places of the row."""
    return torch.logical_or(begins_run, scan.places % scan.bounds.longest == 0)


def going_on_from_the_row_before(begins_run: Tensor) -> Tensor:
    """Let no run begin where a row does."""
    return begins_run & (torch.arange(begins_run.shape[1]) > 0)


def a_token_in_every_block(blocks: Any) -> Any:
    """Count a token where a block has none."""
    return blocks._replace(tokens=blocks.tokens.clamp(min=1))


def from_the_start_of_the_row(spans: Any) -> Any:
    """Let every document begin where its row does."""
    return torch.zeros_like(spans[0]), spans[1]


def lengths_alone(segments: Segments) -> Integers:
    """Count no padding."""
    return segments.documents.lengths


def to_no_multiple(original: Callable[..., Any], segments: Segments, _multiple: int) -> Any:
    """Pad no document."""
    return original(segments, 1)


def of_one_row(original: Callable[..., Any], opens: object, places: int, _sequence: int) -> Any:
    """Take the flattened batch for one row."""
    return original(opens, places, places)


def padding_taken_back(rows: Any) -> Any:
    """Give padding the values of the first token."""
    return replace(rows, in_no_document=torch.zeros_like(rows.in_no_document))


def first_run_alone(runs: Integers) -> Integers:
    """Keep one run of tokens."""
    return runs[:1]


def without_the_last_segment(found: Any) -> Any:
    """Lose the end of a stream."""
    return found[0][:-1], found[1]


def one_multiple_more(original: Callable[..., Any], segments: Segments, multiple: int) -> Any:
    """Pad each document to one place more."""
    return original(segments, multiple + 1)


def first_of(first: object, *_others: object) -> object:
    """Give what was given first."""
    return first


def bools_as_ints(original: Callable[..., Any]) -> Callable[..., object]:
    """Read a list of a state in which a bool stands where an int belongs."""

    def as_ints(value: object) -> object:
        if isinstance(value, list):
            return [as_ints(each) for each in cast("list[object]", value)]
        return int(value) if isinstance(value, bool) else value

    def planted(entries: dict[str, object], name: str, **shape: object) -> object:
        return original({name: as_ints(entries[name])}, name, **shape)

    return planted
