"""The file and the entry point that docs/consumers.md shows make a plugin, with no edit elsewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from neatpack.contracts.kernels import CONSUMER_NAMES
from tests.docs.markdown import blocks_of
from tests.environments import ACTIVE, REPOSITORY, run

USE = """
import sys

import torch
from torch import nn

from neatpack.kernels_bridge import configure_packing, consumer_names, decide, get_binding


class Model(nn.Module):
    def forward(self, input_ids, seqlens):
        return seqlens


assert consumer_names()[-1] == "block_diagonal", consumer_names()
assert "block_diagonal" not in sys.modules
model = Model()
configure_packing("sdpa", model)
assert get_binding(model).consumer == "block_diagonal"
ids = torch.tensor([[1, 1, 2, 0]])
print(model(ids, _packed_seq_ids=ids), dict(decide(nn.Linear(2, 2)))["block_diagonal"].reason)
"""


def test_one_file_and_its_entry_point_are_enough(tmp_path: Path) -> None:
    shown = {block.mark.removeprefix("file: "): block.body for block in blocks_of(REPOSITORY / "docs/consumers.md")}
    (tmp_path / "block_diagonal.py").write_text(shown["block_diagonal.py"])
    group, entry = shown["pyproject.toml"].splitlines()
    named = re.fullmatch(r'\[project\.entry-points\."(.*)"\]', group)
    assert named is not None
    info = tmp_path / "block_diagonal-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: block-diagonal\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{named[1]}]\n" + entry.replace('"', "") + "\n")
    environment = {**ACTIVE, "PYTHONPATH": f"{ACTIVE['PYTHONPATH']}:{tmp_path}"}
    printed = run(sys.executable, "-c", USE, cwd=tmp_path, env=environment).stdout
    assert printed == "[2, 1, 1] its forward does not name `seqlens`\n"


def test_the_table_lists_every_consumer_in_order_of_preference() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "docs/consumers.md").read_text(), re.MULTILINE)
    assert tuple(rows) == CONSUMER_NAMES
