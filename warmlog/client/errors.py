"""What can go wrong for a user of the client.

Owns: `WarmlogError`, the one root, and the few kinds below it that a program reacts to differently; and which error
codes are worth another try. Must not know: how a retry is done (`backoff`).

Wrong arguments (a str where bytes belong, a negative offset) raise TypeError and ValueError as everywhere in Python.
"""

from protocol.errors import ErrorCode

# Codes that may be gone a moment later, after a look at fresh metadata.
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
    }
)


class WarmlogError(Exception):
    """Root of all errors of the client.

    `code`: Kafka's number for it. `message`: a sentence for people. `is_final`: another try was made or makes no sense,
    whatever the code.
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
    """The connection ended before the reply: nobody knows whether the request was carried out."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.NETWORK_EXCEPTION)


class RequestTimeoutError(WarmlogError):
    """The broker did not answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.REQUEST_TIMED_OUT)


class ClosedError(WarmlogError):
    """The client, or the stream of records, was closed."""

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message, ErrorCode.NETWORK_EXCEPTION)
        self.is_final = True  # somebody wanted it so


class BufferFullError(WarmlogError):
    """`produce_nowait` found `buffer_bytes` of records waiting already: `await client.flush()`, then go on."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.THROTTLING_QUOTA_EXCEEDED)


class BrokerError(WarmlogError):
    """The broker said no; `code` is its reason."""


class UnknownTopicError(BrokerError):
    """There is no such topic or partition."""


class TopicExistsError(BrokerError):
    """There is a topic of that name already."""


class GroupMovedOnError(BrokerError):
    """The group went on without this member: what it read since its last commit is read again, by another one."""


class GroupNotEmptyError(BrokerError):
    """The group has members, and what was asked is only done to one without."""


class UnknownGroupError(BrokerError):
    """There is no such group."""


class OffsetOutOfRangeError(BrokerError):
    """The offset to read from is not there, or no longer: offsets from `log_start_offset` to `high_watermark` are."""

    def __init__(self, message: str, *, log_start_offset: int, high_watermark: int) -> None:
        super().__init__(message, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


_KINDS: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicError,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExistsError,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupMovedOnError,
    ErrorCode.ILLEGAL_GENERATION: GroupMovedOnError,
    ErrorCode.REBALANCE_IN_PROGRESS: GroupMovedOnError,
    ErrorCode.FENCED_INSTANCE_ID: GroupMovedOnError,
    ErrorCode.NON_EMPTY_GROUP: GroupNotEmptyError,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroupError,
}
# Where the broker says no more than the code.
_SENTENCES = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group went on without this member",
    ErrorCode.ILLEGAL_GENERATION: "the group went on without this member",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is dividing its partitions anew",
    ErrorCode.FENCED_INSTANCE_ID: "another member with the same instance id has taken this one's place",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group read the topic",
    ErrorCode.INVALID_GROUP_ID: "that is no name for a group",
}


def broker_error(code: ErrorCode, message: str | None, *, about: str = "") -> BrokerError:
    """The exception for an error code in a reply; `about` names the topic or partition where the message may not."""
    text = message or _SENTENCES.get(code, code.name)
    return _KINDS.get(code, BrokerError)(f"{about}: {text}" if about else text, code)
