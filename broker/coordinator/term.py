"""A term: the time for which this broker leads a partition of a coordinator's topic, and its state.

    on_lead ──► LOADING ──► SERVING ──► OVER     on_resign, the partition goes offline, the topic is deleted
                   │                     ▲
                   └─ cannot be read ──► REFUSED

A term that is over never changes anything again: its load is cancelled, and its appends have failed. The load of the
next term reflects later records of other brokers, and records that were truncated.
"""

from enum import Enum, auto
from typing import Protocol

import trio

from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode


class TermState(Enum):
    """How requests for names of the partition are handled."""

    LOADING = auto()
    SERVING = auto()
    REFUSED = auto()
    OVER = auto()


_ERRORS = {
    TermState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    TermState.SERVING: ErrorCode.NONE,
    TermState.REFUSED: ErrorCode.NOT_COORDINATOR,
    TermState.OVER: ErrorCode.NOT_COORDINATOR,
}


class Unsettled(Protocol):
    """An append whose outcome is not reported yet."""

    def fail(self) -> None:
        """Report that the term is over."""


class Term:
    """A term. Belongs to the event loop."""

    __slots__ = ("index", "leader_epoch", "loaded_to", "loading", "partition", "state", "unsettled")

    def __init__(self, partition: Partition) -> None:
        """Begin a term of a partition that has its leader epoch."""
        self.partition = partition
        self.index = partition.index
        self.leader_epoch = partition.log.epochs.current
        self.state = TermState.LOADING
        self.loaded_to = 0  # the records of the log below have been replayed, or are being replayed
        self.loading = trio.CancelScope()
        self.unsettled: dict[Unsettled, None] = {}  # in the order of the log

    @property
    def is_over(self) -> bool:
        """Whether this broker has ceased to lead the partition since."""
        return self.state is TermState.OVER

    @property
    def is_empty(self) -> bool:
        """Whether the partition has no records to load."""
        log = self.partition.log
        return log.offsets.log_end_offset == log.offsets.log_start_offset

    @property
    def error(self) -> ErrorCode:
        """NONE, or the code that answers requests for a name of the partition."""
        return _ERRORS[self.state]
