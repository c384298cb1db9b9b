"""Auditing every causal language model that the installed Transformers can build, resumably."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from neatpack.kernels_bridge.audit.documents import LENGTHS
from neatpack.kernels_bridge.audit.paths import PATH_NAMES, PathName
from neatpack.kernels_bridge.audit.report import ModelReport, Report, Run
from neatpack.kernels_bridge.audit.saved import SavedAudits, model_from_json, settings_of
from neatpack.kernels_bridge.audit.surroundings import audit_environment
from neatpack.kernels_bridge.audit.texts import default_paths, excerpts, read_texts
from neatpack.kernels_bridge.audit.workers import Orders, audit_in_workers

SECONDS: Final = 60.0
"""Time limit of one model."""

MOST_WORKERS: Final = 4
"""Processes at most, unless asked for: each holds torch and Transformers in memory."""


def audit_everything(
    names: Sequence[str],
    texts: Sequence[Path] = (),
    paths: Sequence[PathName] = PATH_NAMES,
    resume: Path | None = None,
    workers: int | None = None,
    seconds: float = SECONDS,
    progress: Callable[[ModelReport], None] = lambda _model: None,
) -> Report:
    """Audit model types in worker processes, each model within a time limit.

    Args:
        names: the model types, in the order of the report.
        texts: files or folders to cut documents from; the standard library's where empty.
        paths: which ways to try.
        resume: a file to which every finished audit is added. What it holds already, of the same versions and
            settings, is not audited again.
        workers: processes; by default one per core, and no more than `MOST_WORKERS`.
        seconds: time limit of one model. One that exceeds it, or ends its process, is reported with an `error`,
            and tried again when the run is resumed.
        progress: told each finished model.

    Raises:
        BatchError: the texts are too short or cannot be read, or the file holds something else.
    """
    started = time.perf_counter()
    read = read_texts(texts or default_paths())
    excerpts(read, LENGTHS)
    saved = None if resume is None else SavedAudits(resume, settings_of(audit_environment(), read, paths))
    known = {} if saved is None else saved.read()
    done = {name: known[name] for name in names if name in known}
    resumed = len(done)
    waiting = [name for name in names if name not in done]
    workers = min(os.cpu_count() or 1, MOST_WORKERS) if workers is None else workers
    with closing(audit_in_workers(waiting, Orders(tuple(texts), tuple(paths), seconds), workers)) as finished:
        for outcome in finished:
            report = model_from_json(outcome.model)
            done[report.name] = report
            if saved is not None and not outcome.failed:
                saved.add(outcome.model)
            progress(report)
    run = Run(time.perf_counter() - started, workers, resumed)
    return Report(audit_environment(), tuple(done[name] for name in names), run)
