"""Fetch sessions: the partitions that a client fetches, and which of them may have something new.

Every fetch is one of a session. A client may have the broker keep a session (KIP-227); then it names only changes, and
is answered only with changes:

    full fetch, epoch 0     -> `register`: the session gets an id
    incremental, epoch n    -> `find` and `update`: the session's partitions, but for what the request adds, changes and
                               forgets; epoch n + 1 comes next
    full fetch, epoch -1    -> `remove`

All other fetches name all partitions and are answered with all. For these each connection has a session of its own
(`ConnectionSessions`), which the client does not know of: most of such a fetch repeats the one before.

A partition of a session is `pending` while it may have something new: since it was asked for differently, since its log
reported a change (each is enlisted with its `Partition`), or since the last look left something over. A fetch looks at
these only, so a thousand quiet partitions cost little. A partition that does not exist stays pending until it does.

Loops over all partitions of a request are generators that yield after every STEP partitions.

Invariants:
1. At most as many kept sessions as there are slots, and MAX_PARTITIONS partitions in all of them. A client that finds
   no room is served without a kept session (id 0).
2. A kept session gives way to a new one if it was not used for two minutes, or if it is older than that and has fewer
   partitions than the new one. Connections do not matter: a client may come back by another one.
3. A partition that is not pending has nothing to read, no error, and nothing that its client does not know.
4. Pending partitions are in the order of their turn: those that had data sent go to the end.
5. The sessions of connections hold MAX_PARTITIONS_OF_CONNECTIONS partitions in all, and give way to others when they
   were not used for the longest time. Nothing of a client's answers depends on it.

Source: kafka.server.FetchSession. Followers do not fetch here, so nothing is privileged.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from random import Random
from typing import TypeAlias

from msgspec.structs import replace
from sortedcontainers import SortedSet

from broker.partitions.partition import Partition
from broker.partitions.waiters import FetchWaiter
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.codec.bounds import NO_TOPIC_ID
from protocol.kafka.values import (
    NO_SESSION,
    UNKNOWN_TOPIC_NAME,
    DivergedPartition,
    ForgottenPartitions,
    KafkaFetchPartition,
    TopicNames,
)
from protocol.request import FetchPartition
from protocol.response import FetchedPartition

EVICTION_S = 120.0  # Kafka's min.incremental.fetch.session.eviction.ms
MAX_PARTITIONS = 200_000  # of all sessions: about 90 MB. Kafka bounds the sessions only, and each may have any number
MAX_EPOCH = MAX_ID = (1 << 31) - 1
# Of the sessions of all connections: about 45 MB; and of one, above which its partitions are looked up each time.
MAX_PARTITIONS_OF_CONNECTIONS = 100_000
MAX_PARTITIONS_OF_CONNECTION = 20_000
STEP = 256  # partitions between two yields: about 1 ms where each has to be read
LONG_STEP = 8192  # that are only gone through: about 0.5 ms
NOT_TOLD = -1  # for an offset

Index: TypeAlias = int | tuple[int, int]  # a partition; of one that is named again, and its place in the request
Finder: TypeAlias = Callable[[str, int], Partition | None]


_NONE: dict[Index, "SessionPartition"] = {}


class FetchSessionError(ProtocolError):
    """A fetch in a session that is not there, or not in that state. The client begins anew with a full fetch."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SessionPartition:
    """One partition of a session: how it was last asked for, its answer, and what its client knows."""

    __slots__ = (
        "_is_committed",
        "_log_start_offset",
        "_session",
        "asked",
        "found",
        "high_watermark",
        "partition",
        "turn",
    )

    def __init__(self, session: "FetchSession", asked: FetchPartition) -> None:
        self._session = session
        self.asked = asked
        self.found: FetchedPartition | None = None  # by the latest look; not kept where it holds a file open
        self.turn = 0  # of the session's latest full fetch that named it
        self.partition: Partition | None = None  # where it is enlisted
        self._is_committed = False  # and at which isolation level
        self.high_watermark = self._log_start_offset = NOT_TOLD

    def attach(self, partition: Partition | None) -> None:
        """Be told when this partition grows for readers at the session's isolation level, and no other."""
        is_committed = self._session.is_committed
        if partition is not self.partition or is_committed is not self._is_committed:
            if self.partition is not None:
                self.partition.dismiss(self)
            self.partition, self._is_committed = partition, is_committed
            if partition is not None:
                partition.enlist(self, committed=is_committed)

    def grown(self, size: int) -> None:
        """So many bytes became readable."""
        session = self._session
        session.pending[self] = None
        if session.waiter is not None:
            session.waiter.grown(size)

    def moved(self) -> None:
        """Note a change that no fetch waits for."""
        self._session.pending[self] = None

    def wake(self) -> None:
        """Have the waiting fetch look again."""
        self._session.pending[self] = None
        self._session.wake()

    def is_news(self, found: FetchedPartition) -> bool:
        """Whether the client must be told: there are records, an error, other epochs, or offsets have moved."""
        return (
            found.high_watermark != self.high_watermark
            or not _is_sound(found)
            or found.log_start_offset != self._log_start_offset
            or len(found.records) > 0
        )

    def take(self, found: FetchedPartition) -> bool:
        """Take the answer of a look; returns whether it is news to the client."""
        self.found = found
        return self.is_news(found)

    def told(self, found: FetchedPartition) -> None:
        """Take it that the client knows this. After an error it is told again that all is well."""
        self.high_watermark = found.high_watermark if _is_sound(found) else NOT_TOLD
        self._log_start_offset = found.log_start_offset

    @property
    def is_known(self) -> bool:
        """Whether the client knows all that there is to know of the partition."""
        if self.partition is None:
            return False
        log = self.partition.log
        return log.high_watermark == self.high_watermark and log.log_start_offset == self._log_start_offset


