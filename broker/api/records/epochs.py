"""Validate the leader epochs in requests, and answer OffsetForLeaderEpoch.

A consumer keeps the leader epoch of the last record it has read. When the epoch changes, it requests the end offset of
that epoch: if it is before the consumer's position, the log was truncated (KIP-320). Source: kafka.cluster.Partition.
"""

from collections.abc import Mapping
from typing import Final

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.index.leader_epochs import UNDEFINED
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.messages.records.fetch import DivergedPartition, KafkaFetchPartition
from warmlog.protocol.kafka.messages.records.offsets import (
    EpochEnd,
    EpochQuery,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

NO_EPOCH: Final = -1


class FencedLeaderEpochError(ProtocolError):
    """The client's epoch is older than the broker's; the client has to refresh its metadata."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(ProtocolError):
    """The client's epoch is newer than the broker's; the client may retry."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


def check_leader_epoch(partition: Partition, epoch: int) -> None:
    """Compare a client's leader epoch with the partition's. NO_EPOCH skips the check; other negative epochs are fenced.

    Raises FencedLeaderEpochError, UnknownLeaderEpochError.
    """
    if epoch != NO_EPOCH:
        current = partition.leader_epoch
        if epoch != current:
            kind = FencedLeaderEpochError if epoch < current else UnknownLeaderEpochError
            raise kind(f"{partition.topic}-{partition.index} is in leader epoch {current}, not {epoch}")


def diverged(partition: Partition, requested: KafkaFetchPartition) -> DivergedPartition | None:
    """Compare the epoch of the client's last record with the log; return None if they have not diverged.

    Raises RequestError if the log does not know the epoch or starts after the offset.
    Source: kafka.cluster.Partition.readRecords.
    """
    log = partition.log
    epoch, end_offset = _end_of(partition, requested.last_fetched_epoch)
    if UNDEFINED in {epoch, end_offset}:
        raise RequestError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{requested.topic}-{requested.partition} has no leader epoch {requested.last_fetched_epoch}, "
            "from which the last fetched record is",
        )
    if requested.offset < log.offsets.log_start_offset:
        raise RequestError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{requested.topic}-{requested.partition} starts at offset {log.offsets.log_start_offset}, "
            f"not {requested.offset}",
        )
    if epoch == requested.last_fetched_epoch and requested.offset <= end_offset:
        return None
    return DivergedPartition(
        topic=requested.topic,
        partition=requested.partition,
        high_watermark=log.offsets.high_watermark,
        last_stable_offset=log.offsets.last_stable_offset,
        log_start_offset=log.offsets.log_start_offset,
        epoch=epoch,
        end_offset=end_offset,
    )


class EpochsApi:
    """Answers OffsetForLeaderEpoch."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {OffsetForLeaderEpochRequest.api: self.offset_for_leader_epoch}

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: Context
    ) -> OffsetForLeaderEpochResponse:
        """Return the end offset of each epoch, in the order of the request."""
        return OffsetForLeaderEpochResponse(partitions=await context.answer(self._find, request.partitions))

    def _find(self, query: EpochQuery) -> EpochEnd:
        try:
            partition = self._partitions.require(query.topic, query.partition)
            check_leader_epoch(partition, query.current_leader_epoch)
        except EXPECTED as error:
            code, message = describe(error)
            return EpochEnd(topic=query.topic, partition=query.partition, error=code, message=message)
        epoch, end_offset = _end_of(partition, query.leader_epoch)
        return EpochEnd(topic=query.topic, partition=query.partition, leader_epoch=epoch, end_offset=end_offset)


def _end_of(partition: Partition, epoch: int) -> tuple[int, int]:
    """Return the largest epoch up to this one, and its end offset, which the current epoch has even without records."""
    log = partition.log
    if partition.mirror_of is not None:
        return log.epochs.end_offset_of_copy(epoch, log.offsets.log_end_offset)
    end = log.epochs.end_offset(epoch, log.offsets.log_end_offset)
    if end[0] == UNDEFINED and epoch == log.epochs.current:
        return epoch, log.offsets.log_end_offset
    return end
