"""The fenced code blocks of the repository's documents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.environments import REPOSITORY

DOCUMENTS = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]

FENCE = re.compile(
    r"^(?:<!-- (?P<mark>.*?) -->\n)?^```(?P<language>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its lines, where it starts, and the HTML comment right above it, if any."""

    language: str
    body: str
    line: int
    mark: str = ""


def blocks_of(document: Path) -> list[Block]:
    """All fenced blocks of a document, in order."""
    text = document.read_text()
    assert len(re.findall("^ *```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text)), f"a stray fence: {document}"
    return [
        Block(found["language"], found["body"], text.count("\n", 0, found.start("body")) + 1, found["mark"] or "")
        for found in FENCE.finditer(text)
    ]


def commands_of(body: str) -> list[str]:
    """The commands of a bash block, continued lines joined."""
    joined = re.sub(r" *\\\n *", " ", body)
    return [line for line in joined.splitlines() if line and not line.startswith("#")]
