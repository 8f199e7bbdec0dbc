"""One table from exception to the code and sentence that a client gets."""

from broker.log.errors import (
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
from broker.metadata.store import MetadataError
from broker.metadata.topic import InvalidPartitionsError, InvalidTopicError
from broker.partitions.partition import Partition, StorageError
from broker.partitions.partitions import Partitions, TopicExistsError, UnknownTopicError
from broker.settings.types import SettingError
from protocol.errors import ErrorCode, ProtocolError

MAX_MESSAGE_LENGTH = 480  # characters, of at most four bytes each


class RequestError(ProtocolError):
    """A request that is refused for what it asks, with the code that Kafka has for it."""

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
    (LogError, ErrorCode.KAFKA_STORAGE_ERROR),  # the others: out of service, or an index that cannot be made anew
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (MetadataError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
    (TopicExistsError, ErrorCode.TOPIC_ALREADY_EXISTS),
    (UnknownTopicError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (InvalidTopicError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (InvalidPartitionsError, ErrorCode.INVALID_PARTITIONS),
    (SettingError, ErrorCode.INVALID_CONFIG),
)

# What a request may run into by its own or the disk's fault; anything else is a defect of ours and goes to the error
# boundary of the dispatcher.
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
    """Cut a message that quotes too much of a request: a classic string holds 32,767 bytes."""
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    return f"{message[:MAX_MESSAGE_LENGTH]}... ({len(message):,} characters)"


def describe_in(partition: Partition | None, partitions: Partitions, error: Exception) -> tuple[ErrorCode, str]:
    """The same for what went wrong inside a partition: whatever it was, if the partition has gone meanwhile."""
    if partition is not None and partitions.get(partition.topic, partition.index) is not partition:
        error = partitions.missing(partition.topic, partition.index)
    return describe(error)
