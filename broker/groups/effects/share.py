"""Carry out the effects of share groups: write their records, run the assignor, initialize states of partitions."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import trio

from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.effects.kinds import KindEffects
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.share.assignor import assign_shared
from warmlog.broker.groups.share.effects import AssignShared, Initialize, Row, Store
from warmlog.broker.groups.share.partition_states import Numbers
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.share.persister import InitialState, Outcome, PartitionById, SharePersister
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.share_group_records import encode_share_key, encode_share_value

logger = logging.getLogger(__name__)

STATES_PER_STEP: Final = 500  # states built between two checkpoints: about 1 ms
MAX_LOGGED: Final = 3  # failed partitions logged per initialization
_UNANSWERED: Final = Outcome(ErrorCode.UNKNOWN_SERVER_ERROR, "the share coordinator did not answer for it")


class ShareEffects(KindEffects[ShareGroup]):
    """The effects of all share groups of a broker. Belongs to the event loop."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        persister: SharePersister,
        *,
        serving: Callable[[ShareGroup], GroupShard | None],
        apply_effects: Callable[[ShareGroup], None],
        now: Callable[[], Instant],
        limit_ms: int,
    ) -> None:
        """Append in the shards of the runtime, as `KindEffects` does. `persister` reaches the share coordinators."""
        super().__init__(runtime, encoded, serving=serving, apply_effects=apply_effects, now=now, limit_ms=limit_ms)
        self._persister = persister
        self._initializing: trio.Nursery | None = None

    async def run(self) -> None:
        """Initialize states until cancelled; the next coordinator repeats unfinished initializations."""
        async with trio.open_nursery() as nursery:
            self._initializing = nursery
            await trio.sleep_forever()

    def carry_out(self, group: ShareGroup, effect: Store | AssignShared | Initialize) -> None:
        """Carry out an effect, here or in the background."""
        if isinstance(effect, StoreRows):
            self.store(group, effect)
        elif isinstance(effect, AssignShared):
            self.assign(group, effect.epoch, assign_shared(effect.members, effect.partitions))
        elif self._initializing is not None:
            self._initializing.start_soon(self._initialize, group, effect)

    async def _initialize(self, group: ShareGroup, effect: Initialize) -> None:
        """Have the share coordinators create states, and report the topics that have all of them to the group."""
        states: list[InitialState] = []
        remaining = effect.states()
        while step := list(islice(remaining, STATES_PER_STEP)):
            states += step
            await trio.lowlevel.checkpoint()
        outcomes = await self._persister.initialize(group.group_id, states)
        done, failed = by_outcome(states, outcomes)
        if failed:
            errors = [outcome for outcome in outcomes.values() if outcome.error is not ErrorCode.NONE] or [_UNANSWERED]
            logger.warning(
                "%s: cannot create the state of its partitions in %d topics, retrying at its members' heartbeats: %s",
                group,
                len(failed),
                ", ".join(dict.fromkeys([each.message or each.error.name for each in errors[:MAX_LOGGED]])),
            )
        if self._serving(group) is not None:
            group.initialized(done, failed, self._now())
            self._apply_effects(group)


def by_outcome(states: Iterable[InitialState], outcomes: Mapping[PartitionById, Outcome]) -> tuple[Numbers, Numbers]:
    """Divide partitions into those of topics whose states were all created, and those of other topics."""
    partitions: dict[bytes, set[int]] = {}
    failed: set[bytes] = set()
    for state in states:
        partitions.setdefault(state.topic_id, set()).add(state.partition)
        if outcomes.get((state.topic_id, state.partition), _UNANSWERED).error is not ErrorCode.NONE:
            failed.add(state.topic_id)
    frozen = {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items()}
    return (
        {topic_id: numbers for topic_id, numbers in frozen.items() if topic_id not in failed},
        {topic_id: numbers for topic_id, numbers in frozen.items() if topic_id in failed},
    )


def encoded(rows: Iterable[Row]) -> Iterator[tuple[bytes, bytes | None]]:
    """Encode records. Raises MalformedError for text that is too long."""
    for key, value in rows:
        yield encode_share_key(key), None if value is None else encode_share_value(key, value)
