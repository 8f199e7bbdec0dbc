"""Fetch sessions (KIP-227): what a client fetches, kept here, so that it need not name it again and is told changes.

Owns: the sessions, which of them give way to others, what each client was last told, and which partitions of a session
may have something to tell. Must not know: how partitions are read, or how long a fetch waits.

    full fetch, epoch 0     -> `create`: an id, and the partitions as they were answered
    incremental, epoch n    -> `find` and `update`: the session's partitions, but for what the request adds, changes and
                               forgets; epoch n + 1 comes next
    full fetch, epoch -1    -> `remove`

A partition of a session is `pending` while it may have something to tell: since it was asked for differently, since its
log grew (each is enlisted with its log), or since the last look left something over. A fetch looks at those only, so a
thousand quiet partitions cost a poll nothing; `recheck` finds what no log tells of (a partition made, a log start
moved).

Invariants:
1. So many sessions as there are slots, and MAX_PARTITIONS partitions in all of them. Who finds no room is served
   without a session (id 0).
2. A session gives way to a new one if it was not used for two minutes, or if it is older than that and has fewer
   partitions than the new one. Connections do not matter: a client may come back by another one.
3. Whatever is not pending was told to its client, and has no error.
4. Pending partitions are in the order of their turn: those that had data sent go to the end.

Source: kafka.server.FetchSession. Followers do not fetch here, so nothing is privileged.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from random import Random
from typing import TypeAlias

from msgspec.structs import replace
from sortedcontainers import SortedSet

from broker.partition import Partition
from broker.waiters import FetchWaiter
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.primitives import NO_TOPIC_ID
from protocol.kafka.values import (
    NO_SESSION,
    UNKNOWN_TOPIC_NAME,
    ForgottenPartitions,
    KafkaFetchPartition,
    TopicNames,
)
from protocol.response import FetchedPartition

EVICTION_S = 120.0  # Kafka's min.incremental.fetch.session.eviction.ms
MAX_PARTITIONS = 200_000  # of all sessions: about 90 MB. Kafka bounds the sessions only, and each may have any number
MAX_EPOCH = MAX_ID = (1 << 31) - 1
NOT_TOLD = -1  # for an offset

Key: TypeAlias = tuple[str | bytes, int]  # a topic's id, or its name where it has none here, and the partition
Finder: TypeAlias = Callable[[str, int], Partition | None]


class FetchSessionError(ProtocolError):
    """A fetch in a session that is not there, or not in that state. The client begins anew with a full fetch."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SessionPartition:
    """One partition of a session: as it was last asked for, and what its client was last told of it."""

    __slots__ = ("_log_start_offset", "_session", "asked", "high_watermark", "partition")

    def __init__(self, session: "FetchSession", asked: KafkaFetchPartition) -> None:
        self._session = session
        self.asked = asked
        self.partition: Partition | None = None  # where it is enlisted
        self.high_watermark = self._log_start_offset = NOT_TOLD

    def attach(self, partition: Partition | None) -> None:
        """Be told when this partition grows, and no other."""
        if partition is not self.partition:
            if self.partition is not None:
                self.partition.dismiss(self)
            self.partition = partition
            if partition is not None:
                partition.enlist(self)

    def grown(self, size: int) -> None:
        """So many bytes became readable."""
        session = self._session
        session.pending[self] = None
        if session.waiter is not None:
            session.waiter.grown(size)

    def wake(self) -> None:
        """Something has changed."""
        self._session.pending[self] = None
        self._session.wake()

    def is_news(self, found: FetchedPartition) -> bool:
        """Whether the client must be told: there are records, an error, or offsets have moved."""
        return (
            found.high_watermark != self.high_watermark
            or found.error is not ErrorCode.NONE
            or found.log_start_offset != self._log_start_offset
            or len(found.records) > 0
        )

    def told(self, found: FetchedPartition) -> None:
        """Take it that the client knows this. After an error it is told again that all is well."""
        self.high_watermark = found.high_watermark if found.error is ErrorCode.NONE else NOT_TOLD
        self._log_start_offset = found.log_start_offset

    def has_moved(self, partition: Partition | None) -> bool:
        """Whether a partition that is not pending has something to tell after all."""
        if partition is not self.partition or partition is None:
            return True
        log = partition.log
        return log.high_watermark != self.high_watermark or log.log_start_offset != self._log_start_offset


