"""Fetch partitions from their leaders: by fetchers, each with a task, a connection and a fetch session of its own.

    Follower      the partitions to follow; gives each to the fetcher of its leader, and moves it when that changes
    _Fetcher      one of two for each leader: fetch, hand what was found to the replicas, fetch from where they are now

What a partition is copied to is a `Replica`; nothing here knows logs.

Invariants:
1. A replica is used by one fetcher at a time, in the order of the fetches: a partition that moves to another leader is
   fetched there only after what the old one sent has been taken.
2. An error of one partition pauses or ends that partition only. Pauses grow until a fetch of it succeeds.
3. Errors that other metadata or time can cure are dealt with here; all others are for the replica to decide.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Protocol, TypeAlias, TypeVar
from zlib import crc32

import trio

from broker.replication.cluster_view import NO_LEADER, Leader, Reaction
from broker.replication.connection import PeerConnection
from broker.replication.errors import PeerError
from broker.replication.fetch_session import Fetched, FetchResponseError, FetchSession
from broker.replication.throttle import Throttle
from protocol.backoff import delays_s
from protocol.errors import ErrorCode
from protocol.kafka.codec.bounds import NO_TOPIC_ID
from protocol.kafka.peer import PeerApi
from protocol.kafka.peer_apis import (
    FETCH,
    FIRST_FETCH_WITH_TOPIC_IDS,
    PeerFetchedPartition,
    PeerFetchResponse,
)
from protocol.kafka.values import FetchingReplica, KafkaFetchPartition, KafkaFetchRequest

Q = TypeVar("Q")
R = TypeVar("R")
Key: TypeAlias = tuple[str, int]  # topic, partition

MAX_THROTTLE_S = 30.0  # what a broker may make us wait after a response
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

logger = logging.getLogger(__name__)


class Step(Enum):
    """The next step for a partition after its replica has taken the result of a fetch."""

    GO_ON = "go on"
    PAUSE = "pause"
    STOP = "stop"


class Replica(Protocol):
    """The copy of a partition."""

    topic: str
    topic_id: bytes  # NO_TOPIC_ID if unknown
    partition: int

    def position(self, leader_epoch: int) -> KafkaFetchPartition:
        """Return what to fetch next from the leader of this epoch."""

    async def take(self, found: PeerFetchedPartition) -> Step:
        """Take the result of a fetch from the latest `position`: records, a divergence, or an error.

        The last batch of the records may be incomplete: it is fetched again from `position`.

        The error is INCONSISTENT_TOPIC_ID if the topic was deleted and created again; then it is not followed any more.
        """


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one fetch; those of a partition are in `Replica.position`."""

    max_wait_ms: int = 500  # Kafka's replica.fetch.wait.max.ms
    min_bytes: int = 1
    max_bytes: int = 10 << 20  # Kafka's replica.fetch.response.max.bytes
    fetchers: int = 2  # for each leader, as num.replica.fetchers: one receives while the other writes


class Leaders(Protocol):
    """The brokers that lead partitions, and connections to them: `peer.PeerCluster` or `brokers.ClusterBrokers`."""

    changed: trio.Event  # set, and replaced, when leaders have changed

    def identity(self) -> FetchingReplica:
        """Return as whom to fetch."""

    def leader_of(self, topic: str, partition: int) -> Leader | None:
        """Return the leader of a partition, None if it is not known."""

    def topic_id_of(self, topic: str) -> bytes:
        """Return the id of a topic, NO_TOPIC_ID if it is not known."""

    def report(self, topic: str, error: ErrorCode) -> Reaction:
        """Take note of an error of a topic's partition; return what to do about it."""

    async def connection(self, node_id: int, number: int) -> PeerConnection:
        """Return a connection to a broker, one of several that are told apart by a number. Raises PeerError."""

    async def ask(self, node_id: int, api: PeerApi[Q, R], request: Q) -> R:
        """Ask one broker. Raises PeerError."""


class _Following:
    """A partition that is followed, and who fetches it."""

    __slots__ = ("delays", "fetcher", "leader", "lock", "replica", "resume_at")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.lock = trio.Lock()  # around each use of the replica
        self.fetcher: _Fetcher | None = None
        self.leader: Leader | None = None
        self.delays: Iterator[float] | None = None  # while it fails
        self.resume_at = 0.0  # on trio's clock

    @property
    def key(self) -> Key:
        return self.replica.topic, self.replica.partition


