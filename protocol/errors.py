"""Kafka's error codes, used by both wire formats, and the exceptions raised for malformed bytes."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Error codes as sent on the wire (source: org.apache.kafka.common.protocol.Errors)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136


class ProtocolError(Exception):
    """Bytes or values that violate a format. Base class; `code` is the error code sent to the peer."""

    code: ErrorCode = ErrorCode.INVALID_REQUEST


class FrameError(ProtocolError):
    """A frame length is negative or over the limit, so the rest of the stream cannot be parsed.

    The connection must be closed after the error response.
    """


class CorruptBatchError(ProtocolError):
    """A batch has a wrong length or CRC, or an impossible header field."""

    code = ErrorCode.CORRUPT_MESSAGE


class InvalidRecordError(ProtocolError):
    """A batch has a valid CRC, but its records contradict its header or are not allowed."""

    code = ErrorCode.INVALID_RECORD


class UnsupportedMagicError(ProtocolError):
    """A batch is in record format version 0 or 1; only version 2 is supported."""

    code = ErrorCode.INVALID_RECORD


class CompressionError(ProtocolError):
    """A compressed block cannot be decompressed, or states a wrong size."""

    code = ErrorCode.CORRUPT_MESSAGE


class DecompressedSizeError(CompressionError):
    """A compressed block would exceed the size limit when decompressed.

    Java's producer divides such a batch and sends the parts; CORRUPT_MESSAGE would make it send the same bytes again.
    """

    code = ErrorCode.MESSAGE_TOO_LARGE


class UnsupportedCompressionError(ProtocolError):
    """The attributes of a batch name an unknown compression codec."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class BatchTooLargeError(ProtocolError):
    """A batch exceeds the topic's `max.message.bytes`."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidTimestampError(ProtocolError):
    """A producer sent a batch marked LogAppendTime, which only the broker may set."""

    code = ErrorCode.INVALID_TIMESTAMP


class RecordsRefusedError(ProtocolError):
    """Records violate the topic's settings.

    `record_errors` holds (index in the batch from 0, reason) pairs. `code` is INVALID_TIMESTAMP if any timestamp is out
    of range, otherwise INVALID_RECORD.
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(message)
        self.code = code
        self.record_errors = record_errors


class OutOfTurnError(ProtocolError):
    """A request arrived before hello."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, request_id: int) -> None:
        super().__init__("the first request of a connection must be hello")
        self.request_id = request_id


class UnauthenticatedError(ProtocolError):
    """A request arrived before the login was complete."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class LoginRequiredError(FrameError):
    """The same error on a native listener, where the client gets a reply before the connection closes."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED

    def __init__(self, request_id: int, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id
