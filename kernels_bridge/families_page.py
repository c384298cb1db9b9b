"""The page of what is known of families: `python -m neatpack.kernels_bridge.families_page > docs/families.md`."""

from __future__ import annotations

import sys
from typing import Final

from neatpack.kernels_bridge.families import CLEAN, KIND_TEXTS, WAYS
from neatpack.kernels_bridge.family_table import FINDINGS, MEASURED_ON

_HEAD: Final = """# Families

Written by `python -m neatpack.kernels_bridge.families_page` from what
`python -m neatpack.kernels_bridge.audit.families` measured; edit neither this page nor the table behind it.

Each model type of Transformers that can be built at a tiny size was given packed documents in these ways, and the
[audit](audit.md) compared with each document alone. Consumers read the findings when they decide on a model:

| way | what the model is given | read by |
|---|---|---|
| `varlen` | offsets, which a varlen attention function follows | `hf_flash`, `reference` and others that take offsets |
| `masks` | a dense mask for each kind of layer | `block_causal` and others that take masks |
| `padded` | one document per row, padded to the longest, with a 2-D mask | `per_document`, or else a call per length |
| `positions` | positions that restart, and nothing else | nobody: many loaders do this |

A finding binds only the versions it was measured on, here {versions}, and only models whose code is all of
Transformers. Elsewhere what was clean is accepted as unverified, and what was not is refused as before. Whatever the
family, rotary positions of the kinds `dynamic` and `longrope` are scaled by the longest row of a call, so that no way
but one call per length is right; that is read from the config.

| model type | {ways} |
|{rules}|
"""


def families_page() -> str:
    """Write the page."""
    versions = " and ".join(f"{name} {version}" for name, version in MEASURED_ON.items())
    head = _HEAD.format(versions=versions, ways=" | ".join(WAYS), rules="|".join("---" for _ in (0, *WAYS)))
    rows = [f"| {name} | {' | '.join(map(_cell, findings))} |" for name, findings in FINDINGS.items()]
    seen = {finding for findings in FINDINGS.values() for finding in findings}
    legend = [f"- {finding}: {text}." for finding, text in KIND_TEXTS.items() if finding in seen]
    return head + "\n".join([*rows, "", "What the findings say:", "", *legend, ""])


def _cell(finding: str) -> str:
    return finding if finding == CLEAN else f"**{finding}**"


if __name__ == "__main__":
    sys.stdout.write(families_page())