class Follower:
    """Follows partitions of a cluster while `run` runs."""

    def __init__(
        self,
        cluster: Leaders,
        *,
        limits: FetchLimits | None = None,
        throttle: Throttle | None = None,
        random: Random,
    ) -> None:
        self.limits = limits or FetchLimits()
        self.throttle = throttle or Throttle()
        self._cluster = cluster
        self._random = random
        self._followed: dict[Key, _Following] = {}
        self._fetchers: dict[tuple[int, int], _Fetcher] = {}  # by leader and number
        self._changed = trio.Event()

    def follow(self, replica: Replica) -> None:
        """Begin to fetch a partition, which is not followed yet."""
        following = _Following(replica)
        assert following.key not in self._followed
        self._followed[following.key] = following
        self._changed.set()

    def unfollow(self, topic: str, partition: int) -> None:
        """Stop fetching a partition. Its replica may be busy with one last result."""
        following = self._followed.pop((topic, partition), None)
        if following is not None:
            self._move(following, None)

    def follows(self, topic: str, partition: int) -> bool:
        """Whether a partition is fetched, or will be."""
        return (topic, partition) in self._followed

    def heard_at(self, topic: str, partition: int, now: float) -> float | None:
        """Return when the leader of a partition last answered a fetch of all it leads, on trio's clock.

        None if it never did, or if the partition is not fetched now.
        """
        following = self._followed.get((topic, partition))
        if following is None or following.fetcher is None or following.resume_at > now:
            return None
        return following.fetcher.heard_at

    async def stop(self, topic: str, partition: int) -> None:
        """Stop fetching a partition, and wait until its replica has taken the last result."""
        following = self._followed.get((topic, partition))
        if following is not None:
            self.unfollow(topic, partition)
            async with following.lock:
                pass

    async def run(self) -> None:
        """Assign partitions to leaders, now and whenever either changes, and fetch them."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                changed = self._cluster.changed
                for following in list(self._followed.values()):
                    await self._assign(following, nursery)
                await _first_of(changed, self._changed)

    async def _assign(self, following: _Following, nursery: trio.Nursery) -> None:
        """Give a partition to the fetcher of its leader."""
        topic, partition = following.key
        if self._followed.get(following.key) is not following:
            return
        if _is_another(self._cluster.topic_id_of(topic), following.replica.topic_id):
            await self._end_recreated(following)
            return
        leader = self._cluster.leader_of(topic, partition)
        if leader is None or leader.node_id == NO_LEADER:
            self._cluster.report(topic, ErrorCode.LEADER_NOT_AVAILABLE)
            following.leader = None
            self._move(following, None)
            return
        if leader == following.leader:
            return
        number = self._fetcher_number(topic, partition)
        fetcher = self._fetchers.get((leader.node_id, number))
        if fetcher is None:
            fetcher = _Fetcher(self, self._cluster, leader.node_id, number, self._random)
            self._fetchers[leader.node_id, number] = fetcher
            nursery.start_soon(fetcher.run)
        following.leader = leader
        following.resume_at = 0.0
        self._move(following, fetcher)

    def _fetcher_number(self, topic: str, partition: int) -> int:
        """Return which of a leader's fetchers fetches a partition, counted from 1."""
        return 1 + (crc32(topic.encode()) + partition) % self.limits.fetchers

    def _move(self, following: _Following, fetcher: "_Fetcher | None") -> None:
        if following.fetcher is not None and following.fetcher is not fetcher:
            following.fetcher.drop(following.key)
        following.fetcher = fetcher
        if fetcher is not None:
            fetcher.give(following)

    async def _end_recreated(self, following: _Following) -> None:
        """Tell a replica that its topic was deleted and created again, and stop following it."""
        self.unfollow(*following.key)
        async with following.lock:
            await following.replica.take(
                PeerFetchedPartition(
                    topic=following.replica.topic,
                    partition=following.replica.partition,
                    error=ErrorCode.INCONSISTENT_TOPIC_ID,
                )
            )


