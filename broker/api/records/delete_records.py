"""DeleteRecords: advance log start offsets.

Source: kafka.server.ReplicaManager.deleteRecordsOnLocalLog, kafka.cluster.Partition.deleteRecordsOnLeader.
"""

from collections.abc import Mapping

import trio
from msgspec.structs import replace

from broker.api.context import Context
from broker.api.errors import EXPECTED, describe, describe_in
from broker.api.handler import Handler
from broker.log.errors import PolicyViolationError
from broker.metadata.topic import InvalidTopicError, is_internal, mirrored_error
from broker.partitions.appends.errors import NotLeaderError
from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.kafka.values import DeletedRecords, DeleteRecordsRequest, DeleteRecordsResponse, RecordsToDelete

NO_OFFSET = -1
HIGH_WATERMARK = -1  # as an offset: everything that consumers can read


class RecordsApi:
    """Answers DeleteRecords. The next retention run deletes segments that lie entirely below the log start offset."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {DeleteRecordsRequest.api: self.delete}

    async def delete(self, request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
        """Advance all log start offsets, write them to the checkpoint once, then answer, so that deletions are durable.

        In a cluster, wait for the followers that are registered, as long as the request allows. For a partition named
        twice, the last offset counts.
        """
        asked: dict[tuple[str, int], RecordsToDelete] = {}
        for each in request.partitions:
            asked[each.topic, each.partition] = each
            await context.checkpoint()
        outcomes: list[DeletedRecords] = []
        moved: dict[int, Partition] = {}  # by the index of the outcome
        for index, each in enumerate(asked.values()):
            outcome, partition = self._move_start(each)
            outcomes.append(outcome)
            if partition is not None:
                moved[index] = partition
            await context.checkpoint()
        await context.empty(asked)
        if moved:
            try:
                await self._partitions.checkpoint_log_starts([*moved.values()])
            except OSError as error:
                for index in moved:
                    outcomes[index] = _failed(outcomes[index], error)
                    await context.checkpoint()
        await self._await_followers(outcomes, request.timeout_ms / 1000)
        return DeleteRecordsResponse(partitions=tuple(outcomes))

    async def _await_followers(self, outcomes: list[DeletedRecords], timeout_s: float) -> None:
        """Replace the outcomes of partitions whose followers do not delete the records in time."""
        waiting = {
            index: (outcome, replication)
            for index, outcome in enumerate(outcomes)
            if outcome.error is ErrorCode.NONE
            and (partition := self._partitions.get(outcome.topic, outcome.partition)) is not None
            and (replication := partition.replication) is not None
        }
        with trio.move_on_after(timeout_s):
            while waiting:
                index, (outcome, replication) = next(iter(waiting.items()))
                try:
                    await replication.until_removed(outcome.low_watermark)
                except NotLeaderError as error:
                    outcomes[index] = _failed(outcome, error)
                del waiting[index]
        for index, (outcome, _) in waiting.items():
            outcomes[index] = replace(
                outcome,
                low_watermark=NO_OFFSET,
                error=ErrorCode.REQUEST_TIMED_OUT,
                message="followers have not deleted the records in time; they will later",
            )

    def _move_start(self, asked: RecordsToDelete) -> tuple[DeletedRecords, Partition | None]:
        """Advance the start of one log; return the outcome, and the partition if its start has moved."""
        partition = self._partitions.get(asked.topic, asked.partition)
        try:
            if partition is None:
                raise self._partitions.missing(asked.topic, asked.partition)
            _check_policy(partition)
            log = partition.log
            moved = partition.advance_start(log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset)
        except EXPECTED as error:
            code, message = describe_in(partition, self._partitions, error)
            return DeletedRecords(topic=asked.topic, partition=asked.partition, error=code, message=message), None
        outcome = DeletedRecords(topic=asked.topic, partition=asked.partition, low_watermark=log.log_start_offset)
        return outcome, partition if moved else None


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
