"""The watch for training as a callback of Transformers' `Trainer`."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from neatpack.contracts.batch import LabelShift
from neatpack.contracts.errors import PackingError
from neatpack.kernels_bridge.watch import MOST_PLACES, PackingWatch, watch_packing

__all__ = ["PackingWatchCallback"]


class PackingWatchCallback(TrainerCallback):
    """Checks one batch every so many optimizer steps; see `check_training_batch` for what is checked.

    A callback is not given the batch, so this one watches the model's forward while training runs.

    Args:
        every: optimizer steps from one check to the next, the first one included.
        label_shift: who shifted the labels, see `mask_labels`.
        most_places: how much of a row is given to the model in a check.
        on_problem: called with each problem; where None, it is raised in the forward, which ends training.

    Attributes:
        watch: what watches the model; None before training.

    Example:
        >>> callback = PackingWatchCallback(every=200)  # Trainer(..., callbacks=[callback])
        >>> callback.watch is None
        True
    """

    def __init__(
        self,
        every: int = 100,
        *,
        label_shift: LabelShift = "model",
        most_places: int = MOST_PLACES,
        on_problem: Callable[[PackingError], None] | None = None,
    ) -> None:
        self.every = every
        self.label_shift: LabelShift = label_shift
        self.most_places = most_places
        self.on_problem = on_problem
        self.watch: PackingWatch | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **_: object,
    ) -> None:
        """Begin to watch the model."""
        del args, state, control
        self._end()
        if model is not None:
            self.watch = watch_packing(
                model,
                every=0,
                label_shift=self.label_shift,
                most_places=self.most_places,
                on_problem=self._stop if self.on_problem is None else self.on_problem,
            )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Ask for a check where one is due."""
        del args, control
        if self.watch is not None and state.global_step % max(self.every, 1) == 0:
            self.watch.arm()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Take the hook off the model; what was found stays in `watch`."""
        del args, state, control
        self._end()

    def _stop(self, error: PackingError) -> None:
        self._end()  # a training that fails has no other end that a callback is told of
        raise error

    def _end(self) -> None:
        if self.watch is not None:
            self.watch.remove()
