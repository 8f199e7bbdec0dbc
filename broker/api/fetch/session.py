"""A fetch session: the partitions that a client fetches, and which of them may have changed.

Every fetch belongs to a session. With an incremental session (KIP-227) a request has only changes of the partitions,
and the response only partitions that have changed:

    full fetch, epoch 0     -> `FetchSessions.register`: the session gets an id
    incremental, epoch n    -> `FetchSessions.find` and `update`: the request adds, changes and forgets partitions;
                               epoch n + 1 comes next
    full fetch, epoch -1    -> `FetchSessions.remove`

All other fetches name all of their partitions and get results for all of them. Each connection has a session of its own
for them (`ConnectionSessions`), invisible to the client, because most of these fetches repeat the previous one.

A partition is `pending` while it may have something to report: after the client has changed how it is requested, after
its log has reported a change (each entry is enlisted with its `Partition`), or when the last fetch did not return
everything. A fetch reads only pending partitions, so a thousand idle ones cost little. A partition that does not exist
stays pending until it is created.

Loops over all partitions of a request are generators that yield after every STEP partitions.

Invariants:
1. A partition that is not pending has nothing to read, no error, and no changes unknown to its client.
2. Pending partitions are in the order in which they are served next: those whose data was sent move to the end.

Source: kafka.server.FetchSession.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.broker.security.principal import ANONYMOUS
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME, TopicNames
from warmlog.protocol.kafka.messages.records.fetch import (
    CONSUMER,
    NO_SESSION,
    DivergedPartition,
    FetchingReplica,
    KafkaFetchPartition,
    RedirectedPartition,
)
from warmlog.protocol.request import FetchPartition
from warmlog.protocol.response import FetchedPartition

MAX_EPOCH = MAX_ID = (1 << 31) - 1
STEP = 256  # partitions read between two yields: about 1 ms
LONG_STEP: Final = 8192  # partitions iterated between two yields: about 0.5 ms
NOT_REPORTED: Final = -1  # an offset that the client does not know

Index: TypeAlias = int | tuple[int, int]  # a partition's index; for a repeated one also its position in the request
Finder: TypeAlias = Callable[[str, int], Partition | None]


_NONE: dict[Index, "SessionPartition"] = {}


class FetchSessionError(ProtocolError):
    """The session does not exist or expects another epoch. The client restarts with a full fetch."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SessionPartition:
    """One partition of a session: how it was last requested, its result, and the offsets that the client knows."""

    __slots__ = (
        "_is_committed",
        "_is_follower",
        "_log_start_offset",
        "_session",
        "high_watermark",
        "partition",
        "requested",
        "result",
        "turn",
    )

    def __init__(self, session: "FetchSession", requested: FetchPartition) -> None:
        self._session = session
        self.requested = requested
        self.result: FetchedPartition | None = None  # result of the latest read; dropped if it holds a file open
        self.turn = 0  # number of the latest full fetch with it
        self.partition: Partition | None = None  # the partition where this entry is enlisted
        self._is_committed = self._is_follower = False  # how it is enlisted
        self.high_watermark = self._log_start_offset = NOT_REPORTED

    def attach(self, partition: Partition | None) -> None:
        """Enlist with this partition only, for the records that the session reads."""
        is_committed, is_follower = self._session.is_committed, self._session.replica.broker >= 0
        if (
            partition is not self.partition
            or is_committed is not self._is_committed
            or is_follower is not self._is_follower
        ):
            if self.partition is not None:
                self.partition.dismiss(self)
            self.partition, self._is_committed, self._is_follower = partition, is_committed, is_follower
            if partition is not None:
                partition.enlist(self, committed=is_committed, to_log_end=is_follower)

    def grown(self, size: int) -> None:
        """Handle `size` more bytes that became readable."""
        session = self._session
        session.pending[self] = None
        if session.waiter is not None:
            session.waiter.grown(size)

    def moved(self) -> None:
        """Handle a change that does not end a fetch's wait."""
        self._session.pending[self] = None

    def wake(self) -> None:
        """Handle a change, and make the waiting fetch read again."""
        self._session.pending[self] = None
        self._session.wake()

    def is_news(self, result: FetchedPartition) -> bool:
        """Return whether to report this to the client: records, moved offsets, an error, a divergence, a redirect."""
        return (
            result.high_watermark != self.high_watermark
            or not _is_sound(result)
            or result.log_start_offset != self._log_start_offset
            or len(result.records) > 0
        )

    def take(self, result: FetchedPartition) -> bool:
        """Keep the result of a pass; return whether it has to be reported to the client."""
        self.result = result
        return self.is_news(result)

    def reported(self, result: FetchedPartition) -> None:
        """Record what the response reports. After an error, the next success is reported again."""
        self.high_watermark = result.high_watermark if _is_sound(result) else NOT_REPORTED
        self._log_start_offset = result.log_start_offset

    def is_watermark_urgent(self, result: FetchedPartition) -> bool:
        """Return whether a follower is sent a new high watermark immediately, because consumers read from followers."""
        replication = None if self.partition is None else self.partition.replication
        return (
            result.high_watermark != self.high_watermark
            and replication is not None
            and replication.has_follower_readers
        )

    @property
    def is_known(self) -> bool:
        """Whether the client knows the partition's current offsets."""
        if self.partition is None:
            return False
        log = self.partition.log
        return (
            log.offsets.high_watermark == self.high_watermark and log.offsets.log_start_offset == self._log_start_offset
        )


