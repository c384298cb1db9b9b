"""The one engine behind every `validate_x`: it compares values with the axes written in the types.

Each concept has three checks. `validate_x` lists the problems, `is_x` narrows the type, `parse_x` returns the value
or raises with every problem. They look at shapes, dtypes and sizes, never into a tensor, so they cost nothing on a
device; what the values must be is checked by `neatpack.adapters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral
from typing import Final, TypeAlias, TypeVar, cast, get_origin

from typing_extensions import TypeIs

from neatpack.contracts.axes import Axes, Count, FieldRule, field_axes
from neatpack.contracts.errors import PackingError, Problem
from neatpack.contracts.tensors import TensorLike, dtype_name, is_dense, is_tensor_like

ConceptT = TypeVar("ConceptT")

Validate: TypeAlias = Callable[[object], list[Problem]]
Guard: TypeAlias = Callable[[object], TypeIs[ConceptT]]
Parse: TypeAlias = Callable[[object], ConceptT]


def checks(concept: type[ConceptT], error: type[PackingError]) -> tuple[Validate, Guard[ConceptT], Parse[ConceptT]]:
    """Make `validate_x`, `is_x` and `parse_x` for a dataclass or TypedDict whose fields carry `Axes` or `Count`.

    A mapping is checked by its keys, so a subclass of a TypedDict may add its own.

    Args:
        concept: the class, with its type arguments where it is generic.
        error: what `parse_x` raises.

    Example:
        >>> from neatpack.contracts.encodings import parse_flash_varlen_kwargs
        >>> parse_flash_varlen_kwargs({"max_length_q": 3, "max_length_k": 2.5})
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.EncodingError: 3 problems:
        - cu_seq_lens_q: missing. Supply cu_seq_lens_q, int32 [segment_boundaries].
        - cu_seq_lens_k: missing. Supply cu_seq_lens_k, int32 [segment_boundaries].
        - max_length_k = float: must be a Python int. Give the number of tokens.
    """
    owner = cast("type[object]", get_origin(concept) or concept)

    def validate(value: object) -> list[Problem]:
        if is_dataclass(owner):
            if isinstance(value, owner):
                return structure_problems(owner, {field.name: getattr(value, field.name) for field in fields(owner)})
        elif isinstance(value, Mapping):
            entries = cast("Mapping[object, object]", value)
            return structure_problems(owner, {str(key): entry for key, entry in entries.items()})
        sort = "an instance" if is_dataclass(owner) else "a mapping with the keys"
        message, remedy = f"must be {sort} of {owner.__name__}", f"Give {sort} of {owner.__name__}."
        return [Problem(owner.__name__, message, "type", value=type(value).__name__, remedy=remedy)]

    def is_(value: object) -> TypeIs[ConceptT]:
        return not validate(value)

    def parse(value: object) -> ConceptT:
        problems = validate(value)
        if problems:
            raise error(*problems)
        return cast("ConceptT", value)

    (refusal,) = validate(None)
    for prefix, check in (("validate", validate), ("is", is_), ("parse", parse)):
        _name(check, prefix, owner)
        check.__doc__ = _DOCS[prefix].format(
            concept=owner.__name__, check=check.__name__, error=error.__name__, refusal=refusal
        )
    return validate, is_, parse


_DOCS: Final = {
    "validate": """List what keeps a value from being a `{concept}`: shapes, dtypes and sizes.

    Example:
        >>> [problem.field for problem in {check}(None)]
        ['{concept}']
    """,
    "is": """Tell whether a value is a `{concept}`, by shapes, dtypes and sizes.

    Example:
        >>> {check}(None)
        False
    """,
    "parse": """Return a value that is a `{concept}`.

    Raises:
        {error}: with every problem of shapes, dtypes and sizes.

    Example:
        >>> {check}(None)
        Traceback (most recent call last):
        ...
        neatpack.contracts.errors.{error}: {refusal}
    """,
}


def _name(check: Callable[[object], object], prefix: str, owner: type) -> None:
    """Name a check as its module does, for tracebacks, `help` and pickling."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", owner.__name__).lower()
    check.__name__ = check.__qualname__ = f"{prefix}_{words}"
    check.__module__ = owner.__module__


