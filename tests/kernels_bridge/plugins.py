"""Distributions that bring consumers, as pip leaves them on the path: metadata and a module, nothing imported."""

from __future__ import annotations

from pathlib import Path

CONSUMER = """
from neatpack.contracts import Accepted, PackingCapabilities, Rejected
from neatpack.kernels_bridge.attachments import NothingAttached


class Runs:
    name = "runs"

    def decide(self, model, attn_implementation):
        if "runs" in model.forward.__code__.co_varnames:
            return Accepted(PackingCapabilities("document_ids"))
        return Rejected("its forward takes no runs")

    def attach(self, model):
        return NothingAttached()

    def derive(self, model, call):
        return {"runs": call.segments.lengths.tolist()}


CONSUMER = Runs()
"""


def install(folder: Path, distribution: str, name: str = "runs", code: str = CONSUMER, value: str = "CONSUMER") -> str:
    """Put a distribution of one module into `folder`, and return the name of the module.

    Args:
        folder: to be on the path.
        distribution: its name; the module is named after it.
        name: of the entry point.
        code: of the module.
        value: what the entry point names in the module.
    """
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[neatpack.consumers]\n{name} = {module}:{value}\n")
    return module
