"""The JSON report has its schema, holds every number, and nothing that JSON cannot hold."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from neatpack.kernels_bridge.audit.paths import PATH_NAMES
from neatpack.kernels_bridge.audit.report import (
    SCHEMA_VERSION,
    Configured,
    ModelReport,
    PathReport,
    Report,
    ReportJSON,
)
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder
from tests.audit import models


@with_config(ConfigDict(extra="forbid"))
class _Envelope(TypedDict):
    report: ReportJSON


def _checked(text: str) -> ReportJSON:
    return TypeAdapter(_Envelope).validate_json(f'{{"report": {text}}}', strict=True)["report"]


def test_the_report_keeps_its_schema(texts: list[bytes]) -> None:
    targets = [Builder("m:good", models.ReadsIds), Builder("m:bad", models.Raises)]
    report = audit_models(targets, texts)
    good, bad = _checked(report.dumps())["models"]
    assert _checked(report.dumps())["schema_version"] == SCHEMA_VERSION
    assert list(good["paths"]) == list(PATH_NAMES)
    assert (good["name"], good["class"], good["error"]) == ("m:good", "ReadsIds", None)
    assert good["paths"]["configured"]["verdict"] == "clean"
    assert (bad["class"], bad["paths"]) == (None, {})
    assert bad["error"] is not None


def test_a_key_that_is_not_in_the_schema_is_noticed(texts: list[bytes]) -> None:
    report = audit_models([Builder("m", models.TokenByToken)], texts, paths=["mask_2d"])
    data = json.loads(report.dumps())
    data["models"][0]["paths"]["mask_2d"]["verdict"] = "fine"
    with pytest.raises(ValueError, match="verdict"):
        _checked(json.dumps(data))
    data["models"][0]["paths"]["mask_2d"].update(verdict="clean", something="else")
    with pytest.raises(ValueError, match="something"):
        _checked(json.dumps(data))


def test_numbers_that_json_cannot_hold_are_null(texts: list[bytes]) -> None:
    environment = audit_models([], texts).environment
    paths = {"varlen": PathReport("inconclusive", "not_finite", difference=math.nan, perturbation=math.inf)}
    report = Report(environment, (ModelReport("m", "M", Configured(), paths),))
    path = _checked(report.dumps())["models"][0]["paths"]["varlen"]
    assert (path["difference"], path["perturbation"]) == (None, None)


def test_a_report_is_clean_only_with_every_configured_path(texts: list[bytes]) -> None:
    environment = audit_models([], texts).environment
    clean = ModelReport("m", "M", Configured(), {"configured": PathReport("clean")})
    leak = ModelReport("m", "M", Configured(), {"configured": PathReport("leak"), "varlen": PathReport("clean")})
    failed = ModelReport("m", None, Configured(), {}, error="no")
    assert Report(environment, (clean,)).is_clean
    for models_ in ((), (clean, leak), (clean, failed)):
        assert not Report(environment, models_).is_clean
