"""The command line: `neatpack audit`, `neatpack explain`, `neatpack doctor`, `neatpack inspect`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neatpack.contracts.errors import BatchFileError, PackingError, Problem
from neatpack.kernels_bridge.terminal import progress_of, show, terminal_width

if TYPE_CHECKING:
    import torch

    from neatpack.kernels_bridge.audit.report import ModelReport, Report
    from neatpack.kernels_bridge.audit.targets import Target

CLEAN: Final = 0
NOT_CLEAN: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: of the command line; those of the process where None.

    Returns:
        The exit status: of `audit`, 0 only where the configured path of every model is clean, else 1; of `explain`,
        1 where no consumer takes the model; of `inspect`, 1 where encodings disagree; 2 where the command cannot be
        carried out as given.

    Example:
        >>> main(["inspect", "no-such-file.json"])
        2
    """
    given = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = given.command
    try:
        return command(given)
    except PackingError as error:
        sys.stderr.write(f"neatpack: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        sys.stderr.write("\nneatpack: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, and Python would complain at exit
        return NOT_CLEAN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="neatpack", description="Packed sequences: prove that documents stay apart.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    audit = commands.add_parser("audit", help="prove that models keep the documents of a row apart, or show the leak")
    audit.add_argument(
        "targets", nargs="*", metavar="TARGET", help="a Transformers model type, or package.module:callable"
    )
    audit.add_argument(
        "--all", action="store_true", help="audit every model type that this Transformers can build, for every task"
    )
    audit.add_argument(
        "--resume", type=Path, metavar="FILE", help="with --all: keep finished audits in FILE, and go on where it ends"
    )
    audit.add_argument("--workers", type=_positive, metavar="N", help="with --all: models audited at a time")
    audit.add_argument("--page", action="store_true", help="with --all: print the page of the documentation")
    audit.add_argument("--text", nargs="+", type=Path, metavar="PATH", help="files or folders to cut documents from")
    audit.add_argument("--json", action="store_true", help="print the report as JSON")
    audit.add_argument("--batch", type=Path, metavar="FILE", help="a saved batch to audit modules of your own on")
    audit.add_argument("--keep-weights", action="store_true", help="leave parameters that are all zero as they are")
    audit.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of weights and masks; float32 if not given",
    )
    audit.add_argument("--html", type=Path, metavar="FILE", help="write the report to FILE, with leaks drawn, as HTML")
    audit.add_argument("--markdown", type=Path, metavar="FILE", help="write a summary to FILE, as Markdown")
    audit.set_defaults(command=_audit, misuse=audit.error)

    explain = commands.add_parser("explain", help="say which consumer would bind a model, and why the others would not")
    explain.add_argument("target", metavar="MODEL", help="a Transformers model type, or package.module:callable")
    explain.add_argument("--json", action="store_true", help="print the explanation as JSON")
    explain.set_defaults(command=_explain)

    doctor = commands.add_parser("doctor", help="show versions, and which kernels are usable here")
    doctor.set_defaults(command=_doctor)

    inspect = commands.add_parser("inspect", help="draw the documents of a saved batch")
    inspect.add_argument("file", type=Path, metavar="FILE", help="a batch as .pt, .safetensors, .npz or .json")
    inspect.set_defaults(command=_inspect)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be positive: {text}")
    return value


def _audit(given: argparse.Namespace) -> int:
    _require_targets(given)
    return _audit_everything(given) if given.all else _audit_targets(given)


def _require_targets(given: argparse.Namespace) -> None:
    """Leave with what is wrong where the command line names nothing to audit, or asks for what only --all has."""
    if given.batch is not None and given.text is not None:
        given.misuse("give either --batch or --text")
    of_all = {"--resume": given.resume, "--workers": given.workers, "--page": given.page or None}
    misplaced = [name for name, value in of_all.items() if value is not None]
    if bool(given.targets) == given.all:
        given.misuse("give either targets or --all")
    if misplaced and not given.all:
        given.misuse(f"{', '.join(misplaced)}: only with --all")
    if given.all and (given.batch is not None or given.keep_weights or given.dtype != "float32"):
        given.misuse("--batch, --keep-weights, --dtype: only with targets")


def _audit_everything(given: argparse.Namespace) -> int:
    from neatpack.kernels_bridge.audit.everything import audit_everything
    from neatpack.kernels_bridge.audit.families_page import families_page
    from neatpack.kernels_bridge.audit.overview import overview_lines
    from neatpack.kernels_bridge.audit.tiny_models import every_model_type

    names = every_model_type()
    with progress_of(len(names), sys.stderr) as advance:
        report = audit_everything(
            names,
            texts=given.text or (),
            resume=given.resume,
            workers=given.workers,
            progress=lambda model: advance(f"{model.name}: {model.outcome}"),
        )
    _write_files(given, report)
    if given.json:
        sys.stdout.write(report.dumps() + "\n")
    elif given.page:
        sys.stdout.write(families_page(report))
    else:
        show(overview_lines(report, terminal_width()), sys.stdout)
    return CLEAN if report.is_clean else NOT_CLEAN


