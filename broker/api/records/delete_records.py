"""DeleteRecords: advance log start offsets.

Source: kafka.server.ReplicaManager.deleteRecordsOnLocalLog, kafka.cluster.Partition.deleteRecordsOnLeader.
"""

from collections.abc import Mapping

import trio
from msgspec.structs import replace

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe, describe_in
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.errors import PolicyViolationError
from warmlog.broker.metadata.topic import InvalidTopicError, is_internal, mirrored_error
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.appends.replication import Replication
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.offsets import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    RecordsToDelete,
)
from warmlog.protocol.partitions import TopicPartition

NO_OFFSET = -1
HIGH_WATERMARK = -1  # an offset that stands for the high watermark


class RecordsApi:
    """Answers DeleteRecords. The next retention run deletes segments that lie entirely below the log start offset."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {DeleteRecordsRequest.api: self.delete}

    async def delete(self, request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
        """Advance all log start offsets, write them to the checkpoint once, then answer, so that deletions are durable.

        In a cluster, wait for registered followers as long as the request allows. If a partition is repeated, its last
        offset counts.
        """
        requested: dict[TopicPartition, RecordsToDelete] = {}
        for each in request.partitions:
            requested[each.topic, each.partition] = each
            await context.checkpoint()
        outcomes: list[DeletedRecords] = []
        moved: dict[int, Partition] = {}  # by the index of the outcome
        replicated: dict[int, Replication] = {}
        for index, each in enumerate(requested.values()):
            outcome, partition, has_moved = self._move_start(each)
            outcomes.append(outcome)
            if partition is not None and has_moved:
                moved[index] = partition
            if partition is not None and partition.replication is not None:
                replicated[index] = partition.replication
            await context.checkpoint()
        await context.empty(requested)
        if moved:
            try:
                await self._partitions.checkpoint_log_starts([*moved.values()])
            except OSError as error:
                for index in moved:
                    outcomes[index] = _failed(outcomes[index], error)
                    await context.checkpoint()
        if replicated:
            await _await_followers(outcomes, replicated, request.timeout_ms / 1000, context)
        return DeleteRecordsResponse(partitions=tuple(outcomes))

    def _move_start(self, requested: RecordsToDelete) -> tuple[DeletedRecords, Partition | None, bool]:
        """Advance the start of one log; return the outcome, the partition unless it failed, and whether it moved."""
        partition = self._partitions.get(requested.topic, requested.partition)
        try:
            if partition is None:
                raise self._partitions.missing(requested.topic, requested.partition)
            _check_policy(partition)
            log = partition.log
            moved = partition.advance_start(
                log.offsets.high_watermark if requested.offset == HIGH_WATERMARK else requested.offset
            )
        except EXPECTED as error:
            code, message = describe_in(partition, self._partitions, error)
            return (
                DeletedRecords(topic=requested.topic, partition=requested.partition, error=code, message=message),
                None,
                False,
            )
        outcome = DeletedRecords(
            topic=requested.topic, partition=requested.partition, low_watermark=log.offsets.log_start_offset
        )
        return outcome, partition, moved


async def _await_followers(
    outcomes: list[DeletedRecords], replicated: dict[int, Replication], timeout_s: float, context: Context
) -> None:
    """Replace the outcomes of partitions whose followers did not delete the records in time.

    `replicated`: the replication of partitions by the index of their outcome.
    """
    with trio.move_on_after(timeout_s):
        while replicated:
            index = next(iter(replicated))
            if outcomes[index].error is ErrorCode.NONE:
                try:
                    await replicated[index].until_removed(outcomes[index].low_watermark)
                except NotLeaderError as error:
                    outcomes[index] = _failed(outcomes[index], error)
            del replicated[index]
            await context.checkpoint()
    for index in replicated:
        if outcomes[index].error is ErrorCode.NONE:
            outcomes[index] = replace(
                outcomes[index],
                low_watermark=NO_OFFSET,
                error=ErrorCode.REQUEST_TIMED_OUT,
                message="followers have not deleted the records in time; they will later",
            )
        await context.checkpoint()


def _check_policy(partition: Partition) -> None:
    """Raise PolicyViolationError for compacted topics, MirroredTopicError, and InvalidTopicError for internal ones."""
    if is_internal(partition.topic):
        raise InvalidTopicError(f"records of the internal topic {partition.topic!r} cannot be deleted")
    if partition.mirror_of is not None:
        raise mirrored_error(partition.topic, partition.mirror_of)
    config = partition.log.config
    if config.compacts and not config.deletes:
        raise PolicyViolationError(
            f"records of {partition.topic}-{partition.index} cannot be deleted: its cleanup.policy is compact"
        )


def _failed(outcome: DeletedRecords, error: Exception) -> DeletedRecords:
    code, message = describe(error)
    return DeletedRecords(topic=outcome.topic, partition=outcome.partition, error=code, message=message)
