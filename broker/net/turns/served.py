"""What a turn needs of a connection."""

from typing import Protocol


class Served(Protocol):
    """A connection that takes part in turns."""

    is_due: bool  # scheduled for `finish`; initially False
    is_left_over: bool  # in the backlog; initially False

    def ready(self, events: int) -> None:
        """Receive or send as epoll reports; with 0, continue with what was left over."""

    def finish(self, now: float) -> None:
        """Send finished replies."""

    def handed_back(self, sent: int) -> None:
        """Resume when a thread has sent `sent` bytes of what was handed over, or failed with a negative errno."""

    def close(self) -> None:
        """Close the connection, which may be closed already."""
