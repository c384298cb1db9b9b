"""Progress: a bar on a terminal, else a line a piece; nothing is left on the terminal when all is done."""

from __future__ import annotations

import importlib.util
import io

import pytest

from neatpack.kernels_bridge.terminal import progress_of


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_on_a_terminal_each_piece_has_its_line() -> None:
    stream = io.StringIO()
    with progress_of(2, stream) as advance:
        advance("one: clean")
        advance("two: leak")
    assert stream.getvalue() == "[1/2] one: clean\n[2/2] two: leak\n"


def test_on_a_terminal_a_bar_moves_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = _Terminal()
    with progress_of(2, stream) as advance:
        advance("one: clean")
        advance("two: leak")
    written = stream.getvalue()
    assert "two: leak" in written
    assert "100%" in written
    assert "[1/2]" not in written
    assert written.endswith("\x1b[2K")  # the line is erased


def test_without_rich_a_terminal_has_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nowhere)
    stream = _Terminal()
    with progress_of(1, stream) as advance:
        advance("one: clean")
    assert stream.getvalue() == "[1/1] one: clean\n"
