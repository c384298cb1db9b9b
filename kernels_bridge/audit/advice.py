"""Which consumers would keep documents apart in a model: the fastest, and the one least likely to be wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import nn

from neatpack.contracts.errors import PackingError
from neatpack.contracts.kernels import Accepted
from neatpack.kernels_bridge.audit.report import Configured, PathReport
from neatpack.kernels_bridge.registry import decide

_SAFEST: Final = ("per_document", "reference")
"""Consumers to trust first: one in which documents never meet, and the one that others are measured against."""


def with_advice(model: nn.Module, choice: Configured, report: PathReport) -> tuple[Configured, PathReport]:
    """Add to what was chosen which consumers take the model, and to a report that is not clean which to use instead."""
    try:
        decisions = decide(model)
    except PackingError:  # the model's own declarations are at fault, and the report says so
        return choice, report
    unclean = choice.consumer if report.verdict != "clean" else None
    names = [name for name, decision in decisions if isinstance(decision, Accepted) and name != unclean]
    fastest = next(iter(names), None)
    safest = next((name for name in _SAFEST if name in names), fastest)
    choice = replace(choice, fastest=fastest, safest=safest)
    if report.verdict not in ("leak", "differs"):
        return choice, report
    if fastest is None or safest is None:
        remedy = f"mend {report.where or 'the model'}: no other consumer takes this model"
    else:
        remedy = f"configure it with consumer {' or '.join(dict.fromkeys((safest, fastest)))}"
    return choice, replace(report, remedy=remedy)
