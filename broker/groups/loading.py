"""Load a shard from the records of its log partition, without holding the event loop.

The records are removed from the replay on the way: freeing a million of them at once would hold it, too.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorShard (replay).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import trio

from warmlog.broker.coordinator_log.reading import PIECE, Damage
from warmlog.broker.coordinator_log.replay import Latest, Replay
from warmlog.broker.groups.pending_offsets import PendingOffset
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.state import Group
from warmlog.broker.groups.topic import TOPIC
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.group_records import (
    GroupKey,
    Key,
    OffsetAndMetadata,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)

K = TypeVar("K")
V = TypeVar("V")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Contents:
    """What was found besides offsets."""

    groups: dict[str, StoredGroup] = field(default_factory=dict)
    groups_with_offsets: dict[str, None] = field(default_factory=dict)
    unsupported: int = 0
    misplaced: int = 0


Obsolete: TypeAlias = dict[str, list[tuple[str, int]]]  # topics and partitions, by group


class ShardLoad:
    """Loads one shard."""

    def __init__(
        self,
        shard: GroupShard,
        partition_of: Callable[[str], int],
        restore: Callable[[str, StoredGroup], Group],
        restored: Callable[[Group], None],
        was_deleted: Callable[[bytes], bool],
    ) -> None:
        """`partition_of` returns the log partition of a name, `restore` a stored group.

        `restored` is called with each group, which is part of the shard then. `was_deleted` tells by its id whether a
        topic was deleted.
        """
        self.obsolete: Obsolete = {}  # offsets of deleted topics, which were not taken
        self._shard = shard
        self._index = shard.term.index
        self._partition_of = partition_of
        self._restore = restore
        self._restored = restored
        self._was_deleted = was_deleted
        self._contents = _Contents()
        self._undecoded: dict[bytes, tuple[str, Latest]] = {}  # records of groups, by key, and the groups' names
        self._damage = Damage(_is_readable)

    async def run(self, replay: Replay) -> None:
        """Take over the latest values of a partition. Raises OSError, LogError, ProtocolError, StorageError."""
        contents, shard = self._contents, self._shard
        shard.loaded_to = replay.end
        await self._take_all(replay)
        if len(self._damage):
            place = f"{TOPIC}-{self._index}"
            await self._take_all(await self._damage.replay_without(shard.term.partition, replay.end, place))
        self._report_ignored()
        for name, value in _taken(contents.groups):
            self._take_group(name, value)
            await trio.lowlevel.checkpoint()
        for number, (name, _) in enumerate(_taken(contents.groups_with_offsets)):
            if shard.get(name) is None:
                shard.create(name)
            if number % PIECE == 0:
                await trio.lowlevel.checkpoint()

    async def _take_all(self, replay: Replay) -> None:
        """Take the latest records, and those of open transactions."""
        for number, (data, latest) in enumerate(_taken(replay.latest)):
            self._take(data, latest)
            if number % PIECE == 0:
                await trio.lowlevel.checkpoint()
        for producer_id, pending in _taken(replay.open_transactions):
            for number, (data, latest) in enumerate(_taken(pending)):
                self._take_pending(producer_id, data, latest)
                if number % PIECE == 0:
                    await trio.lowlevel.checkpoint()
        for data, (name, latest) in _taken(self._undecoded):
            try:
                self._contents.groups[name] = decode_group(latest.value)
            except MalformedError as error:
                self._damage.note(data, latest.offset, error)
            await trio.lowlevel.checkpoint()

    def _take(self, data: bytes, latest: Latest) -> None:
        try:
            self._take_row(data, decode_key(data), latest)
        except MalformedError as error:
            self._damage.note(data, latest.offset, error)

    def _take_row(self, data: bytes, key: Key, latest: Latest) -> None:
        """Take the latest record of a key. Raises MalformedError."""
        contents = self._contents
        if not isinstance(key, OffsetKey | GroupKey):
            contents.unsupported += 1
        elif self._partition_of(key.group) != self._index:
            contents.misplaced += 1
        elif isinstance(key, OffsetKey):
            value = decode_offset(latest.value)
            if not self._is_obsolete(key, value):
                self._shard.offsets.put(*key, value, latest.offset)
                contents.groups_with_offsets[key.group] = None
        else:
            self._undecoded[data] = key.group, latest

    def _take_pending(self, producer_id: int, data: bytes, latest: Latest) -> None:
        """Take an offset of a transaction that is still open."""
        try:
            key = decode_key(data)
            if isinstance(key, OffsetKey) and self._partition_of(key.group) == self._index:
                value = decode_offset(latest.value)
                if not self._is_obsolete(key, value):
                    self._shard.put_pending(producer_id, PendingOffset(*key, value, latest.offset))
                    self._contents.groups_with_offsets[key.group] = None
        except MalformedError as error:
            self._damage.note(data, latest.offset, error)

    def _is_obsolete(self, key: OffsetKey, value: OffsetAndMetadata) -> bool:
        """Whether an offset belongs to a deleted topic: an earlier coordinator ended before it wrote the tombstone."""
        is_obsolete = self._was_deleted(value.topic_id)
        if is_obsolete:
            self.obsolete.setdefault(key.group, []).append((key.topic, key.partition))
        return is_obsolete

    def _take_group(self, name: str, stored: StoredGroup) -> None:
        """Serve a group as its record describes it; one that contradicts itself loses its members."""
        try:
            group = self._restore(name, stored)
        except MalformedError as error:
            logger.warning("group %.200r: dropped its members, its record is malformed: %s", name, error)
            return
        self._shard.groups[name] = group
        self._restored(group)

    def _report_ignored(self) -> None:
        contents = self._contents
        if contents.misplaced:
            logger.warning(
                "%s-%d: ignored %d records of groups that belong to another partition: they were written to a topic "
                "with another number of partitions (offsets.topic.num.partitions)",
                TOPIC,
                self._index,
                contents.misplaced,
            )
        if contents.unsupported:
            logger.info("%s-%d: ignored %d records of newer group protocols", TOPIC, self._index, contents.unsupported)


def _taken(items: dict[K, V]) -> Iterator[tuple[K, V]]:
    """Yield the items of a dictionary, and remove them."""
    while items:
        yield items.popitem()


def _is_readable(data: bytes, value: bytes) -> bool:
    try:
        key = decode_key(data)
        if isinstance(key, OffsetKey):
            decode_offset(value)
        elif isinstance(key, GroupKey):
            decode_group(value)
    except MalformedError:
        return False
    return True
