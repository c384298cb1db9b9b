"""Every family that can be built is bound to something, and what it is bound to is clean."""

from __future__ import annotations

import pytest

from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import ModelType
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts
from neatpack.kernels_bridge.audit.tiny_models import model_types

SAMPLE = ("bamba", "camembert", "cpmant", "deepseek_v4", "doge", "moshi", "prophetnet", "rwkv", "xlnet")
"""One of each mechanism that leaves nothing but one document per row, and one call per length among them; a layer that
chooses among the keys that its mask lets it see, a window that only the config knows, and a cache of another name."""


def unclean(*names: str) -> dict[str, str]:
    """Say of families what is wrong with the consumer that is chosen for them."""
    report = audit_models([ModelType(name) for name in names], read_texts(default_paths()), paths=["configured"])
    found = {model.name: (model.error, model.paths.get("configured"), model.configured) for model in report.models}
    return {
        name: error or f"{path.verdict}: {path.message}" if path is not None else str(error)
        for name, (error, path, choice) in found.items()
        if (path is None or path.verdict != "clean" or choice.consumer is None) and not _is_not_built(error)
    }


def _is_not_built(error: str | None) -> bool:
    return error is not None and error.startswith(("ModelError: model type", "AssertionError: If you want to train"))


def test_families_that_are_hard_to_pack_are_clean() -> None:
    assert unclean(*SAMPLE) == {}


@pytest.mark.sweep
def test_every_family_is_clean() -> None:
    assert unclean(*model_types()) == {}
