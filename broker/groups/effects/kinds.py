"""Carry out the effects of groups of one kind: write their records, run their assignor.

Work that grows with members and partitions is done in steps, between which other tasks run.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from warmlog.broker.coordinator.appends import Rows
from warmlog.broker.coordinator.runtime import CoordinatorRuntime, in_steps
from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.shard import GroupShard
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError

logger = logging.getLogger(__name__)

_DONE: Final = object()


class RecordedGroup(Protocol):
    """A group whose state is kept as one record per part."""

    group_id: str
    replaced: list[tuple[bytes, None]]

    def stored(self, ticket: int, error: ErrorCode, now: Instant) -> None:
        """Handle the outcome of a `StoreRows`."""

    def assigned(self, epoch: int, assignments: Mapping[str, Any] | None, now: Instant) -> Generator[None, None, None]:
        """Store the target assignment computed for an epoch; None if that failed."""


G = TypeVar("G", bound=RecordedGroup)
Computation = Generator[None, None, Mapping[str, Any]]


class KindEffects(Generic[G]):
    """The effects of all groups of one kind of a broker. Belongs to the event loop."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        encoded: Callable[[Iterable[Any]], Iterator[tuple[bytes, bytes | None]]],
        *,
        serving: Callable[[G], GroupShard | None],
        apply_effects: Callable[[G], None],
        now: Callable[[], Instant],
        limit_ms: int,
    ) -> None:
        """Append in the shards of the runtime. `encoded` encodes records, and raises MalformedError.

        `serving` returns the shard that serves a group, None if it is no longer served. `apply_effects` carries out the
        effects of an outcome. `limit_ms`: how long a write may take.
        """
        self._runtime = runtime
        self._encoded = encoded
        self._serving = serving
        self._apply_effects = apply_effects
        self._now = now
        self._limit_ms = limit_ms

    def store(self, group: G, store: StoreRows[Any, Any]) -> None:
        """Write records, after the tombstones of another kind of group that the group replaces."""
        shard = self._serving(group)
        if shard is None:
            return  # closed: its waiting clients were answered
        stored = partial(self._stored, shard, group, store.ticket)
        try:
            rows: Rows = [*group.replaced, *self._encoded(store.rows)]
        except MalformedError as error:
            logger.warning("group %.200r: cannot store what a member declares: %s", group.group_id, error)
            stored(ErrorCode.UNKNOWN_SERVER_ERROR, ())
            return
        self._runtime.append(shard.term, group.group_id, rows, stored, limit_ms=self._limit_ms)

    def _stored(self, shard: GroupShard, group: G, ticket: int, error: ErrorCode, _: Sequence[int]) -> None:
        if self._serving(group) is not shard:
            return  # deleted during the write, or the term has ended
        if error is ErrorCode.NONE:
            group.replaced = []
        group.stored(ticket, error, self._now())
        self._apply_effects(group)

    def assign(self, group: G, epoch: int, computation: Computation) -> None:
        """Compute a target assignment, and pass it to the group in pieces. Long computations run in the background."""
        steps = self._assigned(group, epoch, computation)
        if next(steps, _DONE) is not _DONE:
            self._runtime.spawn(partial(in_steps, steps))

    def _assigned(self, group: G, epoch: int, computation: Computation) -> Iterator[None]:
        assignments: Mapping[str, Any] | None = None
        try:
            assignments = yield from computation
        except Exception:  # a defect triggered by one group must not stop the others
            logger.exception("%s: unexpected error in its assignor; its members keep what they have", group)
        if self._serving(group) is None:
            return
        for _ in group.assigned(epoch, assignments, self._now()):
            self._apply_effects(group)
            yield
            if self._serving(group) is None:
                return
        self._apply_effects(group)
