"""Audits families in a process of its own, in which the kernels of recurrent layers seem to be installed.

`python -m tests.audit.with_stand_ins FAMILY...` prints the verdict of each on each of `PATHS`, as JSON; with `--deaf`
before them, its convolution takes boundaries and does not heed them. All documents are in one row, since kernels of
delta rules take offsets of no more.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from torch import Tensor

from neatpack.kernels_bridge.audit.paths import PathName
from tests.kernels_bridge.recurrent_stand_ins import causal_conv1d_fn, install

PATHS: Final[tuple[PathName, ...]] = ("varlen+seq_idx", "varlen+seq_idx+cu_seqlens")


def deaf_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Convolve over all that is in the row, whatever `seq_idx` says."""
    del seq_idx
    return causal_conv1d_fn(x, weight, bias, None, activation)


def verdicts(*names: str) -> dict[str, dict[str, str]]:
    """Audit model types of Transformers: the verdict by path, or why there is none."""
    from neatpack.kernels_bridge.audit import documents
    from neatpack.kernels_bridge.audit.run import audit_models
    from neatpack.kernels_bridge.audit.targets import ModelType
    from neatpack.kernels_bridge.audit.texts import default_paths, read_texts

    setattr(documents, "CAPACITY", sum(documents.LENGTHS) + 1)  # noqa: B010  # a constant to all others
    report = audit_models([ModelType(name) for name in names], read_texts(default_paths()), paths=PATHS)
    return {
        model.name: {path: found.verdict for path, found in model.paths.items()} or {"": str(model.error)}
        for model in report.models
    }


if __name__ == "__main__":
    install()
    arguments = sys.argv[1:]
    if arguments[0] == "--deaf":
        vars(sys.modules["causal_conv1d"])["causal_conv1d_fn"] = deaf_conv1d_fn
        del arguments[0]
    print(json.dumps(verdicts(*arguments)))  # noqa: T201  # read by the tests
