"""The interface of a connection to the serving turn."""

from typing import Protocol


class Served(Protocol):
    """A connection that takes part in turns."""

    is_due: bool  # scheduled for `finish`; initially False
    is_left_over: bool  # whether it is in the backlog; initially False

    def ready(self, events: int) -> None:
        """Receive or send as epoll reports; with 0, continue with work left from the last turn."""

    def finish(self, now: float) -> None:
        """Send finished replies."""

    def handed_back(self, sent: int) -> None:
        """Resume after a thread has sent `sent` bytes, or has failed with a negative errno."""

    def close(self) -> None:
        """Close the connection; it may be closed already."""
