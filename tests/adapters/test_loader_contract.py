"""What a loader settles when it is built."""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import strategies as st

from neatpack.adapters import require_supported_packing_contract, resolve_packing_contract
from neatpack.contracts.batch import LABEL_SHIFTS, LabelShift
from neatpack.contracts.capabilities import PACKED_MASK_TYPES, AnyPackedSequenceContract, PackingCapabilities
from neatpack.contracts.errors import CapabilitiesError, ContractError
from tests.adapters.properties import holds_for


@holds_for(
    mask_type=st.sampled_from(PACKED_MASK_TYPES),
    says=st.sampled_from([{}, {"takes_holes": True}, {"takes_holes": False}]),
    eligibility=st.booleans(),
    xdoc=st.booleans(),
    trailing=st.booleans(),
)
def test_physical_encodings_cannot_express_every_policy(
    mask_type: str, says: dict[str, bool], eligibility: bool, xdoc: bool, trailing: bool
) -> None:
    newer = SimpleNamespace(
        packed_mask_type=mask_type,
        return_packed_sequence_metadata=True,
        return_document_ids=False,
        max_sequence_length=None,
        **says,
    )
    older = SimpleNamespace(packed_mask_type=mask_type, requires_packed_sequence_metadata=False, **says)
    physical = mask_type == "flash_varlen"
    refused = (physical or False in says.values()) and (eligibility or (xdoc and not trailing))
    named = "packed_mask_type = flash_varlen: cannot express" if physical else "takes_holes = False: the model takes no"
    what = "tokens excluded inside" if eligibility else "padding between"
    for each in (newer, older):
        contract = cast("AnyPackedSequenceContract", each)
        if not refused:
            require_supported_packing_contract(contract, eligibility=eligibility, xdoc=xdoc, trailing_padding=trailing)
            continue
        with pytest.raises(ContractError, match=f"{named} {what}"):
            require_supported_packing_contract(contract, eligibility=eligibility, xdoc=xdoc, trailing_padding=trailing)


@holds_for(eligibility=st.booleans(), xdoc=st.booleans(), trailing=st.booleans())
def test_lengths_cannot_express_every_policy_either(eligibility: bool, xdoc: bool, trailing: bool) -> None:
    contract = PackingCapabilities("document_ids")
    policies: dict[str, Any] = {"eligibility": eligibility, "xdoc": xdoc, "trailing_padding": trailing}
    require_supported_packing_contract(contract, **policies)
    if not eligibility and (trailing or not xdoc):
        require_supported_packing_contract(contract, **policies, output_format="thd")
        return
    with pytest.raises(ContractError, match="output_format = thd"):
        require_supported_packing_contract(contract, **policies, output_format="thd")


def test_thd_that_native_fa4_refuses_in_each_forward_is_refused_before_the_first() -> None:
    contract = PackingCapabilities("document_ids", True, True)
    require_supported_packing_contract(contract)
    with pytest.raises(ContractError, match=r"output_format = thd: native FlashAttention-4.*batched"):
        require_supported_packing_contract(contract, output_format="thd")


@holds_for(limit=st.none() | st.integers(1, 9), places=st.none() | st.integers(1, 9))
def test_rows_longer_than_the_contract_allows_are_refused_before_the_first_batch(
    limit: int | None, places: int | None
) -> None:
    contract = PackingCapabilities("document_ids", max_sequence_length=limit)
    if limit is None or places is None or places in range(1, limit + 1):
        require_supported_packing_contract(contract, sequence_length=places)
        return
    with pytest.raises(ContractError, match=f"sequence_length = {places}"):
        require_supported_packing_contract(contract, sequence_length=places)


@holds_for(shift=st.sampled_from(LABEL_SHIFTS), model_shifts=st.booleans())
def test_labels_are_shifted_once(shift: LabelShift, model_shifts: bool) -> None:
    contract = PackingCapabilities("document_ids")
    if (shift == "model") == model_shifts:
        require_supported_packing_contract(contract, label_shift=shift, model_shifts_labels=model_shifts)
        return
    with pytest.raises(ContractError, match="shifted twice" if model_shifts else "never be shifted"):
        require_supported_packing_contract(contract, label_shift=shift, model_shifts_labels=model_shifts)


