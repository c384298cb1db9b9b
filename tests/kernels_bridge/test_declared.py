"""Custom models get what they declare and name, and nothing else."""

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
    flatten_packed_sequence_metadata,
    gathered_flat,
)
from neatpack.contracts import BoundariesMissingError, EncodingError, ModelError, PackedMaskType, PackingCapabilities
from neatpack.kernels_bridge import configure_packing, configure_packing_for_models, get_binding
from tests.kernels_bridge.packed import tiny
from tests.kernels_bridge.toys import (
    BATCH,
    TOKENS,
    Dense,
    Flash,
    Ids,
    IdsAsMask,
    MetadataAlone,
    NativeFA4,
    Outer,
    Recurrent,
    Swallows,
    Toy,
)
from tests.kernels_bridge.untyped import ints


def run(model: Toy, attention: str = "sdpa", **arguments: object) -> dict[str, Any]:
    configure_packing(attention, model)
    model(input_ids=TOKENS, **arguments)
    return model.seen


def equal(seen: dict[str, Any], expected: dict[str, Any]) -> bool:
    same = [
        torch.equal(seen[name], value) if isinstance(value, Tensor) else seen[name] == value
        for name, value in expected.items()
    ]
    return all(same) and set(seen) == {"input_ids", *expected}


@pytest.mark.parametrize(
    ("model", "attention", "expected"),
    [
        (Ids(), "sdpa", {"_packed_seq_ids": BATCH, "position_ids": build_position_ids(BATCH)}),
        (IdsAsMask(), "sdpa", {"attention_mask": BATCH}),
        (Dense(), "sdpa", {"attention_mask": build_block_causal_mask(BATCH)}),
        (Flash(), "flash_attention_2", dict(flash_varlen_kwargs(BATCH))),
        (
            Recurrent(),
            "sdpa",
            {"attention_mask": build_block_causal_mask(BATCH), **build_packed_sequence_metadata(BATCH)},
        ),
    ],
)
def test_each_form_arrives(model: Toy, attention: str, expected: dict[str, Any]) -> None:
    assert equal(run(model, attention, _packed_seq_ids=BATCH), expected)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "declared"
    binding.remove()
    model(input_ids=TOKENS)
    assert set(model.seen) == {"input_ids"}


def test_native_fa4_gets_one_stream() -> None:
    model = NativeFA4()
    seen = run(model, "fa4", _packed_seq_ids=BATCH)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "native_fa4"
    assert ints(seen["packed_token_indices"]) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert ints(seen["cu_seqlens"]) == [0, 2, 5, 8, 9]
    assert seen["max_seqlen"] == 3


def test_native_fa4_flattens_the_loaders_metadata_once() -> None:
    model = NativeFA4()
    metadata: dict[str, Any] = dict(build_packed_sequence_metadata(BATCH))
    first = dict(run(model, "fa4", **metadata))
    assert ints(first["cu_seqlens"]) == [0, 2, 5, 8, 9]
    indices, offsets = flatten_packed_sequence_metadata(metadata["packed_token_indices"], metadata["cu_seqlens"], 2, 6)
    again = run(model, "fa4", packed_token_indices=indices, cu_seqlens=offsets, max_seqlen=3)
    assert equal(again, {name: value for name, value in first.items() if name != "input_ids"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"qkv_format": "thd", "cu_seqlens": torch.tensor([0, 12])},
        {"cu_seqlens": torch.tensor([[0, 2, 5], [0, 3, 4]]), "max_seqlen": 3},
        {"qkv_format": "thd"},
        {"packed_token_indices": BATCH},
        {"packed_token_indices": BATCH, "_packed_seq_ids": BATCH},
        {**build_packed_sequence_metadata(BATCH), "qkv_format": "thd"},
        {"cu_seqlens": torch.tensor([0, 2, 5, 8, 9]), "_packed_seq_ids": BATCH},
    ],
)
def test_native_fa4_refuses_thd_and_half_of_the_metadata(arguments: dict[str, Any]) -> None:
    with pytest.raises(EncodingError, match="cu_seqlens"):
        run(NativeFA4(), "fa4", **arguments)


