"""Each document in a row of its own, around the model's own forward: equal to itself alone, whatever the family."""

# Torch leaves hooks and seeds without types.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.adapters import collate_documents, mask_labels, plan_rows, scan_segments
from neatpack.contracts import Accepted, DocumentIdsError, EncodingError, ModelError, PackingCapabilities, Rejected
from neatpack.kernels_bridge import configure_packing, decide, get_binding, get_consumer, use_consumer
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import ModelType
from neatpack.kernels_bridge.audit.texts import default_paths, read_texts
from neatpack.kernels_bridge.consumers import per_document
from neatpack.kernels_bridge.consumers.per_document import PerDocumentConsumer, plan_calls
from neatpack.kernels_bridge.registry import Consumer
from tests.kernels_bridge.packed import IDS, TOKENS, alone, first_fault, gradients, logits, loss, tiny
from tests.kernels_bridge.untyped import backward, different, ints

# Recurrent state, convolutions, learned positions, alibi, attention of their own: nothing else takes them.
CHOSEN: Final = ("mamba2", "recurrent_gemma", "rwkv", "minimax", "bloom", "codegen", "lfm2", "falcon_mamba", "gptj")
ROPE: Final[Mapping[str, Mapping[str, object]]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 4},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "factor": 4.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 8,
    },
}