@pytest.mark.parametrize(
    ("field", "value"),
    [("eligibility", 1), ("xdoc", None), ("trailing_padding", "yes"), ("output_format", "bshd"), ("label_shift", 3),
     ("sequence_length", 0), ("sequence_length", 2.0), ("model_shifts_labels", None)],
)  # fmt: skip
def test_what_a_loader_says_of_itself_is_checked(field: str, value: object) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(ContractError) as caught:
        require_supported_packing_contract(PackingCapabilities("document_ids"), **arguments)
    assert caught.value.problems[0].field == field


def test_what_is_no_contract_is_refused() -> None:
    for function in (require_supported_packing_contract, resolve_packing_contract):
        with pytest.raises(CapabilitiesError, match="packed_mask_type"):
            function(cast("AnyPackedSequenceContract", SimpleNamespace(packed_mask_type="flash")))
        with pytest.raises(CapabilitiesError, match=r"is a class\. Give an instance, PackingCapabilities"):
            function(cast("AnyPackedSequenceContract", PackingCapabilities))


def test_a_contract_wins_over_a_name() -> None:
    contract = PackingCapabilities("document_ids", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_packing_contract(contract) is contract
    with pytest.warns(FutureWarning, match="attn_implementation"):
        assert resolve_packing_contract(contract, "flash_attention_2") is contract
    # An equal contract is no default: what it says holds, whichever object says it.
    with pytest.warns(FutureWarning):
        found = resolve_packing_contract(PackingCapabilities("block_causal"), "flash_attention_2")
    assert found.packed_mask_type == "block_causal"


@pytest.mark.parametrize(
    ("name", "mask_type"),
    [
        ("flash_attention_2", "flash_varlen"),
        ("flash_attention_3", "flash_varlen"),
        ("flash_attention_4", "flash_varlen"),
        ("sdpa", "block_causal"),
        ("eager", "block_causal"),
    ],
)
def test_a_name_alone_still_resolves(name: str, mask_type: str) -> None:
    with pytest.warns(FutureWarning):
        assert resolve_packing_contract(None, name).packed_mask_type == mask_type
    assert resolve_packing_contract(None).packed_mask_type == "block_causal"


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention2", "te", ""])
def test_the_warning_names_what_was_given_and_what_it_is_taken_for(name: str) -> None:
    with pytest.warns(FutureWarning) as caught:
        found = resolve_packing_contract(None, name)
    assert f"attn_implementation = {name!r} " in str(caught[0].message)
    assert f"is taken for packed_mask_type = {found.packed_mask_type!r}" in str(caught[0].message)
    with pytest.warns(FutureWarning, match="is ignored beside a contract"):
        resolve_packing_contract(found, name)


@pytest.mark.parametrize("name", [3, True, b"sdpa"])
def test_what_is_no_name_is_refused(name: object) -> None:
    for packing in (None, PackingCapabilities("document_ids")):
        with pytest.raises(ContractError, match=re.escape(f"attn_implementation = {name!r}: must be a str")):
            resolve_packing_contract(packing, cast("str", name))


def test_a_loader_that_says_nothing_of_itself_does_nothing_special() -> None:
    flash = PackingCapabilities("flash_varlen")
    require_supported_packing_contract(flash)
    require_supported_packing_contract(flash, label_shift="model")
    with pytest.raises(ContractError, match="padding between documents"):
        require_supported_packing_contract(flash, xdoc=True)
    with pytest.raises(ContractError, match="excluded"):
        require_supported_packing_contract(flash, eligibility=True)


def test_the_warning_points_to_the_caller() -> None:
    with pytest.warns(FutureWarning) as caught:
        resolve_packing_contract(None, "sdpa")
    assert caught[0].filename == __file__