def test_metadata_is_taken_from_a_model_that_needs_none() -> None:
    metadata: dict[str, Any] = dict(build_packed_sequence_metadata(BATCH))
    assert set(run(Dense(), _packed_seq_ids=BATCH, **metadata)) == {"input_ids", "attention_mask"}
    assert set(run(Dense(), **metadata)) == {"input_ids", "attention_mask"}


PHYSICAL = torch.tensor([0, 2, 6, 9, 12])
"""Offsets of the places of `BATCH`, padding counted with the document before it."""


@pytest.mark.parametrize(
    "extra", [{}, {"packed_token_indices": None}, {"qkv_format": "thd"}, {"_packed_seq_ids": BATCH}]
)
@pytest.mark.parametrize("offsets", [PHYSICAL, PHYSICAL[None], torch.tensor([0, 2, 5, 8, 9, -1000])])
def test_thd_boundaries_without_token_indices_are_kept(extra: dict[str, Any], offsets: Tensor) -> None:
    seen = run(Dense(), cu_seqlens=offsets, max_seqlen=8, **extra)
    assert seen["cu_seqlens"] is offsets
    assert seen["max_seqlen"] == 8


@pytest.mark.parametrize("name", ["cu_seqlens", "cu_seqlens_padded", "cu_seqlens_q", "cu_seqlens_kv_padded"])
@pytest.mark.parametrize("extra", [{}, {"qkv_format": "thd"}, {"packed_token_indices": None}])
@pytest.mark.parametrize("values", [[0, 12], [0, 4, 12], [0, 2, 6, 10, 12], [0, 2, 5, 8], [2, 6, 9, 12]])
def test_thd_boundaries_beside_ids_are_compared_with_them(name: str, extra: dict[str, Any], values: list[int]) -> None:
    with pytest.raises(EncodingError, match=rf"^{name}\[position \d+\](?: = \d+)?: cuts elsewhere than the document"):
        run(Dense(), "sdpa", _packed_seq_ids=BATCH, **{name: torch.tensor(values)}, **extra)


@pytest.mark.parametrize("training", [True, False])
def test_flat_metadata_alone_brings_the_ids(training: bool) -> None:
    flat = gathered_flat(BATCH)
    model = Dense().train(training)
    seen = run(model, packed_token_indices=flat.token_indices, cu_seqlens=flat.cu_seqlens, max_seqlen=3)
    assert equal(seen, {"attention_mask": build_block_causal_mask(BATCH)})


def test_a_second_configuration_for_another_backend_delivers() -> None:
    model = NativeFA4()
    configure_packing("sdpa", model)
    capabilities = configure_packing("fa4", model)
    assert capabilities == PackingCapabilities("document_ids", True, True)
    model(input_ids=TOKENS, _packed_seq_ids=BATCH)
    assert ints(model.seen["cu_seqlens"]) == [0, 2, 5, 8, 9]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_wrappers_of_any_depth_hide_nothing(depth: int) -> None:
    model = Ids()
    wrapped: nn.Module = model
    for _ in range(depth):
        wrapped = nn.DataParallel(wrapped)
    assert configure_packing("sdpa", wrapped).packed_mask_type == "document_ids"
    assert get_binding(wrapped) is get_binding(model) is not None


def test_a_part_called_module_is_not_the_model() -> None:
    outer = Outer(Ids())
    configure_packing("sdpa", outer)
    assert get_binding(outer.module) is None
    binding = get_binding(outer)
    assert binding is not None
    assert binding.model is outer


