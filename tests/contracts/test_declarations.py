"""A model's declarations are read by value, through wrappers, and their errors are not hidden."""

from __future__ import annotations

from typing import Any

import pytest

import neatpack.contracts as core
from neatpack.contracts import CapabilitiesError


class Declared:
    packed_mask_type = "document_ids"
    requires_packed_sequence_metadata = True
    uses_native_fa4 = False
    uses_hf_attention = True
    uses_thd = True
    position_policy = "sequence"
    takes_holes = False


class Older:
    _uses_native_fa4 = True
    _uses_hf_attention = False


class FailingProperty:
    @property
    def packed_mask_type(self) -> str:
        return str(self.backend)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"no attribute {name!r}")


def wrapper(qualified_name: str, attribute: str) -> type:
    """Make a class that is called like one of torch's wrappers and holds its module where that does."""
    module, _, name = qualified_name.rpartition(".")

    def wrap(self: object, inner: object) -> None:
        setattr(self, attribute, inner)

    return type(name, (), {"__init__": wrap, "__module__": module, "__qualname__": name})


WRAPPERS = [
    wrapper("torch.nn.parallel.distributed.DistributedDataParallel", "module"),
    wrapper("torch.nn.parallel.data_parallel.DataParallel", "module"),
    wrapper("torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel", "module"),
    wrapper(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper", "_checkpoint_wrapped_module"
    ),
    wrapper("torch._dynamo.eval_frame.OptimizedModule", "_orig_mod"),
]
CHECKS = [
    *("packed_mask_consumer", "packing_metadata_consumer", "native_fa4_consumer", "hf_attention_consumer"),
    *("thd_consumer", "position_policy_consumer", "holes_consumer"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_declarations_are_seen_through_any_depth_of_wrappers(check: str) -> None:
    model = Declared()
    wrapped: object = model
    for kind in [*WRAPPERS, *reversed(WRAPPERS)]:
        wrapped = kind(wrapped)
        assert core.unwrap(wrapped) is model
        assert getattr(core, f"is_{check}")(wrapped)
        assert getattr(core, f"parse_{check}")(wrapped) is model


def test_a_subclass_of_a_wrapper_is_one() -> None:
    subclass = type("Sharded", (WRAPPERS[0],), {})
    model = Declared()
    assert core.unwrap(subclass(model)) is model


def test_a_submodule_called_module_is_not_the_model() -> None:
    class Outer(Declared):
        module = Older()

    outer = Outer()
    assert core.unwrap(outer) is outer


@pytest.mark.parametrize("check", CHECKS)
def test_what_declares_nothing_is_refused(check: str) -> None:
    assert not getattr(core, f"is_{check}")(object())
    with pytest.raises(CapabilitiesError, match="Declare"):
        getattr(core, f"parse_{check}")(object())


def test_older_private_names_are_read() -> None:
    assert core.is_native_fa4_consumer(Older())
    assert core.declared(Older(), "uses_native_fa4") is True
    assert core.declared(Older(), "uses_hf_attention") is False
    assert core.declared(object(), "uses_hf_attention") is None


@pytest.mark.parametrize("value", ["document_id", "", None, 3, True])
def test_a_wrong_mask_type_is_refused_by_value(value: object) -> None:
    model = type("Model", (), {"packed_mask_type": value})()
    assert not core.is_packed_mask_consumer(model)
    with pytest.raises(CapabilitiesError) as caught:
        core.parse_packed_mask_consumer(model)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["no", 0, None])
def test_a_flag_that_is_no_bool_is_refused(value: object) -> None:
    model = type("Model", (), {"requires_packed_sequence_metadata": value})()
    assert not core.is_packing_metadata_consumer(model)


def test_the_cause_of_a_failing_property_is_shown() -> None:
    with pytest.raises(CapabilitiesError, match="its property raised: no attribute 'backend'") as caught:
        core.parse_packed_mask_consumer(FailingProperty())
    assert caught.value.problems[0].field == "packed_mask_type"


def test_other_errors_of_a_property_pass_through() -> None:
    class Broken:
        @property
        def packed_mask_type(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        core.is_packed_mask_consumer(Broken())


@pytest.mark.parametrize("value", ["document_id", "", True])
def test_the_decorator_refuses_a_class_with_a_wrong_mask_type(value: object) -> None:
    model: Any = type("Model", (), {"packed_mask_type": value})
    with pytest.raises(CapabilitiesError, match="packed_mask_type") as caught:
        core.packed_mask_consumer(model)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["no", ""])
def test_the_decorator_refuses_a_class_with_a_flag_that_is_no_bool(value: object) -> None:
    model: Any = type("Model", (), {"requires_packed_sequence_metadata": value})
    with pytest.raises(CapabilitiesError, match="must be a bool"):
        core.packing_metadata_consumer(model)


def test_the_decorators_leave_the_rest_to_the_built_model() -> None:
    class SetLater:
        __slots__ = ("packed_mask_type", "requires_packed_sequence_metadata")

    placeholder = type("Placeholder", (), {"packed_mask_type": None, "requires_packed_sequence_metadata": None})
    models: list[Any] = [Declared, SetLater, placeholder, FailingProperty, type("Model", (), {})]
    for model in models:
        assert core.packed_mask_consumer(model) is model
        assert core.packing_metadata_consumer(model) is model