def structure_problems(owner: type, values: Mapping[str, object]) -> list[Problem]:
    """Compare `values` with the annotated fields of `owner`: presence, ranks, dtypes, and sizes that must agree.

    Values inside tensors are not read, so this costs nothing on a device.

    Args:
        owner: a TypedDict or dataclass whose fields carry `Axes` or `Count`.
        values: the entries, by field name. Entries that `owner` does not know are ignored.

    Returns:
        Every problem found; empty if there is none.
    """
    problems: list[Problem] = []
    sizes: dict[str, tuple[int, str]] = {}
    for name, rule in field_axes(owner).items():
        if name not in values:
            if rule.required:
                expected = " or ".join(str(axes) for axes in rule.axes) or "int"
                problems.append(Problem(name, "missing", "missing", remedy=f"Supply {name}, {expected}."))
        elif rule.count is not None:
            problems += _count_problems(name, rule, rule.count, values[name])
        else:
            problems += _tensor_problems(name, rule, values[name], sizes)
    return problems


def _count_problems(name: str, rule: FieldRule, count: Count, value: object) -> list[Problem]:
    remedy = f"Give the number of {count.unit}{'' if rule.required else ', or leave it out'}."
    if isinstance(value, bool) or not isinstance(value, int):
        if not isinstance(value, bool) and (isinstance(value, Integral) or is_tensor_like(value)):
            remedy = "Pass int(x): kernels wait for a tensor."
        return [Problem(name, "must be a Python int", "type", value=type(value).__name__, remedy=remedy)]
    if value < count.minimum:
        return [Problem(name, f"must be at least {count.minimum}", "value", value=value, remedy=remedy)]
    return []


def _tensor_problems(name: str, rule: FieldRule, value: object, sizes: dict[str, tuple[int, str]]) -> list[Problem]:
    expected = " or ".join(str(axes) for axes in rule.axes)
    if not is_dense(value):
        nested = getattr(value, "is_nested", False) is True
        remedy = "Pad its rows to one length." if nested else f"Convert it: {name}.to_dense()."
        return [Problem(name, f"must be a dense tensor, {expected}", "type", value=type(value).__name__, remedy=remedy)]
    if not is_tensor_like(value):
        remedy = "Give a tensor." if rule.required else "Give a tensor, or leave it out."
        return [Problem(name, f"must be a tensor, {expected}", "type", value=type(value).__name__, remedy=remedy)]
    shape = tuple(value.shape)
    of_rank = [axes for axes in rule.axes if len(axes.names) == len(shape)]
    if not of_rank:
        of_rows = any("batch" in axes.names for axes in rule.axes)
        remedy = f"Give it these dimensions{'; one row alone is a batch of 1' if of_rows else ''}."
        return [Problem(name, f"must be {expected}", "rank", value=shape, remedy=remedy)]
    axes = next((axes for axes in of_rank if axes.accepts_dtype(dtype_name(value))), None)
    if axes is None:
        remedy = f"Convert it to {' or '.join(sorted({axes.dtype_words for axes in of_rank}))}."
        return [Problem(name, f"must be {expected}", "dtype", value=dtype_name(value), remedy=remedy)]
    return _size_problems(name, axes, value, sizes)


def _size_problems(name: str, axes: Axes, value: TensorLike, sizes: dict[str, tuple[int, str]]) -> list[Problem]:
    problems: list[Problem] = []
    for dimension, size in zip(axes.names, value.shape, strict=True):
        known, owner = (
            (int(dimension), "its own layout") if dimension.isdecimal() else sizes.setdefault(dimension, (size, name))
        )
        if size != known:
            message = f"has {size} along {dimension}, but {owner} has {known}"
            remedy = "Entries of one batch have equal sizes along axes of the same name."
            problems.append(Problem(name, message, "shape", value=tuple(value.shape), remedy=remedy))
    return problems
