"""Describe one idempotent producer (native protocol only)."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.request import Entries, Int64, Value


class DescribeProducerRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the state of one producer in partitions."""

    api: ClassVar[str] = "describe_producer"
    producer_id: Int64
    partitions: Entries[PartitionEntry]


class ProducerPosition(Value, frozen=True, kw_only=True, gc=False):
    """The producer's last sequence and offset in one partition; all -1 if the partition does not know it."""

    topic: str
    partition: int
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeProducerResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeProducerRequest, in its order."""

    partitions: tuple[ProducerPosition, ...]
