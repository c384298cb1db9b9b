"""Microbatches hold every token once, and derive what the whole batch would have given."""

# Torch leaves Tensor.tolist without a type, and entries of a batch that a test has made are there.
# pyright: reportUnknownMemberType=false, reportTypedDictNotRequiredAccess=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.pipelining import microbatch

from neatpack.adapters.alignment import pad_documents, pad_rows
from neatpack.adapters.block_mask import build_block_mask
from neatpack.adapters.boundary_fields import FLASH_FIELDS
from neatpack.adapters.context_parallel import shard_tokens
from neatpack.adapters.layer_masks import LayerView, build_layer_masks
from neatpack.adapters.neat_metadata import gathered_rows
from neatpack.adapters.physical import flash_varlen_kwargs
from neatpack.adapters.recurrent import segment_index
from neatpack.adapters.slicing import pipeline_chunk_dims, split_rows
from neatpack.adapters.token_fields import take_places
from neatpack.adapters.yielding import apply_packing_contract
from neatpack.contracts.batch import TrainingBatch
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import BatchError, EncodingError
from tests.adapters.batches import fault, training_batch
from tests.adapters.host_reads import host_reads
from tests.adapters.layouts import Rows, rows_of_ids, tensor
from tests.adapters.properties import holds_for

Call = Callable[[Any], object]


@holds_for(rows=rows_of_ids(), data=st.data())
def test_a_pipeline_schedule_cuts_as_the_dimensions_say(rows: Rows, data: st.DataObject) -> None:
    contract = PackingCapabilities("document_ids", True, return_document_ids=True)
    axes = torch.arange(3 * len(rows) * len(rows[0])).view(3, len(rows), -1)
    batch = apply_packing_contract(training_batch(rows, position_ids=axes, rewards=torch.arange(len(rows))), contract)
    count = data.draw(st.integers(1, len(rows)))
    dims = pipeline_chunk_dims(batch)
    chunked = cast("Any", microbatch.TensorChunkSpec)  # torch leaves it without types
    replicated = microbatch._Replicate  # pyright: ignore[reportPrivateUsage]  # there is no public name for it
    spec = {name: replicated if dim is None else chunked(dim) for name, dim in dims.items()}
    split = cast("Any", microbatch.split_args_kwargs_into_chunks)
    chunks: list[dict[str, Any]] = split((), {**batch}, count, (), spec)[1]
    assert len(chunks) == count
    for chunk, part in zip(chunks, split_rows(batch, count), strict=True):
        assert chunk.keys() == part.keys()
        for name, value in cast("dict[str, Any]", part).items():
            assert torch.equal(chunk[name], value) if isinstance(value, Tensor) else chunk[name] == value


def test_flat_kwargs_of_other_documents_are_not_replaced_in_silence() -> None:
    ids, others = tensor([[1, 1, 2, 2], [1, 1, 1, 0]]), tensor([[1, 2, 2, 2], [1, 1, 1, 0]])
    batch = training_batch(ids, **flash_varlen_kwargs(others))
    with pytest.raises(EncodingError, match=r"cu_seq_lens_q\[row 0, position 0\]: has no segment"):
        split_rows(batch, 2)
    batch = training_batch(ids, **flash_varlen_kwargs(ids, "run"))
    split = split_rows(batch, 2)
    assert split[0]["cu_seq_lens_q"].tolist() == [0, 2, 4]
    del cast("Any", batch)["max_length_k"]
    with pytest.raises(EncodingError, match="max_length_k: is missing"):
        split_rows(batch, 2)


def test_flat_kwargs_that_are_none_are_none_of_each_part() -> None:
    nothing: Any = dict.fromkeys(FLASH_FIELDS)
    batch = training_batch([[1, 1], [1, 2]], **nothing)
    assert all(cast("Any", part)[name] is None for part in split_rows(batch, 2) for name in FLASH_FIELDS)
    assert not any(pipeline_chunk_dims(batch)[name] for name in FLASH_FIELDS)


def test_a_hole_that_flat_kwargs_cannot_express_is_named() -> None:
    batch = training_batch([[1, 1, 1]], _packed_seq_ids=tensor([[1, 0, 1]]), **flash_varlen_kwargs(tensor([[1, 1, 1]])))
    with pytest.raises(EncodingError, match=r"cu_seq_lens_q\[row 0, position 1\]: cannot express the hole"):
        split_rows(batch, 1)


def test_a_batch_without_data_is_cut_all_the_same() -> None:
    entries = cast("dict[str, Tensor]", training_batch([[1, 1], [1, 2], [1, 0]]))
    batch = cast("TrainingBatch[Tensor]", {name: value.to("meta") for name, value in entries.items()})
    assert [part["labels"].shape for part in split_rows(batch, 2)] == [(2, 2), (1, 2)]
    assert pipeline_chunk_dims(batch) == dict.fromkeys(batch, 0)


