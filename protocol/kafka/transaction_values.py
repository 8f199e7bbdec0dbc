"""Requests and responses of transactions that only Kafka's protocol has.

A response has exactly one entry per entry of the request, in the same order. Durations are milliseconds.
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.request import Value
from warmlog.protocol.transaction_requests import AddedPartition


class PartitionsOfTransaction(Value, frozen=True, kw_only=True, gc=False):
    """A producer and partitions to add to its transaction; with `verify_only`, to look up in it (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool = False
    partitions: tuple[TopicPartition, ...]


class AddPartitionsToTxnRequest(Value, frozen=True, kw_only=True, gc=False):
    """Add partitions to transactions. `is_batched`: sent by a broker (version 4 and later), for several producers."""

    api: ClassVar[str] = "add_partitions_to_txn"
    transactions: tuple[PartitionsOfTransaction, ...]
    is_batched: bool = True


class AddedPartitions(Value, frozen=True, kw_only=True, gc=False):
    """The outcomes for one transaction."""

    transactional_id: str
    partitions: tuple[AddedPartition, ...]


class AddPartitionsToTxnResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AddPartitionsToTxnRequest."""

    transactions: tuple[AddedPartitions, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class AddOffsetsToTxnRequest(Value, frozen=True, kw_only=True, gc=False):
    """Add the partition in which a group's offsets are stored to a transaction."""

    api: ClassVar[str] = "add_offsets_to_txn"
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: str


class AddOffsetsToTxnResponse(Value, frozen=True, kw_only=True, gc=False):
    """The outcome of AddOffsetsToTxnRequest."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
