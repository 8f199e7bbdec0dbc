"""Exceptions of the storage engine.

Invalid batches raise the errors of `protocol.errors`; errors of the operating system remain OSErrors.
"""


class LogError(Exception):
    """Base class of these errors; `str()` gives a one-line message."""


class OffsetOutOfRangeError(LogError):
    """A read is before the log start offset or past the log end offset."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside the log, which holds {log_start_offset} to {log_end_offset}")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class TimeOutOfRangeError(LogError):
    """The log has no record at or past a timestamp."""


class PolicyViolationError(LogError):
    """The operation is not allowed by the log's `cleanup.policy`."""


class RecordListTooLargeError(LogError):
    """The batches of one append together exceed `segment.bytes`."""


class LogFailedError(LogError):
    """The log rejects appends.

    It is closed, or a write or fsync has failed, and its files' content is uncertain until it is rebuilt.
    """


class UnknownTimestampError(LogError):
    """The largest timestamps of copied batches must first be read from their records (`copies.largest_timestamps`)."""


class IndexFullError(LogError):
    """An index is full."""


class IndexOrderError(LogError):
    """An index entry is not greater than the last one, or outside the range of its fields."""


class IndexCorruptError(LogError):
    """An index does not match its log file.

    `LogReads.rebuild_indexes(base_offset)`, called in a worker, rebuilds it.
    """

    def __init__(self, base_offset: int, reason: str) -> None:
        super().__init__(f"index of segment {base_offset}: {reason}")
        self.base_offset = base_offset
        self.reason = reason


class OutOfOrderSequenceError(LogError):
    """The sequence number of an idempotent producer's batch does not follow its previous one."""


class TooManyProducersError(LogError):
    """A new producer was rejected: the logs of this broker already track the maximum number of producers."""


class InvalidProducerEpochError(LogError):
    """A batch's producer was fenced by a higher epoch."""


class InvalidTransactionStateError(LogError):
    """A batch belongs to no known transaction, or is non-transactional while a transaction is open."""


class TransactionCoordinatorFencedError(LogError):
    """A marker's transaction coordinator was fenced by a higher epoch."""


class CorruptSnapshotError(LogError):
    """A producer snapshot is corrupt."""


class MisplacedBatchError(LogError):
    """An index entry points to a batch with another last offset."""


class CheckpointError(LogError):
    """A checkpoint or another small text file is malformed."""


class MissingFilesError(LogError):
    """Files of a log that held records are missing; the log cannot be opened until they are restored."""


class DataDirectoryError(LogError):
    """A data directory cannot be used: it is locked, not writable, or of another version or node."""


class DirectoryFailedError(DataDirectoryError):
    """A data directory's disk has failed: its partitions are offline, those of other directories are not."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"data directory {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


class NoSpaceError(LogError):
    """An append or a new log was rejected because the disk is full."""


class NotReadyError(LogError):
    """The partition's directory is still being created; clients retry."""


class OfflineError(LogError):
    """The partition's data directory is offline."""
