"""The JSON report keeps its keys, can be read again, and nothing that JSON cannot hold."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from neatpack.kernels_bridge.audit.paths import PATH_NAMES
from neatpack.kernels_bridge.audit.report import (
    SCHEMA_VERSION,
    Configured,
    ModelReport,
    PathReport,
    Report,
    model_json,
)
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.saved import model_from_json
from neatpack.kernels_bridge.audit.targets import Builder
from tests.audit import models

KEYS = {
    "": "schema_version environment figures models",
    "environment": "python platform neatpack torch transformers threads dtype device threshold",
    "figures": "models not_audited resumed workers median_seconds total_seconds wall_seconds",
    "model": "name class configured paths error seconds remedy",
    "configured": "attention consumer packed_mask_type requires_packed_sequence_metadata uses_native_fa4 refused "
    "fastest safest",
    "path": "verdict kind message remedy difference perturbation gradient padding own_perturbation own_gradient "
    "logit_scale calls boundaries_seen from_document to_document where mechanism dropped trial pattern matrix layers "
    "untried",
    "layer": "name matrix",
}
"""The keys that programs rely on, in version 1. Others may come; whoever takes one away raises the version."""


def _keys_of(report: dict[str, Any]) -> dict[str, set[str]]:
    (model, *_) = report["models"]
    (path, *_) = model["paths"].values()
    found = {"": report, "environment": report["environment"], "figures": report["figures"], "model": model}
    found |= {"configured": model["configured"], "path": path, "layer": path["layers"][0]}
    return {name: set(record) for name, record in found.items()}


def test_the_keys_of_a_version_stay(texts: list[bytes]) -> None:
    report = audit_models([Builder("m", models.Leaks)], texts, paths=["mask_2d"], layers=True)
    written = json.loads(report.dumps())
    assert (written["schema_version"], SCHEMA_VERSION) == (1, 1)
    assert _keys_of(written) == {name: set(keys.split()) for name, keys in KEYS.items()}


def test_what_is_written_can_be_read_again(texts: list[bytes]) -> None:
    targets = [Builder("m:good", models.ReadsIds), Builder("m:bad", models.Raises)]
    report = audit_models(targets, texts)
    good, bad = json.loads(report.dumps())["models"]
    assert list(good["paths"]) == list(PATH_NAMES)
    assert (good["name"], good["class"], good["error"]) == ("m:good", "ReadsIds", None)
    assert good["paths"]["configured"]["verdict"] == "clean"
    assert (bad["class"], bad["paths"]) == (None, {})
    assert bad["error"] is not None
    for read, model in zip(map(model_from_json, (good, bad)), report.models, strict=True):
        assert replace(read, seconds=0.0) == replace(model, seconds=0.0)


def test_what_was_not_written_by_an_audit_is_noticed(texts: list[bytes]) -> None:
    (model,) = audit_models([Builder("m", models.TokenByToken)], texts, paths=["mask_2d"]).models
    written: dict[str, Any] = model_json(model)
    written["paths"]["mask_2d"]["verdict"] = "fine"
    with pytest.raises(ValidationError, match="verdict"):
        model_from_json(written)


def test_numbers_that_json_cannot_hold_are_null(texts: list[bytes]) -> None:
    environment = audit_models([], texts).environment
    paths = {"varlen": PathReport("inconclusive", "not_finite", difference=math.nan, perturbation=math.inf)}
    report = Report(environment, (ModelReport("m", "M", Configured(), paths),))
    path = json.loads(report.dumps())["models"][0]["paths"]["varlen"]
    assert (path["difference"], path["perturbation"]) == (None, None)


def test_a_report_is_clean_only_with_every_configured_path(texts: list[bytes]) -> None:
    environment = audit_models([], texts).environment
    clean = ModelReport("m", "M", Configured(), {"configured": PathReport("clean")})
    leak = ModelReport("m", "M", Configured(), {"configured": PathReport("leak"), "varlen": PathReport("clean")})
    failed = ModelReport("m", None, Configured(), {}, error="no")
    assert Report(environment, (clean,)).is_clean
    for models_ in ((), (clean, leak), (clean, failed)):
        assert not Report(environment, models_).is_clean
