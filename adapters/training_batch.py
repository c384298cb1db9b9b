"""Attention policy on a collated batch: which tokens may be seen, and which documents see each other on purpose.

Entries of the mapping are replaced, no tensor is written to, and a batch that is refused stays as it came.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.agreement import scan_agreeing
from neatpack.adapters.agreement_per_token import require_restarts
from neatpack.adapters.arguments import INT64_MAX
from neatpack.adapters.batch_entries import require_batch, require_structure, require_tensor
from neatpack.adapters.host_arrays import read_together
from neatpack.adapters.layout import KEEPING_HOLES, OF_JOINED, require_no_holes
from neatpack.adapters.segments import Documents, Segments, scan_array
from neatpack.adapters.token_tensors import bool_rows_problems, device_problems, same_place_problems
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import AnyPackedSequenceContract, PackingCapabilities
from neatpack.contracts.errors import BatchError, Problem


def adapt_model_inputs(
    batch: TrainingBatch[Tensor], attention_eligibility: Tensor | None = None
) -> TrainingBatch[Tensor]:
    """Add `attention_document_ids`: the ids as packed, 0 at padding and at tokens that no other may see.

    Args:
        batch: with `document_ids`, any integer dtype, `[batch, sequence]`, that match the tokens as shifted and
            padded. `padding_mask`, `position_ids` and `seq_idx` are checked against them, and so are
            `attention_document_ids`: tokens that they exclude already stay excluded.
        attention_eligibility: bool, `[batch, sequence]`, False at tokens to exclude, such as the placeholders of an
            image. They become holes; padding is excluded anyway.

    Returns:
        The same mapping, with int64 `attention_document_ids`, which share no memory with the other ids.

    Raises:
        BatchError: an entry is missing or misshapen, or the entries of the batch cannot be replaced.
        DocumentIdsError: the ids are malformed.
        EncodingError: an entry contradicts the ids.

    Example:
        >>> from neatpack.adapters.collation import collate_documents
        >>> from neatpack.adapters.planning import plan_rows
        >>> batch = collate_documents([torch.tensor([5, 6]), torch.tensor([7])], plan_rows([2, 1], capacity=4))
        >>> adapt_model_inputs(batch)["attention_document_ids"]
        tensor([[1, 1, 2, 0]])
    """
    require_batch(batch)
    document_ids = require_tensor(batch, "document_ids", "Derive them, as document_ids_from_positions(...).")
    require_structure(batch)
    names = ("document_ids", "attention_document_ids", "padding_mask", "position_ids", "seq_idx")
    given = {name: batch.get(name) for name in names}
    scan_agreeing(document_ids, given, field="document_ids", position_policy="sequence", may_exclude=True)
    attention_ids = document_ids.to(torch.int64, copy=True)
    if isinstance(before := given["attention_document_ids"], Tensor):
        attention_ids = attention_ids.masked_fill(before == 0, 0)
    if attention_eligibility is not None:
        _require_eligibility(attention_eligibility, document_ids)
        attention_ids = attention_ids.masked_fill(~attention_eligibility, 0)
    batch["attention_document_ids"] = attention_ids
    return batch


def enable_xdoc_attention(
    batch: TrainingBatch[Tensor], packing_contract: AnyPackedSequenceContract
) -> TrainingBatch[Tensor]:
    """Join the documents of each row, in attention and in positions.

    Every document is shifted, on all axes alike, by the room that the earlier ones of its row take: for each, its
    greatest coordinate over all axes and one. Excluded tokens move with their document; padding stays.

    Args:
        batch: as `adapt_model_inputs` leaves it, with `position_ids`, `[batch, sequence]` or `[axes, batch,
            sequence]`, nonnegative and local to each document.
        packing_contract: what the model takes.

    Returns:
        The same mapping, with `attention_document_ids` of 1 where attention is allowed, and int64 `position_ids`.

    Raises:
        CapabilitiesError: the contract is no packing contract.
        BatchError: an entry is missing, misshapen or elsewhere than the ids, a coordinate is negative or past int64,
            the documents are joined already, or the entries of the batch cannot be replaced.
        DocumentIdsError: ids are malformed; or the contract takes no holes, and something is excluded or padded
            between the first and the last token of a row.
        EncodingError: text positions run on over the documents of a row already.

    Example:
        >>> from neatpack.adapters.collation import collate_documents
        >>> from neatpack.adapters.planning import plan_rows
        >>> batch = collate_documents([torch.tensor([5, 6]), torch.tensor([7])], plan_rows([2, 1], capacity=4))
        >>> batch = enable_xdoc_attention(adapt_model_inputs(batch), PackingCapabilities("document_ids"))
        >>> batch["attention_document_ids"], batch["position_ids"]
        (tensor([[1, 1, 1, 0]]), tensor([[0, 1, 2, 0]]))
    """
    capabilities = PackingCapabilities.from_contract(packing_contract)
    require_batch(batch)
    document_ids = require_tensor(batch, "document_ids", "Derive them, as document_ids_from_positions(...).")
    attention_ids = require_tensor(batch, "attention_document_ids", "Call adapt_model_inputs(batch) first.")
    position_ids = require_tensor(batch, "position_ids", "Build them: build_position_ids(document_ids).")
    require_structure(batch)
    for name, entry in {"attention_document_ids": attention_ids, "position_ids": position_ids}.items():
        if problems := device_problems(entry, document_ids.device, name, "document_ids lies"):
            raise BatchError(*problems)
    structural, attention, positions = read_together(document_ids, attention_ids, position_ids, field="document_ids")
    segments = scan_array(structural, document_ids.device, "document_ids")
    _require_unjoined(structural, attention)
    shift = _joined_shift(segments, positions)
    require_restarts(segments, positions, "Build them of the ids as packed: build_position_ids(document_ids).")
    joined = (attention_ids != 0).to(torch.int64)
    if not capabilities.takes_holes:
        joined_array = (attention != 0).astype(np.int64)
        joined_segments = scan_array(joined_array, joined.device, "attention_document_ids")
        require_no_holes(joined_segments, "attention_document_ids", remedy=OF_JOINED + KEEPING_HOLES)
    shifted = position_ids.to(torch.int64) + segments.tensor(shift).view(joined.shape)
    batch["attention_document_ids"], batch["position_ids"] = joined, shifted
    return batch


def _require_eligibility(eligibility: Tensor, document_ids: Tensor) -> None:
    name, remedy = "attention_eligibility", "Give True at tokens that may be seen."
    problems = bool_rows_problems(eligibility, name, remedy)
    problems = problems or same_place_problems(eligibility, document_ids, name, "document_ids")
    if problems:
        raise BatchError(*problems)


def _require_unjoined(structural: npt.NDArray[np.int64], attention: npt.NDArray[np.int64]) -> None:
    wrong = (attention != 0) & (attention != structural)
    if wrong.any():
        row, position = (int(axis[0]) for axis in np.nonzero(wrong))
        message = "differs from document_ids: the documents are joined already, or the ids come from elsewhere"
        remedy = "Join each batch once, after adapt_model_inputs."
        value = int(attention[row, position])
        raise BatchError(Problem("attention_document_ids", message, "disagreement", row, position, value, remedy))


def _joined_shift(segments: Segments, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Give what to add to each place's coordinates, `[batch * sequence]`."""
    of_tokens = np.repeat(segments.ids != 0, segments.lengths)
    axes = np.reshape(positions, (-1, of_tokens.size))
    _refuse_coordinates("coordinate past int64", axes > INT64_MAX, axes, segments)
    _refuse_coordinates("negative coordinate", (axes < 0) & of_tokens, axes, segments)
    axes, starts = axes.astype(np.int64), segments.bounds[:-1]
    documents = segments.documents
    greatest = np.zeros(documents.rows.size, np.int64)
    np.maximum.at(greatest, segments.owners, np.maximum.reduceat(axes.max(axis=0, initial=0), starts)[segments.kept])
    _require_room(documents, greatest)
    room = greatest + 1
    before = np.cumsum(room) - room
    before -= before[np.arange(before.size) - documents.ranks]
    shift = np.zeros(segments.ids.size, np.int64)
    shift[segments.kept] = before[segments.owners]
    return np.repeat(shift, segments.lengths)


def _refuse_coordinates(
    message: str, wrong: npt.NDArray[np.bool_], axes: npt.NDArray[np.int64], segments: Segments
) -> None:
    """Raise at the first place that is wrong on any axis; `wrong` and `axes` are `[axes, batch * sequence]`."""
    if wrong.any():
        place = int(wrong.any(axis=0).argmax())
        row, position = divmod(place, segments.sequence)
        value, remedy = int(axes[wrong[:, place].argmax(), place]), "Count from 0 or above in each document."
        raise BatchError(Problem("position_ids", message, "value", row, position, value, remedy))


def _require_room(documents: Documents, greatest: npt.NDArray[np.int64]) -> None:
    """Raise where the coordinates of the joined documents of a row would be past int64."""
    sums = np.bincount(documents.rows, weights=greatest + 1.0)
    (beyond,) = (sums >= 2.0**63).nonzero()
    if beyond.size:
        message = "coordinates of joined documents would be past int64"
        remedy = "Give coordinates that start at 0 or above in each document, and rise to about its length."
        value = int(greatest[documents.rows == beyond[0]].max())
        raise BatchError(Problem("position_ids", message, "value", int(beyond[0]), value=value, remedy=remedy))
