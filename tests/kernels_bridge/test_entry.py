"""What a bound model is called with: malformed ids, second encodings, and arguments by position."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters import (
    build_block_causal_mask,
    build_packed_sequence_metadata,
    build_position_ids,
    flash_varlen_kwargs,
)
from neatpack.contracts import (
    BoundariesMissingError,
    CapabilitiesError,
    DocumentIdsError,
    EncodingError,
    PackingCapabilities,
    PackingError,
)
from neatpack.kernels_bridge import configure_packing, get_binding, get_packing_capabilities
from neatpack.kernels_bridge.entry import read_call
from tests.kernels_bridge.packed import IDS, TOKENS, alone, documents, logits, tiny
from tests.kernels_bridge.toys import BATCH, Ids
from tests.kernels_bridge.toys import TOKENS as TOY_TOKENS


@pytest.fixture(scope="module")
def model() -> nn.Module:
    model = tiny("llama")
    configure_packing("eager", model, consumer="reference")
    return model


@pytest.mark.parametrize(
    ("ids", "error", "says", "row", "position"),
    [
        (IDS[0], EncodingError, "must be [batch, sequence] like input_ids, (2, 24)", None, None),
        (IDS[None], EncodingError, "must be [batch, sequence] like input_ids, (2, 24)", None, None),
        (IDS[:1], EncodingError, "like input_ids, (2, 24)", None, None),
        (IDS[:, :5], EncodingError, "like input_ids, (2, 24)", None, None),
        (IDS.float(), DocumentIdsError, "must hold integers", None, None),
        (IDS > 0, DocumentIdsError, "must hold integers", None, None),
        (-IDS, DocumentIdsError, "negative id", 0, 0),
        (IDS.clone().index_fill_(1, torch.tensor([7]), 1), DocumentIdsError, "comes back", 0, 7),
        (IDS.to("meta"), EncodingError, "must lie where input_ids lies", None, None),
        ([[1, 1]], EncodingError, "must be a tensor", None, None),
    ],
)
def test_malformed_ids(
    model: nn.Module, ids: object, error: type[PackingError], says: str, row: int | None, position: int | None
) -> None:
    with pytest.raises(error) as caught:
        logits(model, TOKENS, _packed_seq_ids=ids)
    problem = caught.value.problems[0]
    assert problem.field == "_packed_seq_ids"
    assert (problem.row, problem.position) == (row, position)
    assert says in str(caught.value)
    logits(model, TOKENS, _packed_seq_ids=IDS)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_ids_of_any_width(model: nn.Module, dtype: torch.dtype) -> None:
    wide = logits(model, TOKENS, _packed_seq_ids=IDS)
    assert torch.equal(logits(model, TOKENS, _packed_seq_ids=IDS.to(dtype)), wide)


def agreeing() -> dict[str, dict[str, Any]]:
    return {
        "padding mask": {"attention_mask": (IDS != 0).long()},
        "bool padding mask": {"attention_mask": IDS != 0},
        "ids as mask": {"attention_mask": IDS},
        "4-D mask": {"attention_mask": build_block_causal_mask(IDS)},
        "additive mask": {"attention_mask": build_block_causal_mask(IDS, torch.float32)},
        "positions": {"position_ids": build_position_ids(IDS)},
        "flash": dict(flash_varlen_kwargs(IDS)),
        "flash, padding in one run": dict(flash_varlen_kwargs(IDS, "run")),
        "metadata": dict(build_packed_sequence_metadata(IDS)),
        "metadata with a greater maximum": {**build_packed_sequence_metadata(IDS), "max_seqlen": 99},
    }


@pytest.mark.parametrize("name", list(agreeing()))
def test_a_second_encoding_that_agrees_is_dropped(model: nn.Module, name: str) -> None:
    expected = logits(model, TOKENS, _packed_seq_ids=IDS)
    assert torch.equal(logits(model, TOKENS, _packed_seq_ids=IDS, **agreeing()[name]), expected)


def contradicting() -> dict[str, dict[str, Any]]:
    other = IDS.clone()
    other[0, 5] = 2
    late = build_position_ids(IDS).clone()
    late[0, 3] = 0
    metadata: dict[str, Any] = dict(build_packed_sequence_metadata(IDS))
    return {
        "mask of ones": {"attention_mask": torch.ones_like(IDS)},
        "mask of a document": {"attention_mask": (IDS > 1).long()},
        "other ids as mask": {"attention_mask": other},
        "causal mask": {"attention_mask": torch.ones(24, 24, dtype=torch.bool).tril().expand(2, 1, 24, 24)},
        "short mask": {"attention_mask": torch.ones(2, 5)},
        "positions that restart": {"position_ids": late},
        "flash of other ids": dict(flash_varlen_kwargs(other)),
        "flash without a side": {"cu_seq_lens_q": flash_varlen_kwargs(IDS)["cu_seq_lens_q"]},
        "metadata of other ids": dict(build_packed_sequence_metadata(other)),
        "half of the metadata": {"packed_token_indices": metadata["packed_token_indices"]},
        "a short maximum": {**metadata, "max_seqlen": 2},
    }


@pytest.mark.parametrize("name", list(contradicting()))
def test_a_second_encoding_that_contradicts_is_refused(model: nn.Module, name: str) -> None:
    arguments = contradicting()[name]
    with pytest.raises(EncodingError) as caught:
        logits(model, TOKENS, _packed_seq_ids=IDS, **arguments)
    assert caught.value.problems[0].field in {*arguments, "cu_seqlens", "cu_seq_lens_k"}


def test_boundaries_by_position_are_seen(model: nn.Module) -> None:
    expected = logits(model, TOKENS, _packed_seq_ids=IDS)
    packed = model(TOKENS, (IDS != 0).long(), build_position_ids(IDS), _packed_seq_ids=IDS).logits
    assert torch.equal(packed, expected)
    with pytest.raises(EncodingError, match="attention_mask"):
        model(TOKENS, torch.ones_like(IDS), _packed_seq_ids=IDS)
    toy = Ids()
    configure_packing("sdpa", toy)
    toy(TOY_TOKENS, None, BATCH)
    assert toy.seen["_packed_seq_ids"] is BATCH


def test_boundaries_given_twice_are_refused() -> None:
    toy = Ids()
    configure_packing("sdpa", toy)
    with pytest.raises(EncodingError, match="_packed_seq_ids: was given by position"):
        toy(TOY_TOKENS, None, BATCH, _packed_seq_ids=BATCH)


@pytest.mark.parametrize("name", ["document_ids", "attention_document_ids"])
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_without_its_last_step_is_refused_in_every_mode(model: nn.Module, name: str, training: bool) -> None:
    try:
        model.train(training)
        with pytest.raises(
            BoundariesMissingError, match=f"^_packed_seq_ids: missing beside {name}.*last step: apply_pac"
        ):
            logits(model, TOKENS, **{name: IDS})
        assert logits(model.eval(), TOKENS, **{name: None}).isfinite().all()
    finally:
        model.train()


def test_embeddings_are_compared_with_the_ids(model: nn.Module) -> None:
    embeddings = cast("Any", model).get_input_embeddings()(TOKENS)
    expected = logits(model, TOKENS, _packed_seq_ids=IDS)
    assert torch.equal(model(inputs_embeds=embeddings, _packed_seq_ids=IDS).logits, expected)
    with pytest.raises(EncodingError, match="like inputs_embeds"):
        model(inputs_embeds=embeddings[:1], _packed_seq_ids=IDS)


def test_metadata_alone_brings_the_ids(model: nn.Module) -> None:
    expected = logits(model, TOKENS, _packed_seq_ids=IDS)
    assert torch.equal(logits(model, TOKENS, **build_packed_sequence_metadata(IDS)), expected)
    with pytest.raises(EncodingError, match="like input_ids"):
        logits(model, TOKENS, **build_packed_sequence_metadata(IDS[:, :16]))


def test_a_batch_as_it_is_may_be_given(model: nn.Module) -> None:
    batch: dict[str, Tensor] = {
        "labels": TOKENS,
        "position_ids": build_position_ids(IDS),
        "padding_mask": IDS == 0,
        "document_ids": IDS,
        "attention_mask": (IDS != 0).long(),
    }
    assert torch.equal(logits(model, TOKENS, _packed_seq_ids=IDS, **batch), logits(model, TOKENS, _packed_seq_ids=IDS))


def test_joined_documents_see_each_other(model: nn.Module) -> None:
    """Under cross-document attention the ids are 1 at every token, and positions run on."""
    joined = (IDS != 0).long()
    binding = get_binding(model)
    assert binding is not None
    packed = logits(model, TOKENS, _packed_seq_ids=joined)
    with binding.suspended():
        whole = alone(model)
        row = logits(model, TOKENS[:1, :21], use_cache=False)[0]
    torch.testing.assert_close(packed[0, :21], row, rtol=1e-4, atol=1e-5)
    places = next(places for row, places in documents() if row == 0)
    torch.testing.assert_close(packed[0][places], whole[0], rtol=1e-4, atol=1e-5)


def test_positions_run_on_only_where_the_model_declares_it() -> None:
    """Rotary positions tell how far apart tokens are and no more, so such a model may declare that they run on."""
    model = tiny("llama")
    running = torch.arange(IDS.shape[1])[None]
    capabilities = configure_packing("eager", model, consumer="reference")
    assert capabilities.position_policy == "document"
    expected = logits(model, TOKENS, _packed_seq_ids=IDS)
    with pytest.raises(EncodingError, match="does not restart") as caught:
        logits(model, TOKENS, _packed_seq_ids=IDS, position_ids=running)
    problem = caught.value.problems[0]
    assert (problem.field, problem.row, problem.position) == ("position_ids", 0, int((IDS[0] == IDS[0, 0]).sum()))
    model.position_policy = "sequence"  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
    capabilities = configure_packing("eager", model, consumer="reference")
    assert capabilities.position_policy == "sequence"
    assert get_packing_capabilities("eager", model).position_policy == "sequence"
    found = logits(model, TOKENS, _packed_seq_ids=IDS, position_ids=running)
    torch.testing.assert_close(found[IDS != 0], expected[IDS != 0], rtol=1e-4, atol=1e-5)
    model.position_policy = "row"  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
    with pytest.raises(CapabilitiesError, match="position_policy = 'row'"):
        configure_packing("eager", model, consumer="reference")


def test_one_scan_per_forward(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from neatpack.adapters import agreement, agreement_per_token, segments

    positions = build_position_ids(IDS)
    scans: list[int] = []
    scan = segments.scan_array

    def count(*arguments: Any) -> Any:
        scans.append(1)
        return scan(*arguments)

    for module in (agreement, agreement_per_token, segments):
        monkeypatch.setattr(module, "scan_array", count)
    logits(model, TOKENS, _packed_seq_ids=IDS, position_ids=positions)
    assert len(scans) == 1


def test_a_call_is_equal_to_itself_alone() -> None:
    given = {"input_ids": TOKENS, "_packed_seq_ids": IDS}
    one, other = (read_call(nn.Identity(), (), given, PackingCapabilities("document_ids")) for _ in range(2))
    assert one == one
    assert one != other
