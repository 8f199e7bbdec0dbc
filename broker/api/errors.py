"""The one table from exceptions to the error codes and messages of responses."""

from warmlog.broker.log.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    LogError,
    NotReadyError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    RecordListTooLargeError,
    TimeOutOfRangeError,
    TooManyProducersError,
    TransactionCoordinatorFencedError,
)
from warmlog.broker.metadata.assignment import InvalidAssignmentError, TooFewBrokersError
from warmlog.broker.metadata.errors import MetadataError, MetadataTimeoutError
from warmlog.broker.metadata.topic import InvalidPartitionsError, InvalidTopicError, MirroredTopicError, RefusedError
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError, UnknownTopicError
from warmlog.broker.settings.types import SettingError
from warmlog.protocol.errors import ErrorCode, ProtocolError

MAX_MESSAGE_LENGTH = 480  # characters, of at most four bytes each


class RequestError(ProtocolError):
    """A request was refused because of its content, with Kafka's error code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (TimeOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (RecordListTooLargeError, ErrorCode.RECORD_LIST_TOO_LARGE),
    (PolicyViolationError, ErrorCode.POLICY_VIOLATION),
    (TooManyProducersError, ErrorCode.POLICY_VIOLATION),
    (OutOfOrderSequenceError, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (InvalidProducerEpochError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (InvalidTransactionStateError, ErrorCode.INVALID_TXN_STATE),
    (TransactionCoordinatorFencedError, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (NotReadyError, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (LogError, ErrorCode.KAFKA_STORAGE_ERROR),  # all others: a failed log, or an index that cannot be rebuilt
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (MetadataTimeoutError, ErrorCode.REQUEST_TIMED_OUT),
    (MetadataError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
    (TopicExistsError, ErrorCode.TOPIC_ALREADY_EXISTS),
    (UnknownTopicError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (InvalidTopicError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (InvalidPartitionsError, ErrorCode.INVALID_PARTITIONS),
    (MirroredTopicError, ErrorCode.POLICY_VIOLATION),
    (SettingError, ErrorCode.INVALID_CONFIG),
    (TooFewBrokersError, ErrorCode.INVALID_REPLICATION_FACTOR),
    (InvalidAssignmentError, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (RefusedError, ErrorCode.INVALID_REQUEST),
)

# Exceptions caused by the request or the disk. Any other exception is a defect and reaches the dispatcher's error
# boundary.
EXPECTED: tuple[type[Exception], ...] = (ProtocolError, *(kind for kind, _ in _CODES))


def describe(error: Exception) -> tuple[ErrorCode, str]:
    """Return the error code for an exception and a message of bounded length."""
    if isinstance(error, ProtocolError):
        return error.code, shortened(str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, shortened(str(error))
    return ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed to answer; its log says why"


def shortened(message: str) -> str:
    """Truncate a message that quotes a long part of a request; a string of the protocol may have 32,767 bytes."""
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    return f"{message[:MAX_MESSAGE_LENGTH]}... ({len(message):,} characters)"


def describe_in(partition: Partition | None, partitions: Partitions, error: Exception) -> tuple[ErrorCode, str]:
    """Describe an exception raised by a partition; if that has been removed since, its absence is the error."""
    if partition is not None and partitions.get(partition.topic, partition.index) is not partition:
        error = partitions.missing(partition.topic, partition.index)
    return describe(error)