def _audit_targets(given: argparse.Namespace) -> int:
    import torch

    from neatpack.kernels_bridge.audit.run import audit_models
    from neatpack.kernels_bridge.audit.table import table_lines
    from neatpack.kernels_bridge.audit.targets import parse_target
    from neatpack.kernels_bridge.audit.texts import default_paths, read_texts

    dtype: torch.dtype = getattr(torch, given.dtype)
    with _current_folder_importable(), _progress() as progress:
        targets: list[Target] = [parse_target(text) for text in given.targets]
        if given.batch is not None:
            report = _audit_on_batch(given, targets, dtype)
        else:
            texts = read_texts(given.text or default_paths())
            layers = given.html is not None
            report = audit_models(targets, texts, progress, keep_weights=given.keep_weights, layers=layers, dtype=dtype)
    _write_files(given, report)
    if given.json:
        sys.stdout.write(report.dumps() + "\n")
    else:
        show(table_lines(report, terminal_width()), sys.stdout)
    return CLEAN if report.is_clean else NOT_CLEAN


def _audit_on_batch(given: argparse.Namespace, targets: Sequence[Target], dtype: torch.dtype) -> Report:
    """Audit modules of the caller's own on a saved batch."""
    from neatpack.adapters.batch_files import load_batch
    from neatpack.kernels_bridge.audit.isolation import audit_build
    from neatpack.kernels_bridge.audit.report import Report
    from neatpack.kernels_bridge.audit.surroundings import audit_environment
    from neatpack.kernels_bridge.audit.targets import prepared
    from neatpack.kernels_bridge.audit.ways import noise_in

    batch = load_batch(given.batch)
    models: list[ModelReport] = []
    for target in targets:
        with prepared(target, keep_weights=True, dtype=dtype).variant("built") as variant:
            models.append(audit_build(target.name, variant.model, batch, given.keep_weights))
    return Report(audit_environment(dtype, threshold=noise_in(dtype)), tuple(models))


def _write_files(given: argparse.Namespace, report: Report) -> None:
    """Write the report in the forms that were asked for.

    Raises:
        BatchFileError: a file cannot be written.
    """
    from neatpack.kernels_bridge.audit.html_page import html_page
    from neatpack.kernels_bridge.audit.markdown_summary import markdown_summary

    for path, form in ((given.html, html_page), (given.markdown, markdown_summary)):
        if path is not None:
            try:
                path.write_text(form(report), encoding="utf-8")
            except OSError as error:
                message = f"cannot be written ({error.strerror})"
                raise BatchFileError(Problem(str(path), message, "value", remedy="Name a file that can be.")) from error


def _explain(given: argparse.Namespace) -> int:
    from neatpack.kernels_bridge.audit.targets import built_model, parse_target
    from neatpack.kernels_bridge.explain import explain_model, explanation_lines

    with _current_folder_importable(), built_model(parse_target(given.target)) as model:
        explanation = explain_model(model, given.target)
    if given.json:
        sys.stdout.write(explanation.dumps() + "\n")
    else:
        show(explanation_lines(explanation, terminal_width()), sys.stdout)
    return NOT_CLEAN if explanation.chosen is None else CLEAN


def _doctor(_given: argparse.Namespace) -> int:
    from neatpack.kernels_bridge.doctor import doctor_lines

    show(doctor_lines(terminal_width()), sys.stdout)
    return CLEAN


def _inspect(given: argparse.Namespace) -> int:
    from neatpack.adapters.batch_files import load_batch
    from neatpack.kernels_bridge.inspect import inspect_batch, inspection_lines

    inspection = inspect_batch(load_batch(given.file))
    show(inspection_lines(inspection, terminal_width()), sys.stdout)
    return NOT_CLEAN if inspection.disagreements else CLEAN


@contextmanager
def _progress() -> Generator[Callable[[str], None], None, None]:
    """Give a function that says on stderr what is being done: in place on a terminal, else one line per model."""
    stream = sys.stderr
    in_place = stream.isatty()
    last = ""

    def tell(message: str) -> None:
        nonlocal last
        model = message.rsplit(": ", 1)[0]
        if in_place:
            stream.write(f"\r\x1b[K{message}")
        elif model != last:
            stream.write(f"{model}\n")
        last = model
        stream.flush()

    try:
        yield tell
    finally:
        if in_place:
            stream.write("\r\x1b[K")


@contextmanager
def _current_folder_importable() -> Generator[None, None, None]:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
