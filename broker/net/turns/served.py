"""The interface of a connection to the serving turn."""

from warmlog.broker.classes import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Served:
    """A connection that takes part in turns."""

    def __init__(self) -> None:
        self.is_due = False  # scheduled for `finish`
        self.is_left_over = False  # in the backlog

    def ready(self, events: int) -> None:
        """Receive or send as epoll reports; with 0, continue with work left from the last turn."""
        raise NotImplementedError

    def finish(self, now: float) -> None:
        """Send finished replies."""
        raise NotImplementedError

    def handed_back(self, sent: int) -> None:
        """Resume after a thread has sent `sent` bytes, or has failed with a negative errno."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection; it may be closed already."""
        raise NotImplementedError
