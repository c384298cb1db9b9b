"""Rule 2: offsets of a THD stream that came beside the ids cut where the ids do, or are refused."""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from neatpack.adapters.agreement_of_offsets import check_thd_offsets
from neatpack.contracts.errors import EncodingError
from tests.adapters import oracle_thd
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for


def cuts_agree(rows: Rows, cuts: list[int]) -> bool:
    """Whether each document is one segment, counted by tokens or by places, with padding of its own row at its end."""
    runs = [(row, id_, len(list(run))) for row, ids in enumerate(rows) for id_, run in groupby(ids)]
    if cuts == [0, *accumulate(length for _, id_, length in runs if id_)]:
        return True
    places = [(row, id_) for row, id_, length in runs for _ in range(length)]
    segments = [places[start:stop] for start, stop in pairwise(cuts)]
    pure = [[place for place in segment if place[1]] for segment in segments]
    whole = all(
        len({row for row, _ in segment}) == 1 and len(set(kept)) == 1 and segment[: len(kept)] == kept
        for segment, kept in zip(segments, pure, strict=True)
        if kept
    )
    found = [(*kept[0], len(kept)) for kept in pure if kept]
    return whole and cuts[:1] == [0] and found == [run for run in runs if run[1]]


def begins_right(rows: Rows, found: list[int], place: int) -> bool:
    """Whether offsets up to this place, that included, may be followed by others so that all are right."""
    head = found[: place + 1]
    if place >= len(found) or head[-1] < 0:
        return False
    runs = [(id_, len(list(run))) for ids in rows for id_, run in groupby(ids)]
    rest = (accumulate(length for _, length in runs), accumulate(length for id_, length in runs if id_))
    return any(cuts_agree(rows, head + [end for end in ends if end > head[-1]]) for ends in rest)


@holds_for(rows=rows_of_ids(holes=False), data=st.data())
def test_offsets_of_thd_are_compared_with_the_ids(rows: Rows, data: st.DataObject) -> None:
    ids = tensor(rows)
    total = ids.numel()
    runs = [len(list(run)) for ids_of_row in rows for _, run in groupby(ids_of_row)]
    kept = [len(list(run)) for ids_of_row in rows for id_, run in groupby(ids_of_row) if id_]
    right = data.draw(st.sampled_from([[0, *accumulate(runs)], [0, *accumulate(kept)]]))
    changes = data.draw(st.sets(st.integers(0, total), max_size=2))
    cuts = sorted(set(right) ^ changes)
    fill = data.draw(st.lists(st.sampled_from([-1, -1000]), max_size=2))
    offsets = torch.tensor([*cuts, *fill], dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    if cuts_agree(rows, cuts):
        check_thd_offsets(ids, {"cu_seqlens": offsets})
        return
    with pytest.raises(EncodingError, match="cuts elsewhere") as caught:
        check_thd_offsets(ids, {"other": offsets})
    problem = caught.value.problems[0]
    found = [*cuts, *fill]
    assert problem.position == next(place for place in range(len(cuts) + 1) if not begins_right(rows, found, place))
    assert (problem.field, problem.value) == ("other", next(iter(found[problem.position :]), None))


@pytest.mark.parametrize(
    ("cuts", "place"),
    [([0, 4, 2], 1), ([0, 2, 1], 2), ([0, -1, 2, 4], 1), ([-1, 0, 2, 4], 0), ([2, 0, 4], 0), ([0, 2, 4, -1, 4], 4)],
)
def test_offsets_of_thd_rise_up_to_what_is_unused(cuts: list[int], place: int) -> None:
    ids = torch.tensor([[1, 1, 2, 2]])
    check_thd_offsets(ids, {"cu_seqlens": torch.tensor([0, 2, 2, 4, -1, -1000])})
    with pytest.raises(EncodingError, match=rf"^cu_seqlens\[position {place}\] = {cuts[place]}: cuts elsewhere"):
        check_thd_offsets(ids, {"cu_seqlens": torch.tensor(cuts)})


@pytest.mark.parametrize(
    ("row", "cuts", "place"),
    [
        ([1, 0, 2, 0], [0, 2, 3, -1, 4], 4),
        ([1, 0, 2, 0], [0, 1, 2, -1, 4], 4),
        ([1, 0, 1, 2], [0, 3, 4], 1),
        ([0, 0], [0, 2, 3], 2),
        ([1, 1, 2, 2], [0, 0, 2, 2, 3], 4),
    ],
)
def test_the_first_offset_that_is_wrong_is_named(row: list[int], cuts: list[int], place: int) -> None:
    """Behind offsets that are all there; where places cannot express a hole; of no document; behind empty segments."""
    with pytest.raises(EncodingError) as caught:
        check_thd_offsets(torch.tensor([row]), {"cu_seqlens": torch.tensor(cuts)})
    assert (caught.value.problems[0].position, caught.value.problems[0].value) == (place, cuts[place])


@holds_for(rows=rows_of_ids(holes=False, leading=False), data=st.data())
def test_offsets_that_are_paired_have_each_document_in_one_column(rows: Rows, data: st.DataObject) -> None:
    real, padded = oracle_thd.thd_flat(rows)
    ids, slots = tensor(rows), torch.tensor(padded)
    check_thd_offsets(ids, {"cu_seqlens_q": torch.tensor(real), "cu_seqlens_q_padded": slots})
    place = data.draw(st.integers(0, len(real) - 1))
    longer = torch.tensor([*real[: place + 1], *real[place:]])
    check_thd_offsets(ids, {"cu_seqlens_q": longer, "cu_seqlens_kv": longer})
    if real[place] == real[-1]:  # No document stands behind the empty one.
        check_thd_offsets(ids, {"cu_seqlens_q": longer, "cu_seqlens_q_padded": slots})
        return
    with pytest.raises(
        EncodingError,
        match=r"^cu_seqlens_q_padded\[position \d+\] = \d+: has documents in other columns than cu_seqlens_q\.",
    ):
        check_thd_offsets(ids, {"cu_seqlens_q": longer, "cu_seqlens_q_padded": slots})


@pytest.mark.parametrize("offsets", [torch.tensor([0.0, 2.0]), torch.zeros(2, 3, dtype=torch.int64), torch.tensor(3)])
def test_what_is_no_stream_of_offsets_is_refused(offsets: Tensor) -> None:
    with pytest.raises(EncodingError) as caught:
        check_thd_offsets(torch.tensor([[1, 1]]), {"cu_seqlens_q": offsets})
    assert caught.value.problems[0].field == "cu_seqlens_q"


@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 2, 3, 4], [0, 1, 2]])
def test_padding_counts_with_a_document_of_its_own_row(cuts: list[int]) -> None:
    check_thd_offsets(torch.tensor([[1, 0], [0, 1]]), {"cu_seqlens": torch.tensor(cuts)})


@pytest.mark.parametrize("cuts", [[0, 3, 4], [0, 2, 4], [0, 4], [0, 1, 4], [0, 2, 3], [0, 1, 2, 3]])
def test_padding_does_not_join_rows(cuts: list[int]) -> None:
    with pytest.raises(EncodingError, match="cuts elsewhere"):
        check_thd_offsets(torch.tensor([[1, 0], [0, 1]]), {"cu_seqlens": torch.tensor(cuts)})


def test_ids_and_offsets_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = {"cu_seqlens": torch.tensor([0, 2, 3]), "cu_seqlens_padded": torch.tensor([0, 2, 4])}
    with host_reads(monkeypatch) as reads:
        check_thd_offsets(torch.tensor([[1, 1, 2, 0]]), offsets)
    assert reads.total == 1
