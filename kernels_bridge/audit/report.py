"""The report: what the audit says, as data, and the JSON that programs read, which has the same fields."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final, Literal, TypeAlias, cast, get_args

SCHEMA_VERSION: Final = 1
"""Raised when a key of the JSON is renamed or removed, or changes its meaning."""

JSON: TypeAlias = dict[str, object]
"""The fields of a record in the shape that is printed: lists for tuples, and null for numbers that JSON cannot hold."""

Verdict = Literal["clean", "differs", "leak", "refused", "error", "inconclusive"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

Kind = Literal[
    "attention",
    "convolution",
    "recurrence",
    "token_shift",
    "router",
    "auxiliary_loss",
    "mixing",
    "padding",
    "causality",
    "kernel_not_called",
    "kwargs_dropped",
    "window",
    "positions",
    "length",
    "mask",
    "joining",
    "weight_gradient",
    "unexplained",
    "constant",
    "no_mixing",
    "not_finite",
    "gradient_unseen",
    "not_deterministic",
]
"""What a verdict rests on.

Leaks: through `attention`, `convolution`, `recurrence` or a `token_shift`; through the `router` of experts, or an
`auxiliary_loss` over tokens of a model without one; by `mixing` in a module that bears no such name; of `padding`
alone; with `causality` lost inside documents too; because the bound kernel was never called (`kernel_not_called`), or
the boundaries did not arrive where they were needed (`kwargs_dropped`).
Differences: tokens past the `window` see too much; documents that do not begin a row have the wrong `positions`;
shorter documents change with the `length` of the longest; the `mask` given, or that of the kernel, hides other tokens
of a document than the model's own; documents that attention ids join are not joined (`joining`); the gradient of a
weight is not the sum of those by each document (`weight_gradient`); or the difference is `unexplained`.
Inconclusive: the logits are `constant` or `not_finite`, at documents or at padding; no token answers to an earlier one
of its document (`no_mixing`); no gradient could be watched (`gradient_unseen`); or an unchanged batch is answered
otherwise when it is given again (`not_deterministic`).
"""

Pattern = Literal[
    "every_document", "one_pair", "first_document", "last_document", "first_token", "last_token", "backward", "rows"
]
"""Which documents a leak joins: each to those before it in its row (`every_document`); two alone (`one_pair`); the
first two of a row, or the last to those before it, where a boundary is lost (`first_document`, `last_document`); the
first token of a document to the one before, where a boundary counts one too late (`first_token`); the last token of a
document to the next, where it counts one too early (`last_token`); one before (`backward`); or other `rows`."""

Trial = Literal["plain", "ids", "shape", "full", "gaps", "holes", "many", "long", "training", "xdoc"]
"""In which batch: documents of the usual kind (`plain`); the same under other ids, which fall and have gaps (`ids`);
others in rows of the same shape as before (`shape`); in one row without padding (`full`); with padding before and
between documents (`gaps`), or holes in them (`holes`); many documents in long rows, and long ones (`many`); one that is
longer than all that the model sees at once (`long`); the usual ones, the full row and the long rows in `training` mode;
or as attention ids join them (`xdoc`)."""
TRIALS: Final[tuple[Trial, ...]] = get_args(Trial)


@dataclass(frozen=True)
class LayerReport:
    """How far each document reaches into the output of one layer, `[source][target]`, in shares of how far that output
    varies."""

    name: str
    matrix: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PathReport:
    """What the audit says of one path. Numbers are None where there is none.

    `difference`, `perturbation` and `own_perturbation` are shares of `logit_scale`; `gradient` and `own_gradient` are
    shares of the greatest derivative by a document's own embeddings; `padding` is the greater of what padding does
    by either measure. A path is clean below the `threshold` of the environment. Documents are numbered from 1 in the
    order of their rows.
    `mechanism` is how documents mix at `where`, whatever the cause. `trial` says in which batch a leak or difference
    was seen, and `pattern` which documents it joins. `matrix` is the effect of each document on each other,
    `[source][target]`, by the greater of both measures, and `layers` the same at the output of each layer; both are
    empty where they were not taken. `untried` names what the verdict does not cover: further batches that the model
    declined, and a span of its layers that no document was longer than.
    """

    verdict: Verdict
    kind: Kind | None = None
    message: str = ""
    remedy: str = ""
    difference: float | None = None
    perturbation: float | None = None
    gradient: float | None = None
    padding: float | None = None
    own_perturbation: float | None = None
    own_gradient: float | None = None
    logit_scale: float | None = None
    calls: int | None = None
    boundaries_seen: bool | None = None
    from_document: int | None = None
    to_document: int | None = None
    where: str | None = None
    mechanism: Kind | None = None
    dropped: tuple[str, ...] = ()
    trial: Trial | None = None
    pattern: Pattern | None = None
    matrix: tuple[tuple[float, ...], ...] = ()
    layers: tuple[LayerReport, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def not_seen(self) -> str:
        """What the verdict does not cover, in words; empty where that is nothing that can be named."""
        return f"Not seen: {'; '.join(self.untried)}." if self.untried else ""


@dataclass(frozen=True)
class Configured:
    """What `configure_packing` chose for a model, or why it refused; and of the consumers that take the model, the
    fastest, and the one least likely to be wrong."""

    attention: str | None = None
    consumer: str | None = None
    packed_mask_type: str | None = None
    requires_packed_sequence_metadata: bool | None = None
    uses_native_fa4: bool | None = None
    refused: str | None = None
    fastest: str | None = None
    safest: str | None = None


@dataclass(frozen=True)
class ModelReport:
    """What the audit says of one model.

    Attributes:
        name: the model type, or `package.module:callable`.
        class_name: its class, `class` in JSON; None where it could not be built.
        configured: what `configure_packing` chose.
        paths: by path, in the order of the audit.
        error: why the model could not be built or run at all.
        seconds: how long its audit took.
        remedy: what to do about an error, where there is something.
    """

    name: str
    class_name: str | None
    configured: Configured
    paths: dict[str, PathReport]
    error: str | None = None
    seconds: float = 0.0
    remedy: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether the configured path keeps documents apart."""
        configured = self.paths.get("configured")
        return configured is not None and configured.verdict == "clean"

    @property
    def outcome(self) -> str:
        """The verdict on the configured path, or that there is none."""
        configured = self.paths.get("configured")
        return "not audited" if self.error is not None or configured is None else configured.verdict


