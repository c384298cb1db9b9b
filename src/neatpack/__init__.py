"""A typed contract for packed-sequence training.

This page holds the core's names, which need neither torch nor pydantic. Import the rest where it is used:
``neatpack.adapters`` (document ids to every encoding) and ``neatpack.kernels_bridge`` (models and kernels).

>>> import neatpack
>>> neatpack.__version__.count(".")
2
"""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"

__all__ = ["__version__"]
