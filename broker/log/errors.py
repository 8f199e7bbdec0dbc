"""What can go wrong in a log, as exceptions. Owns them; must not know the error numbers of any wire format.

Damage in produced bytes is not here: `protocol.errors` has it. An error of the operating system stays an OSError.
"""


class LogError(Exception):
    """Root of this layer's errors; `str()` is one line for people."""


class OffsetOutOfRangeError(LogError):
    """A read before the log's start or past its end."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside the log, which holds {log_start_offset} to {log_end_offset}")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class TimeOutOfRangeError(LogError):
    """No record of the log is at or past a time."""


class PolicyViolationError(LogError):
    """What was asked is against the log's `cleanup.policy`."""


class RecordListTooLargeError(LogError):
    """The batches of one append together are larger than a segment may be (`segment.bytes`)."""


class LogFailedError(LogError):
    """The log takes no more data.

    It is closed, or a write or fsync failed in a way that leaves its files in doubt until it is opened anew.
    """


class IndexFullError(LogError):
    """An index has no slot left for an entry."""


class IndexOrderError(LogError):
    """An entry would not be greater than the index's last one, or lies outside what the index can express."""


class IndexCorruptError(LogError):
    """An index does not fit its segment.

    `PartitionLog.rebuild_indexes(base_offset)`, run in a worker, makes it anew.
    """

    def __init__(self, base_offset: int, reason: str) -> None:
        super().__init__(f"index of segment {base_offset}: {reason}")
        self.base_offset = base_offset
        self.reason = reason


class OutOfOrderSequenceError(LogError):
    """A batch of an idempotent producer that does not follow the one before: something in between is missing."""


class TooManyProducersError(LogError):
    """The first batch of a producer, where the logs of this broker know as many as they may."""


class InvalidProducerEpochError(LogError):
    """A batch of a producer that another one with a higher epoch has taken the place of."""


class InvalidTransactionStateError(LogError):
    """A batch that belongs to no transaction that is known, or to none while one is open."""


class TransactionCoordinatorFencedError(LogError):
    """A marker of a transaction coordinator that another one with a higher epoch has replaced."""


class CorruptSnapshotError(LogError):
    """A snapshot of producers' states that cannot be believed."""


class MisplacedBatchError(LogError):
    """No batch ends at this offset where an index said that one does."""


class CheckpointError(LogError):
    """A checkpoint or another small text file that cannot be understood."""


class DataDirectoryError(LogError):
    """A data directory that cannot be served: in use, not writable, or of another version or node."""


class DirectoryFailedError(DataDirectoryError):
    """A data directory whose disk does not serve it: what lies there is offline, what lies elsewhere goes on."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"data directory {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


class NoRoomError(LogError):
    """An append, or a new log, that is not tried because its disk is full."""


class NotReadyError(LogError):
    """A partition of a topic that is just being created: its directory is not made yet, and clients try again."""


class OfflineError(LogError):
    """A partition that lies in a data directory which is out of service."""
