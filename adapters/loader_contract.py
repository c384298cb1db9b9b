"""What a loader settles once, when it is built: which contract it serves, and whether it can."""

from __future__ import annotations

import warnings
from typing import Final

from neatpack.contracts.capabilities import AnyPackedSequenceContract, PackedMaskType, PackingCapabilities
from neatpack.contracts.errors import ContractError, Problem

_FLASH_ATTENTION: Final = ("flash_attention_2", "flash_attention_3", "flash_attention_4")


def require_supported_packing_contract(
    contract: AnyPackedSequenceContract,
    *,
    eligibility: bool = False,
    xdoc: bool = False,
    trailing_padding: bool = False,
) -> None:
    """Raise unless a loader with these policies can serve the contract. Call it before workers start.

    Flash varlen kwargs are offsets over the padded rows: a document is one contiguous segment. So tokens excluded
    inside a document cannot be expressed, nor can padding between documents that are joined.

    Args:
        contract: of either generation.
        eligibility: whether the loader excludes tokens of documents from attention.
        xdoc: whether it joins the documents of a row.
        trailing_padding: whether it promises that padding stands only after the last document of a row.

    Raises:
        CapabilitiesError: `contract` is no packing contract.
        ContractError: the contract cannot express what the loader would do.

    Example:
        >>> require_supported_packing_contract(PackingCapabilities("flash_varlen"), xdoc=True, trailing_padding=True)
        >>> require_supported_packing_contract(PackingCapabilities("flash_varlen"), eligibility=True)
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.ContractError: packed_mask_type = flash_varlen: cannot express tokens excluded \
inside a document. Build the model with a consumer of masks or document ids, such as `block_causal` or `reference`.
    """
    if PackingCapabilities.from_contract(contract).packed_mask_type != "flash_varlen":
        return
    remedy = "Build the model with a consumer of masks or document ids, such as `block_causal` or `reference`."
    if eligibility:
        raise _refusal("cannot express tokens excluded inside a document", remedy)
    if xdoc and not trailing_padding:
        message = "cannot express padding between documents that are joined"
        raise _refusal(message, f"Pack so that padding trails, and pass trailing_padding=True. {remedy}")


def resolve_packing_contract(
    packing: AnyPackedSequenceContract | None, attn_implementation: str | None = None
) -> PackingCapabilities:
    """Settle which contract a loader serves, for callers that still pass the name of an attention implementation.

    Args:
        packing: the model's contract. It wins over the name.
        attn_implementation: the older way to ask: "flash_attention_2", "_3" or "_4" means flash varlen kwargs, and
            any other name a block-causal mask. Used only where `packing` is None; it always warns.

    Raises:
        CapabilitiesError: `packing` is no packing contract.

    Example:
        >>> resolve_packing_contract(PackingCapabilities("document_ids")).packed_mask_type
        'document_ids'
        >>> resolve_packing_contract(None).packed_mask_type
        'block_causal'
    """
    if attn_implementation is not None:
        warnings.warn(
            "attn_implementation is deprecated: pass the contract that configure_packing(...) returned.",
            FutureWarning,
            stacklevel=2,
        )
    if packing is not None:
        return PackingCapabilities.from_contract(packing)
    mask_type: PackedMaskType = "flash_varlen" if attn_implementation in _FLASH_ATTENTION else "block_causal"
    return PackingCapabilities(mask_type)


def _refusal(message: str, remedy: str) -> ContractError:
    return ContractError(Problem("packed_mask_type", message, "unsupported", value="flash_varlen", remedy=remedy))