def test_what_does_not_survive_a_cut_has_no_dimension() -> None:
    batch = apply_packing_contract(training_batch([[1, 1, 2]]), PackingCapabilities("flash_varlen"), flat=True)
    with pytest.raises(BatchError, match="does not survive a cut") as caught:
        pipeline_chunk_dims(batch)
    assert [problem.field for problem in caught.value.problems] == list(FLASH_FIELDS)
    with pytest.raises(BatchError, match="no dimension of 1 rows"):
        pipeline_chunk_dims(training_batch([[1, 1, 2]], images=torch.zeros(5, 3)))
    for names in (["name"], ("name",), np.array(["name"])):
        with pytest.raises(BatchError, match="names: is no tensor"):
            pipeline_chunk_dims(training_batch([[1, 1, 2]], names=names))


@holds_for(rows=rows_of_ids(), data=st.data())
def test_microbatches_are_the_rows_and_derive_for_themselves(rows: Rows, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(rows)))
    ids = tensor(rows)
    metadata = gathered_rows(ids)
    axes = torch.arange(3 * ids.numel()).view(3, *ids.shape)
    batch = training_batch(
        rows,
        position_ids=axes,
        packed_token_indices=metadata.packed_token_indices,
        cu_seqlens=metadata.cu_seqlens,
        max_seqlen=metadata.max_seqlen,
        rewards=torch.arange(len(rows)),
        scores=torch.arange(5 * len(rows)).view(-1, 5),
        **flash_varlen_kwargs(ids),
    )
    parts = split_rows(batch, count)
    assert len(parts) == count
    assert torch.equal(torch.cat([part["position_ids"] for part in parts], dim=1), axes)
    for name in ("input_ids", "document_ids", "packed_token_indices", "cu_seqlens", "rewards", "scores"):
        assert torch.equal(torch.cat([cast("Any", part)[name] for part in parts]), cast("Any", batch)[name])
    for part in parts:
        derived = flash_varlen_kwargs(part["document_ids"])
        assert torch.equal(part["cu_seq_lens_q"], derived["cu_seq_lens_q"])
        assert part["cu_seq_lens_k"] is part["cu_seq_lens_q"]
        assert part["max_length_q"] == derived["max_length_q"]
        assert part["max_seqlen"] == metadata.max_seqlen
        own = gathered_rows(part["document_ids"])
        width = own.cu_seqlens.shape[1]
        assert torch.equal(part["cu_seqlens"][:, :width], own.cu_seqlens)
        assert (part["cu_seqlens"][:, width:] == -1).all()
        assert own.max_seqlen <= part["max_seqlen"]


def test_flat_offsets_cut_along_their_first_dimension_are_wrong() -> None:
    """What a pipeline schedule does by itself is a fault that the property above sees."""
    ids = tensor([[1, 1, 2, 2], [1, 2, 2, 2]])
    offsets = flash_varlen_kwargs(ids)["cu_seq_lens_q"]
    part = split_rows(training_batch([[1, 1, 2, 2], [1, 2, 2, 2]], **flash_varlen_kwargs(ids)), 2)[1]
    assert part["cu_seq_lens_q"].tolist() == [0, 1, 4]
    assert part["cu_seq_lens_q"].tolist() != offsets.tensor_split(2)[1].tolist()


def test_what_cannot_be_cut_is_refused_by_name() -> None:
    batch = training_batch([[1, 1, 2, 2]])
    pixels = training_batch([[1, 1, 2, 2]], pixel_values=torch.zeros(7, 3))
    assert fault(BatchError, lambda: split_rows(pixels, 1)) == ("pixel_values", (7, 3))
    assert fault(BatchError, lambda: shard_tokens(pixels, 0, 1, "zigzag", label_shift="model"))[0] == "pixel_values"
    assert fault(BatchError, lambda: split_rows(batch, 2)) == ("microbatches", 2)
    assert fault(BatchError, lambda: split_rows(batch, 0)) == ("microbatches", 0)
    dense = training_batch([[1, 1]], attention_mask=torch.ones(1, 1, 2, 2, dtype=torch.bool))
    assert (
        fault(BatchError, lambda: shard_tokens(dense, 0, 2, "contiguous", label_shift="model"))[0] == "attention_mask"
    )
    derived = training_batch([[1, 1]], max_seqlen=2)
    assert fault(BatchError, lambda: shard_tokens(derived, 0, 1, "zigzag", label_shift="model")) == (
        "max_seqlen",
        "int",
    )
    flat = training_batch([[1, 1]], cu_seq_lens_q=torch.tensor([0, 2]))
    del flat["document_ids"]
    assert fault(BatchError, lambda: split_rows(flat, 1))[0] == "document_ids"
    flat["document_ids"] = tensor([[1]])
    assert fault(BatchError, lambda: split_rows(flat, 1)) == ("document_ids", (1, 1))


