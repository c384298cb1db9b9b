"""Why documents answer otherwise than alone although none reaches another: causes that another question proves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from torch import Tensor

from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.inputs import LayerWindows, path_arguments
from neatpack.kernels_bridge.audit.paths import Given, Path
from neatpack.kernels_bridge.audit.report import Kind
from neatpack.kernels_bridge.audit.subject import ANYTHING, Answer, Subject
from neatpack.kernels_bridge.rope import coupled_rope

ONE_MASK: Final[frozenset[Given]] = frozenset({"mask_4d_float", "mask_4d_bool"})
"""What gives layers of every kind the same mask."""

FROM_THE_FIRST: Final = (
    "Alone, documents answer so if given in this way, from their first token on, which sees itself under any mask: it "
    "may be counted otherwise, or embedded."
)
"""What is said where all that is given together accounts for a difference that a mask alone cannot make."""


@dataclass(frozen=True)
class Questions:
    """What a model is asked again, of which only one thing is changed.

    Attributes:
        path: how it was given the documents.
        model: the model; it keeps no record of these calls.
        packed: the documents.
        windows: how far its layers see.
        noise: how far logits may move by rounding.
    """

    path: Path
    model: Subject
    packed: PackedDocuments
    windows: LayerWindows
    noise: float

    def cause(self, answer: Answer, alone: Answer) -> tuple[Kind, str] | None:
        """Find what accounts for the whole difference between two answers; None where no question tells."""
        if "position_ids" in self.path.given:
            # A kernel that hides other tokens answers so too, but not even without positions as the model does alone.
            if self._gives(self._alone(("position_ids",)), answer) and self._gives(self._alone(()), alone):
                return "positions", "Alone, documents answer so if given positions from 0: the model counts otherwise."
        elif self._gives(self._packed((*self.path.given, "position_ids")), alone):
            return "positions", "Given positions that restart, every document answers as it does alone."
        if not self._gives(self._alone(self.path.given), answer):
            return ("length", self._scaled_by_length()) if self._gives(self._in_longer_rows, answer) else None
        if self._first_tokens_differ(answer, alone):
            return "unexplained", FROM_THE_FIRST
        if self._one_mask_for_windows and self._gives(self._alone(("position_ids", "mask_4d_per_layer")), alone):
            reaches = ", ".join(str(window) for window in self.windows.values() if window is not None)
            return "window", f"One mask for layers of every kind: a window of {reaches} is not kept."
        return "mask", "Alone, documents answer so if given in this way: tokens see others than by the model's mask."

    def _first_tokens_differ(self, answer: Answer, alone: Answer) -> bool:
        """Whether the first token of every document answers otherwise, although no causal mask could make it."""
        pairs = zip(answer.logits, alone.logits, strict=True)
        distances = [float((one[0] - other[0]).detach().abs().max()) for one, other in pairs if len(other)]
        return not self.packed.bidirectional and min(distances) > self.noise

    @property
    def _one_mask_for_windows(self) -> bool:
        return any(self.windows.values()) and not ONE_MASK.isdisjoint(self.path.given)

    def _scaled_by_length(self) -> str:
        rope = coupled_rope(self.model.model)
        what = "something is scaled by the longest" if rope is None else f"RoPE scaling by row, of the kind {rope!r}"
        return f"Alone, documents answer so in rows as long as the longest of the batch: {what}."

    def _gives(self, question: Callable[[int], Tensor], expected: Answer) -> bool:
        """Whether the logits of each document are the expected ones, as far as documents were asked."""
        longest_first = sorted(self.packed.asked_alone, key=lambda document: -len(self.packed.tokens_of(document)))
        asked = [document for document in longest_first if len(expected.logits[document])]
        try:
            return all(self._are_close(question(document), expected.logits[document]) for document in asked)
        except ANYTHING:  # a model need not take what it was not asked to take
            return False

    def _are_close(self, one: Tensor, other: Tensor) -> bool:
        return float((one - other).detach().abs().max()) <= self.noise

    def _packed(self, given: Sequence[Given]) -> Callable[[int], Tensor]:
        path = replace(self.path, given=tuple(given))
        answer = cache(lambda: self.model.packed(self.packed, path_arguments(path, self.packed, self.windows)))
        return lambda document: answer().logits[document]

    def _alone(self, given: Sequence[Given]) -> Callable[[int], Tensor]:
        path = replace(self.path, given=tuple(given))

        def answer(document: int) -> Tensor:
            row = self.packed.only(document)
            return self.model.logits(row.input_ids, path_arguments(path, row, self.windows))[0]

        return answer

    def _in_longer_rows(self, document: int) -> Tensor:
        """Give a document alone, with tokens after it that make its row as long as any of the batch counts."""
        if self.packed.bidirectional:
            raise ValueError("tokens see those after their document")
        lengths = [self.packed.tokens_of(one).numel() for one in range(len(self.packed.places))]
        longest = max(lengths) if "position_ids" in self.path.given else self.packed.input_ids.shape[1]
        row = self.packed.only(document, longest - lengths[document])
        answer = self.model.logits(row.input_ids, path_arguments(self.path, row, self.windows))
        return answer[0, : lengths[document]]
