"""Handle requests about offsets of share groups: describe, alter and delete them through the share coordinators.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService (4.4: describeShareGroupOffsets,
describeShareGroupAllOffsets, alterShareGroupOffsets, deleteShareGroupOffsets, deleteShareGroups).
"""

import logging
from collections.abc import Iterable, Mapping

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.groups.effects.share import by_outcome
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.modern.assignment import TopicInfo
from warmlog.broker.groups.registry import Checkpoint, GroupRegistry
from warmlog.broker.groups.requests.end_offsets import EndOffset, EndOffsets
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.share.persister import Outcome, PartitionById, SharePersister, StateSummary
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribedShareOffsets,
    DescribedSharePartition,
    DescribedShareTopic,
    PartitionOutcome,
    ShareOffsetsGroup,
    TopicOutcome,
    TopicOutcomes,
)
from warmlog.protocol.kafka.messages.share.state import UNKNOWN_COUNT, UNKNOWN_OFFSET
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

NOT_EMPTY = "The group is not empty."


class ShareOffsetsCoordinator:
    """Passes requests to groups and share coordinators. Call all methods on the event loop."""

    def __init__(
        self, groups: GroupRegistry, partitions: Partitions, persister: SharePersister, end_offsets: EndOffsets
    ) -> None:
        """Serve these groups. `persister` reaches the share coordinators, `end_offsets` the leaders of partitions."""
        self._groups = groups
        self._partitions = partitions
        self._persister = persister
        self._end_offsets = end_offsets

    # -- describe --

    async def describe(self, requested: ShareOffsetsGroup, checkpoint: Checkpoint) -> DescribedShareOffsets:
        """Return the start offsets and lags of a group's partitions: all of them, or the requested ones.

        Partitions without a state, or that do not exist, have the start offset -1.
        """
        described: list[DescribedShareTopic] = []
        wanted: list[tuple[TopicInfo, tuple[int, ...]]] = []
        if requested.topics is None:
            error = self._groups.available(requested.group)
            if error is not ErrorCode.NONE:
                return DescribedShareOffsets(group=requested.group, error=error)
            group = self._groups.get(requested.group)
            initialized = group.partition_states.initialized if isinstance(group, ShareGroup) else {}
            for topic_id, known in initialized.items():
                topic = self._groups.topics.identified(topic_id)
                if topic is not None:
                    wanted.append((topic, tuple(sorted(known.partitions))))
                await checkpoint()
        for each in requested.topics or ():
            topic = self._groups.topics.named(each.topic)
            if topic is not None:
                wanted.append((topic, each.partitions))
            else:
                missing = [DescribedSharePartition(partition=partition) for partition in each.partitions]
                described.append(DescribedShareTopic(topic=each.topic, partitions=tuple(missing)))
            await checkpoint()
        summaries = await self._summaries(requested.group, wanted, checkpoint)
        ends = await self._ends(wanted, summaries, checkpoint)
        shown = []
        for topic, numbers in wanted:
            partitions = []
            for number in numbers:
                summary = summaries.get((topic.id, number), StateSummary())
                partitions.append(_described(number, summary, ends.get((topic.name, number))))
                await checkpoint()
            shown.append(DescribedShareTopic(topic=topic.name, topic_id=topic.id, partitions=tuple(partitions)))
        return DescribedShareOffsets(group=requested.group, topics=(*shown, *described))

    async def _summaries(
        self, group: str, wanted: Iterable[tuple[TopicInfo, tuple[int, ...]]], checkpoint: Checkpoint
    ) -> Mapping[PartitionById, StateSummary]:
        epochs: dict[PartitionById, int] = {}
        for topic, numbers in wanted:
            known = self._partitions.topic(topic.name)
            for number in numbers:
                if known is not None and known.id.bytes == topic.id and 0 <= number < known.partitions:
                    epochs[topic.id, number] = self._partitions.catalog.partition(known, number).leader_epoch
                await checkpoint()
        return await self._persister.summarize(group, epochs) if epochs else {}

    async def _ends(
        self,
        wanted: Iterable[tuple[TopicInfo, tuple[int, ...]]],
        summaries: Mapping[PartitionById, StateSummary],
        checkpoint: Checkpoint,
    ) -> Mapping[TopicPartition, EndOffset]:
        """Return the high watermarks of partitions, from which their lags are computed."""
        keys: list[TopicPartition] = []
        for topic, numbers in wanted:
            for number in numbers:
                summary = summaries.get((topic.id, number))
                if summary is not None and _has_lag(summary):
                    keys.append((topic.name, number))
                await checkpoint()
        return await self._end_offsets.of(keys, checkpoint)

    # -- alter --

    async def alter(self, request: AlterShareGroupOffsetsRequest, holder: str) -> AlterShareGroupOffsetsResponse:
        """Set the start offsets of partitions; create a missing group, whose memory counts for `holder`."""
        name = request.group
        error = self._groups.available_to_members(name)
        if error is ErrorCode.NONE and self._groups.get(name) is None:
            error = await self._groups.runtime.ensure() or self._groups.available(name)
        if error is not ErrorCode.NONE:
            return AlterShareGroupOffsetsResponse(error=error, message=_reason(error))
        group = self._groups.get(name)
        if group is None:
            if not self._groups.holdings.admit(holder, GROUP_BYTES):
                message = "groups hold as much memory as this client may have"
                return AlterShareGroupOffsetsResponse(error=ErrorCode.GROUP_MAX_SIZE_REACHED, message=message)
            group = self._groups.create_share_group(name, holder)
        problem = _problem(name, group)
        if not isinstance(group, ShareGroup) or problem is not None:
            code, message = problem or (ErrorCode.GROUP_ID_NOT_FOUND, "")
            return AlterShareGroupOffsetsResponse(error=code, message=message)
        pending: PendingAnswer[AlterShareGroupOffsetsResponse | None] = PendingAnswer(None)
        states = group.offsets.alter(request.topics, self._groups.topics, pending, self._groups.clock())
        response = await self._groups.answer(group, pending)
        assert response is not None
        self._drop_unused(group)
        if response.error is not ErrorCode.NONE or not states:
            return response
        outcomes = await self._persister.initialize(name, states)
        done, failed = by_outcome(states, outcomes)
        group.initialized(done, failed, self._groups.now())
        self._groups.apply_effects(group)
        return AlterShareGroupOffsetsResponse(topics=tuple([_with(each, outcomes) for each in response.topics]))

    def _drop_unused(self, group: ShareGroup) -> None:
        """Drop a group that was created for a request and has nothing to store."""
        shard = self._groups.shard_of(group.group_id)
        is_served = shard is not None and shard.get(group.group_id) is group
        if shard is not None and is_served and group.is_empty and not group.is_stored:
            self._groups.drop(shard, group)

    # -- delete --

    async def delete(self, request: DeleteShareGroupOffsetsRequest) -> DeleteShareGroupOffsetsResponse:
        """Delete the states of topics, which then begin as in a new group."""
        error = self._groups.available_to_members(request.group)
        if error is not ErrorCode.NONE:
            return DeleteShareGroupOffsetsResponse(error=error, message=_reason(error))
        group = self._groups.get(request.group)
        problem = _problem(request.group, group)
        if not isinstance(group, ShareGroup) or problem is not None:
            code, message = problem or (ErrorCode.GROUP_ID_NOT_FOUND, "")
            return DeleteShareGroupOffsetsResponse(error=code, message=message)
        pending: PendingAnswer[DeleteShareGroupOffsetsResponse | None] = PendingAnswer(None)
        deletion = group.offsets.delete(request.topics, self._groups.topics, pending)
        response = await self._groups.answer(group, pending)
        assert response is not None
        if response.error is not ErrorCode.NONE or not deletion.partitions:
            return response
        failures = await self._delete_states(group, deletion.partitions)
        refused = [
            TopicOutcome(topic=deletion.topics[topic_id], topic_id=topic_id, error=each.error, message=each.message)
            for topic_id, each in failures.items()
        ]
        deleted = {topic_id: name for topic_id, name in deletion.topics.items() if topic_id not in failures}
        error = await self._note_deleted(group, deleted)
        if error is not ErrorCode.NONE:
            return DeleteShareGroupOffsetsResponse(error=error)
        succeeded = [TopicOutcome(topic=name, topic_id=topic_id) for topic_id, name in deleted.items()]
        return DeleteShareGroupOffsetsResponse(topics=(*succeeded, *response.topics, *refused))

    async def delete_all(self, group: ShareGroup) -> ErrorCode:
        """Delete all states of a group without members, which is then deleted itself."""
        pending: PendingAnswer[DeleteShareGroupOffsetsResponse | None] = PendingAnswer(None)
        deletion = group.offsets.delete_all(self._groups.topics, pending)
        response = await self._groups.answer(group, pending)
        assert response is not None
        if response.error is not ErrorCode.NONE or not deletion.partitions:
            return response.error
        failures = await self._delete_states(group, deletion.partitions)
        return next((each.error for each in failures.values()), ErrorCode.NONE)

    async def _delete_states(self, group: ShareGroup, partitions: list[PartitionById]) -> dict[bytes, Outcome]:
        """Delete states; return the failure of each topic that has one.

        A topic that does not exist is not a failure: the share coordinator deletes its states.
        """
        outcomes = await self._persister.delete(group.group_id, partitions)
        failures: dict[bytes, Outcome] = {}
        for topic_id, partition in partitions:
            outcome = outcomes.get((topic_id, partition), Outcome(ErrorCode.UNKNOWN_SERVER_ERROR))
            is_gone = outcome.error is _UNKNOWN and self._groups.topics.identified(topic_id) is None
            if outcome.error is not ErrorCode.NONE and not is_gone:
                failures.setdefault(topic_id, outcome)
        for topic_id, failure in failures.items():
            logger.warning("%s: cannot delete the state of topic %s: %s", group, topic_id.hex(), failure.error.name)
        return failures

    async def _note_deleted(self, group: ShareGroup, topics: Iterable[bytes]) -> ErrorCode:
        pending: PendingAnswer[DeleteShareGroupOffsetsResponse | None] = PendingAnswer(None)
        group.offsets.deleted(topics, pending)
        response = await self._groups.answer(group, pending)
        assert response is not None
        return response.error