def _is_sound(found: FetchedPartition) -> bool:
    return found.error is ErrorCode.NONE and type(found) is not DivergedPartition


class FetchSession:
    """The partitions that one client fetches. `id` is NO_SESSION unless it is kept for its client."""

    __slots__ = (
        "_count",
        "_kind",
        "_topics",
        "_turn",
        "created_at",
        "epoch",
        "evictable_key",
        "id",
        "is_committed",
        "order",
        "pending",
        "size",
        "used_at",
        "uses_topic_ids",
        "waiter",
    )

    def __init__(self, now: float = 0.0, *, uses_topic_ids: bool = False) -> None:
        self.id = NO_SESSION
        self.epoch = 1  # of the next request
        self.uses_topic_ids = uses_topic_ids
        self.is_committed = False  # whether the latest fetch was for committed records only
        self.created_at = self.used_at = now
        self.evictable_key: tuple[int, int] | None = None  # where the cache has it
        self.size = 0  # as the cache last counted it
        self.pending: OrderedDict[SessionPartition, None] = OrderedDict()
        self.waiter: FetchWaiter | None = None  # of the fetch that waits
        self.order: list[SessionPartition] = []  # of the latest full fetch
        self._topics: dict[str | bytes, dict[Index, SessionPartition]] = {}
        self._count = 0
        self._turn = 0
        self._kind: Hashable = None

    def __len__(self) -> int:
        return self._count

    def follow(self, asked: Sequence[FetchPartition], *, kind: Hashable = None, merges: bool = True) -> Iterator[None]:
        """Make these all of the session's partitions. What is asked as before is not looked at again.

        `kind`: what else the answers depend on. `merges`: a partition that is named twice counts once, as it was named
        last (Kafka's rule); else both count.
        """
        self._turn += 1
        is_same_kind, self._kind = kind == self._kind, kind
        turn, uses_topic_ids, name, indexes = self._turn, self.uses_topic_ids, None, _NONE
        self.order = order = []
        for number, one in enumerate(asked, 1):
            topic = one.topic_id if uses_topic_ids else one.topic  # type: ignore[attr-defined]
            if topic is not name:
                name, indexes = topic, self._topics.get(topic, _NONE)
            index: Index = one.partition
            entry = indexes.get(index)
            if entry is not None and entry.turn == turn and not merges:
                index = one.partition, number
                entry = indexes.get(index)
            if entry is None or entry.asked != one or not is_same_kind:
                entry = self._ask(topic, index, one)
                indexes = self._topics[topic]
            if entry.turn != turn:
                entry.turn = turn
                order.append(entry)
            if number % STEP == 0:
                yield
        if len(order) < self._count:
            yield from self._forget_others()

    def _forget_others(self) -> Iterator[None]:
        """Remove what the latest full fetch did not name."""
        there = [(topic, index) for topic, indexes in self._topics.items() for index in indexes]
        for number, (topic, index) in enumerate(there, 1):
            if self._topics[topic][index].turn != self._turn:
                self.forget(topic, index)
            if number % STEP == 0:
                yield

    def add(self, asked: KafkaFetchPartition) -> None:
        """Add a partition to the session, or replace how it is asked for."""
        topic = asked.topic_id if self.uses_topic_ids else asked.topic
        known = self._topics.get(topic, _NONE).get(asked.partition)
        if known is not None and asked.topic == UNKNOWN_TOPIC_NAME:  # it was deleted; it keeps the name it had
            asked = replace(asked, topic=known.asked.topic)
        self._ask(topic, asked.partition, asked)

    def _ask(self, topic: str | bytes, index: Index, asked: FetchPartition) -> SessionPartition:
        indexes = self._topics.setdefault(topic, {})
        entry = indexes.get(index)
        if entry is None:
            entry = indexes[index] = SessionPartition(self, asked)
            self._count += 1
        entry.asked = asked
        self.pending[entry] = None
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

    def change_isolation(self) -> Iterator[None]:
        """Switch between committed records and all records; each partition is looked at again."""
        self.is_committed = not self.is_committed
        entries = [entry for indexes in self._topics.values() for entry in indexes.values()]
        for number, entry in enumerate(entries, 1):
            self.pending[entry] = None
            if number % STEP == 0:
                yield

    def advance(self) -> int:
        """Begin the next request; gives the epoch of the one after it.

        One that still waits (its client gave it up) ends.
        """
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        self.wake()
        return self.epoch

    def wake(self) -> None:
        """Have the waiting fetch look again."""
        if self.waiter is not None:
            self.waiter.wake()

    def find(self, entry: SessionPartition, get: Finder, names: TopicNames) -> Partition | None:
        """Find the partition of an entry as things are now. A topic id that had no name may have one by now."""
        asked = entry.asked
        if asked.topic == UNKNOWN_TOPIC_NAME and type(asked) is KafkaFetchPartition and asked.topic_id != NO_TOPIC_ID:
            asked = entry.asked = replace(asked, topic=names(asked.topic_id) or UNKNOWN_TOPIC_NAME)
        partition = get(asked.topic, asked.partition)
        entry.attach(partition)
        return partition

    def close(self) -> Iterator[SessionPartition]:
        """Empty the session; returns its partitions, which must be detached. Each is freed as it is taken."""
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
    """Yield all partitions of a session, and remove each from wherever it is."""
    while topics:
        _, indexes = topics.popitem()
        while indexes:
            _, entry = indexes.popitem()
            pending.pop(entry, None)
            if order:
                order.pop()
            yield entry