@dataclass(frozen=True)
class Environment:
    """Where the audit ran; `threshold` is the share of the logit scale above which something moves."""

    python: str
    platform: str
    neatpack: str
    torch: str
    transformers: str | None
    threads: int
    dtype: str
    device: str
    threshold: float


@dataclass(frozen=True)
class Run:
    """How models were audited: what the caller waited, how many at a time, and how many an earlier run had done."""

    wall_seconds: float = 0.0
    workers: int = 1
    resumed: int = 0


@dataclass(frozen=True)
class Figures:
    """How long the audit took, in seconds.

    `median_seconds` and `total_seconds` are of the models that were audited, None and 0 without any; `wall_seconds` is
    what the caller waited, while `workers` models were audited at a time. `not_audited` models could not be built or
    run, and `resumed` ones were taken from an earlier run.
    """

    models: int
    not_audited: int
    resumed: int
    workers: int
    median_seconds: float | None
    total_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class Report:
    """The audits of several models in one environment."""

    environment: Environment
    models: tuple[ModelReport, ...]
    run: Run = Run()

    @property
    def is_clean(self) -> bool:
        """Whether every model was audited and its configured path is clean."""
        return bool(self.models) and all(model.is_clean for model in self.models)

    def figures(self) -> Figures:
        """Count the models, and the seconds that they took."""
        seconds = [model.seconds for model in self.models if model.error is None]
        return Figures(
            models=len(self.models),
            not_audited=len(self.models) - len(seconds),
            resumed=self.run.resumed,
            workers=self.run.workers,
            median_seconds=round(median(seconds), 3) if seconds else None,
            total_seconds=round(sum(seconds), 3),
            wall_seconds=round(self.run.wall_seconds, 3),
        )

    def as_json(self) -> JSON:
        """Give the report in the shape that is printed."""
        return {
            "schema_version": SCHEMA_VERSION,
            "environment": asdict(self.environment),
            "figures": asdict(self.figures()),
            "models": [model_json(model) for model in self.models],
        }

    def dumps(self) -> str:
        """Write the report as JSON. Numbers that JSON cannot hold are null."""
        return json.dumps(self.as_json(), indent=2, allow_nan=False)


def model_json(model: ModelReport) -> JSON:
    """Give one model in the shape that is printed."""
    fields = cast("JSON", _plain(asdict(model)))
    name, class_name = fields.pop("name"), fields.pop("class_name")
    return {"name": name, "class": class_name, **fields, "seconds": round(model.seconds, 3)}


def _plain(value: object) -> object:
    """Make lists of tuples, and null of numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in cast("dict[str, object]", value).items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in cast("Sequence[object]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