def _reason(error: ErrorCode) -> str:
    """Return the message of an error for a group that is not served."""
    return "The group id is invalid." if error is ErrorCode.INVALID_GROUP_ID else "The coordinator is not available."


def _problem(name: str, group: object) -> tuple[ErrorCode, str] | None:
    """Return why the offsets of a group may not be changed, or None."""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found."
    if not isinstance(group, ShareGroup):
        return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} is not a share group."
    return None if group.is_empty else (ErrorCode.NON_EMPTY_GROUP, NOT_EMPTY)


def _has_lag(summary: StateSummary) -> bool:
    return (
        summary.error is ErrorCode.NONE
        and summary.start_offset != UNKNOWN_OFFSET
        and summary.delivery_complete_count != UNKNOWN_COUNT
    )


def _described(number: int, summary: StateSummary, end: EndOffset | None) -> DescribedSharePartition:
    """Describe a partition. A state that cannot be read counts as none, as in Kafka."""
    if summary.error is not ErrorCode.NONE:
        return DescribedSharePartition(partition=number)
    start, epoch = summary.start_offset, summary.leader_epoch
    if isinstance(end, ErrorCode):
        message = "the leader of the partition does not answer"
        return DescribedSharePartition(partition=number, start_offset=0, lag=-1, error=end, message=message)
    lag = UNKNOWN_OFFSET if end is None else end - start - summary.delivery_complete_count
    return DescribedSharePartition(partition=number, start_offset=start, leader_epoch=epoch, lag=lag)


def _with(topic: TopicOutcomes, outcomes: Mapping[PartitionById, Outcome]) -> TopicOutcomes:
    """Combine the outcomes of a topic with those of the share coordinators."""
    merged = []
    for each in topic.partitions:
        outcome = outcomes.get((topic.topic_id, each.partition), Outcome())
        failed = each.error is ErrorCode.NONE and outcome.error is not ErrorCode.NONE
        merged.append(
            PartitionOutcome(partition=each.partition, error=outcome.error, message=outcome.message) if failed else each
        )
    return TopicOutcomes(topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(merged))
