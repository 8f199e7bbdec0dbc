"""Caches of fetch sessions: incremental ones by id, and one for each connection that sends full fetches.

Invariants:
1. The number of incremental sessions is bounded by the slots, and the number of partitions in all of them by
   MAX_PARTITIONS. A client beyond these bounds is served without a session (id 0).
2. An incremental session can be evicted for a new one if it was not used for two minutes, or if it is older than that
   and has fewer partitions than the new one. Sessions are independent of connections: a client may use another one.
3. The sessions of connections hold at most MAX_PARTITIONS_OF_CONNECTIONS partitions in all; the least recently used one
   is evicted first. Eviction never changes a response.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from random import Random
from typing import Final

from sortedcontainers import SortedSet

from warmlog.broker.api.context import Session
from warmlog.broker.api.fetch.session import MAX_ID, STEP, FetchSession, FetchSessionError, SessionPartition
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.security.principal import ANONYMOUS, Principal
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    ForgottenPartitions,
    KafkaFetchPartition,
    KafkaFetchRequest,
)
from warmlog.protocol.request import FetchRequest

EVICTION_S: Final = 120.0  # Kafka's min.incremental.fetch.session.eviction.ms
MAX_PARTITIONS = 200_000  # of all incremental sessions: about 90 MB. Kafka bounds only the number of sessions
MAX_PARTITIONS_OF_CONNECTIONS = 100_000  # of all connections: about 45 MB
MAX_PARTITIONS_OF_CONNECTION = 20_000  # beyond this, each fetch looks up its partitions


class ClosedPartitions:
    """Partitions of closed sessions, which are detached from their logs step by step.

    Callers that add partitions to sessions call `detach` at each step, so that the backlog stays small.
    """

    def __init__(self) -> None:
        self._left: deque[Iterator[SessionPartition]] = deque()  # one iterator per session
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
    """Sessions of connections that send full fetches, keyed by connection.

    A fetch takes its connection's session and returns it after the response.
    """

    def __init__(self, closed: ClosedPartitions) -> None:
        self._closed = closed
        self._sessions: OrderedDict[Hashable, FetchSession] = OrderedDict()  # least recently used first
        self.partition_count = 0  # partitions of the sessions that are not taken

    def take(self, connection: Hashable) -> FetchSession:
        """Return the session of a connection, or a new one."""
        session = self._sessions.pop(connection, None)
        if session is None:
            session = FetchSession()
            session.connection = connection
            return session
        self.partition_count -= session.size
        return session

    def put(self, connection: Hashable, session: FetchSession) -> None:
        """Keep a session for the connection's next fetch, evicting others; close it if it is too large."""
        session.size = len(session)
        if not 0 < session.size <= MAX_PARTITIONS_OF_CONNECTION:
            self._closed.add(session)
            return
        self._sessions[connection] = session
        self.partition_count += session.size
        while self.partition_count > MAX_PARTITIONS_OF_CONNECTIONS:
            self.forget(next(iter(self._sessions)))

    def forget(self, connection: Hashable) -> None:
        """Close the session of a connection, if it has one."""
        session = self._sessions.pop(connection, None)
        if session is not None:
            self.partition_count -= session.size
            self._closed.add(session)


