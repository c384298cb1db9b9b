"""Auditing many model types in processes of their own, each within a time limit, so that none can stop the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, cast

import neatpack
from neatpack.kernels_bridge.audit.paths import PathName
from neatpack.kernels_bridge.audit.report import JSON, Configured, ModelReport, model_json

_MODULE: Final = "neatpack.kernels_bridge.audit.worker"
_PATIENCE: Final = 5.0
"""Seconds for a process that answers no more to come to its end."""


@dataclass(frozen=True)
class Finished:
    """What became of one name.

    Attributes:
        model: the report.
        failed: whether its process came to an end or took too long, so that the report is not the audit's own.
    """

    model: JSON
    failed: bool = False


@dataclass(frozen=True)
class Orders:
    """What every worker is told.

    Attributes:
        texts: files or folders to cut documents from; empty for the default.
        paths: which ways to try.
        seconds: time limit of one model.
    """

    texts: tuple[Path, ...]
    paths: tuple[PathName, ...]
    seconds: float


def audit_in_workers(names: Sequence[str], orders: Orders, workers: int) -> Generator[Finished, None, None]:
    """Audit model types in worker processes, and give each report as it is finished.

    When the generator is closed, so are the workers.
    """
    waiting: SimpleQueue[str] = SimpleQueue()
    finished: SimpleQueue[Finished | Exception] = SimpleQueue()
    for name in names:
        waiting.put(name)
    with _serving([_Worker(orders) for _ in range(min(workers, len(names)))], waiting, finished):
        for _ in names:
            outcome = finished.get()
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome


@contextmanager
def _serving(
    workers: Sequence[_Worker], waiting: SimpleQueue[str], finished: SimpleQueue[Finished | Exception]
) -> Generator[None, None, None]:
    """Within, each worker takes names that wait; afterwards none runs any more."""
    threads = [threading.Thread(target=_serve, args=(worker, waiting, finished), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


def _serve(worker: _Worker, waiting: SimpleQueue[str], finished: SimpleQueue[Finished | Exception]) -> None:
    try:
        while (outcome := worker.audit(waiting.get_nowait())) is not None:
            finished.put(outcome)
    except Empty:
        return
    except Exception as error:  # noqa: BLE001  # raised again where reports are waited for
        finished.put(error)
    finally:
        worker.close()


class _Worker:
    """A process that audits one model type after the other, and is replaced when one of them has ended it."""

    def __init__(self, orders: Orders) -> None:
        self._stopped = False
        self._orders = orders
        self._process: subprocess.Popen[str] | None = None
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
        self._lock = threading.Lock()

    def audit(self, name: str) -> Finished | None:
        """Audit one model type. Whatever ends the process, there is a report, but None once it is stopped."""
        process = self._process or self._start()
        if process is None:
            return None
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(self._orders.seconds, stop)
        timer.start()
        try:
            answer = _ask(process, name)
        finally:
            timer.cancel()
        if answer:
            return Finished(cast("JSON", json.loads(answer)))
        status = self._end(process)
        if self._stopped:
            return None
        limit = f"did not finish within {self._orders.seconds:g} s"
        error = limit if overdue.is_set() else f"ended its process with status {status}: {self._last_words()}"
        report = ModelReport(name, None, Configured(), {}, error, self._orders.seconds if overdue.is_set() else 0.0)
        return Finished(model_json(report), failed=True)

    def stop(self) -> None:
        """End the process, whatever it does, and start no other. Any thread may ask for it."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Let go of everything. Asked for by the thread that asks for audits."""
        self.stop()
        if self._process is not None:
            self._end(self._process)
        self._noise.close()

    def _end(self, process: subprocess.Popen[str]) -> int:
        """Clear away a process, and tell its status."""
        with self._lock:
            self._process = None
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
        with suppress(OSError):  # words that it did not read
            process.communicate()
        return process.returncode

    def _start(self) -> subprocess.Popen[str] | None:
        """Start a process and wait until it is ready; None once it is stopped."""
        with self._lock:
            if self._stopped:
                return None
            process = self._process = subprocess.Popen(  # noqa: S603  # this very Python
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._noise,
                encoding="utf-8",
                env=_environment(),
            )
        if _read(process):
            texts = [str(path) for path in self._orders.texts]
            _write(process, json.dumps({"texts": texts, "paths": self._orders.paths}))
        return process

    def _last_words(self) -> str:
        self._noise.seek(0)
        lines = self._noise.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _ask(process: subprocess.Popen[str], name: str) -> str:
    """Give a name, and wait for the line of its report; empty where the process has ended."""
    _write(process, name)
    return _read(process)


def _write(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is not None:
        with suppress(OSError):  # it has ended, as the next read will tell
            process.stdin.write(f"{line}\n")
            process.stdin.flush()


def _read(process: subprocess.Popen[str]) -> str:
    return "" if process.stdout is None else process.stdout.readline()


def _environment() -> dict[str, str]:
    """The environment of a worker: it imports this very package, and computes on one thread."""
    folders = [str(Path(neatpack.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
