"""Carry out the effects of consumer groups: write their records, run assignors, match regular expressions.

Work that grows with members, partitions or topics is done in steps, between which other tasks run.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Final, TypeVar

import trio

from warmlog.broker.coordinator.appends import Rows
from warmlog.broker.coordinator.runtime import CoordinatorRuntime, in_steps
from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.classic.generation import Generation
from warmlog.broker.groups.consumer.assignors import ASSIGNORS
from warmlog.broker.groups.consumer.effects import Assign, Resolve, Row, Store
from warmlog.broker.groups.consumer.regexes import matches
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.migration.live import Migrations
from warmlog.broker.groups.modern.assignment import Assignment
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.topic import ConsumerGroupRow
from warmlog.broker.groups.topics import GroupTopics
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.consumer_group_records import (
    CurrentKey,
    EpochKey,
    MemberKey,
    RegexKey,
    TargetEpochKey,
    TargetKey,
    encode_key,
    encode_value,
)
from warmlog.protocol.kafka.group_records import encode_group_key

logger = logging.getLogger(__name__)

_ORDER: Final = {
    kind: number for number, kind in enumerate((EpochKey, MemberKey, RegexKey, TargetEpochKey, TargetKey, CurrentKey))
}
_DONE: Final = object()

NAMES_PER_STEP = 500  # topics whose visibility is checked between two checkpoints
TURN_S = 0.05

R = TypeVar("R")


class ConsumerEffects:
    """The effects of all consumer groups of a broker. Belongs to the event loop."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        topics: GroupTopics,
        *,
        serving: Callable[[ConsumerGroup], GroupShard | None],
        apply_effects: Callable[[ConsumerGroup], None],
        migrations: Migrations,
        now: Callable[[], Instant],
        limit_ms: int,
    ) -> None:
        """Use these topics, and append in the shards of the runtime.

        `serving` returns the shard that serves a group, None if it is no longer served. `apply_effects` carries out the
        effects of an outcome. `limit_ms`: how long a write may take.
        """
        self._runtime = runtime
        self._topics = topics
        self._serving = serving
        self._apply_effects = apply_effects
        self._migrations = migrations
        self._now = now
        self._limit_ms = limit_ms
        self._workers = trio.CapacityLimiter(1)

    def carry_out(self, group: ConsumerGroup, effect: Store | Assign | Resolve) -> None:
        """Carry out an effect, here or in the background."""
        if isinstance(effect, StoreRows):
            self._store(group, effect)
            return
        if isinstance(effect, Resolve):
            self._runtime.spawn(partial(self._resolve, group, effect))
            return
        steps = self._assign(group, effect)
        if next(steps, _DONE) is not _DONE:
            self._runtime.spawn(partial(in_steps, steps))

    def _store(self, group: ConsumerGroup, store: Store) -> None:
        shard = self._serving(group)
        if shard is None:
            return  # closed: its waiting clients were answered
        generation = self._migrations.generation(store)
        stored = partial(self._stored, shard, group, store, generation)
        try:
            rows: Rows = [*group.replaced, *encoded(store.rows), *self._migrations.rows(group, generation)]
        except MalformedError as error:
            logger.warning("group %.200r: cannot store what a member declares: %s", group.group_id, error)
            stored(ErrorCode.UNKNOWN_SERVER_ERROR, ())
            return
        self._runtime.append(shard.term, group.group_id, rows, stored, limit_ms=self._limit_ms)

    def _stored(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        store: Store,
        generation: Generation | None,
        error: ErrorCode,
        _: Sequence[int],
    ) -> None:
        if self._serving(group) is not shard:
            self._migrations.forget(group)
            return  # deleted or replaced during the write, or the term has ended
        if error is ErrorCode.NONE:
            group.replaced = []
        elif store.successor is not None:
            group.replaced = [*group.replaced, (encode_group_key(group.group_id), None)]
        group.stored(store.ticket, error, self._now())
        self._migrations.stored(shard, group, store, generation, error)
        self._apply_effects(group)

    def _assign(self, group: ConsumerGroup, effect: Assign) -> Iterator[None]:
        """Compute a target assignment, and pass it to the group in pieces."""
        assignments: dict[str, Assignment] | None = None
        try:
            assignments = yield from ASSIGNORS[effect.assignor](effect.members, effect.topics)
        except Exception:  # a defect triggered by one group must not stop the others
            logger.exception(
                "%s: unexpected error in assignor %s; its members keep what they have", group, effect.assignor
            )
        if self._serving(group) is None:
            return
        for _ in group.assigned(effect.epoch, assignments, self._now()):
            self._apply_effects(group)
            yield
            if self._serving(group) is None:
                return
        self._apply_effects(group)

    async def _resolve(self, group: ConsumerGroup, effect: Resolve) -> None:
        """Match the names of all topics that the members may see with regular expressions, in a worker.

        Clients choose the expressions and their number, and so the time of matching: groups take turns of `TURN_S`, and
        a stopping broker waits for one turn at most. RE2 releases the GIL.
        """
        version, names = self._topics.version, await self._visible(group.sees)
        results: dict[str, tuple[str, ...]] = {}
        try:
            steps, matched = matches(effect.regexes, names), None
            while matched is None and not self._runtime.is_stopped:
                matched = await trio.to_thread.run_sync(_take_turn, steps, limiter=self._workers)
            results = matched or {}
        except Exception:  # as above
            logger.exception("%s: unexpected error while its regular expressions were matched", group)
        if self._serving(group) is not None:
            group.resolved(results, version, self._now())
            self._apply_effects(group)

    async def _visible(self, is_visible: Callable[[str], bool] | None) -> list[str]:
        names = self._topics.names()
        if is_visible is None:
            return names
        visible: list[str] = []
        for start in range(0, len(names), NAMES_PER_STEP):
            visible += filter(is_visible, names[start : start + NAMES_PER_STEP])
            await trio.lowlevel.checkpoint()
        return visible


def ordered(rows: Iterable[tuple[int, ConsumerGroupRow]]) -> list[ConsumerGroupRow]:
    """Return the records of a group, given with their offsets, in the order in which it applies them.

    Unusable records are omitted. Members keep the order of their records.
    """
    used = [(_ORDER[type(row.key)], offset, row) for offset, row in rows if type(row.key) in _ORDER]
    return [row for _, _, row in sorted(used, key=itemgetter(0, 1))]


def _take_turn(steps: Generator[None, None, R]) -> R | None:
    """Take steps for `TURN_S`; return the result, or None if there are more."""
    end = perf_counter() + TURN_S
    while perf_counter() < end:
        try:
            next(steps)
        except StopIteration as stop:
            result: R = stop.value
            return result
    return None


def encoded(rows: Iterable[Row]) -> Iterator[tuple[bytes, bytes | None]]:
    """Encode records. Raises MalformedError for text that is too long."""
    for key, value in rows:
        yield encode_key(key), None if value is None else encode_value(value)
