"""What the core knows of a tensor: enough to check shapes and dtypes without importing any tensor library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from typing_extensions import TypeIs, TypeVar, runtime_checkable


@runtime_checkable
class TensorLike(Protocol):
    """Anything with a shape and a dtype: a torch tensor, a numpy array, or a class of your own."""

    @property
    def shape(self) -> Sequence[int]:
        """The size of each dimension."""
        ...

    @property
    def dtype(self) -> object:
        """The element type, in the words of the tensor's own library."""
        ...


TensorT = TypeVar("TensorT", bound=TensorLike, default=TensorLike)
TensorT_co = TypeVar("TensorT_co", bound=TensorLike, default=TensorLike, covariant=True)


def is_tensor_like(value: object) -> TypeIs[TensorLike]:
    """Tell whether `value` has a shape and a dtype. No tensor library is imported to find out.

    Example:
        >>> class Ids:
        ...     shape = (2, 8)
        ...     dtype = "int64"
        >>> is_tensor_like(Ids()), is_tensor_like([1, 2])
        (True, False)
    """
    # Some of torch's nested tensors raise where their shape is asked for.
    return not isinstance(value, type) and is_dense(value) and hasattr(value, "shape") and hasattr(value, "dtype")


def is_dense(value: object) -> bool:
    """Tell whether a tensor has a place for each value: it is neither nested nor sparse, as far as its library says.

    Example:
        >>> class Sparse:
        ...     layout = "torch.sparse_coo"
        >>> is_dense(Sparse()), is_dense([1, 2])
        (False, True)
    """
    layout: object = getattr(value, "layout", None)
    return getattr(value, "is_nested", False) is not True and (layout is None or str(layout) == "torch.strided")


def dtype_name(value: TensorLike) -> str:
    """Name the dtype without its library's prefix: `torch.int64` and numpy's `int64` are both `"int64"`."""
    return str(value.dtype).rpartition(".")[2]
