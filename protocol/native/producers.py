"""What only the native protocol asks about idempotent producers: how far one of them is.

Owns: values. Must not know: who makes ids, or what a sequence may be (`broker.log.producer_state`).
"""

from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.request import Entries, Int64, Value


class DescribeProducerRequest(Value, frozen=True, kw_only=True, gc=False):
    """What partitions know of one producer."""

    api: ClassVar[str] = "describe_producer"
    producer_id: Int64
    partitions: Entries[TopicPartition]


class ProducerPosition(Value, frozen=True, kw_only=True, gc=False):
    """How far the producer is in one partition; -1 everywhere where it is not known, or no longer."""

    topic: str
    partition: int
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeProducerResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[ProducerPosition, ...]
