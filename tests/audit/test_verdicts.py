"""From numbers to verdicts: each kind is named by what proves it, and by nothing less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from neatpack.kernels_bridge.audit.documents import Place
from neatpack.kernels_bridge.audit.paths import PATHS
from neatpack.kernels_bridge.audit.probes import Measurement, Movement
from neatpack.kernels_bridge.audit.remedies import with_remedies
from neatpack.kernels_bridge.audit.report import PathReport
from neatpack.kernels_bridge.audit.verdicts import Evidence, KernelCalls, judge

PLACES = (Place(0, 0, 3), Place(0, 3, 4), Place(0, 4, 10), Place(1, 0, 5), Place(1, 5, 7))
STILL = Movement(0.0, 0.5, 0, 1)
MOVED = Movement(0.3, 0.5, 1, 2)
SAME = tuple((1e-7,) * place.length for place in PLACES)
CLEAN = Measurement(1.0, True, SAME, STILL, STILL, 0.0)
CALLED = KernelCalls(2, True)
VARLEN = next(path for path in PATHS if path.name == "varlen")
MASK_2D = next(path for path in PATHS if path.name == "mask_2d")


def _judge(measurement: Measurement, kernel: KernelCalls | None = CALLED, **rest: object) -> tuple[str, str | None]:
    evidence = replace(Evidence(measurement, kernel), **rest)  # type: ignore[arg-type]
    finding = judge(evidence, VARLEN, PLACES)
    return finding.verdict, finding.kind


def test_still_and_equal_is_clean() -> None:
    assert _judge(CLEAN) == ("clean", None)


@pytest.mark.parametrize("change", [{"perturbation": MOVED}, {"gradient": MOVED}])
def test_either_test_shows_a_leak(change: dict[str, Movement]) -> None:
    assert _judge(replace(CLEAN, **change))[0] == "leak"  # type: ignore[arg-type]


def test_where_rounding_is_coarse_a_gradient_that_is_not_exactly_zero_decides() -> None:
    moved, hardly = replace(STILL, cross=1e-3), replace(STILL, cross=1e-9)
    assert _judge(replace(CLEAN, perturbation=moved))[0] == "leak"
    assert _judge(replace(CLEAN, perturbation=moved), noise=1e-2) == ("clean", None)
    assert _judge(replace(CLEAN, perturbation=moved, gradient=hardly), noise=1e-2)[0] == "leak"
    assert _judge(replace(CLEAN, gradient=hardly)) == ("clean", None)


@pytest.mark.parametrize(
    ("kernel", "rest", "kind"),
    [
        (KernelCalls(0, False), {}, "kernel_not_called"),
        (KernelCalls(2, False), {}, "kwargs_dropped"),
        (CALLED, {"dropped": ("seq_idx",)}, "kwargs_dropped"),
        (CALLED, {"had_effect": False}, "kwargs_dropped"),
        (CALLED, {"had_effect": True, "causal": False}, "causality"),
        (CALLED, {"had_effect": True, "causal": True}, None),
    ],
)
def test_the_first_proof_names_the_leak(kernel: KernelCalls, rest: dict[str, object], kind: str | None) -> None:
    assert _judge(replace(CLEAN, perturbation=MOVED), kernel, **rest) == ("leak", kind)


def test_padding_that_reaches_documents_is_a_leak() -> None:
    assert _judge(replace(CLEAN, padding=0.1)) == ("leak", "padding")


def test_dropped_arguments_explain_no_leak_where_nothing_said_where_documents_end() -> None:
    evidence = Evidence(replace(CLEAN, perturbation=MOVED), None, dropped=("attention_mask",))
    assert judge(evidence, MASK_2D, PLACES).kind is None


@pytest.mark.parametrize(
    ("path", "dropped", "kind"),
    [
        ("positions", "position_ids", "kwargs_dropped"),
        ("positions+mask_2d", "position_ids", "kwargs_dropped"),
        ("positions+mask_2d", "attention_mask", None),
        ("varlen", "position_ids", None),
        ("mask_4d_float", "position_ids", None),
        ("mask_4d_float", "attention_mask", "kwargs_dropped"),
        ("configured", "position_ids", None),
        ("configured", "_packed_seq_ids", "kwargs_dropped"),
    ],
)
def test_only_what_says_where_documents_end_explains_a_leak(path: str, dropped: str, kind: str | None) -> None:
    evidence = Evidence(replace(CLEAN, perturbation=MOVED), None, dropped=(dropped,), had_effect=True)
    (given,) = (one for one in PATHS if one.name == path)
    assert judge(evidence, given, PLACES).kind == kind


def test_numbers_alone_prove_nothing_if_the_kernel_was_not_called() -> None:
    assert _judge(CLEAN, KernelCalls(0, False)) == ("inconclusive", "kernel_not_called")
    assert _judge(CLEAN, KernelCalls(2, False)) == ("inconclusive", "kwargs_dropped")
    assert _judge(CLEAN, None) == ("clean", None)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"finite": False}, "not_finite"),
        ({"padding": math.nan}, "not_finite"),
        ({"finite_padding": False}, "not_finite"),
        ({"gradient": Movement(math.nan, math.nan, 0, 0)}, "not_finite"),
        ({"scale": 0.0}, "constant"),
        ({"perturbation": replace(STILL, own=0.0)}, "constant"),
        ({"gradient": replace(STILL, own=0.0)}, "gradient_unseen"),
        ({"gradient": None}, "gradient_unseen"),
    ],
)
def test_a_leak_that_could_not_be_seen_is_inconclusive(change: dict[str, object], kind: str) -> None:
    unseen = replace(CLEAN, **change)  # type: ignore[arg-type]
    assert _judge(unseen) == ("inconclusive", kind)


def _differing(wrong: dict[int, int]) -> Measurement:
    """Differ in each document from the given place on."""
    differences = tuple(
        tuple(0.5 if place >= wrong.get(index, 99) else 1e-7 for place in range(PLACES[index].length))
        for index in range(len(PLACES))
    )
    return replace(CLEAN, differences=differences)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({1: 0, 2: 0, 4: 0}, "positions"),
        ({1: 0, 2: 1, 4: 1}, "positions"),
        ({2: 4, 3: 4}, "window"),
        ({2: 3, 3: 3}, "window"),
        ({0: 0, 1: 0, 3: 0, 4: 0}, "length"),
        ({2: 4}, "unexplained"),
        ({0: 1, 2: 0}, "unexplained"),
        ({0: 0, 1: 0, 2: 0, 3: 0, 4: 0}, "unexplained"),
    ],
)
def test_differences_are_named_by_the_tokens_that_differ(wrong: dict[int, int], kind: str) -> None:
    assert _judge(_differing(wrong)) == ("differs", kind)


def test_remedies_name_only_clean_paths() -> None:
    paths = {"mask_2d": PathReport("leak"), "varlen": PathReport("leak"), "positions": PathReport("clean")}
    assert with_remedies(paths)["mask_2d"].remedy == "use positions"
    assert with_remedies({"mask_2d": PathReport("leak")})["mask_2d"].remedy.startswith("no path of this model is clean")
