"""The coordinator for offsets: committed, deleted, forgotten in time.

Owns: what a commit needs before it is written, the tombstones, and the periodic look at what is over. Must not know:
wire formats, sockets; it is asked with values and answers with values.

Invariants:
1. A commit is answered when it is in the log (and synced, where `flush.messages` asks for that), and from then on held
   in memory.
2. A group that is deleted cannot be found while its tombstones are written; if they cannot be, it is back.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager, GroupCoordinatorShard.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Self

import trio

from broker.groups.group_log import TOPIC, Rows
from broker.groups.registry import Checkpoint, GroupRegistry
from broker.groups.state import Group
from broker.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.groups import GroupState, OffsetToCommit
from protocol.kafka.codec.bounds import NO_TOPIC_ID, MalformedError
from protocol.kafka.group_records import (
    NO_TIME,
    OffsetAndMetadata,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from protocol.records.record import MAX_INT64

logger = logging.getLogger(__name__)

MS_PER_MINUTE = 60_000
OFFSETS_A_STEP = 128  # written as a batch: about 2 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Who commits: a member of a generation, or somebody from outside (generation below 0, no ids)."""

    generation: int
    member_id: str
    instance_id: str | None


class OffsetCommits:
    """Requests about offsets. All methods belong to the loop; `run` is its task."""

    def __init__(self, groups: GroupRegistry, partitions: Partitions) -> None:
        """Over the groups and the topics that there are."""
        self._groups = groups
        self._partitions = partitions

    async def run(self) -> None:
        """Forget what is over, every so often, until cancelled."""
        while True:
            await trio.sleep(self._groups.settings.offsets_retention_check_interval_ms / 1000)
            for group in self._groups.all():
                try:
                    await self._clean_up(group)
                except Exception:  # a defect that one group brings out keeps no other from its turn
                    logger.exception("group %.200r: what is over could not be forgotten", group.group_id)
                await trio.lowlevel.checkpoint()

    # -- requests --

    async def commit(
        self,
        name: str,
        committer: Committer,
        offsets: Sequence[OffsetToCommit],
        *,
        retention_ms: int | None,
        checkpoint: Checkpoint = trio.lowlevel.checkpoint,
    ) -> list[ErrorCode]:
        """Commit offsets; returns what became of each when they are written.

        `retention_ms`: after how long they expire, None as the broker is set. Takes `offsets.commit.timeout.ms` at
        most, though what is begun is finished. Many offsets are written in several batches.
        """
        errors: list[ErrorCode] = []
        for asked in offsets:
            errors.append(self._check_offset(asked))
            await checkpoint()
        sound = []
        for index, found in enumerate(errors):
            if found is ErrorCode.NONE:
                sound.append(index)
            await checkpoint()
        writes: list[tuple[list[int], _Write]] = []
        for start in range(0, len(sound), OFFSETS_A_STEP):
            indexes = sound[start : start + OFFSETS_A_STEP]
            error = await self._check_commit(name, committer)
            if error is ErrorCode.NONE:
                writes.append((indexes, self._write_offsets(name, [offsets[index] for index in indexes], retention_ms)))
            else:
                for index in indexes:
                    errors[index] = error
            await checkpoint()
        with trio.move_on_after(self._groups.settings.offsets_commit_timeout_ms / 1000):
            for _, write in writes:
                await write.wait()
        for indexes, write in writes:
            for index in indexes:
                errors[index] = write.error
        return errors

    def _check_offset(self, asked: OffsetToCommit) -> ErrorCode:
        if not self._is_there(asked.topic, asked.partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_too_large = len(asked.metadata) > self._groups.settings.offset_metadata_max_bytes
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_large else ErrorCode.NONE

    def _is_there(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition, in service or not."""
        return self._partitions.get(topic, partition) is not None or self._partitions.is_offline(topic, partition)

    async def _check_commit(self, name: str, committer: Committer) -> ErrorCode:
        """NONE, and then there is the group: one that commits from outside needs none before."""
        error = self._groups.available(name) or await self._groups.log.ensure() or self._groups.available(name)
        if error is not ErrorCode.NONE:
            return error
        group = self._groups.get(name)
        if group is None:
            if committer.generation >= 0:
                return ErrorCode.GROUP_ID_NOT_FOUND
            group = self._groups.create(name)
        error = group.check_commit(committer.member_id, committer.instance_id, committer.generation, self._groups.now())
        self._groups.schedule(group)
        return error

    def _write_offsets(self, name: str, offsets: Sequence[OffsetToCommit], retention_ms: int | None) -> "_Write":
        """Append offsets; they are held in memory when they are written."""
        now_ms = self._groups.clock()
        expire_ms = NO_TIME if retention_ms is None else min(now_ms + retention_ms, MAX_INT64)
        entries = [(asked, self._committed(asked, now_ms, expire_ms)) for asked in offsets]

        def hold(record_offsets: Sequence[int]) -> None:
            if not self._groups.log.partition_count:  # the topic was deleted, with what was written just now
                return
            if self._groups.get(name) is None:  # deleted while this was written: it did not know of these offsets
                self._groups.create(name)
            for (asked, value), offset in zip(entries, record_offsets, strict=True):
                self._groups.offsets.put(name, asked.topic, asked.partition, value, offset)

        try:
            rows = [
                (encode_offset_key(name, asked.topic, asked.partition), encode_offset(value))
                for asked, value in entries
            ]
        except MalformedError:  # only the metadata can be longer than a record can say
            return _Write.refused(ErrorCode.OFFSET_METADATA_TOO_LARGE)
        return self._write(name, rows, hold)

    def check_delete_offsets(self, name: str) -> ErrorCode:
        """Whether offsets of a group may be deleted at all."""
        error = self._groups.available_to_members(name)
        group = self._groups.get(name)
        if error is not ErrorCode.NONE or group is None:
            return error or ErrorCode.GROUP_ID_NOT_FOUND
        is_free = group.state is GroupState.EMPTY or group.generation.is_consumer_group
        return ErrorCode.NONE if is_free else ErrorCode.NON_EMPTY_GROUP

    async def delete_offsets(
        self, name: str, partitions: Sequence[tuple[str, int]], checkpoint: Checkpoint = trio.lowlevel.checkpoint
    ) -> list[ErrorCode]:
        """Forget committed offsets, but not of topics that members subscribe to. After `check_delete_offsets`."""
        errors: list[ErrorCode] = []
        writes: list[tuple[int, _Write]] = []
        for start in range(0, len(partitions), OFFSETS_A_STEP):
            pairs = partitions[start : start + OFFSETS_A_STEP]
            checked = [self._check_delete(name, *pair) for pair in pairs]
            sound = [pair for pair, error in zip(pairs, checked, strict=True) if error is ErrorCode.NONE]
            doomed = [pair for pair in sound if self._groups.offsets.get(name, *pair) is not None]
            if doomed:
                writes.append((start, self._write_tombstones(name, doomed)))
            errors += checked
            await checkpoint()
        for start, write in writes:
            written = await write.wait()
            if written is not ErrorCode.NONE:
                stop = min(start + OFFSETS_A_STEP, len(errors))
                errors[start:stop] = [error or written for error in errors[start:stop]]
        return errors

    def _check_delete(self, name: str, topic: str, partition: int) -> ErrorCode:
        if not self._is_there(topic, partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        group = self._groups.get(name)
        is_subscribed = group is not None and group.generation.is_subscribed(topic)
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE

    async def delete(self, name: str, checkpoint: Checkpoint = trio.lowlevel.checkpoint) -> ErrorCode:
        """Delete a group without members, and its offsets."""
        error = self._groups.available(name)
        group = self._groups.get(name)
        if error is not ErrorCode.NONE or group is None:
            return error or ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._groups.drop(group)
        error = await self._forget(name, self._groups.offsets.of(name), checkpoint, with_group=True)
        if error is not ErrorCode.NONE:
            self._groups.restore(group)
        return error

    def topic_deleted(self, topic: str) -> None:
        """Nobody has committed anything for a topic that is gone; of the log itself: nobody has anything.

        A few tombstones are appended before this returns; the rest follow in the background.
        """
        if topic == TOPIC:
            self._groups.close_all()
            self._groups.offsets.clear()
            self._groups.log.forget()
            return
        steps = self._bury(topic, self._groups.offsets.remove_topic(topic))
        if next(steps, None) is not None:
            self._groups.log.spawn(partial(_take_steps, steps))

    def _bury(self, topic: str, removed: Mapping[str, Iterable[int]]) -> Iterator[bool]:
        """Append tombstones for what groups had committed for a topic; yields after each step."""
        for name, partitions in removed.items():
            indexes = list(partitions)
            for start in range(0, len(indexes), OFFSETS_A_STEP):
                rows: Rows = [
                    (encode_offset_key(name, topic, index), None)
                    for index in indexes[start : start + OFFSETS_A_STEP]
                    if self._groups.offsets.get(name, topic, index) is None  # else for a new topic of that name
                ]
                if rows:
                    self._groups.log.append(name, rows, partial(_tell_lost_tombstones, name))
                yield True

    async def _forget(
        self,
        name: str,
        held: Iterable[tuple[str, int, OffsetAndMetadata]],
        checkpoint: Checkpoint = trio.lowlevel.checkpoint,
        *,
        with_group: bool,
    ) -> ErrorCode:
        """Write that offsets, and the group with them, are gone, and forget them.

        An offset that is committed meanwhile stays, and so does a group that is there again.
        """
        writes = []
        left = iter(held)
        while step := list(islice(left, OFFSETS_A_STEP)):
            same = [
                (topic, partition)
                for topic, partition, value in step
                if self._groups.offsets.get(name, topic, partition) is value
            ]
            if same:
                writes.append(self._write_tombstones(name, same))
            await checkpoint()
        if with_group and self._groups.get(name) is None:
            writes.append(self._write(name, [(encode_group_key(name), None)], lambda _: None))
        outcomes = [await write.wait() for write in writes]
        return next((error for error in outcomes if error is not ErrorCode.NONE), ErrorCode.NONE)

    def _write_tombstones(self, name: str, partitions: Sequence[tuple[str, int]]) -> "_Write":
        """Write that offsets are gone, and then forget them."""
        rows: Rows = [(encode_offset_key(name, *pair), None) for pair in partitions]

        def forget(record_offsets: Sequence[int]) -> None:
            for (topic, partition), offset in zip(partitions, record_offsets, strict=True):
                self._groups.offsets.remove(name, topic, partition, offset)

        return self._write(name, rows, forget)

    def _write(self, name: str, rows: Rows, then: Callable[[Sequence[int]], None]) -> "_Write":
        """Append records, and do something with their offsets when they are written, whether anybody waits or not."""
        write = _Write()

        def settled(error: ErrorCode, record_offsets: Sequence[int]) -> None:
            if error is ErrorCode.NONE:
                then(record_offsets)
            write.settle(error)

        self._groups.log.append(name, rows, settled)
        return write

    # -- time --

    async def _clean_up(self, group: Group) -> None:
        name = group.group_id
        if self._groups.get(name) is not group or self._groups.available(name) is not ErrorCode.NONE:
            return
        retention_ms = self._groups.settings.offsets_retention_minutes * MS_PER_MINUTE
        expired = self._groups.offsets.expired(group, self._groups.clock(), retention_ms)
        held = sum(1 for _ in self._groups.offsets.of(name))
        is_over = group.state is GroupState.EMPTY and len(expired) == held and not group.pending_count
        if is_over:
            self._groups.drop(group)
        if expired or is_over:
            error = await self._forget(name, expired, trio.lowlevel.checkpoint, with_group=is_over)
            if error is not ErrorCode.NONE:
                logger.warning("group %.200r: expired offsets are not forgotten yet: %s", name, error.name)
                if is_over:
                    self._groups.restore(group)

    def _committed(self, asked: OffsetToCommit, now_ms: int, expire_ms: int) -> OffsetAndMetadata:
        topic = self._partitions.topic(asked.topic)
        return OffsetAndMetadata(
            offset=asked.offset,
            leader_epoch=asked.leader_epoch,
            metadata=asked.metadata,
            commit_ms=now_ms,
            expire_ms=expire_ms,
            topic_id=NO_TOPIC_ID if topic is None else topic.id.bytes,
        )


class _Write:
    """Records on their way into the log. `error` until they are written: COORDINATOR_NOT_AVAILABLE."""

    __slots__ = ("_done", "error")

    def __init__(self) -> None:
        self.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._done = trio.Event()

    @classmethod
    def refused(cls, error: ErrorCode) -> Self:
        """Return one that has failed."""
        write = cls()
        write.settle(error)
        return write

    def settle(self, error: ErrorCode) -> None:
        """Note the outcome."""
        self.error = error
        self._done.set()

    async def wait(self) -> ErrorCode:
        """Return the outcome when it is there."""
        if not self._done.is_set():
            await self._done.wait()
        return self.error


async def _take_steps(steps: Iterator[bool]) -> None:
    for _ in steps:
        await trio.lowlevel.checkpoint()


def _tell_lost_tombstones(name: str, error: ErrorCode, _: Iterable[int]) -> None:
    if error is not ErrorCode.NONE:
        logger.warning("group %.200r: offsets of a deleted topic are not forgotten: %s", name, error.name)