def coupled(kind: str) -> nn.Module:
    """Build a llama whose longest row changes the rotary positions of all rows."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(cast("Any", tiny("llama")).config)
    config.rope_parameters = dict(ROPE[kind])
    config.max_position_embeddings = 4 if kind == "dynamic" else 32
    torch.manual_seed(0)
    model = cast("Any", AutoModelForCausalLM).from_config(config, attn_implementation="eager")
    return cast("nn.Module", model).train()


def fresh(kind: str) -> list[Tensor]:
    """Run each document alone through a model of its own: dynamic frequencies remember the longest row."""
    outputs: list[Tensor] = []
    for row in range(len(IDS)):
        for number in ints(different(IDS[row])):
            if number:
                places = IDS[row] == number
                outputs.append(logits(coupled(kind), TOKENS[row][places][None], use_cache=False)[0])
    return outputs


@pytest.mark.parametrize("name", CHOSEN)
def test_it_is_chosen_where_nothing_else_takes_a_family_and_is_right(name: str) -> None:
    model = tiny(name)
    with torch.no_grad():
        expected = alone(model)
    assert configure_packing("eager", model) == PackingCapabilities("document_ids", takes_holes=False)
    binding = get_binding(model)
    assert binding is not None
    assert binding.consumer == "per_document"
    assert first_fault(model, expected) is None


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_it_takes_what_others_take_as_well(name: str) -> None:
    model = tiny(name, "sdpa" if name == "llama" else "eager")
    with torch.no_grad():
        expected = alone(model)
    configure_packing("sdpa" if name == "llama" else "eager", model, consumer="per_document")
    assert first_fault(model, expected) is None


@pytest.mark.parametrize("kind", ROPE)
def test_rows_that_would_change_one_another_share_no_call(kind: str) -> None:
    with torch.no_grad():
        expected = fresh(kind)
    model = coupled(kind)
    calls: list[tuple[int, ...]] = []
    cast("Any", model).model.embed_tokens.register_forward_hook(
        lambda _module, given, _output: calls.append(tuple(given[0].shape))
    )
    configure_packing("eager", model)
    for _ in range(2):  # a second time, when dynamic frequencies have grown
        calls.clear()
        with torch.no_grad():
            packed = logits(model, TOKENS, _packed_seq_ids=IDS)
        assert calls == [(1, 1), (1, 5), (1, 6), (1, 9), (1, 10), (1, 14)]
        found = [packed[row][IDS[row] == number] for row in range(2) for number in ints(different(IDS[row])) if number]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ROPE)
def test_a_planted_call_of_unlike_lengths_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        expected = fresh(kind)
    model = coupled(kind)
    configure_packing("eager", model)
    monkeypatch.setattr(per_document, "plan_calls", lambda *_lengths, **_how: None)
    assert first_fault(model, expected) is not None


def test_a_planted_mixup_of_documents_is_seen() -> None:
    model = tiny("mamba2")
    with torch.no_grad():
        expected = alone(model)

    class Shifted(PerDocumentConsumer):
        def derive(self, model: nn.Module, call: Any) -> Mapping[str, object]:
            derived = super().derive(model, call)
            return {**derived, "input_ids": cast("Tensor", derived["input_ids"]).roll(1, 0)}

    with use_consumer(cast("Consumer", Shifted())):
        configure_packing("eager", model)
        assert first_fault(model, expected) is not None


def test_the_audit_sees_documents_that_share_a_row() -> None:
    class Joining(PerDocumentConsumer):
        def derive(self, model: nn.Module, call: Any) -> Mapping[str, object]:
            return super().derive(model, self.joined(call))

        def restore(self, model: nn.Module, call: Any, output: object) -> object:
            return super().restore(model, self.joined(call), output)

        def joined(self, call: Any) -> Any:
            return replace(call, segments=scan_segments((call.document_ids > 0).to(torch.int64)))

    texts = read_texts(default_paths())
    for consumer, verdict in ((PerDocumentConsumer(), "clean"), (Joining(), "leak")):
        with use_consumer(cast("Consumer", consumer)):
            finding = audit_models([ModelType("mamba2")], texts, paths=["configured"]).models[0].paths["configured"]
        assert finding.verdict == verdict
        assert finding.gradient is not None
        assert (finding.gradient > 0) == (verdict == "leak")


@pytest.mark.parametrize("name", ["mamba2", "bloom", "llama"])
def test_gradients_equal_those_of_documents_alone(name: str) -> None:
    model = tiny(name)
    backward(torch.stack([output.square().sum() for output in alone(model)]).sum())
    expected = gradients(model)
    model.zero_grad()
    configure_packing("eager", model, consumer="per_document")
    backward(loss(model, _packed_seq_ids=IDS))
    for parameter, gradient in gradients(model).items():
        scale = float(expected[parameter].abs().max()) + 1e-6
        assert float((gradient - expected[parameter]).abs().max()) < 1e-4 * scale, parameter


@pytest.mark.parametrize("given", [{}, {"num_items_in_batch": 11}])
@pytest.mark.parametrize("kind", [None, "dynamic"])
def test_the_loss_is_that_of_targets_inside_documents(kind: str | None, given: dict[str, int]) -> None:
    model = tiny("llama") if kind is None else coupled(kind)
    configure_packing("eager", model, consumer="per_document")
    labels = TOKENS.clone()
    labels[0, 2:12] = -100
    output = model(input_ids=TOKENS, labels=labels, _packed_seq_ids=IDS, **given)
    targets = mask_labels(labels, IDS, "model")[:, 1:]
    losses = nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="none")
    divisor = given.get("num_items_in_batch") or int((targets != -100).sum())
    torch.testing.assert_close(output.loss, losses.sum() / divisor)


def test_padding_gets_zeros_and_no_gradient() -> None:
    model = tiny("llama")
    configure_packing("eager", model, consumer="per_document")
    output = logits(model, TOKENS, _packed_seq_ids=IDS)
    assert bool((output[IDS == 0] == 0).all())
    backward(output[IDS == 0].sum())
    assert all(bool((gradient == 0).all()) for gradient in gradients(model).values())


def test_a_batch_of_padding_alone_reaches_the_model() -> None:
    model = tiny("mamba2")
    configure_packing("eager", model)
    output = logits(model, TOKENS, _packed_seq_ids=torch.zeros_like(IDS))
    assert output.shape[:2] == IDS.shape
    assert bool((output == 0).all())
    backward(output.sum())
    assert len(gradients(model)) > 0


def test_hidden_states_come_back_and_attentions_are_refused() -> None:
    model = tiny("llama")
    configure_packing("eager", model, consumer="per_document")
    output = model(input_ids=TOKENS, _packed_seq_ids=IDS, output_hidden_states=True)
    assert [tuple(states.shape) for states in output.hidden_states] == [(2, 24, 32)] * 3
    binding = get_binding(model)
    assert binding is not None
    with binding.suspended():
        single = model(input_ids=TOKENS[:1, 7:16], output_hidden_states=True, use_cache=False)
    for one, other in zip(output.hidden_states, single.hidden_states, strict=True):
        torch.testing.assert_close(one[0, 7:16], other[0])
    with pytest.raises(EncodingError, match="output_attentions"):
        model(input_ids=TOKENS, _packed_seq_ids=IDS, output_attentions=True)


def test_what_is_not_per_token_is_refused_by_name() -> None:
    model = tiny("llama")
    configure_packing("eager", model, consumer="per_document")
    with pytest.raises(EncodingError, match=r"^pixel_values = \(2, 3\): is not per token"):
        logits(model, TOKENS, _packed_seq_ids=IDS, pixel_values=torch.zeros(2, 3))
    with pytest.raises(ModelError, match=r"^logits = .*not known to be per token"):
        logits(model, TOKENS, _packed_seq_ids=IDS, logits_to_keep=1)
    from transformers import DynamicCache

    with pytest.raises(EncodingError, match="past_key_values"):
        logits(model, TOKENS, _packed_seq_ids=IDS, past_key_values=DynamicCache())
    holes = IDS.clone()
    holes[1, 4] = 0
    with pytest.raises(DocumentIdsError, match="a hole"):
        logits(model, TOKENS, _packed_seq_ids=holes)
    assert logits(model, TOKENS, _packed_seq_ids=IDS).isfinite().all()


def test_a_whole_batch_of_a_loader_is_taken() -> None:
    model = tiny("llama")
    contract = configure_packing("eager", model, consumer="per_document")
    documents = [torch.arange(3, 3 + length) for length in (3, 7, 5, 1)]
    batch = collate_documents(documents, plan_rows([3, 7, 5, 1], 8), contract=contract)
    assert {"document_keys", "document_starts"} <= set(batch)
    whole = cast("Any", model)(**batch)
    few = cast("Any", model)(
        input_ids=batch["input_ids"], labels=batch["labels"], _packed_seq_ids=batch.get("_packed_seq_ids")
    )
    torch.testing.assert_close(whole.logits, few.logits)
    torch.testing.assert_close(whole.loss, few.loss)


def test_router_losses_are_refused_when_configuring() -> None:
    model = tiny("mixtral")
    cast("Any", model).config.output_router_logits = True
    with pytest.raises(ModelError, match="router losses"):
        configure_packing("eager", model, consumer="per_document")


def test_arguments_per_token_move_with_the_tokens() -> None:
    model = tiny("gpt2")
    configure_packing("eager", model, consumer="per_document")
    positions = torch.zeros_like(IDS)
    for row in range(2):
        for number in ints(different(IDS[row])):
            places = IDS[row] == number
            positions[row][places] = torch.arange(int(places.sum())) + 3
    packed = logits(model, TOKENS, _packed_seq_ids=IDS, position_ids=positions)
    by_position = model(TOKENS, _packed_seq_ids=IDS, position_ids=positions).logits
    torch.testing.assert_close(packed, by_position)
    binding = get_binding(model)
    assert binding is not None
    with binding.suspended():
        single = logits(model, TOKENS[1:, :10], position_ids=torch.arange(3, 13)[None])
    torch.testing.assert_close(packed[1, :10], single[0])


def test_it_survives_copies_and_is_gone_when_removed() -> None:
    model = tiny("mamba2")
    with torch.no_grad():
        expected = alone(model)
    plain = {name: list(getattr(model, name)) for name in vars(model) if name.endswith("_hooks")}
    configure_packing("eager", model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert first_fault(twin, expected) is None
    binding = get_binding(model)
    assert binding is not None
    binding.remove()
    assert {name: list(getattr(model, name)) for name in vars(model) if name.endswith("_hooks")} == plain


class Own(nn.Module):
    """A model of someone's own, of which nothing is known: each token sees the sum of all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.shapes = nn.Embedding(50, 8), list[tuple[int, ...]]()

    def forward(self, input_ids: Tensor) -> tuple[Tensor, None]:
        self.shapes.append(tuple(input_ids.shape))
        return self.embed(input_ids).cumsum(1), None


