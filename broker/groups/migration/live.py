"""Replace served groups by groups of the other kind.

Invariants:
1. After each append the log has records of one kind: those of a conversion are written together with the tombstones of
   the former kind.
2. A conversion that cannot be stored is undone: the former group is served again.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from warmlog.broker.coordinator.appends import Rows
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.classic.effects import Limits
from warmlog.broker.groups.classic.generation import Generation
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.effects import Store
from warmlog.broker.groups.consumer.limits import ConsumerLimits
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.group import Group
from warmlog.broker.groups.migration import upgrading
from warmlog.broker.groups.migration.downgrading import generation_of
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.shard import GroupShard
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.consumer_group_records import encode_key
from warmlog.protocol.kafka.group_records import encode_group, encode_group_key

logger = logging.getLogger(__name__)


class Migrations:
    """The conversions of a broker's groups. Belongs to the event loop."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        topics: Topics,
        limits: Limits,
        *,
        replace: Callable[[GroupShard, Group, Group], None],
        apply_effects: Callable[[Group], None],
        now: Callable[[], Instant],
        limit_ms: int,
    ) -> None:
        """Convert groups that use these topics. `limits`: those of classic groups.

        `replace` serves a group in place of another one. `limit_ms`: how long a write may take.
        """
        self._runtime = runtime
        self._topics = topics
        self._limits = limits
        self._replace = replace
        self._apply_effects = apply_effects
        self._now = now
        self._limit_ms = limit_ms
        self._upgrading: dict[ConsumerGroup, ClassicGroup] = {}  # until the first record is stored

    # -- classic to consumer --

    def upgraded(self, group: ClassicGroup, limits: ConsumerLimits, *, may_upgrade: bool) -> ConsumerGroup:
        """Return a consumer group with a classic group's members, not served yet. Raises RefusedError."""
        upgrading.check(group, may_upgrade=may_upgrade, max_size=limits.max_size)
        members, now = upgrading.members_of(group, self._topics), self._now()
        upgraded = ConsumerGroup(group.group_id, limits, now)
        upgraded.upgrade(group.generation.number, members, self._topics, now)
        for member in group.members:
            upgraded.set_holder(member.member_id, member.holder)
        return upgraded

    def begin(self, shard: GroupShard, former: ClassicGroup, group: ConsumerGroup) -> None:
        """Serve an upgraded group, after a heartbeat was accepted and before its records are written."""
        former.interrupt(ErrorCode.REBALANCE_IN_PROGRESS, self._now())
        self._apply_effects(former)
        group.replaced = [*former.replaced, *former.tombstones()]
        self._upgrading[group] = former
        self._replace(shard, former, group)
        logger.info("group %.200r: becomes a consumer group", group.group_id)

    def _undo(self, shard: GroupShard, group: ConsumerGroup, former: ClassicGroup) -> None:
        """Serve the classic group again. Records of the other one are deleted with its next record."""
        suspects = group.abandon()
        former.replaced = [*former.replaced, *[(encode_key(key), None) for key in suspects]]
        self._replace(shard, group, former)
        logger.warning("group %.200r: stays a classic group: its conversion cannot be stored", group.group_id)
        if suspects and former.generation.number:
            rows: Rows = [*former.replaced, self._row(former.group_id, former.generation, former.state_since_ms)]
            stored = partial(self._corrected, former, former.replaced)
            self._runtime.append(shard.term, group.group_id, rows, stored, limit_ms=self._limit_ms)

    def _corrected(
        self, group: ClassicGroup, replaced: list[tuple[bytes, None]], error: ErrorCode, _: Sequence[int]
    ) -> None:
        if error is ErrorCode.NONE and group.replaced is replaced:
            group.replaced = []

    # -- consumer to classic --

    def generation(self, store: Store) -> Generation | None:
        """Return the generation of the classic group that a store leads to, if any."""
        return None if store.successor is None else generation_of(store.successor, self._topics)

    def rows(self, group: ConsumerGroup, generation: Generation | None) -> Rows:
        """Return the record of the classic group that replaces a group."""
        return [] if generation is None else [self._row(group.group_id, generation, self._now().wall_ms)]

    def _row(self, name: str, generation: Generation, since_ms: int) -> tuple[bytes, bytes]:
        assignments = {member.member_id: member.assignment for member in generation.members}
        return encode_group_key(name), encode_group(generation.snapshot(assignments, since_ms))

    # -- outcomes --

    def stored(
        self, shard: GroupShard, group: ConsumerGroup, store: Store, generation: Generation | None, error: ErrorCode
    ) -> None:
        """Complete or undo a conversion, once the outcome of a store is known to the group."""
        former = self._upgrading.pop(group, None)
        if error is not ErrorCode.NONE:
            if former is not None and not group.is_stored:
                self._undo(shard, group, former)
        elif store.successor is not None and generation is not None:
            self._serve_classic(shard, group, generation, rebalances=store.successor.rebalances)

    def forget(self, group: ConsumerGroup) -> None:
        """Drop the conversion of a group that is no longer served."""
        self._upgrading.pop(group, None)

    def _serve_classic(
        self, shard: GroupShard, former: ConsumerGroup, generation: Generation, *, rebalances: bool
    ) -> None:
        now = self._now()
        former.close(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, now)
        group = ClassicGroup.resume(former.group_id, generation, self._limits, now, rebalances=rebalances)
        self._replace(shard, former, group)
        logger.info("group %.200r: has become a classic group", group.group_id)
