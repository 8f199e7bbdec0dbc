"""Restore groups from their records once the log partition is replayed."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.classic.effects import Limits
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.effects.consumer import ordered
from warmlog.broker.groups.effects.limits import GroupLimits
from warmlog.broker.groups.group import Group
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.groups.topic import ConsumerGroupRow, ShareGroupRow, StreamsGroupRow
from warmlog.broker.groups.topics import GroupTopics
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.consumer_group_records import EpochKey
from warmlog.protocol.kafka.group_records import StoredGroup
from warmlog.protocol.kafka.share_group_records import ShareEpochKey, SharePartitionsKey
from warmlog.protocol.kafka.streams_group_records import StreamsEpochKey

logger = logging.getLogger(__name__)

RESTORED_PER_STEP = 500  # records of a group between two checkpoints


class _Row(Protocol):
    @property
    def key(self) -> Any:
        """The key of the record."""

    @property
    def value(self) -> Any:
        """Its value."""


class Restorer:
    """Restores the groups of a log partition. Belongs to the event loop."""

    def __init__(
        self,
        limits: GroupLimits,
        classic_limits: Limits,
        topics: GroupTopics,
        *,
        apply_effects: Callable[[Group], None],
        forget: Callable[[Group], None],
        now: Callable[[], Instant],
    ) -> None:
        """`apply_effects` begins to serve a group, `forget` cancels the timer of a replaced group."""
        self._limits = limits
        self._classic_limits = classic_limits
        self._topics = topics
        self._apply_effects = apply_effects
        self._forget = forget
        self._now = now

    def restored(self, shard: GroupShard) -> Iterator[None]:
        """Restore all groups that have records of their own, in steps."""
        while shard.stored:
            self._restore_classic(shard, *shard.stored.popitem())
            yield
        while shard.rows:
            yield from self._restore_consumer(shard, *shard.rows.popitem())
        while shard.share_rows:
            yield from self._restore_share(shard, *shard.share_rows.popitem())
        while shard.streams_rows:
            yield from self._restore_streams(shard, *shard.streams_rows.popitem())

    def _restore_classic(self, shard: GroupShard, name: str, stored: StoredGroup) -> None:
        """Restore a group from its record; a contradictory record loses its members."""
        try:
            group = ClassicGroup.restore(name, stored, self._classic_limits, self._now())
        except MalformedError as error:
            logger.warning(
                "group %.200r: its stored record is malformed, so its members have to join again: %s", name, error
            )
            return
        shard.groups[name] = group
        self._apply_effects(group)

    def _restore_consumer(
        self, shard: GroupShard, name: str, rows: Sequence[tuple[int, ConsumerGroupRow]]
    ) -> Iterator[None]:
        if not any(isinstance(row.key, EpochKey) for _, row in rows):
            _log_left_behind(name, len(rows))
            return
        group = ConsumerGroup(name, self._limits.consumer(name), self._now())
        yield from self._restore(shard, group, ordered(rows))

    def _restore_share(self, shard: GroupShard, name: str, rows: Sequence[ShareGroupRow]) -> Iterator[None]:
        if not any(isinstance(row.key, ShareEpochKey | SharePartitionsKey) for row in rows) or name in shard.groups:
            _log_left_behind(name, len(rows))
            return
        yield from self._restore(shard, ShareGroup(name, self._limits.share(name), self._now()), rows)

    def _restore_streams(self, shard: GroupShard, name: str, rows: Sequence[StreamsGroupRow]) -> Iterator[None]:
        has_epoch = any(isinstance(row.key, StreamsEpochKey) for row in rows)
        former = shard.groups.get(name)
        if not has_epoch or (former is not None and not isinstance(former, ClassicGroup)):
            _log_left_behind(name, len(rows))
            return
        yield from self._restore(shard, StreamsGroup(name, self._limits.streams(name), self._now()), rows)

    def _restore(
        self, shard: GroupShard, group: ConsumerGroup | ShareGroup | StreamsGroup, rows: Iterable[_Row]
    ) -> Iterator[None]:
        """Restore a group from its records, in place of a classic group."""
        name = group.group_id
        former = shard.groups.get(name)
        if former is not None:
            self._forget(former)
            group.replaced = former.tombstones()
        for number, row in enumerate(rows, 1):
            group.apply(row.key, row.value)
            if number % RESTORED_PER_STEP == 0:
                yield
        group.loaded(self._topics, self._now())
        shard.groups[name] = group
        self._apply_effects(group)
        yield


def _log_left_behind(name: str, count: int) -> None:
    logger.warning("group %.200r: ignored %d records left over from its deletion", name, count)
