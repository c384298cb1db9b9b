"""Styled lines on a terminal: with rich where it is installed, and the same lines without colours elsewhere."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Literal, TextIO

Style = Literal[
    "", "bold", "dim", "red", "bold red", "green", "yellow", "magenta", "cyan", "blue", "black on red", "reverse"
]


@dataclass(frozen=True)
class Span:
    """A piece of a line, and how it looks."""

    text: str
    style: Style = ""


Line = tuple[Span, ...]
"""One line, its spans from left to right."""


def line(text: str, style: Style = "") -> Line:
    """Make a line of one span."""
    return (Span(text, style),)


def plain(lines: Iterable[Line]) -> str:
    """Give the lines as text, without trailing blanks.

    Example:
        >>> plain([(Span("ab", "bold"), Span("c  ")), line("d")])
        'abc\\nd'
    """
    return "\n".join("".join(span.text for span in spans).rstrip() for spans in lines)


def terminal_width() -> int:
    """Columns of the terminal; `COLUMNS` in the environment overrides it."""
    return shutil.get_terminal_size((100, 24)).columns


def show(lines: Iterable[Line], stream: TextIO) -> None:
    """Write lines to `stream`, in colour where it is a terminal and rich is installed."""
    if stream.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream, highlight=False, soft_wrap=True)
        for spans in lines:
            console.print(Text.assemble(*((span.text, span.style) for span in spans)))
    else:
        stream.write(plain(lines) + "\n")
    stream.flush()


@contextmanager
def progress_of(total: int, stream: TextIO) -> Generator[Callable[[str], None], None, None]:
    """Give a function to call with a few words whenever one of `total` pieces is done.

    On a terminal where rich is installed it moves a bar; elsewhere it writes a line a piece.
    """
    if stream.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(file=stream), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda words: bar.update(task, advance=1, description=words)
        return
    done = count(1)

    def tell(words: str) -> None:
        stream.write(f"[{next(done)}/{total}] {words}\n")
        stream.flush()

    yield tell
