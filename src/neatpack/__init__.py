"""A typed contract for packed-sequence training.

This page holds the core's names, which need neither torch nor pydantic. Import the rest where it is used:
`neatpack.adapters` (document ids to every encoding) and `neatpack.kernels_bridge` (models and kernels).

Example:
    >>> from neatpack import PackingCapabilities
    >>> PackingCapabilities("document_ids").requires_packed_sequence_metadata
    False
"""

from __future__ import annotations

from typing import Final

from neatpack import contracts
from neatpack.contracts import *  # noqa: F403 - the core's own list of public names, repeated nowhere

__version__: Final = "0.1.0"

__all__: list[str] = ["__version__"]
__all__ += contracts.__all__
