"""Whether an unchanged batch is answered alike when it is given again: else no movement proves anything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from neatpack.kernels_bridge.audit.probes import Ask, variation
from neatpack.kernels_bridge.audit.report import PathReport
from neatpack.kernels_bridge.audit.subject import Subject

CALLS: Final = 5
"""How often a batch is given again: a model may draw the same number twice."""

MESSAGE: Final = (
    "An unchanged batch is answered otherwise when it is given again: random numbers are drawn, by another generator "
    "than torch's global one, or in evaluation mode. Draw them by torch.rand, and in training mode alone."
)


def unless_it_varies(report: PathReport, subject: Subject, ask: Ask, noise: float, seeds: bool) -> PathReport:
    """Take back a leak or difference of a model that answers otherwise to an unchanged batch.

    Args:
        report: what was found.
        subject: the model, as it was asked.
        ask: gives it the documents.
        noise: share of the logit scale up to which a movement may be rounding.
        seeds: whether torch's generators begin elsewhere in each call, too, since answers to calls of other shapes
            were compared, in which other numbers are drawn.
    """
    if report.verdict not in ("leak", "differs") or not _varies(subject, ask, noise, seeds):
        return report
    unknown = partial(replace, from_document=None, to_document=None, where=None, mechanism=None, pattern=None)
    return unknown(report, verdict="inconclusive", kind="not_deterministic", message=MESSAGE)


def _varies(subject: Subject, ask: Ask, noise: float, seeds: bool) -> bool:
    ask()  # what is kept from call to call is the same from here on
    before = ask().logits
    least = noise * variation(before)
    for call in range(1, CALLS):
        subject.seed = call if seeds else 0
        after = ask().logits
        if any(bool(((one - other).abs() > least).any()) for one, other in zip(before, after, strict=True)):
            return True
    return False