def test_a_custom_model_has_to_be_asked_for_and_is_called_once_per_length() -> None:
    model = Own()
    with pytest.raises(ModelError, match="ask for it by name"):
        configure_packing("sdpa", model)
    decision = dict(decide(model))["per_document"]
    assert isinstance(decision, Accepted)
    assert (decision.verified, "unverified" in decision.evidence) == (False, True)
    configure_packing("sdpa", model, consumer="per_document")
    packed, nothing = model(TOKENS, _packed_seq_ids=IDS)
    assert nothing is None
    assert model.shapes == [(1, 1), (1, 5), (1, 6), (1, 9), (1, 10), (1, 14)]
    for row in range(2):
        for number in ints(different(IDS[row])):
            if number:
                places = IDS[row] == number
                torch.testing.assert_close(packed[row][places], model.embed(TOKENS[row][places]).cumsum(0))


def test_models_that_take_packed_rows_themselves_are_left_alone() -> None:
    from tests.kernels_bridge.toys import Ids, Recurrent

    for model, reason in ((Ids(), "takes 'document_ids' itself"), (Recurrent(), "takes packed rows itself")):
        decision = get_consumer("per_document").decide(model, "sdpa")
        assert isinstance(decision, Rejected)
        assert reason in decision.reason
    assert isinstance(get_consumer("per_document").decide(nn.Linear(2, 2), "sdpa"), Rejected)


def test_two_sequences_are_refused() -> None:
    model = tiny("bart")
    cast("Any", model).config.is_encoder_decoder = True
    decision = get_consumer("per_document").decide(model, "eager")
    assert isinstance(decision, Rejected)


@pytest.mark.parametrize(
    ("lengths", "alike", "together", "calls"),
    [
        ([], True, False, None),
        ([3, 1, 2], False, False, None),
        ([3, 1, 2], False, True, None),
        ([3, 1, 3], True, True, [[1], [0, 2]]),
        ([100, 1, 1, 2, 1, 1, 1, 90], False, True, None),
        ([100, 1, 1, 2, 1, 1, 1, 90], False, False, [[1, 2, 4, 5, 6, 3], [7, 0]]),
    ],
)
def test_calls_are_planned(lengths: list[int], alike: bool, together: bool, calls: list[list[int]] | None) -> None:
    assert plan_calls(lengths, alike=alike, together=together) == calls
