"""One family of errors. Each carries its problems as data: field, row, position, value, and the way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

ProblemKind = Literal["missing", "type", "rank", "shape", "dtype", "device", "value", "disagreement", "unsupported"]
PROBLEM_KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)

_SHOWN_PROBLEMS: Final = 20
_SHOWN_LETTERS: Final = 400


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, where it is, and what to do about it.

    Attributes:
        field: the argument, batch entry or declaration that is wrong.
        message: what is wrong with it.
        kind: the sort of fault, for programs.
        row: index along `batch`, where the fault has one.
        position: index along `sequence`, where the fault has one.
        value: the offending value, or the shape or dtype found.
        remedy: what to do.
        document: index of the document, where the fault is one of a list of documents.

    Example:
        >>> print(Problem("document_ids", "negative id", "value", row=1, position=4, value=-2, remedy="Padding is 0."))
        document_ids[row 1, position 4] = -2: negative id. Padding is 0.
    """

    field: str
    message: str
    kind: ProblemKind
    row: int | None = None
    position: int | None = None
    value: object = None
    remedy: str = ""
    document: int | None = None

    def __str__(self) -> str:
        indices = (("document", self.document), ("row", self.row), ("position", self.position))
        places = [f"{name} {index}" for name, index in indices if index is not None]
        where = f"{self.field}[{', '.join(places)}]" if places else self.field
        value = "" if self.value is None else f" = {_shortened(str(self.value))}"
        return f"{where}{value}: {self.message}.{' ' if self.remedy else ''}{self.remedy}"


class PackingError(Exception):
    """The root of every error that neatpack raises on purpose.

    Example:
        >>> error = DocumentIdsError(Problem("document_ids", "an example", "value"))
        >>> isinstance(error, PackingError), isinstance(error, ValueError), error.problems[0].field
        (True, True, 'document_ids')
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that was found wrong, in the order in which it was found. The text shows the first of many."""
        return self.args

    def __str__(self) -> str:
        count = len(self.problems)
        if count == 1:
            return str(self.problems[0])
        lines = [f"{count} problems:", *(f"- {problem}" for problem in self.problems[:_SHOWN_PROBLEMS])]
        if count > _SHOWN_PROBLEMS:
            lines.append(f"... and {count - _SHOWN_PROBLEMS} more.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def _shortened(text: str) -> str:
    """Cut a long text, such as that of the offsets of a whole batch."""
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


class DocumentIdsError(PackingError, ValueError):
    """Document ids that do not say which tokens belong together."""


class EncodingError(PackingError, ValueError):
    """Offsets, lengths, indices, positions or masks that are malformed or contradict what they came with."""


class BatchError(PackingError, ValueError):
    """A training batch with missing, misshapen or contradictory entries."""


class CapabilitiesError(PackingError, ValueError):
    """A declaration of what a model consumes that is not one, or stages whose declarations disagree."""


class ContractError(PackingError, ValueError):
    """A loader and a packing contract that cannot work together."""


class PlanError(PackingError, ValueError):
    """Documents that cannot be placed into rows as asked."""


class KernelInputError(PackingError, ValueError):
    """Queries, keys, values or offsets that a kernel cannot take."""


class BatchFileError(PackingError, ValueError):
    """A saved batch that cannot be read, or not without running code from it."""


class ConsumerError(PackingError, ValueError):
    """A consumer that is unknown, registered twice, or does not take the given model."""


class ModelError(PackingError, RuntimeError):
    """A built model that cannot receive the boundaries of packed documents."""


class BoundariesMissingError(PackingError, RuntimeError):
    """A forward in which the boundaries of packed documents did not arrive."""


class IsolationError(PackingError, RuntimeError):
    """A model that does not keep the documents of a row apart, or of which that could not be shown."""


class ModelTypeError(PackingError, TypeError):
    """Something other than a built module where a model is needed."""


class DependencyError(PackingError, ImportError):
    """An optional package that is needed here and missing, or of an untested kind."""
