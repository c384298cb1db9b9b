"""What an encoding counts is the first thing that its class says."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass

import pytest

from neatpack import adapters, contracts
from neatpack.contracts import encodings

COUNTED = {f"{what}, {over}" for what in ("Gathered", "Physical", "Lengths") for over in ("one stream", "row by row")}

CLASSES = [each for each in vars(encodings).values() if is_dataclass(each) and isinstance(each, type)]


@pytest.mark.parametrize("encoding", CLASSES, ids=lambda each: each.__name__)
def test_its_docstring_begins_with_what_it_counts(encoding: type) -> None:
    said = (encoding.__doc__ or "").split(":")[0]
    assert said in COUNTED | {"Gathered and physical, one stream"}
    counted, over = said.split(", ")
    assert ("Gathered" in counted) >= encoding.__name__.startswith("Gathered")
    assert ("Physical" in counted) >= encoding.__name__.startswith("Physical")
    assert (over == "one stream") >= encoding.__name__.endswith(("Flat", "States"))
    assert (over == "row by row") >= encoding.__name__.endswith("Rows")


def test_all_encodings_are_looked_at() -> None:
    assert {each.__name__ for each in CLASSES} <= set(contracts.__all__)
    assert len(CLASSES) == 10


BARE = ("cu_seqlens", "packed_token_indices")
"""Arguments whose names do not tell what they count, as the packages call them from which they come."""

TAKES_BARE = [
    name
    for name in adapters.__all__
    if inspect.isfunction(function := getattr(adapters, name))
    and set(BARE) & set(inspect.signature(function).parameters)
]


@pytest.mark.parametrize("name", TAKES_BARE)
def test_functions_that_take_bare_offsets_say_first_what_they_count(name: str) -> None:
    first = (getattr(adapters, name).__doc__ or "").split("\n")[0]
    assert "gathered" in first or "physical" in first


def test_three_functions_take_bare_offsets() -> None:
    assert len(TAKES_BARE) == 3
