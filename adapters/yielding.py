"""The loader's last step: from a collated batch to the fields that the model's contract names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from neatpack.adapters.agreement import scan_agreeing
from neatpack.adapters.arguments import require_flag
from neatpack.adapters.batch_entries import refuse_kernel_fields, require_batch, require_structure, require_tensor
from neatpack.adapters.boundary_fields import FLASH_FIELDS, IDS, LENGTH_FIELDS, METADATA_FIELDS, PACKED_SEQ_IDS
from neatpack.adapters.labels import mask_labels, require_inside
from neatpack.adapters.layout import KEEPING_HOLES, OF_JOINED, require_no_holes
from neatpack.adapters.masks import build_block_causal_mask
from neatpack.adapters.neat_metadata import build_packed_sequence_metadata
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.adapters.segments import Segments
from neatpack.contracts.batch import LabelShift, TrainingBatch
from neatpack.contracts.capabilities import AnyPackedSequenceContract, PackingCapabilities
from neatpack.contracts.errors import BatchError, Problem

_BOUNDARY_FIELDS: Final = (
    *IDS,
    "seq_idx",
    "attention_mask",
    *FLASH_FIELDS,
    *METADATA_FIELDS,
    *LENGTH_FIELDS,
    "qkv_format",
    "padding_mask",
)


def apply_packing_contract(
    batch: TrainingBatch[Tensor],
    contract: AnyPackedSequenceContract,
    *,
    flat: bool = False,
    label_shift: LabelShift = "model",
    inside_documents: bool = False,
) -> TrainingBatch[Tensor]:
    """Give the batch the fields that a model with this contract reads, and take away every other boundary field.

    Which keys come out depends on the contract alone, never on what one batch holds: always `_packed_seq_ids`
    (int64, from which a configured model derives all else after a pipeline schedule has cut the batch),
    `padding_mask`, and labels of which no target crosses a boundary; NEAT metadata and the structural `document_ids`
    where the contract asks for them. Entries that speak of no boundary pass through. `pipeline_chunk_dims` tells how a
    pipeline schedule cuts the result.

    Args:
        batch: with `_packed_seq_ids` or `attention_document_ids`, or `document_ids` where no policy was applied.
            Whatever else in it speaks of boundaries is checked against them.
        contract: what the model takes, of either generation.
        flat: for a model that was not configured by neatpack and derives nothing itself: add what its mask type
            names as well, a dense `attention_mask`, an `attention_mask` of ids, or flash varlen kwargs. Flash varlen
            kwargs do not survive a cut of the batch.
        label_shift: who shifted the labels, see `mask_labels`.
        inside_documents: keep targets inside the structural documents where attention joins them. It takes
            `document_ids`.

    Returns:
        The same mapping. A batch that is refused stays as it came. `_packed_seq_ids` and `document_ids` are the tensors
        that came in where those are int64, and copies otherwise; so is an `attention_mask` of ids. Labels, dense masks
        and offsets are new, and entries that pass through are the same tensors. None is written to. Applied again, it
        changes nothing; but where the contract drops the ids as packed, a hole at the start of a document that
        attention joins is one inside of it from then on, and with `label_shift="document"` takes the target before it.

    Raises:
        CapabilitiesError: the contract is none.
        BatchError: an entry is missing or misshapen, rows are longer than the contract allows, or the entries of the
            batch cannot be replaced.
        DocumentIdsError: ids are malformed, or have a hole inside a document and the contract takes none.
        EncodingError: an entry contradicts the ids or is an argument of a kernel, text positions do not restart in
            each document and the contract does not say that they may run on, no such `label_shift`, or a flag that is
            no bool.

    Example:
        >>> from neatpack.adapters.collation import collate_documents
        >>> from neatpack.adapters.planning import plan_rows
        >>> batch = collate_documents([torch.tensor([5, 6]), torch.tensor([7])], plan_rows([2, 1], capacity=4))
        >>> batch = apply_packing_contract(batch, PackingCapabilities("document_ids", True))
        >>> batch["_packed_seq_ids"], batch["cu_seqlens"]
        (tensor([[1, 1, 2, 0]]), tensor([[0, 2, 3]], dtype=torch.int32))
        >>> batch["labels"]
        tensor([[-100,    6, -100, -100]])
    """
    capabilities = PackingCapabilities.from_contract(contract)
    require_flag(flat, "flat")
    require_batch(batch)
    require_inside(inside_documents, batch.get("document_ids"), error=BatchError)
    labels = require_tensor(batch, "labels", "Give labels, -100 where there is no target.")
    name = next((name for name in IDS if batch.get(name) is not None), "document_ids")
    ids = require_tensor(batch, name, "Derive them, as document_ids_from_positions(...).")
    require_structure(batch)
    entries = cast("dict[str, object]", batch)
    scanned = scan_agreeing(ids, entries, field=name, position_policy=capabilities.position_policy)
    refuse_kernel_fields(entries)
    segments = scanned.attention
    _require_length(segments, capabilities)
    if not capabilities.takes_holes:
        require_no_holes(segments, name, remedy=OF_JOINED + KEEPING_HOLES)
    ids = ids.to(torch.int64)
    fields: dict[str, object] = {
        PACKED_SEQ_IDS: ids,
        "padding_mask": _padding_mask(entries, segments),
        "labels": mask_labels(
            labels, segments, label_shift, document_ids=scanned.packed, inside_documents=inside_documents
        ),
        **_contract_fields(capabilities, segments, entries),
        **(_flat_fields(capabilities, segments, ids) if flat else {}),
    }
    for key in _BOUNDARY_FIELDS:
        entries.pop(key, None)
    entries.update(fields)
    return batch


def _padding_mask(entries: Mapping[str, object], segments: Segments) -> Tensor:
    """Padding is where the structural ids are 0; without those, where a mask says so, or else but for zeros inside."""
    structural, padding_mask = entries.get("document_ids"), entries.get("padding_mask")
    if isinstance(structural, Tensor):
        return structural == 0
    if isinstance(padding_mask, Tensor):
        return padding_mask
    runs = np.zeros(segments.ids.size, np.bool_)
    runs[segments.padding] = True
    return segments.tensor(np.repeat(runs, segments.lengths)).view(segments.batch, segments.sequence)


def _contract_fields(
    capabilities: PackingCapabilities, segments: Segments, entries: Mapping[str, object]
) -> Mapping[str, object]:
    fields: dict[str, object] = {}
    if capabilities.requires_packed_sequence_metadata:
        fields.update(build_packed_sequence_metadata(segments, allow_empty=True))
    if capabilities.return_document_ids:
        document_ids = entries.get("document_ids")
        if not isinstance(document_ids, Tensor):
            remedy = "Keep the ids as packed beside attention_document_ids."
            raise BatchError(Problem("document_ids", "missing, and the contract asks for it", "missing", remedy=remedy))
        fields["document_ids"] = document_ids.to(torch.int64)
    return fields


def _flat_fields(capabilities: PackingCapabilities, segments: Segments, ids: Tensor) -> Mapping[str, object]:
    if capabilities.packed_mask_type == "flash_varlen":
        return dict(flash_varlen_kwargs(segments))
    if capabilities.packed_mask_type == "document_ids":
        return {"attention_mask": ids}
    return {"attention_mask": build_block_causal_mask(segments)}


def _require_length(segments: Segments, capabilities: PackingCapabilities) -> None:
    limit = capabilities.max_sequence_length
    if limit is not None and segments.sequence > limit:
        remedy = f"Pack into rows of at most {limit} places: nothing is truncated."
        message = f"rows are longer than the contract's max_sequence_length, {limit}"
        raise BatchError(Problem("input_ids", message, "shape", value=segments.sequence, remedy=remedy))