@pytest.mark.parametrize(
    ("model", "attention", "names"),
    [
        (Swallows(), "flash_attention_2", ["cu_seq_lens_q", "max_length_k", "_packed_seq_ids"]),
        (Toy(), "sdpa", ["attention_mask"]),
        (MetadataAlone(), "sdpa", ["attention_mask"]),
        (MetadataAlone(), "flash_attention_2", ["cu_seq_lens_q"]),
        (nn.Linear(2, 2), "sdpa", ["attention_mask", "_packed_seq_ids"]),
    ],
)
def test_a_forward_that_does_not_name_them_is_refused(model: nn.Module, attention: str, names: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        configure_packing(attention, model)
    for name in names:
        assert f"`{name}`" in str(caught.value)
    assert get_binding(model) is None


def test_no_ids_in_training_raise_and_in_evaluation_pass() -> None:
    model = Ids()
    configure_packing("sdpa", model)
    with pytest.raises(BoundariesMissingError, match="_packed_seq_ids"):
        model(input_ids=TOKENS)
    model.eval()(input_ids=TOKENS)
    assert set(model.seen) == {"input_ids"}


def test_positions_that_came_are_kept() -> None:
    own = build_position_ids(BATCH) + 5
    assert run(Ids(), _packed_seq_ids=BATCH, position_ids=own)["position_ids"] is own


def test_a_microbatch_of_padding_is_legal() -> None:
    padding = torch.zeros_like(BATCH)
    assert ints(run(NativeFA4(), "fa4", _packed_seq_ids=padding)["cu_seqlens"]) == [0]
    assert ints(run(Recurrent(), _packed_seq_ids=padding)["cu_seqlens"].flatten()) == [0, 0]


def test_rows_cut_by_a_schedule_are_derived_as_cut() -> None:
    model = Flash()
    configure_packing("flash_attention_2", model)
    model(input_ids=TOKENS[1:], _packed_seq_ids=BATCH[1:])
    assert ints(model.seen["cu_seq_lens_q"]) == [0, 3, 4, 6]


def test_pipeline_stages_are_joined_or_left_alone() -> None:
    plain, recurrent = Dense(), Recurrent()
    combined = configure_packing_for_models([plain, recurrent])
    assert combined == PackingCapabilities("block_causal", True)
    assert get_binding(plain) is not None
    apart = [Dense(), Ids()]
    with pytest.raises(ValueError, match="stage 1 takes 'document_ids', but stage 0 takes 'block_causal'"):
        configure_packing_for_models(apart)
    assert [get_binding(stage) for stage in apart] == [None, None]
    with pytest.raises(ValueError, match="no stage"):
        configure_packing_for_models([])


def test_no_tensor_that_came_in_is_written_to() -> None:
    ids, tokens = BATCH.clone(), TOKENS.clone()
    run(NativeFA4(), "fa4", _packed_seq_ids=ids)
    assert torch.equal(ids, BATCH)
    assert torch.equal(tokens, TOKENS)


@pytest.mark.parametrize(("mask_type", "consumer"), [("block_causal", "block_causal"), ("document_ids", "declared")])
def test_what_a_transformers_model_declares(mask_type: PackedMaskType, consumer: str) -> None:
    """A declared mask still comes in the form that its attention takes: a bool one would leak under eager."""
    model = cast("Any", own_llama()).train()
    model.packed_mask_type = mask_type
    configure_packing("eager", model)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == consumer
    model(input_ids=TOKENS, _packed_seq_ids=BATCH)
    if consumer == "block_causal":
        assert binding.boundaries is not None
        assert binding.boundaries.dtype == torch.float32


def own_llama() -> nn.Module:
    """A Transformers model of the user's own, which reads ids."""
    from transformers import LlamaForCausalLM

    llama = cast("type[Any]", LlamaForCausalLM)

    def forward(
        self: Any,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        _packed_seq_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        return llama.forward(self, input_ids, attention_mask, position_ids, **kwargs)

    own: Any = type("Own", (llama,), {"forward": forward, "__module__": __name__})
    return cast("nn.Module", own(cast("Any", tiny("llama")).config))


@pytest.mark.parametrize("family", ["codegen", "gptj", "mamba2"])
def test_a_transformers_model_without_an_attention_interface_is_refused(family: str) -> None:
    model = tiny(family)
    with pytest.raises(ModelError, match="what its Hugging Face layers make of a 4-D mask is not known") as caught:
        configure_packing("eager", model, consumer="declared")
    assert "neatpack audit" in str(caught.value)
    assert get_binding(model) is None
