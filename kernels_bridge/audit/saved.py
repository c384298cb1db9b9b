"""Finished audits kept in a file, one line of JSON each, so that an interrupted run can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, cast

from pydantic import TypeAdapter, ValidationError

from neatpack.contracts.errors import BatchError, Problem
from neatpack.kernels_bridge.audit.report import JSON, SCHEMA_VERSION, Environment, ModelReport

_SETTINGS: Final = "settings"
_MODEL: Final = "model"


@dataclass(frozen=True)
class SavedAudits:
    """A file of finished audits.

    Attributes:
        path: the file. It is made when the first audit is added.
        settings: under which audits are the same; those in the file under other settings are left alone.
    """

    path: Path
    settings: Mapping[str, object]

    def read(self) -> dict[str, ModelReport]:
        """Read the audits that were made under these settings, by name; the last of a name holds.

        Raises:
            BatchError: the file cannot be read, or holds something else than audits.
        """
        if not self.path.exists():
            return {}
        reports: dict[str, ModelReport] = {}
        for entry in self._entries():
            if entry.get(_SETTINGS) == self.settings:
                report = self._report(entry.get(_MODEL))
                reports[report.name] = report
        return reports

    def add(self, model: JSON) -> None:
        """Write one audit behind the others.

        Raises:
            BatchError: the file cannot be written.
        """
        line = json.dumps({_SETTINGS: self.settings, _MODEL: model}, allow_nan=False)
        try:
            with self.path.open("a+b") as stream:
                stream.write(b"" if self._ends_a_line(stream) else b"\n")
                stream.write(f"{line}\n".encode())
        except OSError as error:
            raise self._unusable(f"cannot be written ({error.strerror})") from error

    @staticmethod
    def _ends_a_line(stream: BinaryIO) -> bool:
        """Whether the file is empty or its last line is whole, as it is not where writing was interrupted."""
        if stream.tell() == 0:
            return True
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"

    def _entries(self) -> Iterator[Mapping[str, object]]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise self._unusable(f"cannot be read ({error})") from error
        for number, text in enumerate(lines, start=1):
            try:
                entry: object = json.loads(text)
            except ValueError:
                continue  # a line that an interruption cut
            if not isinstance(entry, dict) or _MODEL not in entry:
                raise self._unusable(f"holds no audit in line {number}")
            yield cast("Mapping[str, object]", entry)

    def _report(self, model: object) -> ModelReport:
        try:
            return model_from_json(model)
        except (ValidationError, TypeError, KeyError) as error:
            raise self._unusable(f"holds an audit that cannot be read ({error})") from error

    def _unusable(self, message: str) -> BatchError:
        remedy = "Give --resume a file that the audit wrote, or one that does not exist yet."
        return BatchError(Problem("resume", message, "value", value=str(self.path), remedy=remedy))


def settings_of(environment: Environment, texts: Sequence[bytes], paths: Sequence[str]) -> dict[str, object]:
    """Name all on which the outcome of an audit depends: versions, threshold, texts and paths."""
    return {
        "schema_version": SCHEMA_VERSION,
        "environment": asdict(environment),
        "texts": sha256(b"\0".join(texts)).hexdigest(),
        "paths": list(paths),
    }


def model_from_json(model: object) -> ModelReport:
    """Read one model of a JSON report.

    Raises:
        ValidationError: a field is missing or wrong.
        TypeError: it is no mapping.
        KeyError: the name of the class is missing.
    """
    fields = dict(cast("Mapping[str, object]", model))
    fields["class_name"] = fields.pop("class")
    return _reader().validate_python(fields)


@cache
def _reader() -> TypeAdapter[ModelReport]:
    return TypeAdapter(ModelReport)
