"""What the tests of the audit share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from neatpack.kernels_bridge.audit.report import ModelReport
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder, ModelType
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts

Audit = Callable[[Callable[[], nn.Module]], ModelReport]


@pytest.fixture(scope="session")
def texts() -> list[bytes]:
    return read_texts(default_paths())


@pytest.fixture(scope="session")
def audit(texts: list[bytes]) -> Audit:
    """Audit what a callable builds."""

    def run(build: Callable[[], nn.Module]) -> ModelReport:
        return audit_models([Builder("custom", build)], texts).models[0]

    return run


@pytest.fixture(scope="session")
def family(texts: list[bytes]) -> Callable[[str], ModelReport]:
    """Audit a model type, once in a session."""
    reports: dict[str, ModelReport] = {}

    def run(name: str) -> ModelReport:
        if name not in reports:
            reports[name] = audit_models([ModelType(name)], texts).models[0]
        return reports[name]

    return run
