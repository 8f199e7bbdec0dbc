"""The client's exceptions.

`WarmlogError` is the root; subclasses exist where a program may react differently. Invalid arguments (str instead of
bytes, a negative offset) raise TypeError and ValueError.
"""

from warmlog.protocol.errors import ErrorCode

# Errors that a retry with fresh metadata may resolve.
RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    }
)


class WarmlogError(Exception):
    """Root of all errors of the client.

    `code`: Kafka's error code. `message`: a text for users. `is_final`: whether a retry is pointless for any code.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.is_final = False

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in RETRIABLE and not self.is_final


class ConnectError(WarmlogError):
    """No broker could be reached."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.BROKER_NOT_AVAILABLE)


class ConnectionLostError(WarmlogError):
    """The connection ended before the reply: the request may or may not have been carried out."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.NETWORK_EXCEPTION)


class RequestTimeoutError(WarmlogError):
    """The broker did not reply in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.REQUEST_TIMED_OUT)


class ClosedError(WarmlogError):
    """The client or the stream was closed."""

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message, ErrorCode.NETWORK_EXCEPTION)
        self.is_final = True  # closed on purpose


class BufferFullError(WarmlogError):
    """`produce_nowait` found `buffer_bytes` of unacknowledged records: `await client.flush()`, then retry."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.THROTTLING_QUOTA_EXCEEDED)


class BrokerError(WarmlogError):
    """The broker returned an error; `code` is the reason."""


class UnknownTopicError(BrokerError):
    """The topic or partition does not exist."""


class TopicExistsError(BrokerError):
    """A topic of that name exists."""


class ProducerFencedError(BrokerError):
    """Another client has begun to use the transactional id, so this client must stop using it."""


class GroupMovedOnError(BrokerError):
    """The group rebalanced without this member: records read since its last commit are read again by another member."""


class GroupNotEmptyError(BrokerError):
    """The group has members, but the request requires a group without members."""


class UnknownGroupError(BrokerError):
    """The group does not exist."""


class JobLostError(BrokerError):
    """The member no longer holds the record: its lock has expired, and it is delivered again."""


class OffsetOutOfRangeError(BrokerError):
    """The requested offset does not exist; offsets from `log_start_offset` to `high_watermark` exist."""

    def __init__(self, message: str, *, log_start_offset: int, high_watermark: int) -> None:
        super().__init__(message, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


_CLASSES: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicError,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExistsError,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupMovedOnError,
    ErrorCode.ILLEGAL_GENERATION: GroupMovedOnError,
    ErrorCode.REBALANCE_IN_PROGRESS: GroupMovedOnError,
    ErrorCode.FENCED_INSTANCE_ID: GroupMovedOnError,
    ErrorCode.FENCED_MEMBER_EPOCH: GroupMovedOnError,
    ErrorCode.STALE_MEMBER_EPOCH: GroupMovedOnError,
    ErrorCode.PRODUCER_FENCED: ProducerFencedError,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFencedError,
    ErrorCode.NON_EMPTY_GROUP: GroupNotEmptyError,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroupError,
    ErrorCode.INVALID_RECORD_STATE: JobLostError,
}
# Used if the broker sends a code without a message.
_DEFAULT_MESSAGES = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group rebalanced without this member",
    ErrorCode.ILLEGAL_GENERATION: "the group rebalanced without this member",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing",
    ErrorCode.FENCED_INSTANCE_ID: "another member with the same group.instance.id has replaced this one",
    ErrorCode.FENCED_MEMBER_EPOCH: "the group rebalanced without this member",
    ErrorCode.STALE_MEMBER_EPOCH: "the group has assigned the partition to another member",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member with the same group.instance.id has not left yet",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "the group has members subscribed to the topic",
    ErrorCode.INVALID_GROUP_ID: "invalid group name",
    ErrorCode.INVALID_RECORD_STATE: "the member no longer holds the record: its lock has expired",
    ErrorCode.PRODUCER_FENCED: "another client has begun to use the transactional id",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another client has begun to use the transactional id",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id has expired or belongs to another producer id",
    ErrorCode.INVALID_TXN_STATE: "the transaction is not in a state that allows this",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the timeout is not positive, or longer than transaction.max.timeout.ms",
    ErrorCode.CONCURRENT_TRANSACTIONS: "the previous transaction of this id is still being completed",
    ErrorCode.TRANSACTION_ABORTABLE: "the broker has refused records of the transaction: it can only be aborted",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "the transactional id does not exist",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is being loaded",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator is not available",
    ErrorCode.POLICY_VIOLATION: "a limit of the broker has been reached",
}


def broker_error(code: ErrorCode, message: str | None, *, about: str = "") -> BrokerError:
    """Return the exception for an error code in a reply. `about`: topic, partition or group, as a prefix."""
    text = message or _DEFAULT_MESSAGES.get(code, code.name)
    return _CLASSES.get(code, BrokerError)(f"{about}: {text}" if about else text, code)
