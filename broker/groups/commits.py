"""Commit, delete and expire offsets.

Invariant: a commit is acknowledged once it is in the log (and flushed, if `flush.messages` requires it) and in memory.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager, GroupCoordinatorShard.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, islice

import trio

from warmlog.broker.coordinator.appends import LogProducer, Rows
from warmlog.broker.coordinator.runtime import in_steps
from warmlog.broker.groups.consumer.commits import CommitVerdict
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.group import Group
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.offset_writer import OFFSETS_PER_STEP, OffsetWrite, OffsetWriter, begun_write
from warmlog.broker.groups.offsets import check_offsets, values_of
from warmlog.broker.groups.pending_offsets import PendingOffset
from warmlog.broker.groups.registry import Checkpoint, GroupRegistry
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.groups.streams.commits import StreamsCommitVerdict
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import OffsetToCommit
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID, MalformedError
from warmlog.protocol.kafka.group_records import (
    NO_TIME,
    encode_offset_key,
    encode_offsets,
)
from warmlog.protocol.kafka.messages.groups.offsets import IdentifiedOffset
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.record import MAX_INT64

logger = logging.getLogger(__name__)

MS_PER_MINUTE = 60_000
GROUPS_PER_STEP = 100  # groups from which a deleted topic's offsets are removed between two checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """The sender of a commit: a member of a generation, or a client outside the group (generation below 0, no ids).

    The group counts for `holder` unless it already counts for another one (`Holdings`). `version`: that of
    OffsetCommit.
    """

    generation: int
    member_id: str
    instance_id: str | None
    holder: str = ""
    version: int | None = None


class OffsetCommits:
    """Handles requests about offsets. Call all methods on the event loop; `run` is the background task."""

    def __init__(self, groups: GroupRegistry, partitions: Partitions) -> None:
        """Commit offsets of these groups for these topics."""
        self._groups = groups
        self._partitions = partitions
        self._writer = OffsetWriter(groups)
        self._removals: set[trio.Event] = set()  # set when the tombstones for a deleted topic are appended

    async def run(self) -> None:
        """Expire offsets and groups every `offsets.retention.check.interval.ms`, until cancelled."""
        while True:
            await trio.sleep(self._groups.settings.offsets_retention_check_interval_ms / 1000)
            async with trio.open_nursery() as nursery:
                for shard in self._groups.runtime.shards():
                    nursery.start_soon(self._clean_up_all, shard)

    # -- requests --

    async def commit(
        self,
        name: str,
        committer: Committer,
        offsets: Sequence[OffsetToCommit],
        *,
        retention_ms: int | None,
        producer: LogProducer | None = None,
        checkpoint: Checkpoint = trio.lowlevel.checkpoint,
    ) -> list[ErrorCode]:
        """Commit offsets, and return an error code per offset once they are written.

        With a producer they are pending until its transaction ends. `retention_ms` overrides
        `offsets.retention.minutes` unless it is None. Waits for at most `offsets.commit.timeout.ms`; a write that has
        begun is completed in any case. Writes several batches if there are many offsets.
        """
        errors: list[ErrorCode] = []
        writes: list[tuple[Sequence[int], OffsetWrite]] = []  # with the indexes of their offsets
        max_metadata_size = self._groups.settings.offset_metadata_max_bytes
        for start in range(0, len(offsets), OFFSETS_PER_STEP):
            step = offsets[start : start + OFFSETS_PER_STEP]
            checked = check_offsets(step, self._partitions.by_name, max_metadata_size)
            errors += checked
            indexes, chosen = _valid(range(start, start + len(step)), step, checked)
            topic_ids = self._requested_ids(chosen)
            await checkpoint()
            if not chosen:
                continue
            error = ErrorCode.NONE if producer is None else _failure_of(writes)
            error = error or await self._check_commit(name, committer, chosen, in_transaction=producer is not None)
            refused = [error] * len(chosen) if error else self._refused(name, committer, chosen, producer)
            refused = self._with_lost(refused, chosen, topic_ids)
            if any(refused):
                for index, error in zip(indexes, refused, strict=True):
                    errors[index] = error
                indexes, chosen = _valid(indexes, chosen, refused)
            shard = self._groups.shard_of(name)
            if chosen and shard is not None:
                writes.append((indexes, self._write_offsets(shard, name, chosen, retention_ms, producer)))
        with self._writer.time_limit():
            for _, write in writes:
                await write.wait()
        for indexes, write in writes:
            if write.value is not ErrorCode.NONE:
                for index in indexes:
                    errors[index] = write.value
        return errors

    def exists(self, requested: OffsetToCommit) -> bool:
        """Return whether the partition of an offset exists, online or offline."""
        return self._partitions.exists(requested.topic, requested.partition)

    def _requested_ids(self, offsets: Sequence[OffsetToCommit]) -> dict[str, bytes]:
        """Return the id of each topic by its name: the id in the request, or else the current one."""
        topic_ids: dict[str, bytes] = {}
        for each in offsets:
            if each.topic not in topic_ids:
                topic_ids[each.topic] = _id_of(each) or self._topic_id(each.topic)
        return topic_ids

    def _with_lost(
        self, refused: list[ErrorCode], offsets: Sequence[OffsetToCommit], topic_ids: Mapping[str, bytes]
    ) -> list[ErrorCode]:
        """Add to the error codes of offsets, if any, those of topics that were deleted since their ids were taken."""
        lost = {topic for topic, topic_id in topic_ids.items() if self._topic_id(topic) != topic_id}
        if not lost:
            return refused
        errors = refused or [ErrorCode.NONE] * len(offsets)
        return [
            error or (_unknown(each) if each.topic in lost else ErrorCode.NONE)
            for error, each in zip(errors, offsets, strict=True)
        ]

    async def _check_commit(
        self, name: str, committer: Committer, offsets: Sequence[OffsetToCommit], *, in_transaction: bool
    ) -> ErrorCode:
        """Return whether this client may commit. If so, the group exists afterwards."""
        error = self._groups.available(name) or await self._groups.runtime.ensure() or self._groups.available(name)
        if error is not ErrorCode.NONE:
            return error
        group = self._groups.get(name)
        if group is None:
            if committer.generation >= 0:
                return ErrorCode.GROUP_ID_NOT_FOUND
            if not self._groups.holdings.admit(committer.holder, GROUP_BYTES):
                return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            group = self._groups.create(name, committer.holder)
        if in_transaction and self._groups.pending_count >= self._groups.settings.max_transaction_partitions:
            return ErrorCode.POLICY_VIOLATION
        error = self._verdict(group, committer, in_transaction=in_transaction).error
        self._groups.schedule(group)
        return error or self._check_size(group, committer, offsets)

    def _verdict(
        self, group: Group, committer: Committer, *, in_transaction: bool
    ) -> CommitVerdict | StreamsCommitVerdict:
        """Return a group's verdict on a commit."""
        member = committer.member_id, committer.instance_id, committer.generation
        if isinstance(group, ConsumerGroup | StreamsGroup):
            if in_transaction:
                return group.check_transactional_commit(*member)
            return group.check_commit(*member, version=committer.version)
        if isinstance(group, ShareGroup):
            return CommitVerdict(ErrorCode.GROUP_ID_NOT_FOUND)
        if in_transaction:
            return CommitVerdict(group.check_transactional_commit(*member))
        return CommitVerdict(group.check_commit(*member, self._groups.now()))

    def _refused(
        self, name: str, committer: Committer, offsets: Sequence[OffsetToCommit], producer: LogProducer | None
    ) -> list[ErrorCode]:
        """Return an error code per offset, or none: a member may commit what it had in an earlier epoch (KIP-1251)."""
        group = self._groups.get(name)
        if not isinstance(group, ConsumerGroup | StreamsGroup):
            return []
        verdict = self._verdict(group, committer, in_transaction=producer is not None)
        if isinstance(verdict, StreamsCommitVerdict):
            return [verdict.partition(each.topic, each.partition) for each in offsets]
        return [verdict.partition(self._topic_id(each.topic), each.partition) for each in offsets]

    def _check_size(self, group: Group, committer: Committer, offsets: Sequence[OffsetToCommit]) -> ErrorCode:
        """Return whether memory is available for offsets."""
        shard = self._groups.shard_of(group.group_id)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        growth = shard.offsets.growth(group.group_id, offsets)
        if not self._groups.holdings.admit(group.owner or committer.holder, growth):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        group.owner = group.owner or committer.holder  # it was loaded
        return ErrorCode.NONE

    def _write_offsets(
        self,
        shard: GroupShard,
        name: str,
        offsets: Sequence[OffsetToCommit],
        retention_ms: int | None,
        producer: LogProducer | None,
    ) -> OffsetWrite:
        """Append offsets, and apply them to memory once they are written."""
        now_ms = self._groups.clock()
        expire_ms = NO_TIME if retention_ms is None else min(now_ms + retention_ms, MAX_INT64)
        values, topic_ids = values_of(offsets, self._topic_id, now_ms, expire_ms)

        def put(record_offsets: Sequence[int]) -> None:
            if shard.get(name) is None:  # the group, without these offsets, was deleted during the write
                shard.create(name)
            deleted = {topic for topic, topic_id in topic_ids.items() if self._topic_id(topic) != topic_id}
            if deleted:
                unused = [(each.topic, each.partition) for each in offsets if each.topic in deleted]
                self._remove_deleted(shard, name, unused)
            if producer is None:
                shard.offsets.put_all(name, offsets, values, record_offsets, without=deleted)
            else:
                for each, value, offset in zip(offsets, values, record_offsets, strict=False):
                    if each.topic not in deleted:
                        shard.put_pending(producer.id, PendingOffset(name, each.topic, each.partition, value, offset))
            group = shard.get(name)
            if group is not None:
                self._groups.settle(shard, group)

        try:
            rows: Rows = [*encode_offsets(name, offsets, values)]
        except MalformedError:  # every other field was checked: the metadata exceeds a record's length field
            refused = begun_write()
            refused.settle(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            return refused
        return self._writer.write(shard, name, rows, put, producer)

    def check_delete_offsets(self, name: str) -> ErrorCode:
        """Return NONE, or why offsets of a group may not be deleted."""
        error = self._groups.available_to_members(name)
        group = self._groups.get(name)
        if error is not ErrorCode.NONE or group is None or isinstance(group, ShareGroup):
            return error or ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.may_lose_offsets else ErrorCode.NON_EMPTY_GROUP

    async def delete_offsets(
        self, name: str, partitions: Sequence[TopicPartition], checkpoint: Checkpoint = trio.lowlevel.checkpoint
    ) -> list[ErrorCode]:
        """Delete committed offsets, and return an error code per partition; subscribed topics are refused.

        `check_delete_offsets` must have succeeded before.
        """
        errors: list[ErrorCode] = []
        writes: list[tuple[int, OffsetWrite]] = []
        shard = self._groups.shard_of(name)
        if shard is None:
            return [ErrorCode.NOT_COORDINATOR] * len(partitions)
        for start in range(0, len(partitions), OFFSETS_PER_STEP):
            pairs = partitions[start : start + OFFSETS_PER_STEP]
            checked = [self._check_delete(shard, name, *pair) for pair in pairs]
            valid = [pair for pair, error in zip(pairs, checked, strict=True) if error is ErrorCode.NONE]
            committed = [pair for pair in valid if _has_offset(shard, name, *pair)]
            if committed:
                writes.append((start, self._writer.write_tombstones(shard, name, committed)))
            errors += checked
            await checkpoint()
        with self._writer.time_limit():
            for _, write in writes:
                await write.wait()
        if not self._groups.is_served(shard):
            return [ErrorCode.NOT_COORDINATOR] * len(partitions)
        for start, write in writes:
            if write.value is not ErrorCode.NONE:
                stop = min(start + OFFSETS_PER_STEP, len(errors))
                errors[start:stop] = [error or write.value for error in errors[start:stop]]
        return errors

    def _check_delete(self, shard: GroupShard, name: str, topic: str, partition: int) -> ErrorCode:
        if not self._partitions.exists(topic, partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        group = shard.get(name)
        is_subscribed = group is not None and group.is_subscribed(topic)
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE

    def topic_deleted(self, topic: str) -> None:
        """Remove the offsets committed for a deleted topic.

        Those of a few groups are removed before this returns, the rest in the background.
        """
        for shard in self._groups.runtime.shards():
            steps = self._remove_topic(shard, topic)
            if next(steps, None) is not None:
                done = trio.Event()
                self._removals.add(done)
                self._groups.runtime.spawn(partial(self._take_steps, steps, done))

    def _remove_topic(self, shard: GroupShard, topic: str) -> Iterator[bool]:
        """Remove the offsets of a topic, and append their tombstones. Yield between steps of about a millisecond."""
        end = shard.term.partition.log.offsets.log_end_offset  # later offsets are committed for a new topic
        groups = chain(shard.pending.remove_topic(topic, end), shard.offsets.remove_topic(topic, end))
        while step := list(islice(groups, GROUPS_PER_STEP)):
            for name, partitions in step:
                yield from self._append_tombstones(shard, topic, name, partitions)
            yield True

    async def _take_steps(self, steps: Iterator[bool], done: trio.Event) -> None:
        try:
            await in_steps(steps)
        finally:
            self._removals.discard(done)
            done.set()

    async def tombstones_appended(self) -> None:
        """Wait until the tombstones for all topics deleted so far are appended."""
        for done in list(self._removals):
            await done.wait()

    def remove_obsolete(self, shard: GroupShard) -> Iterator[None]:
        """Append tombstones for offsets of deleted topics that the log contained. No commit may be in progress."""
        while shard.obsolete:  # freed on the way: freeing a million of them in one step would hold the event loop
            name, partitions = shard.obsolete.popitem()
            for start in range(0, len(partitions), OFFSETS_PER_STEP):
                self._remove_deleted(shard, name, partitions[start : start + OFFSETS_PER_STEP])
                yield

    def _remove_deleted(self, shard: GroupShard, name: str, partitions: Iterable[TopicPartition]) -> None:
        """Write tombstones for offsets of topics that were deleted since they were committed."""
        # not for an offset of a new topic with the same name: it replaces the earlier record
        unused = [pair for pair in partitions if not _has_offset(shard, name, *pair)]
        if unused:
            self._writer.write_tombstones(shard, name, unused)

    def _append_tombstones(self, shard: GroupShard, topic: str, name: str, partitions: Sequence[int]) -> Iterator[bool]:
        """Append tombstones for the removed offsets of a group; yield between two batches."""
        indexes = sorted(partitions)
        for start in range(0, len(indexes), OFFSETS_PER_STEP):
            if start:
                yield True
            rows: Rows = [
                (encode_offset_key(name, topic, index), None)
                for index in indexes[start : start + OFFSETS_PER_STEP]
                # an offset that exists again was committed for a new topic with the same name
                if shard.offsets.get(name, topic, index) is None
            ]
            if rows:
                self._groups.runtime.append(shard.term, name, rows, partial(_log_failed_tombstones, name))

    # -- expiry --

    async def _clean_up_all(self, shard: GroupShard) -> None:
        for group in list(shard.groups.values()):
            try:
                await self._clean_up(shard, group)
            except Exception:  # a defect triggered by one group must not stop the others
                logger.exception(
                    "group %.200r: unexpected error while removing expired offsets, retrying later", group.group_id
                )
            await trio.lowlevel.checkpoint()

    async def _clean_up(self, shard: GroupShard, group: Group) -> None:
        """Remove a group's expired offsets, and the group itself if it is empty and no offset is left.

        A share group has no offsets, and only administrators remove it.
        """
        name = group.group_id
        if shard.get(name) is not group or not self._groups.is_available(shard) or isinstance(group, ShareGroup):
            return
        retention_ms = self._groups.settings.offsets_retention_minutes * MS_PER_MINUTE
        expired = [
            entry
            for entry in shard.offsets.expired(group, self._groups.clock(), retention_ms)
            if not shard.pending.is_pending(name, *entry[:2])
        ]
        count = sum(1 for _ in shard.offsets.of(name))
        has_pending = group.has_pending_members or shard.pending.has_any(name)
        is_unused = group.is_empty and len(expired) == count and not has_pending
        if is_unused:
            self._groups.drop(shard, group)
        if expired or is_unused:
            error = await self._writer.remove(shard, name, expired, group=group if is_unused else None)
            if error is not ErrorCode.NONE:
                logger.warning(
                    "group %.200r: cannot store the removal of %d expired offsets, retrying later: %s",
                    name,
                    len(expired),
                    error.name,
                )
                if is_unused:
                    self._groups.restore(shard, group)

    def _topic_id(self, name: str) -> bytes:
        topic = self._partitions.topic(name)
        return NO_TOPIC_ID if topic is None else topic.id.bytes


def _id_of(requested: OffsetToCommit) -> bytes:
    """Return the topic id by which a request names a topic; nothing for one named by its name."""
    topic_id = requested.topic_id if isinstance(requested, IdentifiedOffset) else NO_TOPIC_ID
    return b"" if topic_id == NO_TOPIC_ID else topic_id


def _unknown(requested: OffsetToCommit) -> ErrorCode:
    """Return the error of an offset whose topic does not exist."""
    return ErrorCode.UNKNOWN_TOPIC_ID if _id_of(requested) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _valid(
    indexes: Sequence[int], offsets: Sequence[OffsetToCommit], errors: Sequence[ErrorCode]
) -> tuple[Sequence[int], Sequence[OffsetToCommit]]:
    """Return the indexes and offsets whose error is NONE."""
    if not any(errors):
        return indexes, offsets
    flags = [error is ErrorCode.NONE for error in errors]
    return list(compress(indexes, flags)), list(compress(offsets, flags))


def _has_offset(shard: GroupShard, name: str, topic: str, partition: int) -> bool:
    """Return whether an offset is committed, or may become so when an open transaction commits."""
    return shard.pending.is_pending(name, topic, partition) or shard.offsets.get(name, topic, partition) is not None


def _failure_of(writes: Iterable[tuple[Sequence[int], OffsetWrite]]) -> ErrorCode:
    """Return the error of a failed write: if it was to begin a transaction, later ones cannot continue it."""
    return next((write.value for _, write in writes if write.is_settled and write.value), ErrorCode.NONE)


def _log_failed_tombstones(name: str, error: ErrorCode, _: Iterable[int]) -> None:
    if error is not ErrorCode.NONE:
        logger.warning("group %.200r: cannot store the removal of its offsets of a deleted topic: %s", name, error.name)
