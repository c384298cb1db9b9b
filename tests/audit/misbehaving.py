"""Builders that do what no process survives, or what a report must survive."""

from __future__ import annotations

import os
import sys
import time

from torch import nn

from tests.audit import models


def hangs() -> nn.Module:
    """Never come back."""
    time.sleep(600)
    return models.Leaks()


def dies() -> nn.Module:
    """End the process without a word to Python."""
    sys.stderr.write("some library: out of luck\n")
    sys.stderr.flush()
    os._exit(3)


def prints() -> nn.Module:
    """Write to where the reports of a worker go."""
    print("[1/1] not a report")  # noqa: T201
    os.write(1, b"nor this\n")
    return models.ReadsIds()