class ClosedPartitions:
    """Partitions of closed sessions, which are detached from their logs a few at a time.

    Whoever adds partitions to sessions calls `detach` at each step, so that these cannot become many.
    """

    def __init__(self) -> None:
        self._left: deque[Iterator[SessionPartition]] = deque()  # of each session
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, session: FetchSession) -> None:
        """Close a session."""
        self._count += len(session)
        self._left.append(session.close())
        self.detach()

    def detach(self) -> None:
        """Detach up to STEP partitions."""
        for _ in range(STEP):
            if not self._left:
                return
            entry = next(self._left[0], None)
            if entry is None:
                self._left.popleft()
            else:
                entry.attach(None)
                self._count -= 1


class ConnectionSessions:
    """The sessions of connections whose fetches name all partitions, by a key of the connection.

    A fetch takes its connection's session out and puts it back when it is answered.
    """

    def __init__(self, closed: ClosedPartitions) -> None:
        self._closed = closed
        self._sessions: OrderedDict[Hashable, FetchSession] = OrderedDict()  # the longest unused first
        self.partition_count = 0  # of those that are not taken out

    def take(self, connection: Hashable) -> FetchSession:
        """Return the session of a connection, or a new one."""
        session = self._sessions.pop(connection, None)
        if session is None:
            return FetchSession()
        self.partition_count -= session.size
        return session

    def put(self, connection: Hashable, session: FetchSession) -> None:
        """Keep a session for the connection's next fetch, if there is room; others give way to it."""
        session.size = len(session)
        if not 0 < session.size <= MAX_PARTITIONS_OF_CONNECTION:
            self._closed.add(session)
            return
        self._sessions[connection] = session
        self.partition_count += session.size
        while self.partition_count > MAX_PARTITIONS_OF_CONNECTIONS:
            self.forget(next(iter(self._sessions)))

    def forget(self, connection: Hashable) -> None:
        """Close the session of a connection that has gone."""
        session = self._sessions.pop(connection, None)
        if session is not None:
            self.partition_count -= session.size
            self._closed.add(session)


