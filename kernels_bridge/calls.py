"""Counting the calls of attention functions in the forward that is running, and what they were given.

A contextvar would do, but torch.compile breaks its graph at one; it reads a `threading.local` without.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(eq=False)
class CallRecord:
    """What reached the attention function during one forward.

    Attributes:
        calls: how often it was called.
        boundaries: what it was last given to tell documents apart: offsets, or a mask.
        block_mask: the same, where it was FlexAttention's own mask.
        outer: the record of the forward within which this one runs.
    """

    calls: int = 0
    boundaries: Tensor | None = None
    block_mask: BlockMask | None = None
    outer: CallRecord | None = None


class _Running(threading.local):
    record: CallRecord | None = None


_RUNNING = _Running()


def start_record() -> CallRecord:
    """Begin to record the calls of a forward, in this thread."""
    record = CallRecord(outer=_RUNNING.record)
    _RUNNING.record = record
    return record


def stop_record(record: CallRecord) -> None:
    """End a record: a call outside of every forward, in a recomputation say, counts nowhere."""
    _RUNNING.record, record.outer = record.outer, None


def note_call(boundaries: Tensor | BlockMask) -> None:
    """Count one call of an attention function, to be made by the function itself."""
    record = _RUNNING.record
    if record is not None:
        record.calls += 1
        if isinstance(boundaries, Tensor):
            record.boundaries = boundaries
        else:
            record.block_mask = boundaries
