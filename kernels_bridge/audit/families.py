"""Measuring what `neatpack.kernels_bridge.families` knows: which ways keep the documents of a model type apart.

`python -m neatpack.kernels_bridge.audit.families` measures every model type that can be built here, and writes
`family_table.py` anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor, nn

from neatpack.adapters.document_rows import document_rows
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.kernels_bridge import family_table
from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import Builder, ModelType, Target
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model, model_types, tiny_config
from neatpack.kernels_bridge.binding import bind
from neatpack.kernels_bridge.families import WAYS, Way
from neatpack.kernels_bridge.models import forward_arguments

_CONSUMERS: Final[Mapping[Way, str]] = {"varlen": "reference", "masks": "block_causal"}
"""The consumer by which a way is measured: both run with eager attention, and need no device."""

_TABLE: Final = "FINDINGS: Final[Mapping[str, tuple[str, str, str, str]]] = {"


class Through(nn.Module):
    """A tiny model to which packed rows are given in one way, whether that is right or not."""

    packed_mask_type: Literal["document_ids"] = "document_ids"

    def __init__(self, name: str, way: Way) -> None:
        super().__init__()
        self.model: nn.Module = build_tiny_model(name, "eager")
        self.is_bound: bool = way in _CONSUMERS
        if self.is_bound:
            bind(self.model, _CONSUMERS[way], "eager", PackingCapabilities("document_ids"))

    def forward(
        self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Give logits: of the packed documents with ids, and of documents alone without, at `position_ids` if given."""
        if _packed_seq_ids is None:
            given = {} if position_ids is None else {"position_ids": position_ids}
            return self._logits(input_ids=input_ids, **given)
        if self.is_bound:
            return self._logits(input_ids=input_ids, _packed_seq_ids=_packed_seq_ids)
        rows = document_rows(_packed_seq_ids)
        mask = (~rows.padding[0]).to(torch.int64)
        if "inputs_embeds" in (forward_arguments(self.model) or ()):  # by which the audit can watch gradients
            embeddings = cast("Any", self.model).get_input_embeddings()(input_ids)
            logits = self._logits(inputs_embeds=rows.take(embeddings, 0), attention_mask=mask)
        else:
            logits = self._logits(input_ids=rows.take(input_ids, 0), attention_mask=mask)
        return rows.put_back([logits])

    def _logits(self, **arguments: Tensor) -> Tensor:
        return cast("Tensor", cast("Any", self.model)(use_cache=False, **arguments).logits)


def measure_family(name: str, texts: Sequence[bytes]) -> dict[Way, str]:
    """Measure every way for one model type: the verdict of the audit, and its kind where it has one.

    Args:
        name: a model type of Transformers that can be built at a tiny size.
        texts: where the documents are cut from.
    """
    return {way: _measure(name, way, texts) for way in WAYS}


def _measure(name: str, way: Way, texts: Sequence[bytes]) -> str:
    target: Target = ModelType(name) if way == "positions" else Builder(way, lambda: Through(name, way), custom=False)
    path: PathName = "positions" if way == "positions" else "configured"
    finding = audit_models([target], texts, paths=[path]).models[0].paths.get(path)
    if finding is None:
        return "error"
    return finding.verdict if finding.kind is None else f"{finding.verdict}: {finding.kind}"


def measured_families(texts: Sequence[bytes]) -> Iterator[tuple[str, dict[Way, str]]]:
    """Measure every model type that can be built, each once, by the type of the config of its text."""
    seen: set[str] = set()
    for name in model_types():
        try:
            kind = str(tiny_config(name).model_type)
            build_tiny_model(name)
        except Exception as error:  # noqa: BLE001  # nothing can be said of what does not build at a tiny size
            sys.stderr.write(f"{name}: not built: {type(error).__name__}\n")
            continue
        if kind not in seen:
            seen.add(kind)
            yield kind, measure_family(name, texts)


def write_table(found: Mapping[str, Mapping[Way, str]], path: Path) -> None:
    """Replace the findings in a module by others, of the installed versions."""
    versions = {name: metadata.version(name).partition("+")[0] for name in family_table.MEASURED_ON}
    named = ", ".join(f'"{name}": "{version}"' for name, version in versions.items())
    rows = [
        f'    "{kind}": ({", ".join(f"{ways[way]!r}".replace(chr(39), chr(34)) for way in WAYS)}),'
        for kind, ways in sorted(found.items())
    ]
    head = path.read_text().partition("MEASURED_ON: Final")[0]
    text = f"{head}MEASURED_ON: Final[Mapping[str, str]] = {{{named}}}\n\n{_TABLE}\n"
    path.write_text("\n".join([text.rstrip(), *rows, "}", '"""The verdicts of each model type, by way."""', ""]))


def main() -> None:
    """Measure everything, and write the table."""
    found: dict[str, dict[Way, str]] = {}
    for kind, ways in measured_families(read_texts(default_paths())):
        sys.stderr.write(f"{kind}: {', '.join(ways.values())}\n")
        found[kind] = ways
    write_table(found, Path(family_table.__file__))


if __name__ == "__main__":
    main()
