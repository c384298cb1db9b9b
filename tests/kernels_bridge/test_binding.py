"""A binding lives where its model lives: copied, pickled, wrapped, suspended, replaced."""

from __future__ import annotations

import copy
import io
from collections.abc import Generator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from neatpack.contracts import BoundariesMissingError, ModelError, ModelTypeError
from neatpack.kernels_bridge import Binding, configure_packing, get_binding
from tests.kernels_bridge.packed import IDS, TOKENS, alone, first_fault, gradients, logits, loss, tiny
from tests.kernels_bridge.untyped import backward, ints

CONSUMERS = ("reference", "block_causal")


def bound(model: nn.Module) -> Binding:
    binding = get_binding(model)
    assert binding is not None
    return binding


def configured(consumer: str, name: str = "llama") -> nn.Module:
    model = tiny(name)
    configure_packing("eager", model, consumer=consumer)
    return model


def alone_suspended(model: nn.Module) -> list[Tensor]:
    with bound(model).suspended(), torch.no_grad():
        return alone(model)


def test_configuring_equally_changes_nothing() -> None:
    model = configured("reference")
    before = bound(model)
    configure_packing("eager", model, consumer="reference")
    assert bound(model) is before


def test_configuring_otherwise_replaces() -> None:
    model = configured("reference")
    expected = alone_suspended(model)
    configure_packing("eager", model)
    assert bound(model).consumer == "block_causal"
    assert cast("Any", model).config._attn_implementation == "neatpack|block_causal|eager"
    assert first_fault(model, expected) is None
    hooks = [*cast("Any", model)._forward_pre_hooks.values(), *cast("Any", model)._forward_hooks.values()]
    assert len(hooks) == 2


def test_a_refused_configuration_leaves_the_former_in_place() -> None:
    model = configured("reference")
    before = bound(model)
    with pytest.raises(ModelError, match="takes no flash varlen kwargs"):
        configure_packing("eager", model, consumer="hf_flash")
    assert bound(model) is before
    logits(model, TOKENS, _packed_seq_ids=IDS)


@pytest.mark.parametrize("step", ["_point", "_register"])
def test_a_failure_while_attaching_leaves_nothing(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from neatpack.kernels_bridge import hf_attention

    model = tiny("llama")
    interface = cast("dict[str, object]", ALL_ATTENTION_FUNCTIONS)
    hooks, registered = dict(vars(model)), list(interface)

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(hf_attention, step, fail)
        with pytest.raises(ZeroDivisionError):
            configure_packing("eager", model)
    assert get_binding(model) is None
    assert vars(model) == hooks
    assert list(interface) == registered
    assert cast("Any", model).config._attn_implementation == "eager"


def test_a_failure_while_replacing_restores_the_former(monkeypatch: pytest.MonkeyPatch) -> None:
    from neatpack.kernels_bridge import hf_attention

    model = configured("reference")
    register = cast("Any", hf_attention)._register

    def fail(interface: object, name: str, function: object) -> None:
        if "block_causal" in name:
            raise ZeroDivisionError
        register(interface, name, function)

    monkeypatch.setattr(hf_attention, "_register", fail)
    with pytest.raises(ZeroDivisionError):
        configure_packing("eager", model)
    assert bound(model).consumer == "reference"
    logits(model, TOKENS, _packed_seq_ids=IDS)
    assert bound(model).calls == 2


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_copies_are_bound_for_themselves(consumer: str) -> None:
    model = configured(consumer)
    expected = alone_suspended(model)
    twin = copy.deepcopy(model)
    assert bound(twin) is not bound(model)
    assert bound(twin).model is twin
    bound(model).remove()
    assert first_fault(twin, expected) is None
    assert get_binding(model) is None
    bound(twin).remove()
    assert cast("Any", twin).config._attn_implementation == "eager"
    logits(twin, TOKENS)


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_loaded_model_is_bound(consumer: str) -> None:
    model = configured(consumer)
    expected = alone_suspended(model)
    file = io.BytesIO()
    torch.save(model, file)
    bound(model).remove()
    del model
    file.seek(0)
    loaded = cast("nn.Module", torch.load(file, weights_only=False))
    assert first_fault(loaded, expected) is None
    assert bound(loaded).consumer == consumer
    bound(loaded).remove()
    assert cast("Any", loaded).config._attn_implementation == "eager"


@pytest.fixture
def one_process() -> Generator[None, None, None]:
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("wrap_first", [True, False])
def test_ddp(wrap_first: bool) -> None:
    model = tiny("llama")
    expected = [output.detach() for output in alone(model)]
    wrapped: nn.Module = model
    if not wrap_first:
        configure_packing("eager", model, consumer="reference")
    wrapped = nn.parallel.DistributedDataParallel(wrapped)
    if wrap_first:
        configure_packing("eager", wrapped, consumer="reference")
    assert get_binding(wrapped) is bound(model)
    assert first_fault(wrapped, expected) is None
    backward(loss(wrapped, _packed_seq_ids=IDS))
    assert gradients(model)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("wrap_first", [True, False])
def test_fsdp2(wrap_first: bool) -> None:
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    def shard() -> None:
        mesh = init_device_mesh("cpu", (1,))
        for module in (*cast("Any", model).model.layers, model):
            cast("Any", fsdp).fully_shard(module, mesh=mesh)

    model = tiny("llama")
    expected = [output.detach() for output in alone(model)]
    if wrap_first:
        shard()
    configure_packing("eager", model, consumer="reference")
    if not wrap_first:
        shard()
    assert first_fault(model, expected) is None
    assert bound(model).calls == 2
    backward(loss(model, _packed_seq_ids=IDS))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("consumer", "in_place"), [("reference", False), ("block_causal", True)])
