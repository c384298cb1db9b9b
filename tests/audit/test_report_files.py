"""The report as an HTML page and as Markdown: complete, self-contained, and with no markup that models could add."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from neatpack.kernels_bridge import audit_isolation
from neatpack.kernels_bridge.audit.html_page import html_page
from neatpack.kernels_bridge.audit.markdown_summary import markdown_summary
from neatpack.kernels_bridge.audit.report import Configured, ModelReport, PathReport, Report
from neatpack.kernels_bridge.audit.surroundings import audit_environment
from neatpack.kernels_bridge.audit.table import table_lines
from neatpack.kernels_bridge.cli import main
from tests.audit import planted

HOSTILE = "<script>alert('x')</script> | `b` & \"q\""


def build() -> planted.Model:
    """What the command line builds here."""
    return planted.Model(planted.Attention(), planted.Conv1dLayer())


class _Page(HTMLParser):
    """Reads the matrices of a page: by caption, which cells are shaded, as (source, target) numbers."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.matrices: dict[str, list[tuple[int, int]]] = {}
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self._shaded: list[tuple[int, int]] = []
        self._in_caption = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag == "td" and "style" in given and "title" in given:
            words = str(given["title"]).rstrip(":").split()
            self._shaded.append((int(words[1]), int(words[4].rstrip(":"))))
        self._in_caption = tag == "figcaption"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_caption:
            self.matrices[data], self._shaded, self._in_caption = self._shaded, [], False


@pytest.fixture(scope="module")
def leaking() -> Report:
    return audit_isolation(build()).as_report()


def test_a_leak_is_drawn_document_by_document_and_layer_by_layer(leaking: Report) -> None:
    page = _Page(html_page(leaking))
    assert list(page.matrices) == ["logits", "layers.0", "layers.1"]
    assert page.matrices["layers.0"] == []
    # A convolution over three places reaches from each document into the next, and past one of a single token.
    assert page.matrices["layers.1"] == [(1, 2), (1, 3), (2, 3), (4, 5)]
    assert page.matrices["logits"] == page.matrices["layers.1"]
    path = leaking.models[0].paths["configured"]
    assert path.message in page.text
    assert str(path.where) == "layers.1.conv (Conv1d)"


def test_a_page_needs_nothing_beside_itself(leaking: Report) -> None:
    page = _Page(html_page(leaking))
    assert page.links == []
    assert page.tags.isdisjoint({"script", "link", "img", "iframe"})
    assert "url(" not in html_page(leaking)


def _hostile() -> Report:
    path = PathReport("leak", "attention", HOSTILE, HOSTILE, where=HOSTILE, matrix=((1.0, 0.5), (0.0, 1.0)))
    chosen = Configured(attention=HOSTILE, consumer=HOSTILE)
    models = (
        ModelReport(HOSTILE, HOSTILE, chosen, {"configured": path}),
        ModelReport(HOSTILE, None, Configured(), {}, error=HOSTILE),
    )
    return Report(audit_environment(), models)


def test_what_models_say_is_no_markup() -> None:
    page = _Page(html_page(_hostile()))
    assert "script" not in page.tags
    assert page.text.count(HOSTILE) >= 6
    summary = markdown_summary(_hostile())
    assert "<script>" not in summary
    rows = [line for line in summary.splitlines() if line.startswith("| ") and "model" not in line]
    assert [line.replace("\\|", "").count("|") for line in rows] == [6, 6]


def test_the_summary_says_what_is_not_clean_and_why(leaking: Report) -> None:
    clean = audit_isolation(planted.Model(planted.Attention())).model
    summary = markdown_summary(replace(leaking, models=(*leaking.models, clean)))
    lines = summary.splitlines()
    assert lines[0] == "## neatpack audit: 1 of 2 clean"
    assert lines[4] == "| Model | **leak** | convolution | declared | layers.1.conv (Conv1d) |"
    assert lines[5] == "| Model | clean |  | declared |  |"
    assert "They mix in layers.1.conv (Conv1d)." in summary
    assert "To do: mend layers.1.conv (Conv1d): no other consumer takes this model." in summary


def test_the_summary_says_what_to_do_about_what_was_not_audited(leaking: Report) -> None:
    failed = ModelReport("none", None, Configured(), {}, "ModelError: it fails.", remedy="Audit another.")
    assert markdown_summary(replace(leaking, models=(failed,))).split("\n\n")[2] == (
        "- **none**: ModelError: it fails.\n  To do: Audit another."
    )


def test_what_was_not_seen_is_said_in_every_form(leaking: Report) -> None:
    path = PathReport("clean", untried=("a window is 4096",))
    report = replace(leaking, models=(ModelReport("m", "M", Configured(), {"configured": path}),))
    shown = "\n".join("".join(span.text for span in line) for line in table_lines(report, 100))
    for text in (shown, markdown_summary(report), _Page(html_page(report)).text):
        assert "Not seen: a window is 4096." in text


def test_the_command_line_writes_both_and_audits_on_a_saved_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 2, 2, 2, 2]])
    torch.save({"input_ids": torch.arange(18).view(2, 9), "document_ids": ids}, tmp_path / "batch.pt")
    written = tmp_path / "page.html", tmp_path / "summary.md"
    files = ["--batch", tmp_path / "batch.pt", "--html", written[0], "--markdown", written[1]]
    assert main(["audit", "tests.audit.test_report_files:build", *map(str, files)]) == 1
    assert _Page(written[0].read_text()).matrices["layers.1"] == [(1, 2), (3, 4)]
    assert written[1].read_text().startswith("## neatpack audit: 0 of 1 clean")
    assert "They mix in layers.1.conv" in " ".join(capsys.readouterr().out.split())


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = tmp_path / "batch.pt"
    torch.save({"input_ids": torch.arange(4)[None], "document_ids": torch.tensor([[1, 1, 2, 2]])}, batch)
    target = ["tests.audit.test_report_files:build", "--batch", str(batch)]
    assert main(["audit", *target, "--html", str(tmp_path)]) == 2
    assert f"{tmp_path}: cannot be written" in capsys.readouterr().err
