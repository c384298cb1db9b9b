"""What a document costs a model: a part that grows with its tokens, and one that grows with their square."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from neatpack.adapters.arguments import require_count
from neatpack.adapters.segments import Integers
from neatpack.contracts.errors import PlanError, Problem

_MOST: Final = 2**62


@dataclass(frozen=True)
class AttentionCost:
    """The cost of a document of n tokens, `linear * n + quadratic * n * n`, in any unit.

    Attributes:
        linear: cost per token, of all that is not attention.
        quadratic: cost per token and token, of attention inside the document.

    Raises:
        PlanError: a coefficient is negative or no finite number, or both are 0.

    Example:
        >>> AttentionCost(linear=1.0, quadratic=0.5).of(np.array([2, 4]))
        array([ 4., 12.])
    """

    linear: float
    quadratic: float

    def __post_init__(self) -> None:
        values: dict[str, object] = {"linear": self.linear, "quadratic": self.quadratic}
        for name, value in values.items():
            number = not isinstance(value, bool) and isinstance(value, Real)
            if not (number and 0 <= cast("float", value) < math.inf):
                remedy = "Give a cost per token, or take AttentionCost.of_model."
                problem = Problem(name, "must be a finite number, 0 or above", "value", value=value, remedy=remedy)
                raise PlanError(problem)
            object.__setattr__(self, name, float(cast("float", value)))
        if self.linear == self.quadratic == 0:
            raise PlanError(Problem("linear", "and quadratic are both 0: nothing costs anything", "value"))

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
        """Give the cost of documents of these lengths, in the shape of `lengths`."""
        tokens = lengths.astype(np.float64)
        return self.linear * tokens + self.quadratic * tokens * tokens