def _is_sound(result: FetchedPartition) -> bool:
    """Return whether a result is neither an error nor a diverged epoch nor a redirection."""
    kind = type(result)
    return result.error is ErrorCode.NONE and kind is not DivergedPartition and kind is not RedirectedPartition


class FetchSession:
    """The partitions that one client fetches. `id` is NO_SESSION unless it is a registered incremental session."""

    __slots__ = (
        "_count",
        "_kind",
        "_topics",
        "_turn",
        "connection",
        "created_at",
        "epoch",
        "evictable_key",
        "id",
        "is_committed",
        "order",
        "pending",
        "principal",
        "replica",
        "revision",
        "size",
        "used_at",
        "uses_topic_ids",
        "waiter",
    )

    def __init__(self, now: float = 0.0, *, uses_topic_ids: bool = False) -> None:
        self.id = NO_SESSION
        self.connection: Hashable | None = None  # the connection it belongs to, unless a client requested it
        self.epoch = 1  # the epoch expected of the next request
        self.uses_topic_ids = uses_topic_ids
        self.is_committed = False  # isolation level of the latest fetch
        self.replica = CONSUMER  # the sender of the latest fetch
        self.principal = ANONYMOUS  # the principal it belongs to
        self.revision = 0  # revision of the ACLs when every partition was last checked
        self.created_at = self.used_at = now
        self.evictable_key: tuple[int, int] | None = None  # key in the cache's index of evictable sessions
        self.size = 0  # partitions, as last counted by the cache
        self.pending: OrderedDict[SessionPartition, None] = OrderedDict()
        self.waiter: FetchWaiter | None = None  # callback of the waiting fetch
        self.order: list[SessionPartition] = []  # partitions in the order of the latest full fetch
        self._topics: dict[str | bytes, dict[Index, SessionPartition]] = {}
        self._count = 0
        self._turn = 0
        self._kind: Hashable = None

    def __len__(self) -> int:
        return self._count

    def follow(
        self, requested: Sequence[FetchPartition], *, kind: Hashable = None, merges: bool = True
    ) -> Iterator[None]:
        """Replace the session's partitions; those requested as before do not become pending.

        `kind` has the other parameters that results depend on. With `merges`, a repeated partition counts once, as
        named last (Kafka's rule); otherwise each occurrence counts.
        """
        self._turn += 1
        is_same_kind, self._kind = kind == self._kind, kind
        turn, uses_topic_ids, name, indexes = self._turn, self.uses_topic_ids, None, _NONE
        self.order = order = []
        changed: list[SessionPartition] = []  # they become pending in a separate step: a large mapping grows in 6 ms
        for number, partition in enumerate(requested, 1):
            topic = partition.topic_id if uses_topic_ids else partition.topic  # type: ignore[attr-defined]
            if topic is not name:
                name, indexes = topic, self._topics.get(topic, _NONE)
            index: Index = partition.partition
            entry = indexes.get(index)
            if entry is not None and entry.turn == turn and not merges:
                index = partition.partition, number
                entry = indexes.get(index)
            if entry is None or entry.requested != partition or not is_same_kind:
                entry = self._ask(topic, index, partition)
                changed.append(entry)
                indexes = self._topics[topic]
            if entry.turn != turn:
                entry.turn = turn
                order.append(entry)
            if number % STEP == 0:
                yield
                self._become_pending(changed)
                changed.clear()
                if number > LONG_STEP:
                    yield
        self._become_pending(changed)
        if len(order) > LONG_STEP:
            yield
        if len(order) < self._count:
            yield from self._forget_others()

    def _forget_others(self) -> Iterator[None]:
        """Remove partitions that the latest full fetch did not have."""
        there = [(topic, index) for topic, indexes in self._topics.items() for index in indexes]
        for number, (topic, index) in enumerate(there, 1):
            if self._topics[topic][index].turn != self._turn:
                self.forget(topic, index)
            if number % STEP == 0:
                yield

    def add(self, requested: KafkaFetchPartition) -> None:
        """Add a partition to the session, or update how it is requested."""
        topic = requested.topic_id if self.uses_topic_ids else requested.topic
        known = self._topics.get(topic, _NONE).get(requested.partition)
        if known is not None and requested.topic == UNKNOWN_TOPIC_NAME:  # deleted; keep its last known name
            requested = replace(requested, topic=known.requested.topic)
        self._become_pending([self._ask(topic, requested.partition, requested)])

    def _become_pending(self, changed: Iterable[SessionPartition]) -> None:
        for entry in changed:
            self.pending[entry] = None

    def _ask(self, topic: str | bytes, index: Index, requested: FetchPartition) -> SessionPartition:
        indexes = self._topics.setdefault(topic, {})
        entry = indexes.get(index)
        if entry is None:
            entry = indexes[index] = SessionPartition(self, requested)
            self._count += 1
        entry.requested = requested
        return entry

    def forget(self, topic: str | bytes, index: Index) -> None:
        """Remove a partition, if it is in the session."""
        indexes = self._topics.get(topic, _NONE)
        entry = indexes.pop(index, None)
        if entry is not None:
            self._count -= 1
            self.pending.pop(entry, None)
            entry.attach(None)
            if not indexes:
                del self._topics[topic]

    def change_reader(self, replica: FetchingReplica, *, is_committed: bool) -> Iterator[None]:
        """Read for a replica in another epoch, or at another isolation level; every partition becomes pending."""
        self.replica, self.is_committed = replica, is_committed
        entries = [entry for indexes in self._topics.values() for entry in indexes.values()]
        for number, entry in enumerate(entries, 1):
            self.pending[entry] = None
            if number % STEP == 0:
                yield

    def advance(self) -> int:
        """Begin the next request; return the epoch expected of the one after it.

        Wakes a fetch that is still waiting, which its client must have abandoned.
        """
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        self.wake()
        return self.epoch

    def wake(self) -> None:
        """Make the waiting fetch read again."""
        if self.waiter is not None:
            self.waiter.wake()

    def find(self, entry: SessionPartition, get: Finder, names: TopicNames) -> Partition | None:
        """Look up the current partition of an entry. A formerly unknown topic id may now have a name."""
        requested = entry.requested
        if (
            requested.topic == UNKNOWN_TOPIC_NAME
            and type(requested) is KafkaFetchPartition
            and requested.topic_id != NO_TOPIC_ID
        ):
            requested = entry.requested = replace(requested, topic=names(requested.topic_id) or UNKNOWN_TOPIC_NAME)
        partition = get(requested.topic, requested.partition)
        entry.attach(partition)
        return partition

    def close(self) -> Iterator[SessionPartition]:
        """Empty the session; return an iterator over its partitions, which must be detached as they are yielded."""
        closed = _drain(self._topics, self.order, self.pending)
        self._topics, self.order, self.pending = {}, [], OrderedDict()
        self._count = 0
        self.wake()
        return closed


def _drain(
    topics: dict[str | bytes, dict[Index, SessionPartition]],
    order: list[SessionPartition],
    pending: OrderedDict[SessionPartition, None],
) -> Iterator[SessionPartition]:
    """Yield the partitions of a session, removing each from all three collections."""
    while topics:
        _, indexes = topics.popitem()
        while indexes:
            _, entry = indexes.popitem()
            pending.pop(entry, None)
            if order:
                order.pop()
            yield entry