class FetchSession:
    """What one client fetches. Made and closed by `FetchSessions`."""

    __slots__ = (
        "_partitions",
        "created_at",
        "epoch",
        "evictable_key",
        "id",
        "pending",
        "size",
        "used_at",
        "uses_topic_ids",
        "waiter",
    )

    def __init__(self, session_id: int, now: float, *, uses_topic_ids: bool) -> None:
        self.id = session_id
        self.epoch = 1  # of the next request
        self.uses_topic_ids = uses_topic_ids
        self.created_at = self.used_at = now
        self.evictable_key: tuple[int, int] | None = None  # where the cache has it
        self.size = 0  # as the cache last counted it
        self.pending: OrderedDict[SessionPartition, None] = OrderedDict()
        self.waiter: FetchWaiter | None = None  # of the fetch that waits
        self._partitions: dict[Key, SessionPartition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, asked: KafkaFetchPartition) -> SessionPartition:
        """Take a partition into the session, or take the new wishes for one that is there."""
        key = _key(asked.topic, asked.topic_id, asked.partition)
        entry = self._partitions.get(key)
        if entry is None:
            entry = self._partitions[key] = SessionPartition(self, asked)
        elif asked.topic == UNKNOWN_TOPIC_NAME:  # the topic was deleted; it keeps the name it had
            asked = replace(asked, topic=entry.asked.topic)
        entry.asked = asked
        self.pending[entry] = None
        return entry

    def forget(self, forgotten: ForgottenPartitions) -> None:
        """Let go of partitions; those that are not there are none."""
        for index in forgotten.partitions:
            entry = self._partitions.pop(_key(forgotten.topic, forgotten.topic_id, index), None)
            if entry is not None:
                self.pending.pop(entry, None)
                entry.attach(None)

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
        """The partition that an entry is about, as things are now. A topic id that had no name may have one by now."""
        asked = entry.asked
        if asked.topic == UNKNOWN_TOPIC_NAME and asked.topic_id != NO_TOPIC_ID:
            asked = entry.asked = replace(asked, topic=names(asked.topic_id) or UNKNOWN_TOPIC_NAME)
        partition = get(asked.topic, asked.partition)
        entry.attach(partition)
        return partition

    def recheck(self, get: Finder) -> None:
        """Look at all partitions, that nobody has told anything of, too."""
        pending = self.pending
        for entry in self._partitions.values():
            asked = entry.asked
            if entry not in pending and entry.has_moved(get(asked.topic, asked.partition)):
                pending[entry] = None

    def close(self) -> None:
        """Be told of nothing any more."""
        for entry in self._partitions.values():
            entry.attach(None)
        self._partitions.clear()
        self.pending.clear()
        self.wake()


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, *, slots: int, clock: Callable[[], float], random: Random) -> None:
        """`slots`: max.incremental.fetch.session.cache.slots. `clock` gives seconds, of any origin."""
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
    ) -> None:
        """Take what a request says into its session, which is in use now.

        A session that is left without partitions ends. So does one that would grow past the bound of all: raises
        FetchSessionError.
        """
        for partition in asked:
            session.add(partition)
        for partitions in forgotten:
            session.forget(partitions)
        self._touch(session)
        if self.partition_count > MAX_PARTITIONS:
            self.remove(session.id)
            raise FetchSessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions in fetch sessions")
        if not session:
            self.remove(session.id)

    def create(self, answers: list[tuple[KafkaFetchPartition, FetchedPartition]], *, uses_topic_ids: bool) -> int:
        """The id of a new session of partitions that are being answered, or NO_SESSION where there is no room."""
        if not self._has_room_for(len(answers)):
            return NO_SESSION
        session = FetchSession(self._new_id(), self._clock(), uses_topic_ids=uses_topic_ids)
        for asked, found in answers:
            session.add(asked).told(found)
        self._sessions[session.id] = session
        self._touch(session)
        return session.id

    def remove(self, session_id: int) -> None:
        """End a session, if it is there."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._evictable.discard(session.evictable_key)
            self.partition_count -= session.size
            session.close()

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


def _key(topic: str, topic_id: bytes, partition: int) -> Key:
    return (topic if topic_id == NO_TOPIC_ID else topic_id), partition
