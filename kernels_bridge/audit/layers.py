"""The leak layer by layer: how far each document reaches into the output of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final, cast

from torch import Tensor, nn

from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.origin import token_axis
from neatpack.kernels_bridge.audit.probes import Ask
from neatpack.kernels_bridge.audit.report import LayerReport, PathReport

MOST_DOCUMENTS: Final = 12
"""Documents up to which a matrix can be read at one look."""

Outputs = dict[str, Tensor]


def layer_reports(report: PathReport, model: nn.Module, ask: Ask, packed: PackedDocuments) -> PathReport:
    """Add, for each layer of the model, how far each document reaches into its output; nothing where they are many."""
    count = len(packed.places)
    if count > MOST_DOCUMENTS:
        return report
    layers = _layers(model)
    before = _outputs(layers, ask, packed)
    matrices: dict[str, list[tuple[float, ...]]] = {name: [] for name in before}
    for source in range(count):
        after = _outputs(layers, partial(ask, packed.with_changed(source)), packed)
        for name, states in before.items():
            matrices[name].append(_distances(states, after.get(name, states), packed))
    return replace(report, layers=tuple(LayerReport(name, tuple(matrix)) for name, matrix in matrices.items()))


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated layers of a model, or its parts where it has none."""
    repeated = {
        f"{name}.{place}": layer
        for name, holder in cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
        if isinstance(holder, nn.ModuleList)
        for place, layer in holder.named_children()
    }
    outermost = {
        name: layer
        for name, layer in repeated.items()
        if not any(name.startswith(f"{other}.") for other in repeated if other != name)
    }
    return outermost or dict(model.named_children()) or {"": model}


def _outputs(layers: dict[str, nn.Module], run: Callable[[], object], packed: PackedDocuments) -> Outputs:
    """What each layer returned in its last call, tokens first: `[batch, sequence, ...]`."""
    found: Outputs = {}

    def keep_as(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_module: nn.Module, _given: object, output: object) -> None:
            outputs = cast("tuple[object, ...]", output) if isinstance(output, tuple) else (output,)
            first = next(iter(outputs), None)
            axis = token_axis(first, packed.input_ids.shape[1]) if isinstance(first, Tensor) else None
            if isinstance(first, Tensor) and first.is_floating_point() and axis is not None:
                found[name] = first.detach().movedim(axis, 1).clone()

        return keep

    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_hook(keep_as(name)).remove)
        run()
    return {name: states for name, states in found.items() if states.shape[0] == packed.input_ids.shape[0]}


def _distances(before: Tensor, after: Tensor, packed: PackedDocuments) -> tuple[float, ...]:
    """How far the states of each document have moved, in shares of how far the states vary."""
    scale = float((before - before.mean(dim=(0, 1), keepdim=True)).abs().max()) or 1.0
    moved = (before - after).abs()
    return tuple(
        float(moved[place.row, packed.tokens_of(index)].max()) / scale for index, place in enumerate(packed.places)
    )
