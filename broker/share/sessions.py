"""Share sessions: the partitions that a member of a share group fetches from this broker (KIP-932).

Invariants:
1. A member has one session at most, which ends with the connection that opened it.
2. There are at most `group.share.max.share.sessions`, with at most MAX_PARTITIONS partitions in all of them. At either
   limit, the least recently used session of the holder (`Session.holder`) with the most is ended.
3. The epoch of a session rises with each request, so that repeated requests are recognized.

Source: org.apache.kafka.server.share.session.ShareSessionCache, kafka.server.share.SharePartitionManager (newContext,
acknowledgeSessionUpdate).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.share.persister import PartitionById
from warmlog.protocol.errors import ErrorCode, ProtocolError

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = (1 << 31) - 1
MAX_PARTITIONS = 200_000  # about 60 MB. Kafka bounds only the number of sessions
STEP = 1_000  # partitions added or removed per step
RETRIED = 100  # failing partitions that a fetch retries


class ShareSessionError(ProtocolError):
    """There is no such session, it has another epoch, or there are too many."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Connection(Protocol):
    """A client's connection; it is hashable."""

    @property
    def holder(self) -> str:
        """The holder of its sessions: a principal or an address."""


class ShareSession:
    """The session of one member. `partitions` are in the order in which they were added.

    `failing`: partitions last answered with an error. Each fetch retries a few of them, so a session with 100,000
    partitions that do not exist costs no more than others.
    """

    __slots__ = ("connection", "epoch", "failing", "group", "holder", "member", "partitions")

    def __init__(self, group: str, member: str, connection: Connection) -> None:
        self.group = group
        self.member = member
        self.connection = connection
        self.holder = connection.holder
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[PartitionById, None] = {}
        self.failing: dict[PartitionById, None] = {}

    @property
    def size(self) -> int:
        """The number of partitions."""
        return len(self.partitions) + len(self.failing)

    def failed(self, key: PartitionById) -> None:
        """Record that a partition was answered with an error."""
        if key in self.partitions:
            del self.partitions[key]
            self.failing[key] = None

    def retry(self) -> None:
        """Make the next fetch retry the partitions that have been failing for longest."""
        for key in [key for _, key in zip(range(RETRIED), self.failing, strict=False)]:
            del self.failing[key]
            self.partitions[key] = None

    def advance(self) -> int:
        """Begin a request, and return the epoch of the next one."""
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        return self.epoch


class ShareSessions:
    """The sessions of this broker. Belongs to the event loop."""

    def __init__(self, limit: int, ended: Callable[[ShareSession], None]) -> None:
        """Call `ended` with each ended session, to release its member's records."""
        self._limit = limit
        self._ended = ended
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_connections: dict[Connection, set[ShareSession]] = {}
        self._of_holders: dict[str, dict[ShareSession, None]] = {}  # in the order of their last use
        self._partitions_of: Counter[str] = Counter()  # by holder
        self._members: Counter[str] = Counter()
        self.partition_count = 0
        self.evicted = 0  # ended by a disconnect
        self.gave_way = 0

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of sessions."""
        metrics.gauge("warmlog_share_sessions", "Share sessions, one of each member.", lambda: [((), len(self))])
        metrics.gauge(
            "warmlog_share_session_partitions", "Partitions in share sessions.", lambda: [((), self.partition_count)]
        )
        metrics.counter(
            "warmlog_share_sessions_evicted_total",
            "Share sessions that ended because their connection was closed.",
            lambda: [((), self.evicted)],
        )
        metrics.counter(
            "warmlog_share_sessions_gave_way_total",
            "Share sessions that ended for those of another principal or address, at the limit.",
            lambda: [((), self.gave_way)],
        )

    def __len__(self) -> int:
        return len(self._sessions)

    def has_members(self, group: str) -> bool:
        """Return whether a group has a session."""
        return group in self._members

    def get(self, group: str, member: str) -> ShareSession | None:
        """Return the session of a member, or None."""
        return self._sessions.get((group, member))

    def create(self, group: str, member: str, connection: Connection) -> ShareSession:
        """Return a new session, in place of an earlier one of the member. Raises ShareSessionError."""
        former = self._sessions.get((group, member))
        if former is not None:
            self._remove(former)
        if len(self._sessions) >= self._limit:
            counts = {holder: len(sessions) for holder, sessions in self._of_holders.items()}
            if not self._make_way(connection.holder, counts):
                message = f"there are {self._limit} share sessions"
                raise ShareSessionError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, message)
        session = self._sessions[group, member] = ShareSession(group, member, connection)
        self._of_connections.setdefault(connection, set()).add(session)
        self._of_holders.setdefault(session.holder, {})[session] = None
        self._members[group] += 1
        session.advance()
        return session

    def _make_way(self, holder: str, counts: Mapping[str, int]) -> bool:
        """End a session of the holder with the highest count, unless it is this one; return whether one was ended."""
        largest = max(counts, key=counts.__getitem__)
        if counts[largest] <= counts.get(holder, 0) + 1:
            return False
        self.gave_way += 1
        self.close(next(iter(self._of_holders[largest])))
        return True

    def find(self, group: str, member: str, epoch: int) -> ShareSession:
        """Return the session of a member if it expects this epoch or is being closed. Raises ShareSessionError."""
        session = self._sessions.get((group, member))
        if session is None:
            raise ShareSessionError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {member} has no share session here")
        if epoch not in {FINAL_EPOCH, session.epoch}:
            message = f"the share session of member {member} expects epoch {session.epoch}, not {epoch}"
            raise ShareSessionError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        sessions = self._of_holders[session.holder]
        sessions[session] = sessions.pop(session)
        return session

    def update(self, session: ShareSession, added: Iterable[PartitionById], removed: Iterable[PartitionById]) -> None:
        """Add partitions to a session, and remove others. Raises ShareSessionError, and ends the session."""
        before = session.size
        for key in added:
            session.failing.pop(key, None)
            session.partitions.setdefault(key)
        for key in removed:
            session.partitions.pop(key, None)
            session.failing.pop(key, None)
        self._count(session.holder, session.size - before)
        while self.partition_count > MAX_PARTITIONS:
            if not self._make_way(session.holder, self._partitions_of):
                self.close(session)
                message = "too many partitions in share sessions"
                raise ShareSessionError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, message)

    def _count(self, holder: str, partitions: int) -> None:
        self.partition_count += partitions
        self._partitions_of[holder] += partitions
        if not self._partitions_of[holder]:
            del self._partitions_of[holder]

    def close(self, session: ShareSession) -> None:
        """End a session, unless it has ended."""
        if self._sessions.get((session.group, session.member)) is session:
            self._remove(session)
            self._ended(session)

    def close_all(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            self.close(session)

    def forget(self, connection: Connection) -> None:
        """End the sessions of a closed connection."""
        for session in list(self._of_connections.get(connection, ())):
            self.evicted += 1
            self.close(session)

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.group, session.member]
        self._count(session.holder, -session.size)
        of_holder = self._of_holders[session.holder]
        del of_holder[session]
        if not of_holder:
            del self._of_holders[session.holder]
        of_connection = self._of_connections[session.connection]
        of_connection.discard(session)
        if not of_connection:
            del self._of_connections[session.connection]
        self._members[session.group] -= 1
        if not self._members[session.group]:
            del self._members[session.group]
