"""The harness at tiny sizes: that every row runs, says what it could not run, and refuses what is no comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.compiled import compile_and_count, count_calls
from benchmarks.device import count
from benchmarks.records import DisagreementError, Effort, Goal, Reading, Row, Sides, Size, number, require_equal, run
from benchmarks.timing import warm
from neatpack.adapters import build_packed_sequence_metadata, build_position_ids

PEERS = ("nemo_automodel", "torchtitan", "trl", "fla", "transformers")
TINY = Size(2, 64, 3)


def uncompiled(function: Callable[..., object], **_options: object) -> Callable[..., object]:
    return function


@pytest.fixture
def without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, None)
    # What torch compiles here takes minutes, and runs as well without.
    monkeypatch.setattr(torch, "compile", uncompiled)


def row(sides: Sides) -> Row:
    return Row("a derivation", TINY, "itself", "warm", warm, Goal("within", 2), lambda _size: sides)


@pytest.mark.usefixtures("without_peers")
def test_each_row_runs_or_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json", "--only", "s"]) in (0, 1)
    written = json.loads(capsys.readouterr().out)
    assert set(written["run"]) == {"command", "date", "machine", "versions"}
    assert len(written["rows"]) > 20
    for entry in written["rows"]:
        assert entry["figure"] is not None or entry["note"]
        assert "differ" not in entry["note"]
    lacking = [entry["note"] for entry in written["rows"] if entry["against"] == "AutoModel"]
    assert lacking
    assert all("nemo_automodel cannot be imported" in note for note in lacking)


@pytest.mark.usefixtures("without_peers")
def test_the_page_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--markdown", "--only", "row_offsets"])
    page = capsys.readouterr().out
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert sum("row_offsets" in line for line in lines) == 4


def test_sides_that_differ_are_not_timed() -> None:
    ids = torch.tensor([[1, 1, 2, 0]])
    sides = Sides(
        lambda: build_position_ids(ids),
        lambda: pytest.fail("was timed"),
        lambda: (build_position_ids(ids), build_position_ids(ids, start=1)),
    )
    outcome = run(row(sides), Effort(0, 1))
    assert outcome.met is False
    assert outcome.reading is None
    assert "the sides differ: answer: the tensors differ" in outcome.note


@pytest.mark.parametrize(
    ("ours", "other", "place"),
    [
        ({"a": torch.zeros(2)}, {"a": torch.zeros(3)}, "answer[0][1]"),
        ({"a": 1}, {"b": 1}, "answer[0][0]"),
        (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), "torch.int32"),
        ((1, 2), (1, 2, 3), "2 parts"),
        ([1, (2, 3)], [1, (2, 4)], "answer[1][1]"),
    ],
)
def test_a_difference_is_found_where_it_is(ours: object, other: object, place: str) -> None:
    with pytest.raises(DisagreementError) as caught:
        require_equal(ours, other)
    assert place in str(caught.value)


def test_equal_answers_pass() -> None:
    require_equal({"a": (torch.ones(2), 1)}, {"a": [torch.ones(2), 1]})


def test_goals_read_the_right_way() -> None:
    reading = Reading(ours=2.0, other=8.0, ratio=0.25, unit="s")
    assert Goal("faster", 4).figure(reading) == 4.0
    assert Goal("faster", 4).met(4.0) is True
    assert Goal("faster", 4).met(3.9) is False
    assert Goal("within", 0.25).met(Goal("within", 0.25).figure(reading)) is True
    assert Goal("number", 1).met(Goal("number", 1).figure(reading)) is False
    assert [number(value) for value in (1234.5, 12.34, 1.234, 3.0)] == ["1,234", "12.3", "1.23", "3"]


def test_waits_and_launches_are_counted() -> None:
    ids = torch.tensor([[1, 1, 2, 0], [1, 0, 0, 0]])

    def waits(far: torch.Tensor) -> list[int]:
        chosen = far[far > 0]
        return [int(chosen.max()), int(far[0, 0]), len(far.nonzero())]

    assert count(waits, ids).reads == 4
    assert count(lambda far: (far + 1) * 2, ids).launches == 2
    assert count(lambda far: (far + 1) * 2, ids).reads == 0
    assert count(build_packed_sequence_metadata, ids).reads == 1


def test_a_device_takes_no_tensors_of_the_host() -> None:
    ids = torch.tensor([[1, 1, 2, 0]])

    def mixed(far: torch.Tensor) -> torch.Tensor:
        return far + torch.tensor([1, 2, 3, 4])

    with pytest.raises(RuntimeError, match=r"add\.Tensor was called with tensors on .* and on the host"):
        count(mixed, ids)
    assert count(lambda far: far + torch.tensor(1), ids).launches == 1  # A number of the host is no tensor of it.
    assert count(lambda far: far[:, torch.tensor([0, 1])], ids).launches == 1
    with pytest.raises(RuntimeError, match="pretended"):
        count(lambda far: ids[:, far[0]], ids)


GENERATED = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['const int64_t*', 'int64_t*'], source)
def call(args):
    given, = args
    cpp_fused_add_0(given, buf0)
    buf1 = torch.ops.aten.cummax.default(buf0, dim=0)
    buf2 = buf1[0]
    buf3 = torch.ops.aten.view.dtype(buf2, torch.int32)
    aten.scatter_reduce_.two(buf4, 1, buf2, buf5, reduce='sum', include_self=True)
    extern_kernels.mm(buf6, buf7, out=buf8)
    return (buf3, buf4, buf8)
"""


def test_kernels_are_counted_in_generated_code() -> None:
    # The fused one, the scan, the scatter and the product; to see memory as other numbers starts none.
    assert count_calls(GENERATED) == 4


@pytest.mark.skipif(" " in sys.prefix, reason="torch's compiler takes no paths with spaces")
def test_what_is_fused_is_one_launch() -> None:
    numbers = torch.arange(64)
    assert compile_and_count(lambda given: (given + 1) * 2, numbers).launches == 1
    assert compile_and_count(lambda given: (given + 1).cummax(0).values.view(torch.int32), numbers).launches == 2