class FetchSessions:
    """The cache of incremental sessions (KIP-227), and `own`, those of connections."""

    def __init__(
        self, *, slots: int, clock: Callable[[], float], random: Random, closed: ClosedPartitions | None = None
    ) -> None:
        """`slots` is max.incremental.fetch.session.cache.slots. `clock` returns monotonic seconds."""
        self.closed = ClosedPartitions() if closed is None else closed
        self.own = ConnectionSessions(self.closed)
        self._slots = slots
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self._evictable: SortedSet[tuple[int, int]] = SortedSet()  # (partitions, id) of those older than EVICTION_S
        self.partition_count = 0
        self.evicted = 0  # since startup

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of sessions."""
        metrics.gauge("warmlog_fetch_sessions", "Incremental fetch sessions.", lambda: [((), len(self))])
        metrics.gauge(
            "warmlog_fetch_session_partitions",
            "Partitions in incremental fetch sessions.",
            lambda: [((), self.partition_count)],
        )
        metrics.counter(
            "warmlog_fetch_sessions_evicted_total",
            "Fetch sessions evicted to make room for others.",
            lambda: [((), self.evicted)],
        )

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, connection: Session) -> FetchSession:
        """Return the session that a request belongs to, or a new one for it. Raises FetchSessionError."""
        if isinstance(request, KafkaFetchRequest):
            epoch, principal = request.session_epoch, connection.principal
            if epoch not in {INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH}:
                session = self.find(
                    request.session_id, epoch, uses_topic_ids=request.uses_topic_ids, principal=principal
                )
                session.advance()
                return session
            self.remove_own(request.session_id, principal)
            if epoch == INITIAL_SESSION_EPOCH:
                session = FetchSession(uses_topic_ids=request.uses_topic_ids)
                session.principal = principal
                return session
        return self.own.take(connection)

    def close(self, session: FetchSession, *, keep: bool) -> None:
        """Return a session to its connection, or close it, unless it is an incremental one.

        `keep`: its latest fetch has been answered.
        """
        if session.id == NO_SESSION:
            if keep and session.connection is not None:
                self.own.put(session.connection, session)
            else:
                self.closed.add(session)

    def find(
        self, session_id: int, epoch: int, *, uses_topic_ids: bool, principal: Principal = ANONYMOUS
    ) -> FetchSession:
        """Return a principal's session for a request with this epoch. Raises FetchSessionError."""
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
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
        requested: Iterable[KafkaFetchPartition],
        forgotten: Iterable[ForgottenPartitions],
    ) -> Iterator[None]:
        """Apply the changes of an incremental request to its session, and mark the session as used.

        Removes a session that is left without partitions. Raises FetchSessionError when the session was evicted in the
        meantime, or, after removing it, when all sessions together would exceed MAX_PARTITIONS.
        """
        for number, partition in enumerate(requested, 1):
            session.add(partition)
            if number % STEP == 0:
                yield
        for number, (topic, index) in enumerate(_each(forgotten), 1):
            session.forget(topic.topic_id if session.uses_topic_ids else topic.topic, index)
            if number % STEP == 0:
                yield
        if session.id not in self._sessions:  # evicted in the meantime
            raise FetchSessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session.id}")
        self._touch(session)
        if self.partition_count > MAX_PARTITIONS:
            self.remove(session.id)
            raise FetchSessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions in fetch sessions")
        if not session:
            self.remove(session.id)
            session.id = NO_SESSION

    def register(self, session: FetchSession) -> bool:
        """Assign an id to a new session and keep it; return False if no slot is available."""
        if not self._may_keep(len(session)):
            return False
        session.id = self._new_id()
        session.created_at = self._clock()
        self._sessions[session.id] = session
        self._touch(session)
        return True

    def remove_own(self, session_id: int, principal: Principal) -> None:
        """Close a session, if it exists and belongs to a principal."""
        session = self._sessions.get(session_id)
        if session is not None and session.principal == principal:
            self.remove(session_id)

    def remove(self, session_id: int) -> None:
        """Close a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._evictable.discard(session.evictable_key)
            self.partition_count -= session.size
            self.closed.add(session)

    def _touch(self, session: FetchSession) -> None:
        """Mark a session as used now and update the partition counts."""
        now = session.used_at = self._clock()
        self._sessions.move_to_end(session.id)
        self.partition_count += len(session) - session.size
        session.size = len(session)
        is_evictable = now - session.created_at > EVICTION_S and session.replica.broker < 0  # privileged: a follower's
        key = (session.size, session.id) if is_evictable else None
        if key != session.evictable_key:
            self._evictable.discard(session.evictable_key)
            session.evictable_key = key
            if key is not None:
                self._evictable.add(key)

    def _may_keep(self, partitions: int) -> bool:
        """Return whether a slot is free, or can be freed, for a session of this many partitions."""
        if self.partition_count + partitions > MAX_PARTITIONS:
            return False
        return len(self._sessions) < self._slots or self._evict(partitions)

    def _evict(self, partitions: int) -> bool:
        """Evict a session for one of this many partitions; return False if none can be evicted."""
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
    """Yield each partition with its topic, then -1 per topic, so that topics without partitions also count as steps."""
    for topic in forgotten:
        for index in topic.partitions:
            yield topic, index
        yield topic, -1
