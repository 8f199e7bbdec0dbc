"""Fields and values shared by many messages, and responses to requests that failed as a whole.

A value with more fields than the native protocol needs is a subclass of the neutral value, so handlers can treat it as
a neutral value. Topic ids are 16 bytes (NO_TOPIC_ID if unset), but text in the neutral values (`topic_id_text`).

A request may identify a topic only by its id. It is decoded with the topic's current name, or with the empty name if
the id is unknown. The handler then reports an unknown topic, and the encoder, which also has the request, changes the
error to UNKNOWN_TOPIC_ID (`codec/schema.py`, ERROR).
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from msgspec import UNSET

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import (
    INT16,
    INT32,
    STRING,
    THROTTLE,
    Field,
    Only,
    Struct,
    array,
    error_of,
    not_negative,
)
from warmlog.protocol.request import Isolation, Value
from warmlog.protocol.response import BrokerMetadata, ErrorResponse

TopicNames: TypeAlias = Callable[[bytes], str | None]  # topic id to topic name, None if unknown
# Authorized operations without an authorizer: all operations that a topic, the cluster or a group supports, as bits
# (source: org.apache.kafka.security.authorizer.AclEntry).
TOPIC_OPERATIONS = 0b1101_1111_1000
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
_ISOLATION_LEVELS = (0, 1)  # wire values of uncommitted and committed
UNKNOWN_TOPIC_NAME = ""  # stands for an unknown topic id
KNOWN_ISOLATION = Only(_ISOLATION_LEVELS, ErrorCode.INVALID_REQUEST, "unknown isolation level {}")


def isolation_level(request: Any, *_: Any) -> int:
    """Return the isolation level of a request as a wire value."""
    return 1 if request.isolation is Isolation.READ_COMMITTED else 0


def isolation_of(level: int) -> Isolation:
    """Convert an isolation level from the wire."""
    return Isolation.READ_COMMITTED if level == 1 else Isolation.READ_UNCOMMITTED


def topic_id_text(topic_id: bytes) -> str:
    """Encode a topic id as in `partition.metadata`: URL-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")


class KafkaBrokerMetadata(BrokerMetadata, frozen=True, kw_only=True, gc=False):
    """A broker with the fields specific to Kafka's protocol. `is_fenced`: registered, but not alive."""

    is_fenced: bool = False


class Failure(Value, frozen=True, kw_only=True, gc=False):
    """The result of one part of a request."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


R = TypeVar("R")

THROTTLE_TIME = Field("throttle_time_ms", THROTTLE, attr=None)
TIMEOUT = Field("timeout_ms", INT32, convert=not_negative)
ERROR_CODE = Field("error_code", INT16, attr="error", convert=error_of)
ERROR_MESSAGE = Field("error_message", STRING, nullable=0, attr="message")
FAILURE = (ERROR_CODE, ERROR_MESSAGE)
OPTIONAL_MESSAGE = replace(ERROR_MESSAGE, default=None)
OPTIONAL_FAILURE = (ERROR_CODE, OPTIONAL_MESSAGE)
NO_CURRENT_LEADER = {"leader_id": -1, "leader_epoch": -1}
NOT_REQUESTED = -(1 << 31)  # authorized operations that were not requested or do not apply


def since(version: int, field: Field) -> Field:
    """Return the field, with `version` as the first version that has it."""
    return replace(field, since=version)


def ignored(*fields: Field) -> tuple[Field, ...]:
    """Return request fields that are skipped when read."""
    return tuple([replace(field, attr=None) for field in fields])


def refused(response: Callable[..., R], *repeated: str, **given: Any) -> Callable[[Any, ErrorResponse], R]:
    """Respond with an error for the whole request. The response repeats request fields; `given` are its others."""

    def failed(request: Any, error: ErrorResponse) -> R:
        return response(**_fields_of(request, repeated), **given, **_failure(response, error))

    return failed


def refused_each(
    response: Callable[..., R],
    field: str,
    outcome: Callable[..., Any],
    *keys: str,
    of: str = "",
    also_whole: bool = False,
    **given: Any,
) -> Callable[[Any, ErrorResponse], R]:
    """Respond with an error for each item of a request and, if `also_whole`, for the whole request.

    field: the response field with an outcome for each item; of: the request field, if its name differs, or a path of
    fields such as "targets.partitions". keys: the fields that identify an item; a text item is its own key. given: the
    other fields of an outcome; an `Outcomes` among them produces nested outcomes.
    """
    outcomes = Outcomes(of or field, outcome, *keys, **given)

    def failed(request: Any, error: ErrorResponse) -> R:
        whole = _failure(response, error) if also_whole else {}
        return response(**{field: outcomes.refuse(request, error)}, **whole)

    return failed


def refused_partitions(
    response: Callable[..., R], outcome: Callable[..., Any], *, of: str = "", also_whole: bool = False, **given: Any
) -> Callable[[Any, ErrorResponse], R]:
    """Respond with an error for each partition of the request."""
    return refused_each(response, "partitions", outcome, "topic", "partition", of=of, also_whole=also_whole, **given)


class Outcomes:
    """Builds an outcome for each item in a field of a request; see `refused_each`."""

    def __init__(self, of: str, outcome: Callable[..., Any], *keys: str, **given: Any) -> None:
        self._path = of.split(".")
        self._outcome = outcome
        self._keys = keys
        self._given = given

    def refuse(self, request: Any, error: ErrorResponse) -> tuple[Any, ...]:
        """Return an outcome with the error for each item."""
        items = [request]
        for name in self._path:
            items = [inner for item in items for inner in getattr(item, name) or ()]
        failure = _failure(self._outcome, error)
        return tuple([self._outcome(**self._named(item, error), **failure) for item in items])

    def _named(self, item: Any, error: ErrorResponse) -> dict[str, Any]:
        given = {
            name: value.refuse(item, error) if isinstance(value, Outcomes) else value
            for name, value in self._given.items()
        }
        return ({self._keys[0]: item} if isinstance(item, str) else _fields_of(item, self._keys)) | given


def _fields_of(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _failure(kind: Any, error: ErrorResponse) -> dict[str, Any]:
    """Return the error's fields that this kind of value has."""
    fields = {"error": error.error, "message": error.message}
    return {name: value for name, value in fields.items() if name in kind.__struct_fields__}


def current_leader(since: int, tag: int, kind: type) -> Field:
    """Return the field for a partition's current leader (KIP-951), which only values of this kind have."""

    def leader(partition: Any, *_: Any) -> Any:
        return partition if type(partition) is kind else NO_CURRENT_LEADER

    fields = Struct(Field("leader_id", INT32, default=-1), Field("leader_epoch", INT32, default=-1))
    return Field("current_leader", fields, since=since, tag=tag, default=NO_CURRENT_LEADER, attr=None, get=leader)


def node_endpoints(since: int) -> Field:
    """Return the field for the addresses of those leaders."""
    fields = (
        Field("node_id", INT32),
        Field("host", STRING),
        Field("port", INT32),
        Field("rack", STRING, nullable=0, default=None, get=rack_of),
    )
    return Field("node_endpoints", array(*fields), since=since, tag=0, default=(), attr=None, get=_nodes)


def _nodes(response: Any, *_: Any) -> Any:
    return getattr(response, "nodes", ())


def rack_of(broker: BrokerMetadata, *_: Any) -> str | None:
    """Return the rack of a broker, or None if it has no rack."""
    return None if broker.rack is UNSET else broker.rack
