"""What a forward returned: its logits, in whatever they are wrapped, and the scalars beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from torch import Tensor

from neatpack.contracts.errors import ModelError, Problem


def find_logits(output: object, tokens: Tensor) -> Tensor:
    """Find what was answered to each token, as `[batch, sequence, values]`.

    Args:
        output: a tensor, or a tuple, mapping or object that holds it, such as (loss, logits). An entry called `logits`
            is taken first, then the first of the right shape. One value per token, and tokens flattened to one axis,
            are taken as well.
        tokens: int64 `[batch, sequence]`.

    Raises:
        ModelError: nothing in it has a place for each token.

    Example:
        >>> import torch
        >>> tokens = torch.zeros(2, 3, dtype=torch.int64)
        >>> find_logits((torch.tensor(0.5), torch.zeros(6, 8)), tokens).shape
        torch.Size([2, 3, 8])
    """
    named = _entries(output)
    entries = [*(value for name, value in named if name == "logits"), *(value for _, value in named)]
    for shaped in (_whole, _by_token):
        for value in entries:
            logits = shaped(value, tokens) if isinstance(value, Tensor) and value.is_floating_point() else None
            if logits is not None:
                return logits
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    remedy = "The forward must return [batch, sequence, vocabulary], alone, among others in a tuple, or as .logits."
    raise ModelError(Problem("forward", "returned no logits", "shape", value=found, remedy=remedy))


def find_scalars(output: object) -> dict[str, Tensor]:
    """Find losses and statistics: floating tensors without axes, by their name or place.

    Example:
        >>> import torch
        >>> find_scalars({"logits": torch.zeros(1, 2, 3), "aux_loss": torch.tensor(0.5)})
        {'aux_loss': tensor(0.5000)}
    """
    return {
        name: value.detach()
        for name, value in _entries(output)
        if isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()
    }


def _whole(value: Tensor, tokens: Tensor) -> Tensor | None:
    return value if value.ndim == 3 and value.shape[:2] == tokens.shape else None


def _by_token(value: Tensor, tokens: Tensor) -> Tensor | None:
    """Read one value, or several axes of values, for each token in rows or in one flat axis."""
    flat = value.ndim > 1 and value.shape[0] == tokens.numel()
    in_rows = value.ndim > 1 and value.shape[:2] == tokens.shape
    return value.reshape(*tokens.shape, -1) if flat or in_rows else None


def _entries(output: object) -> list[tuple[str, object]]:
    """List what an output holds, by name or place."""
    return list(_parts(output))


def _parts(output: object) -> Iterator[tuple[str, object]]:
    if isinstance(output, Tensor):
        yield "output", output
    elif isinstance(output, Mapping):
        for name, value in cast("Mapping[object, object]", output).items():
            yield str(name), value
    elif isinstance(output, Sequence) and not isinstance(output, (str, bytes)):
        values = cast("Sequence[object]", output)
        names: Sequence[str] = getattr(values, "_fields", ())
        for place, value in enumerate(values):
            yield names[place] if place < len(names) else str(place), value
            if not isinstance(value, Tensor) and hasattr(value, "logits"):
                yield from _parts(value)
    else:
        yield from vars(output).items() if hasattr(output, "__dict__") else ()
