"""What a loss over packed rows needs beside labels: targets further ahead, and weights."""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neatpack.adapters.arguments import require_choice, require_count
from neatpack.adapters.labels import require_inside, require_label_shift, require_labels, scan_bounds
from neatpack.adapters.reductions import reduce_by_document
from neatpack.adapters.segments import Documents, Segments, as_segments
from neatpack.contracts.batch import LabelShift
from neatpack.contracts.fields import IGNORED_LABEL

WeightUnit = Literal["token", "document", "sequence"]
"""What counts the same in a loss: every target, every document that has one, or every row that has one."""

WEIGHT_UNITS: Final[tuple[WeightUnit, ...]] = get_args(WeightUnit)


def mtp_targets(
    labels: Tensor,
    attention_document_ids: Tensor | Segments,
    depth: int,
    label_shift: LabelShift,
    *,
    document_ids: Tensor | Segments | None = None,
    inside_documents: bool = False,
) -> Tensor:
    """Give each token the target of multi-token prediction: the token `depth + 1` places after it, in its document.

    Depth 0 is next-token prediction. The result is shifted already, whoever shifted the labels.

    Args:
        labels: integer, `[batch, sequence]`, -100 where there is no target.
        attention_document_ids: any integer dtype, `[batch, sequence]`: the boundaries.
        depth: how many tokens lie between a token and its target, at least 0.
        label_shift: who shifted `labels`, as `mask_labels` takes it. With "document" the last label of a document is
            a target of its own, and stays one at every depth.
        document_ids: the structural ids, where policy made other attention ids of them; see `mask_labels`.
        inside_documents: keep targets inside the structural documents as well, where attention joins those. It takes
            `document_ids`.

    Returns:
        `[batch, sequence]` in the dtype of `labels`, -100 where the target is in no document, in another one, or in
        a hole.

    Raises:
        DocumentIdsError: ids are malformed.
        EncodingError: labels are no integers of the same shape on the same device, no such `label_shift`, a negative
            depth, `inside_documents` that is no bool or stands without `document_ids`, or no policy makes attention ids
            of those as packed.

    Example:
        >>> ids, tokens = torch.tensor([[1, 1, 1, 2, 2, 0]]), torch.tensor([[10, 11, 12, 20, 21, 0]])
        >>> mtp_targets(tokens, ids, 0, "model")
        tensor([[  11,   12, -100,   21, -100, -100]])
        >>> mtp_targets(tokens, ids, 1, "model")
        tensor([[  12, -100, -100, -100, -100, -100]])
    """
    require_inside(inside_documents, document_ids)
    require_label_shift(label_shift)
    attention, structural = scan_bounds(labels, attention_document_ids, document_ids)
    depth = require_count(depth, "depth", "Give how many tokens lie between a token and its target.")
    shifted = structural.documents if label_shift == "document" else None
    kept = _pairs(attention, depth, shifted)
    if inside_documents:
        kept &= _pairs(structural, depth, shifted)
    ahead = depth + 1 if label_shift == "model" else depth
    targets = torch.full_like(labels, IGNORED_LABEL)
    targets[:, : max(labels.shape[1] - ahead, 0)] = labels[:, ahead:]
    return targets.masked_fill_(attention.tensor(~kept).view(labels.shape), IGNORED_LABEL)


def loss_weights(labels: Tensor, document_ids: Tensor | Segments, per: WeightUnit) -> Tensor:
    """Weight targets so that every token, every document or every row counts the same.

    Divide the weighted sum of the loss by the sum of the weights, both taken over all microbatches and ranks: it is
    the number of tokens, documents or rows that have a target.

    Args:
        labels: final labels, integer, `[batch, sequence]`, -100 where there is no target.
        document_ids: any integer dtype, `[batch, sequence]`.
        per: "token", "document" or "sequence" (the row).

    Returns:
        float32 `[batch, sequence]`, where each label stands; 0 where there is no target.

    Raises:
        DocumentIdsError: the ids are malformed.
        EncodingError: labels are no integers of the same shape on the same device, or no such unit.

    Example:
        >>> labels, ids = torch.tensor([[-100, 11, 12, -100, 21, -100]]), torch.tensor([[1, 1, 1, 2, 2, 0]])
        >>> loss_weights(labels, ids, "document")
        tensor([[0.0000, 0.5000, 0.5000, 0.0000, 1.0000, 0.0000]])
    """
    segments = as_segments(document_ids)
    require_labels(labels, [segments])
    require_choice(per, WEIGHT_UNITS, "per")
    owners = segments.owners_of_places()
    counted = (labels != IGNORED_LABEL) & segments.tensor(owners >= 0).view(labels.shape)
    weights = counted.to(torch.float32)
    if per == "token":
        return weights
    if per == "sequence":
        return weights / weights.sum(dim=1, keepdim=True).clamp_(min=1)
    counts = reduce_by_document(counted, segments, "sum").clamp_(min=1)
    shares = torch.cat([counts.to(torch.float32).reciprocal(), counts.new_zeros(1, dtype=torch.float32)])
    # What is appended is found at -1, the owner of places of no document.
    return weights * shares[segments.tensor(owners)].view(labels.shape)


def _pairs(segments: Segments, depth: int, shifted: Documents | None) -> npt.NDArray[np.bool_]:
    """Mark the places whose target is in their own document; `shifted` have one of their own after their last token."""
    owners = segments.owners_of_places()
    kept = np.zeros(owners.size, np.bool_)
    kept[: -depth - 1] = (owners[: -depth - 1] == owners[depth + 1 :]) & (owners[: -depth - 1] >= 0)
    if shifted is not None:
        before = shifted.ends - 1 - depth
        # To which document here a shifted one belongs is told by any token of it, unless all are taken out.
        own = np.maximum.reduceat(owners, shifted.starts)[before >= 0]
        before = before[before >= 0]
        kept[before] = (owners[before] == own) & (own >= 0)
    return kept