_CUT_ROWS: Final[tuple[Call, ...]] = (lambda batch: split_rows(batch, 2), pipeline_chunk_dims)
_MOVED: Final[tuple[Call, ...]] = (
    lambda batch: pad_rows(batch, 4),
    lambda batch: pad_documents(batch, 4),
    lambda batch: take_places(batch, torch.zeros(2, 1, dtype=torch.int64)),
    lambda batch: shard_tokens(batch, 0, 1, "contiguous", label_shift="model"),
)
_ROWS: Final = [[1, 1, 2], [1, 2, 2]]


@pytest.mark.parametrize("call", [*_CUT_ROWS, *_MOVED])
@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_padded", "max_seqlen_q"])
def test_arguments_of_kernels_are_never_cut_even_where_they_have_as_many_entries_as_rows(call: Call, name: str) -> None:
    batch = training_batch(_ROWS, **{name: torch.tensor([0, 4], dtype=torch.int32)})
    assert fault(EncodingError, lambda: call(batch))[0] == name


@pytest.mark.parametrize("call", _CUT_ROWS)
def test_tensors_inside_of_entries_are_not_given_to_each_part_whole(call: Call) -> None:
    ids = tensor(_ROWS)
    masks = build_layer_masks(ids, {"full": LayerView()})
    held: dict[str, object] = {
        "attention_mask": masks,
        "others": {"nested": [ids]},
        "blocks": build_block_mask(ids),
        "mtp_labels": [ids] * len(_ROWS),  # Of as many depths as there are rows.
        "mtp_logits": [ids[..., None]] * len(_ROWS),
    }
    for name, value in held.items():
        batch = training_batch(_ROWS, **{name: value})
        with pytest.raises(BatchError, match=rf"{name} = .*rows are not known"):
            call(batch)
    call(training_batch(_ROWS, source={"name": "web", "shard": 3}))


@pytest.mark.parametrize("call", _MOVED)
def test_segment_numbers_do_not_move_with_tokens(call: Call) -> None:
    """At new padding they would have to follow from the documents around it."""
    batch = training_batch(_ROWS, seq_idx=segment_index(tensor(_ROWS)).seq_idx)
    assert fault(BatchError, lambda: call(batch))[0] == "seq_idx"


@pytest.mark.parametrize("call", [*_CUT_ROWS, *_MOVED])
def test_a_batch_without_tokens_is_told_what_is_missing(call: Call) -> None:
    batch: Any = {"labels": tensor(_ROWS)}
    with pytest.raises(BatchError, match=r"input_ids: missing\. Give the tokens"):
        call(batch)


def test_one_host_read_for_a_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1, 1, 2, 2], [1, 1, 1, 1], [0, 0, 0, 0]]
    batch = training_batch(rows)
    flat = training_batch(rows, **flash_varlen_kwargs(tensor(rows)))
    with host_reads(monkeypatch) as reads:
        split_rows(flat, 3)
    assert reads.total == 1
    with host_reads(monkeypatch) as reads:
        split_rows(batch, 3)
    assert reads.total == 0


@holds_for(rows=st.integers(1, 5), data=st.data())
def test_what_has_one_entry_a_row_is_cut_with_the_rows(rows: int, data: st.DataObject) -> None:
    names = [f"row {row}" for row in range(rows)]
    batch = training_batch(
        [[1]] * rows, names=names, pairs=tuple(names), array=np.array(names), scale=0.5, split="train"
    )
    parts = split_rows(batch, data.draw(st.integers(1, rows)))
    first = 0
    for part in cast("list[Any]", parts):
        own = names[first : first + len(part["input_ids"])]
        assert (part["names"], part["pairs"], part["array"].tolist()) == (own, tuple(own), own)
        assert (part["scale"], part["split"]) == (0.5, "train")
        first += len(own)
    assert first == rows


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", ["a"]),
        ("names", ["a", "b", "c"]),
        ("names", []),
        ("sizes", np.zeros((3, 2))),
        ("position_ids", [[0], [0]]),
        ("attention_mask", "causal"),
    ],
)
def test_what_has_another_number_of_entries_than_rows_is_refused(name: str, value: object) -> None:
    batch = training_batch([[1], [1]], **{name: value})
    assert fault(BatchError, lambda: split_rows(batch, 2))[0] == name
