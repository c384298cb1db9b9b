"""What other model hooks have got wrong, each with the wrong result and the right one.

Found by running NeMo AutoModel 0.7.0. Those of batches are in `tests/adapters`; here are those of models:

| fault | wrong there |
|---|---|
| order and repeats of ids unchecked | a document that returns is joined with what stands between, and leaks |
| flat offsets cut by a pipeline schedule | a microbatch gets offsets of other rows, without an error |
| a microbatch of padding alone | raises after the cut |
| metadata not compared with the tokens | metadata of one row is accepted for two; an index reads the next row |
| lengths in the dtype of the ids | a document of 256 tokens vanishes in uint8 |
| a read from the device for each row and document | 162 for a batch of 32 rows |
| hooks that cannot be traced | torch.compile fails or breaks its graph at each of three places |
| configured again for another backend | the first hook stays and takes away what the second would use |
| one level of wrappers, any child called `module` | two wrappers hide the declaration; the child gets the hook |
| declarations and names unchecked | a misspelt mask type or backend is accepted |
| `**kwargs` taken for support | a model that drops the lengths is accepted |
| a hook on the wrapper, its handle on the model | the model itself stays unhooked, and cannot be hooked again |
| metadata known by a key, not by a value | a key that holds None takes the lengths of THD away |
| padding attended as one long document | 16 tokens in a row of 8192 set a maximum of 8176 |
| negative ids | they are tokens in one encoding and none in another |
| arguments that depend on the data | a batch of one document per row calls the model in another way |
| rows of padding in THD | the rows after one shift |
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from neatpack.adapters import build_packed_sequence_metadata, flash_varlen_kwargs, gathered_flat
from neatpack.contracts import CapabilitiesError, DocumentIdsError, EncodingError, ModelError
from neatpack.kernels_bridge import configure_packing, get_binding, get_packing_capabilities
from tests.adapters.host_reads import host_reads
from tests.kernels_bridge.test_thd import Engine
from tests.kernels_bridge.toys import (
    BATCH,
    TOKENS,
    Dense,
    Flash,
    Ids,
    IdsAsMask,
    NativeFA4,
    Outer,
    Recurrent,
    Swallows,
    Toy,
)
from tests.kernels_bridge.untyped import ints

FORMS: list[tuple[type[Toy], str]] = [
    (Ids, "sdpa"),
    (IdsAsMask, "sdpa"),
    (Dense, "sdpa"),
    (Flash, "flash_attention_2"),
    (Recurrent, "sdpa"),
    (NativeFA4, "fa4"),
    (Engine, "te"),
]


def bound(kind: type[Toy], attention: str) -> Toy:
    model = kind()
    configure_packing(attention, model)
    return model


@pytest.mark.parametrize(("kind", "attention"), FORMS)
def test_a_document_that_returns_is_refused(kind: type[Toy], attention: str) -> None:
    model = bound(kind, attention)
    with pytest.raises(DocumentIdsError, match=r"row 0, position 4\] = 1: id comes back"):
        model(input_ids=TOKENS[:1], _packed_seq_ids=torch.tensor([[1, 1, 2, 2, 1, 1]]))
    assert model.seen == {}


def test_descending_ids_cut_where_ascending_ones_do() -> None:
    flash, native = bound(Flash, "flash_attention_2"), bound(NativeFA4, "fa4")
    for model in (flash, native):
        model(input_ids=TOKENS[:1], _packed_seq_ids=torch.tensor([[9, 9, 9, 9, 9, 2]]))
    assert ints(flash.seen["cu_seq_lens_q"]) == ints(native.seen["cu_seqlens"]) == [0, 5, 6]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_offsets_are_of_the_rows_that_the_schedule_left(microbatches: int) -> None:
    model = bound(Flash, "flash_attention_2")
    offsets: list[list[int]] = []
    for tokens, ids in zip(TOKENS.tensor_split(microbatches), BATCH.tensor_split(microbatches), strict=True):
        model(input_ids=tokens, _packed_seq_ids=ids)
        offsets.append(ints(model.seen["cu_seq_lens_q"]))
    assert offsets == ([[0, 2, 5, 6, 9, 10, 12]] if microbatches == 1 else [[0, 2, 5, 6], [0, 3, 4, 6]])


def test_offsets_that_the_schedule_cut_are_refused() -> None:
    model = bound(Flash, "flash_attention_2")
    kwargs = flash_varlen_kwargs(BATCH)
    half = kwargs["cu_seq_lens_q"].tensor_split(2)[1]
    cut: dict[str, Any] = {**kwargs, "cu_seq_lens_q": half, "cu_seq_lens_k": half}
    with pytest.raises(EncodingError, match="cu_seq_lens_q"):
        model(input_ids=TOKENS[1:], _packed_seq_ids=BATCH[1:], **cut)


@pytest.mark.parametrize(("kind", "attention"), FORMS)
def test_a_microbatch_of_padding_alone_passes(kind: type[Toy], attention: str) -> None:
    model = bound(kind, attention)
    model(input_ids=TOKENS, _packed_seq_ids=torch.zeros_like(BATCH))
    assert len(model.seen) > 1


@pytest.mark.parametrize(("kind", "attention"), [(NativeFA4, "fa4"), (Recurrent, "sdpa")])
def test_metadata_of_other_tokens_is_refused(kind: type[Toy], attention: str) -> None:
    model = bound(kind, attention)
    of_one_row: dict[str, Any] = dict(build_packed_sequence_metadata(BATCH[:1]))
    past_the_row: dict[str, Any] = dict(build_packed_sequence_metadata(BATCH))
    past_the_row["packed_token_indices"] = past_the_row["packed_token_indices"] + 3
    flat = gathered_flat(BATCH)
    joined = {"packed_token_indices": flat.token_indices, "cu_seqlens": torch.tensor([0, 2, 9], dtype=torch.int32)}
    for metadata in (of_one_row, past_the_row, joined):
        with pytest.raises(EncodingError):
            model(input_ids=TOKENS, **metadata)
    assert model.seen == {}


def test_a_document_of_256_tokens_keeps_its_length_in_uint8() -> None:
    model = bound(NativeFA4, "fa4")
    ids = torch.tensor([[1] * 256 + [2] * 4], dtype=torch.uint8)
    model(input_ids=torch.zeros(1, 260, dtype=torch.int64), _packed_seq_ids=ids)
    assert ints(model.seen["cu_seqlens"]) == [0, 256, 260]
    assert model.seen["max_seqlen"] == 256


@pytest.mark.parametrize(("kind", "attention"), FORMS)
def test_one_read_from_the_device_per_forward(kind: type[Toy], attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bound(kind, attention)
    tokens, ids = TOKENS.repeat(16, 1), BATCH.repeat(16, 1)
    with host_reads(monkeypatch) as counted:
        model(input_ids=tokens, _packed_seq_ids=ids)
    assert counted.reads == 1
    assert counted.operators == []


def test_a_compiled_model_takes_every_layout() -> None:
    model = bound(NativeFA4, "fa4")
    compiled: Any = cast("Any", torch).compile(model, backend="eager")
    for length in range(1, 6):
        ids = torch.tensor([[1] * length + [2] * (6 - length)])
        compiled(input_ids=TOKENS[:1], _packed_seq_ids=ids)
        assert ints(model.seen["cu_seqlens"]) == [0, length, 6]
    torch.compiler.reset()


def test_configured_again_for_another_backend() -> None:
    model = bound(NativeFA4, "sdpa")
    metadata: dict[str, Any] = dict(build_packed_sequence_metadata(BATCH))
    for attention, expected in (("fa4", [0, 2, 5, 8, 9]), ("sdpa", [0, 2, 5, 0, 3, 4]), ("fa4", [0, 2, 5, 8, 9])):
        configure_packing(attention, model)
        model(input_ids=TOKENS, **metadata)
        assert ints(model.seen["cu_seqlens"].flatten()) == expected
    assert len(cast("Any", model)._forward_pre_hooks) == 1


def test_two_wrappers_hide_nothing_and_a_child_called_module_is_no_model() -> None:
    inner = Recurrent()
    assert configure_packing("sdpa", nn.DataParallel(nn.DataParallel(inner))).requires_packed_sequence_metadata
    assert get_binding(inner) is not None
    child = Ids()
    outer = Outer(child)
    configure_packing("sdpa", outer)
    assert get_binding(child) is None
    assert get_binding(outer) is not None


def test_misspelt_declarations_and_backends_are_refused() -> None:
    class Misspelt(Ids):
        packed_mask_type = "document_id"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    class No(Recurrent):
        requires_packed_sequence_metadata = "no"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    with pytest.raises(CapabilitiesError, match="document_ids"):
        configure_packing("sdpa", Misspelt())
    with pytest.raises(CapabilitiesError, match="requires_packed_sequence_metadata"):
        configure_packing("sdpa", No())
    with pytest.raises(CapabilitiesError, match="Did you mean 'flash_attention_2'"):
        get_packing_capabilities("flash_atention_2")


def test_a_model_that_swallows_the_lengths_is_refused() -> None:
    with pytest.raises(ModelError, match="no proof that boundaries arrive"):
        configure_packing("flash_attention_2", Swallows())


def test_a_compiled_wrapper_and_its_model_are_one() -> None:
    model = NativeFA4()
    compiled: Any = cast("Any", torch).compile(model, backend="eager")
    configure_packing("fa4", compiled)
    assert get_binding(compiled) is get_binding(model)
    model(input_ids=TOKENS, _packed_seq_ids=BATCH)
    assert model.seen["cu_seqlens"].ndim == 1
    binding = get_binding(model)
    assert binding is not None
    binding.remove()
    configure_packing("fa4", model)
    compiled(input_ids=TOKENS, _packed_seq_ids=BATCH)
    assert ints(model.seen["cu_seqlens"]) == [0, 2, 5, 8, 9]
    torch.compiler.reset()


@pytest.mark.parametrize("training", [True, False])
def test_a_key_that_holds_none_takes_nothing_away(training: bool) -> None:
    model = bound(Dense, "sdpa").train(training)
    lengths = torch.tensor([0, 2, 6, 9, 12], dtype=torch.int32)
    model(input_ids=TOKENS, packed_token_indices=None, cu_seqlens=lengths, max_seqlen=4)
    assert model.seen["cu_seqlens"] is lengths
    assert model.seen["max_seqlen"] == 4


def test_padding_does_not_set_the_maximum() -> None:
    model = bound(Flash, "flash_attention_2")
    ids = torch.zeros(1, 8192, dtype=torch.int64)
    ids[0, :16] = 1
    model(input_ids=torch.zeros_like(ids), _packed_seq_ids=ids)
    assert (model.seen["max_length_q"], model.seen["max_length_k"]) == (16, 16)
    assert int(model.seen["cu_seq_lens_q"].diff().max()) == 16


@pytest.mark.parametrize(("kind", "attention"), FORMS)
def test_negative_ids_are_refused(kind: type[Toy], attention: str) -> None:
    ids = BATCH.clone()
    ids[1, 5] = -1
    with pytest.raises(DocumentIdsError, match=r"row 1, position 5\] = -1: negative id"):
        bound(kind, attention)(input_ids=TOKENS, _packed_seq_ids=ids)


@pytest.mark.parametrize(("kind", "attention"), FORMS)
def test_the_arguments_are_the_same_whatever_the_documents(kind: type[Toy], attention: str) -> None:
    model = bound(kind, attention)
    model(input_ids=TOKENS, _packed_seq_ids=BATCH)
    arguments = set(model.seen)
    for ids in (torch.ones_like(BATCH), (BATCH == 3).long(), torch.arange(1, 7).expand(2, 6)):
        model(input_ids=TOKENS, _packed_seq_ids=ids)
        assert set(model.seen) == arguments


def test_rows_after_a_row_of_padding_stay_in_their_places() -> None:
    model = bound(Engine, "te")
    ids = torch.cat([BATCH[:1], torch.zeros_like(BATCH[:1]), BATCH[1:]])
    model(input_ids=torch.zeros_like(ids), _packed_seq_ids=ids)
    assert ints(model.seen["cu_seqlens_q"]) == [0, 2, 5, 5, 8, 9]
    assert ints(model.seen["cu_seqlens_q_padded"]) == [0, 2, 6, 12, 15, 18]
