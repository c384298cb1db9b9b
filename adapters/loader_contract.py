"""What a loader settles once, when it is built: which contract it serves, and whether it can."""

from __future__ import annotations

import warnings
from typing import Final

from neatpack.adapters.arguments import require_choice, require_count, require_flag
from neatpack.adapters.labels import require_label_shift
from neatpack.adapters.layout import AS_ROWS, KEEPING_HOLES
from neatpack.contracts.batch import BATCH_OUTPUT_FORMATS, BatchOutputFormat, LabelShift
from neatpack.contracts.capabilities import AnyPackedSequenceContract, PackedMaskType, PackingCapabilities
from neatpack.contracts.errors import ContractError, Problem

_FLASH_ATTENTION: Final = ("flash_attention_2", "flash_attention_3", "flash_attention_4")


def require_supported_packing_contract(
    contract: AnyPackedSequenceContract,
    *,
    eligibility: bool = False,
    xdoc: bool = False,
    trailing_padding: bool = False,
    output_format: BatchOutputFormat = "batched",
    sequence_length: int | None = None,
    label_shift: LabelShift | None = None,
    model_shifts_labels: bool = True,
) -> None:
    """Raise unless a loader with these policies can serve the contract. Call it before workers start.

    Flash varlen kwargs and THD lengths count the places of the padded rows: a document is one contiguous segment. So
    tokens excluded inside a document cannot be expressed, nor can padding between documents that are joined. Nor does
    a model take them whose contract says `takes_holes=False`, in whatever form it learns the boundaries.

    Args:
        contract: of either generation.
        eligibility: whether the loader excludes tokens of documents from attention.
        xdoc: whether it joins the documents of a row.
        trailing_padding: whether it promises that padding stands only after the last document of a row.
        output_format: "thd" if its batches leave with the lengths of every document, as `convert_batch_output` adds
            them.
        sequence_length: places of a row, where it is known.
        label_shift: who shifts the labels that it yields, as `mask_labels` takes it, where it is known.
        model_shifts_labels: whether the model, or its loss, shifts labels itself, as Hugging Face's causal models do.

    Raises:
        CapabilitiesError: `contract` is no packing contract.
        ContractError: the contract cannot express what the loader would do, rows are longer than it allows, or labels
            would be shifted twice or never; or an argument is none of the named.

    Example:
        >>> require_supported_packing_contract(PackingCapabilities("flash_varlen"), xdoc=True, trailing_padding=True)
        >>> require_supported_packing_contract(PackingCapabilities("flash_varlen"), eligibility=True)
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.ContractError: packed_mask_type = flash_varlen: cannot express tokens excluded \
inside a document. Build a model that does not declare `takes_holes = False`, with a consumer such as \
`block_causal` or `reference`.
    """
    capabilities = PackingCapabilities.from_contract(contract)
    flags = {"eligibility": eligibility, "xdoc": xdoc, "trailing_padding": trailing_padding}
    for name, value in {**flags, "model_shifts_labels": model_shifts_labels}.items():
        require_flag(value, name, error=ContractError)
    require_choice(output_format, BATCH_OUTPUT_FORMATS, "output_format", error=ContractError)
    if label_shift is not None:
        require_label_shift(label_shift, error=ContractError)
    _require_room(capabilities, sequence_length)
    if label_shift is not None:
        _require_one_shift(label_shift, model_shifts_labels)
    if output_format == "thd" and capabilities.uses_native_fa4:
        message = "native FlashAttention-4 gathers tokens itself, and takes no pre-packed THD"
        raise ContractError(Problem("output_format", message, "unsupported", value=output_format, remedy=AS_ROWS))
    joined = xdoc and not trailing_padding
    if capabilities.packed_mask_type == "flash_varlen":
        _require_contiguous("packed_mask_type", "flash_varlen", eligibility=eligibility, joined=joined)
    elif not capabilities.takes_holes:
        _require_contiguous("takes_holes", False, eligibility=eligibility, joined=joined)
    if output_format == "thd":
        _require_contiguous("output_format", output_format, eligibility=eligibility, joined=joined)


def resolve_packing_contract(
    packing: AnyPackedSequenceContract | None, attn_implementation: str | None = None
) -> PackingCapabilities:
    """Settle which contract a loader serves, for callers that still pass the name of an attention implementation.

    Args:
        packing: the model's contract. It wins over the name.
        attn_implementation: the older way to ask: "flash_attention_2", "_3" or "_4" means flash varlen kwargs, and
            any other name a block-causal mask. Used only where `packing` is None; it always warns, and says what the
            name was taken for.

    Raises:
        CapabilitiesError: `packing` is no packing contract.
        ContractError: `attn_implementation` is no str.

    Example:
        >>> resolve_packing_contract(PackingCapabilities("document_ids")).packed_mask_type
        'document_ids'
        >>> resolve_packing_contract(None).packed_mask_type
        'block_causal'
    """
    mask_type: PackedMaskType = "block_causal"
    if attn_implementation is not None:
        remedy = "Pass the contract that configure_packing(...) returned, and no name."
        _require_name(attn_implementation, remedy)
        mask_type = "flash_varlen" if attn_implementation in _FLASH_ATTENTION else "block_causal"
        taken = f"is taken for packed_mask_type = {mask_type!r}" if packing is None else "is ignored beside a contract"
        message = f"attn_implementation = {attn_implementation!r} is deprecated and {taken}. {remedy}"
        warnings.warn(message, FutureWarning, stacklevel=2)
    return PackingCapabilities(mask_type) if packing is None else PackingCapabilities.from_contract(packing)


def _require_name(name: object, remedy: str) -> None:
    if not isinstance(name, str):
        raise ContractError(Problem("attn_implementation", "must be a str", "type", value=repr(name), remedy=remedy))


def _require_contiguous(field: str, value: str | bool, *, eligibility: bool, joined: bool) -> None:
    """Raise where documents would not be contiguous segments of the padded rows."""
    remedy = AS_ROWS if field == "output_format" else KEEPING_HOLES
    refuses = "the model takes no" if field == "takes_holes" else "cannot express"
    message = f"{refuses} tokens excluded inside a document" if eligibility else ""
    if not eligibility and joined:
        message = f"{refuses} padding between documents that are joined"
        remedy = f"Pack so that padding trails, and pass trailing_padding=True; or {remedy[:1].lower()}{remedy[1:]}"
    if message:
        raise ContractError(Problem(field, message, "unsupported", value=value, remedy=remedy))


def _require_room(capabilities: PackingCapabilities, sequence_length: int | None) -> None:
    if sequence_length is None:
        return
    remedy = "Give the places of a row."
    places = require_count(sequence_length, "sequence_length", remedy, least=1, error=ContractError)
    limit = capabilities.max_sequence_length
    if limit is not None and places > limit:
        message = f"rows are longer than the contract's max_sequence_length, {limit}"
        remedy = f"Pack into rows of at most {limit} places: nothing is truncated."
        raise ContractError(Problem("sequence_length", message, "unsupported", value=places, remedy=remedy))


def _require_one_shift(label_shift: LabelShift, model_shifts_labels: bool) -> None:
    """Raise where both the loader and the model shift labels, or neither does."""
    if model_shifts_labels == (label_shift == "model"):
        return
    message = "labels would be shifted twice" if model_shifts_labels else "labels would never be shifted"
    remedy = "Yield labels as they are, label_shift='model'" if model_shifts_labels else "Shift them in the loader"
    remedy += ", or say by model_shifts_labels what the model does."
    raise ContractError(Problem("label_shift", message, "disagreement", value=repr(label_shift), remedy=remedy))
