"""What a document costs a model: a part that grows with its tokens, and one that grows with their square."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from neatpack.adapters.arguments import (
    is_number,
    number_remedy,
    require_count,
    require_instance,
    require_unmasked,
    shown,
)
from neatpack.adapters.host_arrays import Integers
from neatpack.contracts.errors import PlanError, Problem

_MOST: Final = 2**62

_EXTREMES: Final = (2.0**-256, 2.0**256)
"""Between these no sum of costs over a plan is lost to 0 or past what a float holds."""


@dataclass(frozen=True)
class AttentionCost:
    """The cost of a document of n tokens, `linear * n + quadratic * n * n`, in any unit.

    Attributes:
        linear: cost per token, of all that is not attention.
        quadratic: cost per token and token, of attention inside the document.

    Raises:
        PlanError: a coefficient is neither 0 nor a number from 2 ** -256 to 2 ** 256, or both are 0.

    Example:
        >>> AttentionCost(linear=1.0, quadratic=0.5).of(np.array([2, 4]))
        array([ 4., 12.])
    """

    linear: float
    quadratic: float

    def __post_init__(self) -> None:
        values: dict[str, object] = {"linear": self.linear, "quadratic": self.quadratic}
        for name, value in values.items():
            number = _as_float(value)
            if number != 0 and not _EXTREMES[0] <= number <= _EXTREMES[1]:
                remedy = number_remedy(value, "Give a cost per token, or take AttentionCost.of_model.")
                message = "must be 0, or a number from 2 ** -256 to 2 ** 256"
                raise PlanError(Problem(name, message, "value", value=shown(value), remedy=remedy))
            object.__setattr__(self, name, number)
        if self.linear == self.quadratic == 0:
            message = "and quadratic are both 0: nothing costs anything"
            raise PlanError(Problem("linear", message, "value", remedy="Give one of the two a cost."))

    @classmethod
    def of_model(cls, parameters: int, layers: int, width: int) -> AttentionCost:
        """Count the multiplications and additions of a forward over causal attention; a backward has twice as many.

        Each parameter takes 2 per token. Each layer takes, for each token and each of its n / 2 earlier ones on
        average, 2 per entry of the key and 2 of the value.

        Args:
            parameters: the parameters that each token passes: of a mixture of experts, the active ones. Embeddings
                that are looked up do not count.
            layers: layers with full attention.
            width: entries of all query heads of a layer together: heads times the size of a head.

        Raises:
            PlanError: one is no positive int.

        Example:
            >>> AttentionCost.of_model(parameters=7_000_000_000, layers=32, width=4096)
            AttentionCost(linear=14000000000.0, quadratic=262144.0)
        """
        sizes = {"parameters": parameters, "layers": layers, "width": width}
        for name, size in sizes.items():
            require_count(size, name, "Read it from the model's configuration.", least=1, most=_MOST, error=PlanError)
        return cls(linear=2.0 * parameters, quadratic=2.0 * layers * width)

    def of(self, lengths: Integers) -> npt.NDArray[np.float64]:
        """Give the cost of documents of these lengths, in the shape of `lengths`.

        Raises:
            PlanError: lengths are no array of integers, 0 or above.
        """
        require_instance(lengths, np.ndarray, "lengths", "Convert them: numpy.array(...).", error=PlanError)
        require_unmasked(lengths, "lengths")
        lengths = np.asarray(lengths)  # Of a matrix, products would be those of matrices.
        integral = lengths.dtype.kind in "iu"
        if not integral or lengths.min(initial=0) < 0:
            found = lengths.min() if integral else lengths.dtype
            remedy = "Give the tokens of each document."
            raise PlanError(Problem("lengths", "must be integers, 0 or above", "value", value=found, remedy=remedy))
        tokens = lengths.astype(np.float64)
        return self.linear * tokens + self.quadratic * tokens * tokens


def _as_float(value: object) -> float:
    """Give a number, or infinity where it is none that a float holds."""
    try:
        return float(cast("float", value)) if is_number(value) else math.inf
    except OverflowError:
        return math.inf
