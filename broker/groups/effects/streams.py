"""Carry out the effects of streams groups: write their records, assign tasks."""

from collections.abc import Callable, Iterable, Iterator

from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.effects.kinds import KindEffects
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.streams.assignor.sticky import assign_tasks
from warmlog.broker.groups.streams.effects import AssignTasks, Row, Store
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.protocol.kafka.streams_group_records import encode_streams_key, encode_streams_value


class StreamsEffects(KindEffects[StreamsGroup]):
    """The effects of all streams groups of a broker. Belongs to the event loop."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        *,
        serving: Callable[[StreamsGroup], GroupShard | None],
        apply_effects: Callable[[StreamsGroup], None],
        now: Callable[[], Instant],
        limit_ms: int,
    ) -> None:
        """Append in the shards of the runtime, as `KindEffects` does."""
        super().__init__(runtime, encoded, serving=serving, apply_effects=apply_effects, now=now, limit_ms=limit_ms)

    def carry_out(self, group: StreamsGroup, effect: Store | AssignTasks) -> None:
        """Carry out an effect, here or in the background."""
        if isinstance(effect, StoreRows):
            self.store(group, effect)
        else:
            steps = assign_tasks(effect.members, effect.subtopologies, effect.standby_replicas)
            self.assign(group, effect.epoch, steps)


def encoded(rows: Iterable[Row]) -> Iterator[tuple[bytes, bytes | None]]:
    """Encode records. Raises MalformedError for text that is too long."""
    for key, value in rows:
        yield encode_streams_key(key), None if value is None else encode_streams_value(key, value)
