"""What a consumer attaches to a model for which the hook is enough."""

from __future__ import annotations


class NothingAttached:
    """The attachment of a consumer that sets up nothing beside the hook."""

    counts_calls = False

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def detach(self) -> None:
        """Do nothing."""
