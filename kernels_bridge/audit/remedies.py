"""What to do about a path that is not clean: the nearest path of the same model that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from neatpack.kernels_bridge.audit.paths import PATHS, PathName
from neatpack.kernels_bridge.audit.report import Kind, PathReport

PREFERRED: Final[tuple[PathName, ...]] = (
    "configured",
    "varlen",
    "varlen+seq_idx",
    "varlen+seq_idx+cu_seqlens",
    "mask_4d_per_layer",
    "mask_4d_float",
    "mask_4d_bool_sdpa",
    "positions",
    "per_document",
)
"""Paths to recommend, the fastest and least error-prone first."""

GIVE_A_BATCH: Final = (
    "if it is the batch that does not suit the model, give it one that does: --batch FILE, or batch= in audit_isolation"
)
"""What to do where a module of one's own fails on documents of the audit: it may need labels, other rows, or images."""

_UNSEEN: Final[Mapping[Kind | None, str]] = {
    "constant": "give the model weights that let its logits move",
    "no_mixing": "redraw or train the weights that let tokens mix",
}
"""What lets a leak be seen, by what hid it."""


def with_remedies(paths: Mapping[str, PathReport]) -> dict[str, PathReport]:
    """Say for every path that is not clean what to do instead.

    Example:
        >>> reports = {"positions+cache": PathReport("leak"), "positions": PathReport("clean")}
        >>> with_remedies(reports)["positions+cache"].remedy
        'pass use_cache=False'
    """
    clean = {name for name, report in paths.items() if report.verdict == "clean"}
    others = [name for name in PREFERRED if name in clean]
    return {
        name: replace(report, remedy=report.remedy or _remedy(name, report, clean, others))
        for name, report in paths.items()
    }


def _remedy(name: str, report: PathReport, clean: set[str], others: Sequence[str]) -> str:
    if report.verdict == "clean":
        return ""
    instead = next((path.instead for path in PATHS if path.name == name), None)
    if report.verdict == "inconclusive":
        return _UNSEEN.get(report.kind, "see the message")
    if instead is not None and instead[0] in clean:
        return instead[1]
    return f"use {', '.join(others[:2])}" if others else "no path of this model is clean: do not pack"
