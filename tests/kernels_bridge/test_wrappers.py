"""Two data-parallel processes, each with its own documents: in every wrapper and either order, boundaries arrive."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh

from neatpack.contracts import ModelError
from neatpack.kernels_bridge import configure_packing, get_binding
from tests.kernels_bridge.packed import gradients
from tests.kernels_bridge.processes import run_in_processes
from tests.kernels_bridge.stages import Flat, real_loss
from tests.kernels_bridge.untyped import backward

IDS: Final = torch.tensor([[[1, 1, 2, 2, 2, 0], [3, 3, 3, 3, 3, 3]], [[1, 2, 3, 4, 0, 0], [0, 0, 0, 0, 0, 0]]])
TOKENS: Final = torch.arange(24).view(2, 2, 6) % 11


class Model(nn.Module):
    """A model with a part that happens to be called `module`."""

    packed_mask_type = Flat.packed_mask_type

    def __init__(self) -> None:
        super().__init__()
        self.module = Flat(0)

    def forward(
        self, input_ids: Tensor, cu_seq_lens_q: Tensor, cu_seq_lens_k: Tensor, max_length_q: int, max_length_k: int
    ) -> Tensor:
        return cast("Tensor", self.module(input_ids, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k))


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fsdp1(model: nn.Module) -> nn.Module:
    return cast("nn.Module", cast("Any", fsdp).FullyShardedDataParallel(model, device_id=torch.device("cpu")))


def fsdp2(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    cast("Any", fsdp).fully_shard(model.module, mesh=mesh)
    cast("Any", fsdp).fully_shard(model, mesh=mesh)
    return model


def compiled(model: nn.Module) -> nn.Module:
    return cast("nn.Module", cast("Any", torch).compile(model, backend="eager"))


def checkpointed(model: nn.Module) -> nn.Module:
    return cast("nn.Module", cast("Any", checkpoint_wrapper).checkpoint_wrapper(model))


def layer_checkpointed(model: nn.Module) -> nn.Module:
    cast("Any", model).module = checkpointed(cast("nn.Module", model.module))
    return model


WRAPPERS: Final[dict[str, tuple[Callable[[nn.Module], nn.Module], int]]] = {
    "ddp": (ddp, 1),
    "fsdp1": (fsdp1, 1),
    "fsdp2": (fsdp2, 1),
    "compile": (compiled, 1),
    "ddp of compile": (lambda model: ddp(compiled(model)), 1),
    "compile of ddp": (lambda model: compiled(ddp(model)), 1),
    "checkpoint": (checkpointed, 2),
    "ddp of checkpoint": (lambda model: ddp(checkpointed(model)), 2),
    "checkpointed layer": (layer_checkpointed, 1),
    "ddp of checkpointed layer": (lambda model: ddp(layer_checkpointed(model)), 1),
}
"""Each wrapper, and how often the model's hook fires in a step: twice where its whole forward is recomputed.
Reentrant checkpoints of a whole model cannot be: they need inputs with gradients."""


def check(rank: int, name: str, wrap_first: bool) -> None:
    wrap, firings = WRAPPERS[name]
    model = Model()
    expected, kept = Flat(0), IDS[rank] > 0
    answer = expected.alone(TOKENS[rank], IDS[rank])
    backward(real_loss(answer, IDS[rank]))
    wrapped = wrap(model) if wrap_first else model
    configure_packing("flash_attention_2", wrapped)
    wrapped = wrapped if wrap_first else wrap(model)
    binding = get_binding(wrapped)
    assert binding is not None
    assert binding is get_binding(model)
    assert binding.model is model
    given: list[Tensor] = []
    fired = Counter[str]()

    def note(_module: nn.Module, _args: object, kwargs: dict[str, Tensor]) -> None:
        fired["hook"] += 1
        given.append(kwargs["cu_seq_lens_q"].clone())

    model.register_forward_pre_hook(note, with_kwargs=True)
    for _ in range(2):
        fired.clear()
        given.clear()
        wrapped.zero_grad()
        output = cast("Tensor", wrapped(TOKENS[rank], _packed_seq_ids=IDS[rank]))
        torch.testing.assert_close(output[kept], answer[kept], msg=f"{name}, wrapped first: {wrap_first}")
        backward(real_loss(output, IDS[rank]))
        assert fired["hook"] == firings
        assert all(torch.equal(offsets, given[0]) for offsets in given)
    if name == "ddp":
        for parameter, gradient in gradients(expected).items():
            cast("Any", dist).all_reduce(gradient)
            torch.testing.assert_close(gradients(model)[f"module.{parameter}"], gradient / 2)
    if name == "fsdp2":
        for parameter, gradient in gradients(expected).items():
            cast("Any", dist).all_reduce(gradient)
            whole = cast("Any", gradients(model)[f"module.{parameter}"]).full_tensor()
            torch.testing.assert_close(whole, gradient / 2)


def check_copies(rank: int) -> None:
    model = Model()
    wrapped = ddp(model)
    configure_packing("flash_attention_2", wrapped)
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):  # noqa: S301  # pickled here
        assert isinstance(other, nn.parallel.DistributedDataParallel)
        assert get_binding(other) is not get_binding(wrapped)
        output = cast("Tensor", other(TOKENS[rank], _packed_seq_ids=IDS[rank]))
        kept = IDS[rank] > 0
        torch.testing.assert_close(output[kept], Flat(0).alone(TOKENS[rank], IDS[rank])[kept])


def check_sharded_models_are_not_tried() -> None:
    for shard in (fsdp1, fsdp2):
        model = Model()
        with pytest.raises(ModelError, match="sharded over processes"):
            configure_packing("flash_attention_2", shard(model), verify=True)
        assert get_binding(model) is None


def check_all(rank: int) -> None:
    for name, wrap_first in product(WRAPPERS, (True, False)):
        check(rank, name, wrap_first)
    check_copies(rank)
    check_sharded_models_are_not_tried()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:torch.*")
def test_boundaries_arrive_in_every_wrapper(tmp_path: Path) -> None:
    run_in_processes(2, tmp_path, check_all)