class FetchSessions:
    """The sessions that are kept for clients."""

    def __init__(
        self, *, slots: int, clock: Callable[[], float], random: Random, closed: ClosedPartitions | None = None
    ) -> None:
        """`slots`: max.incremental.fetch.session.cache.slots. `clock` gives seconds, of any origin."""
        self.closed = ClosedPartitions() if closed is None else closed
        self._slots = slots
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the one not used for the longest time first
        self._evictable: SortedSet[tuple[int, int]] = SortedSet()  # (partitions, id) of those older than EVICTION_S
        self.partition_count = 0
        self.evicted = 0  # since the start

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int, epoch: int, *, uses_topic_ids: bool) -> FetchSession:
        """The session that a request of this epoch belongs to. Raises FetchSessionError."""
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise FetchSessionError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id} expects epoch {session.epoch}, not {epoch}",
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {session_id} names topics {'by id' if session.uses_topic_ids else 'by name'}",
            )
        return session

    def update(
        self,
        session: FetchSession,
        asked: Iterable[KafkaFetchPartition],
        forgotten: Iterable[ForgottenPartitions],
    ) -> Iterator[None]:
        """Take what a request says into its session, which is in use now.

        A session that is left without partitions ends. So does one that would grow past the bound of all: raises
        FetchSessionError.
        """
        for number, partition in enumerate(asked, 1):
            session.add(partition)
            if number % STEP == 0:
                yield
        for number, (topic, index) in enumerate(_each(forgotten), 1):
            session.forget(topic.topic_id if session.uses_topic_ids else topic.topic, index)
            if number % STEP == 0:
                yield
        if session.id not in self._sessions:  # evicted meanwhile
            raise FetchSessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session.id}")
        self._touch(session)
        if self.partition_count > MAX_PARTITIONS:
            self.remove(session.id)
            raise FetchSessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions in fetch sessions")
        if not session:
            self.remove(session.id)
            session.id = NO_SESSION

    def register(self, session: FetchSession) -> bool:
        """Give a new session its id and keep it, if there is room."""
        if not self._has_room_for(len(session)):
            return False
        session.id = self._new_id()
        session.created_at = self._clock()
        self._sessions[session.id] = session
        self._touch(session)
        return True

    def remove(self, session_id: int) -> None:
        """End a session, if it is there."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._evictable.discard(session.evictable_key)
            self.partition_count -= session.size
            self.closed.add(session)

    def _touch(self, session: FetchSession) -> None:
        """A session is in use now, with as many partitions as it has now."""
        now = session.used_at = self._clock()
        self._sessions.move_to_end(session.id)
        self.partition_count += len(session) - session.size
        session.size = len(session)
        key = (session.size, session.id) if now - session.created_at > EVICTION_S else None
        if key != session.evictable_key:
            self._evictable.discard(session.evictable_key)
            session.evictable_key = key
            if key is not None:
                self._evictable.add(key)

    def _has_room_for(self, partitions: int) -> bool:
        """Whether there is a slot, or one can be made, for a session of so many partitions."""
        if self.partition_count + partitions > MAX_PARTITIONS:
            return False
        return len(self._sessions) < self._slots or self._evict(partitions)

    def _evict(self, partitions: int) -> bool:
        """End the session that has to give way to one of so many partitions; False if none has."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if self._clock() - oldest.used_at > EVICTION_S:
            loser = oldest.id
        elif self._evictable and self._evictable[0][0] < partitions:
            loser = self._evictable[0][1]
        else:
            return False
        self.remove(loser)
        self.evicted += 1
        return True

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randint(1, MAX_ID)
            if session_id not in self._sessions:
                return session_id


def _each(forgotten: Iterable[ForgottenPartitions]) -> Iterator[tuple[ForgottenPartitions, int]]:
    """Yield each partition with its topic, and once more -1: a request may name many topics without partitions."""
    for topic in forgotten:
        for index in topic.partitions:
            yield topic, index
        yield topic, -1
