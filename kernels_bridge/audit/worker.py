"""The process that audits model types for `workers`: names come in by line, and reports go out by line."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO, cast

from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.report import model_json
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import parse_target
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts


def serve(names: Iterable[str], answers: TextIO) -> None:
    """Audit what is named, one line of JSON each. The first line in holds the texts and the paths to try, and the first
    line out says that names may come."""
    answers.write("ready\n")
    answers.flush()
    lines = iter(names)
    settings = cast("dict[str, list[str]]", json.loads(next(lines)))
    texts = read_texts([Path(path) for path in settings["texts"]] or default_paths())
    paths = cast("list[PathName]", settings["paths"])
    for name in lines:
        report = audit_models([parse_target(name.strip())], texts, paths=paths).models[0]
        answers.write(json.dumps(model_json(report), allow_nan=False) + "\n")
        answers.flush()


def main() -> None:
    """Serve whoever started this process. What models print goes to stderr, and an interruption is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
