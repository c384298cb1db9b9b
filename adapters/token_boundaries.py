"""Document ids from the tokens themselves: an end-of-text token ends a document, a begin-of-text token opens one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import runtime_checkable

from neatpack.adapters.arguments import INT64_MAX, INT64_MIN, require_count, require_flag
from neatpack.adapters.host_arrays import Integers, read_together, to_tensor
from neatpack.adapters.token_tensors import padded_rows_problems
from neatpack.contracts.errors import EncodingError, Problem

_Marks: TypeAlias = npt.NDArray[np.bool_]


@runtime_checkable
class SpecialTokens(Protocol):
    """What is read of a tokenizer: any object with these two attributes."""

    @property
    def eos_token_id(self) -> int | Sequence[int] | None:
        """The token that ends a document, or several that do; None where there is none."""
        ...

    @property
    def bos_token_id(self) -> int | Sequence[int] | None:
        """The token that opens a document; None where there is none."""
        ...


def document_ids_from_tokens(
    input_ids: Tensor,
    *,
    eos_token_id: int | Sequence[int] | None = None,
    bos_token_id: int | Sequence[int] | None = None,
    tokenizer: SpecialTokens | None = None,
    padding_mask: Tensor | None = None,
    pad_token_id: int | None = None,
    allow_unbroken: bool = False,
) -> Tensor:
    """Find the documents from special tokens. Stored boundaries are better: a document that was cut has no such token.

    An end-of-text token belongs to the document that it ends, and the next token opens another. A begin-of-text token
    opens a document. The first token of a row opens one whatever it is, and padding ends one.

    Args:
        input_ids: any integer dtype, `[batch, sequence]`.
        eos_token_id: the token that ends a document, or several each of which does, as generation configurations
            list them. A token that also ends a turn inside a document does not belong here.
        bos_token_id: the token that opens one, or several. Give one of the two, or both.
        tokenizer: what the tokens come from. The ids must be its own.
        padding_mask: bool, `[batch, sequence]`, True at padding.
        pad_token_id: take the tokens of this id for padding where they stand outside of documents: at either end of a
            row, after a token that ends a document, or before one that opens it. By default padding is known by the
            mask alone, since many tokenizers pad with a token that texts hold as well. So it is where this is one of
            the special tokens, which without a mask is refused.
        allow_unbroken: accept a batch in which neither token occurs. A wrong id looks the same.

    Returns:
        Canonical ids, int64 `[batch, sequence]`.

    Raises:
        EncodingError: an argument is malformed; no special token is given, they are one and the same, or they are not
            the tokenizer's; or neither occurs.

    Example:
        >>> document_ids_from_tokens(torch.tensor([[4, 5, 9, 6, 7, 9, 8]]), eos_token_id=9)
        tensor([[1, 1, 1, 2, 2, 2, 3]])
        >>> tokens = torch.tensor([[5, 6, 9, 7, 9, 9, 9]])
        >>> document_ids_from_tokens(tokens, eos_token_id=9, padding_mask=torch.arange(7)[None] > 4)
        tensor([[1, 1, 1, 2, 2, 0, 0]])
        >>> document_ids_from_tokens(torch.tensor([[0, 1, 3, 0, 3, 0, 1, 3]]), bos_token_id=1, pad_token_id=0)
        tensor([[0, 1, 1, 1, 1, 0, 2, 2]])
    """
    eos, bos = _token_ids(eos_token_id, "eos_token_id"), _token_ids(bos_token_id, "bos_token_id")
    _require_special_tokens(eos, bos, tokenizer)
    _require_pad_token(pad_token_id, (*eos, *bos), padding_mask is not None)
    require_flag(allow_unbroken, "allow_unbroken")
    problems = padded_rows_problems(input_ids, padding_mask, "input_ids")
    if problems:
        raise EncodingError(*problems)
    mask = torch.zeros_like(input_ids, dtype=torch.bool) if padding_mask is None else padding_mask
    tokens, padding = read_together(input_ids, mask, field="input_ids")
    kept = padding == 0
    ends, opens = (kept & np.any([tokens == token for token in own], axis=0) for own in (eos, bos))
    if pad_token_id is not None and pad_token_id not in (*eos, *bos):
        kept = kept & ~_outside(kept & (tokens == pad_token_id), ends | ~kept, opens | ~kept)
    if not allow_unbroken and not ends.any() and not opens.any():
        message = "neither the token that ends a document nor the one that opens it occurs"
        remedy = "Check the ids, or pass allow_unbroken=True where a batch may be one document a row."
        raise EncodingError(Problem("input_ids", message, "value", value=(eos_token_id, bos_token_id), remedy=remedy))
    opens[:, 0] = True
    opens[:, 1:] |= ends[:, :-1] | ~kept[:, :-1]
    ids = np.cumsum(opens & kept, axis=1) * kept
    return to_tensor(ids, input_ids.device)


def _outside(pads: _Marks, ends: _Marks, opens: _Marks) -> _Marks:
    """Mark the pads of which no document goes on: their run follows an end, or an opening follows it."""
    return pads & (_behind(pads, ends) | _behind(pads[:, ::-1], opens[:, ::-1])[:, ::-1])


def _behind(pads: _Marks, marks: _Marks) -> _Marks:
    """Tell of each place whether the last place so far that is no pad is marked; what lies before the row is."""
    places = np.cumsum(np.ones_like(pads), axis=1)
    last: Integers = np.maximum.accumulate(np.where(pads, 0, places), axis=1)
    return np.take_along_axis(np.pad(marks, ((0, 0), (1, 0)), constant_values=True), last, axis=1)


def _token_ids(value: object, field: str) -> tuple[int, ...]:
    """Give the ids of one special token or of several as plain ints; none for None."""
    if value is None:
        return ()
    given = value
    several = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    listed = cast("Sequence[object]", value) if several else (value,)
    if not listed:
        raise EncodingError(Problem(field, "is a list of no token", "value", remedy="Give a token, or None."))
    remedy = "Give the id of a token, or a list of several."
    return tuple(require_count(token, field, remedy, least=INT64_MIN, most=INT64_MAX) for token in listed)


def _require_pad_token(pad: object, special: tuple[int, ...], is_masked: bool) -> None:
    if pad is not None:
        require_count(pad, "pad_token_id", "Give the id of a token.", least=INT64_MIN, most=INT64_MAX)
    if pad in special and not is_masked:
        message = "is a token that documents hold, so the padding of a row cannot be told from its last document"
        remedy = "Pass padding_mask, or call document_ids_from_lengths(...)."
        raise EncodingError(Problem("pad_token_id", message, "disagreement", value=pad, remedy=remedy))


def _require_special_tokens(eos: tuple[int, ...], bos: tuple[int, ...], tokenizer: object) -> None:
    if not eos and not bos:
        remedy = "Give eos_token_id=..., bos_token_id=..., or both, as the texts were made."
        raise EncodingError(Problem("eos_token_id", "no token tells documents apart", "missing", remedy=remedy))
    both = next((token for token in bos if token in eos), None)
    if both is not None:
        message = "is eos_token_id as well"
        remedy = "Give one of the two: the token either ends documents or opens them."
        raise EncodingError(Problem("bos_token_id", message, "disagreement", value=both, remedy=remedy))
    if tokenizer is not None:
        for field, tokens in (("eos_token_id", eos), ("bos_token_id", bos)):
            _require_own_tokens(tokenizer, field, tokens)


def _require_own_tokens(tokenizer: object, field: str, tokens: tuple[int, ...]) -> None:
    """Compare special tokens with the tokenizer's."""
    if not hasattr(tokenizer, field):
        found, remedy = type(tokenizer).__name__, "Give an object with eos_token_id and bos_token_id."
        raise EncodingError(Problem("tokenizer", f"has no {field}", "type", value=found, remedy=remedy))
    own: object = getattr(tokenizer, field)
    owns = _token_ids(own, f"tokenizer.{field}")
    for token in tokens:
        if token not in owns:
            message = f"is not the tokenizer's, {own}"
            remedy = "Take it from the tokenizer that made the tokens."
            raise EncodingError(Problem(field, message, "disagreement", value=token, remedy=remedy))