def test_compile(consumer: str, in_place: bool) -> None:
    model = tiny("llama")
    expected = loss(model, **one_at_a_time())
    compiled = model
    if in_place:
        cast("Any", model).compile(backend="eager")
    else:
        compiled = cast("nn.Module", cast("Any", torch).compile(model, backend="eager"))
    configure_packing("eager", compiled, consumer=consumer)
    assert get_binding(compiled) is bound(model)
    for _ in range(2):
        packed = loss(compiled, _packed_seq_ids=IDS)
        assert bound(model).calls == 2
        torch.testing.assert_close(packed, expected)
        backward(packed)
    bound(model).remove()
    torch.compiler.reset()


@pytest.mark.parametrize("consumer", ["block_causal", "per_document"])
def test_all_behind_the_hook_is_one_graph(consumer: str) -> None:
    model = configured(consumer)
    expected = loss(model, _packed_seq_ids=IDS)
    graphs: list[object] = []

    def backend(graph: Any, _inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = cast("nn.Module", cast("Any", torch).compile(model, backend=backend, fullgraph=True))
    torch.testing.assert_close(loss(compiled, _packed_seq_ids=IDS), expected)
    assert len(graphs) == 1
    with pytest.raises(BoundariesMissingError):
        loss(compiled)
    torch.compiler.reset()


def test_the_kernel_of_the_reference_is_in_no_graph() -> None:
    compiled = cast("Any", torch).compile(configured("reference"), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="attend"):
        loss(compiled, _packed_seq_ids=IDS)
    torch.compiler.reset()


def one_at_a_time() -> dict[str, Tensor]:
    """The arguments by which an unbound eager model keeps the documents apart."""
    from neatpack.adapters import build_block_causal_mask, build_position_ids

    mask = build_block_causal_mask(IDS, torch.float32)
    return {"attention_mask": mask, "position_ids": build_position_ids(IDS)}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers(consumer: str, reentrant: bool) -> None:
    model = configured(consumer)
    backward(loss(model, _packed_seq_ids=IDS))
    expected = gradients(model)
    model.zero_grad()
    cast("Any", model).gradient_checkpointing_enable({"use_reentrant": reentrant})
    cast("Any", model).enable_input_require_grads()
    backward(loss(model, _packed_seq_ids=IDS))
    assert bound(model).calls == 2
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_a_checkpointed_model_derives_the_same_again() -> None:
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    model = configured("reference")
    backward(loss(model, _packed_seq_ids=IDS))
    expected = gradients(model)
    model.zero_grad()
    wrapped = cast("nn.Module", cast("Any", checkpoint_wrapper).checkpoint_wrapper(model))
    assert get_binding(wrapped) is bound(model)
    backward(loss(wrapped, _packed_seq_ids=IDS))
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_evaluation_without_ids_is_as_if_unbound(consumer: str, name: str) -> None:
    model = tiny(name).eval()
    mask = (IDS != 0).long()
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    generate = cast("Any", model).generate
    expected = logits(model, TOKENS, attention_mask=mask)
    text = generate(TOKENS, attention_mask=mask.flip(1), **options)
    configure_packing("eager", model, consumer=consumer)
    assert torch.equal(logits(model, TOKENS, attention_mask=mask), expected)
    assert torch.equal(model(TOKENS, mask).logits, expected)
    assert torch.equal(generate(TOKENS, attention_mask=mask.flip(1), **options), text)
    assert cast("Any", model).config._attn_implementation == f"neatpack|{consumer}|eager"
    assert first_fault(model, alone_suspended(model)) is None


def test_generation_with_a_static_cache_is_refused_or_right() -> None:
    model = tiny("llama").eval()
    generate = cast("Any", model).generate
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
    text = generate(TOKENS[:1], **options)
    configure_packing("eager", model)
    with pytest.raises(ModelError, match="suspended"):
        generate(TOKENS[:1], **options)
    with bound(model).suspended():
        assert torch.equal(generate(TOKENS[:1], **options), text)


def test_training_without_ids_raises() -> None:
    model = configured("reference")
    with pytest.raises(BoundariesMissingError) as caught:
        logits(model, TOKENS)
    assert caught.value.problems[0].field == "_packed_seq_ids"
    with bound(model).suspended():
        logits(model, TOKENS)
    with pytest.raises(BoundariesMissingError):
        logits(model, TOKENS)


def test_suspension_nests() -> None:
    model = configured("block_causal")
    plain = tiny("llama")
    with bound(model).suspended():
        with bound(model).suspended():
            pass
        assert torch.equal(logits(model, TOKENS), logits(plain, TOKENS))
    logits(model, TOKENS, _packed_seq_ids=IDS)


@pytest.mark.parametrize("train", [True, False])
def test_a_forward_that_raises_leaves_the_binding_whole(train: bool) -> None:
    model = configured("reference").train(train)
    expected = alone_suspended(model)
    arguments = {"_packed_seq_ids": IDS} if train else {}
    with pytest.raises(IndexError):
        logits(model, TOKENS + 10_000, **arguments)
    assert cast("Any", model).config._attn_implementation == "neatpack|reference|eager"
    assert first_fault(model, expected) is None


def test_a_removed_binding_says_so() -> None:
    model = configured("reference")
    binding = bound(model)
    binding.remove()
    with pytest.raises(ModelError, match="bound to no model"):
        _ = binding.model


def test_what_the_last_forward_saw() -> None:
    model = configured("reference")
    binding = bound(model)
    assert (binding.calls, binding.boundaries) == (0, None)
    logits(model, TOKENS, _packed_seq_ids=IDS)
    assert binding.calls == 2
    assert binding.boundaries is not None
    assert ints(binding.boundaries) == [0, 6, 7, 16, 21, 31, 45]
    assert "reference" in repr(binding)


def test_only_modules_have_bindings() -> None:
    with pytest.raises(ModelTypeError):
        get_binding(cast("nn.Module", object()))


class Teacher(nn.Module):
    """A model that runs another bound one before itself."""

    def __init__(self, student: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        layer = cast("Any", student).model.layers[0]
        layer.register_forward_pre_hook(self.ask)

    def ask(self, *_arguments: object) -> None:
        logits(self.teacher, TOKENS, _packed_seq_ids=IDS)


def test_calls_of_a_model_inside_another_count_apart() -> None:
    student, teacher = configured("reference"), configured("block_causal", "gpt2")
    Teacher(student, teacher)
    logits(student, TOKENS, _packed_seq_ids=IDS)
    assert (bound(student).calls, bound(teacher).calls) == (2, 2)


def test_a_copy_of_a_suspended_model_is_not() -> None:
    model = configured("reference")
    with bound(model).suspended():
        twin = copy.deepcopy(model)
    with pytest.raises(BoundariesMissingError):
        logits(twin, TOKENS)


class Outer(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_a_submodule_called_module_is_no_model() -> None:
    inner = configured("reference")
    assert get_binding(Outer(inner)) is None