class _Fetcher:
    """Fetches the partitions that one broker leads."""

    def __init__(self, follower: Follower, cluster: Leaders, node_id: int, number: int, random: Random) -> None:
        self.heard_at: float | None = None  # when the leader last answered a fetch, on trio's clock
        self._follower = follower
        self._cluster = cluster
        self._node_id = node_id
        self._number = number
        self._random = random
        self._session = FetchSession(uses_topic_ids=True)
        self._mine: dict[Key, _Following] = {}
        self._paused: set[Key] = set()
        self._inbox: dict[Key, _Following | None] = {}  # given and dropped since the last fetch
        self._news = trio.Event()
        self._delays = delays_s(random)  # while fetches fail
        self._is_failing = False

    def give(self, following: _Following) -> None:
        """Fetch a partition, or fetch it with its leader's new epoch."""
        self._inbox[following.key] = following
        self._news.set()

    def drop(self, key: Key) -> None:
        """Stop fetching a partition."""
        self._inbox[key] = None
        self._news.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            await self._place_partitions()
            if not len(self._session):
                await self._wait()
                continue
            try:
                response = await self._fetch()
            except PeerError as error:
                self._session.lose()
                self._note_failure(str(error))
                await trio.sleep(next(self._delays))
                continue
            await self._take(response)

    async def _place_partitions(self) -> None:
        """Bring the session in line with what was given and dropped, and with pauses that are over."""
        self._news = trio.Event()
        inbox, self._inbox = self._inbox, {}
        for key, following in inbox.items():
            self._paused.discard(key)
            if following is not self._mine.get(key):
                self._remove(key)
            if following is not None:
                self._mine[key] = following
                await self._place(following)
        for key in [key for key in self._paused if self._mine[key].resume_at <= trio.current_time()]:
            self._paused.discard(key)
            await self._place(self._mine[key])

    def _remove(self, key: Key) -> None:
        following = self._mine.pop(key, None)
        if following is not None:
            self._session.remove(self._session_key(following.replica))

    async def _place(self, following: _Following) -> None:
        """Have a partition fetched from where its replica is, unless it pauses."""
        if following.resume_at > trio.current_time():
            self._paused.add(following.key)
            return
        async with following.lock:
            if following.fetcher is self:
                self._set(following)

    def _set(self, following: _Following) -> None:
        assert following.leader is not None
        if self._session.uses_topic_ids and following.replica.topic_id == NO_TOPIC_ID:
            self._name_topics()
        self._session.set(following.replica.position(following.leader.epoch))

    def _name_topics(self) -> None:
        """Begin another session with the same partitions, which names topics instead of their ids."""
        old, self._session = self._session, FetchSession(uses_topic_ids=False)
        for following in self._mine.values():
            asked = old.wants(_key_in(old, following.replica))
            if asked is not None:
                self._session.set(asked)

    def _session_key(self, replica: Replica) -> tuple[str | bytes, int]:
        return _key_in(self._session, replica)

    async def _wait(self) -> None:
        """Wait for a partition to fetch."""
        resume_at = min((self._mine[key].resume_at for key in self._paused), default=float("inf"))
        with trio.move_on_at(resume_at):
            await self._news.wait()

    async def _fetch(self) -> PeerFetchResponse:
        """Send a fetch. Raises PeerError."""
        connection = await self._cluster.connection(self._node_id, self._number)
        self._adapt_to(connection)
        limits = self._follower.limits
        request = self._session.request(
            partial(
                KafkaFetchRequest,
                max_wait_ms=limits.max_wait_ms,
                min_bytes=limits.min_bytes,
                max_bytes=self._follower.throttle.at_most(limits.max_bytes),
                replica=self._cluster.identity(),
            )
        )
        return await connection.ask(FETCH, request, waits_s=limits.max_wait_ms / 1000)

    def _adapt_to(self, connection: PeerConnection) -> None:
        """Name topics by id where the broker can."""
        can = connection.supports(FETCH, FIRST_FETCH_WITH_TOPIC_IDS)
        if self._session.uses_topic_ids and not can:
            self._name_topics()

    async def _take(self, response: PeerFetchResponse) -> None:
        """Hand the result of a fetch to the replicas."""
        try:
            fetched = self._session.take(response)
        except FetchResponseError as error:
            self._note_failure(f"broker {self._node_id}: {error}")
            await trio.sleep(next(self._delays))
            return
        if response.error is not ErrorCode.NONE:
            if response.error not in _SESSION_ERRORS:
                self._note_failure(f"broker {self._node_id} refused a fetch: {response.error.name}")
            await trio.sleep(next(self._delays))
            return
        self._note_success()
        self.heard_at = trio.current_time()
        for one in fetched:
            await self._take_partition(one)
        await self._follower.throttle.passed(sum([len(one.records) for one in response.partitions]))
        if response.throttle_ms > 0:
            await trio.sleep(min(response.throttle_ms / 1000, MAX_THROTTLE_S))

    async def _take_partition(self, fetched: Fetched) -> None:
        following = self._mine[fetched.asked.topic, fetched.asked.partition]
        found = fetched.found
        async with following.lock:
            if following.fetcher is not self:
                return
            if found.error is not ErrorCode.NONE:
                reaction = self._cluster.report(following.replica.topic, found.error)
                if reaction is not Reaction.REPORT:
                    self._pause(following)
                    return
            step = await following.replica.take(found)
            if step is Step.GO_ON:
                if following.fetcher is self:
                    self._set(following)
                if found.error is ErrorCode.NONE:
                    following.delays = None
                elif self._session.wants(self._session_key(following.replica)) == fetched.asked:
                    self._pause(following)  # the next fetch would have the same result
            elif step is Step.PAUSE:
                self._pause(following)
            else:
                self._follower.unfollow(*following.key)

    def _pause(self, following: _Following) -> None:
        """Stop fetching a partition for a while."""
        following.delays = following.delays or delays_s(self._random)
        following.resume_at = trio.current_time() + next(following.delays)
        self._session.remove(self._session_key(following.replica))
        self._paused.add(following.key)

    def _note_failure(self, problem: str) -> None:
        if not self._is_failing:
            logger.warning("cannot fetch, trying again: %s", problem)
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            logger.info("broker %d: fetching again", self._node_id)
        self._is_failing = False
        self._delays = delays_s(self._random)


def _is_another(topic_id: bytes, followed: bytes) -> bool:
    """Whether two topic ids are known and different."""
    return NO_TOPIC_ID not in {topic_id, followed} and topic_id != followed


def _key_in(session: FetchSession, replica: Replica) -> tuple[str | bytes, int]:
    """Return what identifies a replica's partition in a session."""
    return (replica.topic_id if session.uses_topic_ids else replica.topic), replica.partition


async def _first_of(*events: trio.Event) -> None:
    """Wait until one of the events is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)
