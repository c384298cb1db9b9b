"""What a forward returned: its logits, in whatever they are wrapped, and what is beside them."""

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
    found_there = _logits_and_source(output, tokens)
    if found_there is not None:
        return _without_excluded(found_there[0])
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    remedy = "The forward must return [batch, sequence, vocabulary], alone, among others in a tuple, or as .logits."
    raise ModelError(Problem("forward", "returned no logits", "shape", value=found, remedy=remedy))


def other_outputs(output: object, tokens: Tensor) -> dict[str, Tensor]:
    """Find what was answered to each token beside the logits, `[batch, sequence, values]`, by its name or place.

    Example:
        >>> import torch
        >>> tokens, logits = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, 8)
        >>> list(other_outputs({"logits": logits, "later": [logits + 1], "value": torch.ones(2, 3)}, tokens))
        ['later, output 0', 'value']
    """
    logits = _logits_and_source(output, tokens)
    return {
        name: _without_excluded(value.reshape(*tokens.shape, -1))
        for name, value in _unfolded(output)
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:2] == tokens.shape
        if logits is None or value is not logits[1]
    }


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


def _logits_and_source(output: object, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
    """The logits, and the tensor of the output that holds them."""
    named = _entries(output)
    entries = [*(value for name, value in named if name == "logits"), *(value for _, value in named)]
    for shaped in (_whole, _by_token):
        for value in entries:
            logits = shaped(value, tokens) if isinstance(value, Tensor) and value.is_floating_point() else None
            if logits is not None and isinstance(value, Tensor):
                return logits, value
    return None


def _without_excluded(logits: Tensor) -> Tensor:
    """Read as 0 whatever is -inf beside finite numbers: an entry that can never be chosen, such as one that fills a
    vocabulary up."""
    excluded = logits.isneginf()
    return logits.masked_fill(excluded & logits.isfinite().any(dim=-1, keepdim=True), 0) if excluded.any() else logits


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


def _unfolded(output: object) -> Iterator[tuple[str, object]]:
    """List what an output holds, and the entries of lists in place of these."""
    for name, value in _parts(output):
        if isinstance(value, (tuple, list)):
            entries = _parts(cast("Sequence[object]", value))
            yield from ((f"{name}, {place}", part) for place, part in entries)
        else:
            yield name, value


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
            yield names[place] if place < len(names) else f"output {place}", value
            if not isinstance(value, Tensor) and hasattr(value, "logits"):
                yield from _parts(value)
    else:
        yield from vars(output).items() if hasattr(output, "__dict__") else ()
