"""Fetch the partitions that one broker leads, with a task, a connection and a fetch session of its own.

    fetch, pass the records to the replicas, fetch again from their new log ends

Most results are appended without waiting. Others, such as large ones, are appended in parallel: with `flush.messages=1`
their fsyncs share a round. A partition that is added while a fetch waits at the leader would wait with it; so after
`FetchLimits.patience_s` that fetch is abandoned with its connection, since a leader answers the requests of a
connection in order.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Protocol

import trio

from warmlog.broker.replication.following.fetch_session import Fetched, FetchKey, FetchResponseError, FetchSession
from warmlog.broker.replication.peers.cluster_view import Leader, Reaction
from warmlog.broker.replication.peers.connection import PeerConnection
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.broker.replication.peers.leaders import Leaders
from warmlog.broker.replication.throttle import MAX_SLEEP_S, Throttle
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import (
    KafkaFetchedPartition,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
)
from warmlog.protocol.kafka.peer_apis import FETCH, FIRST_FETCH_WITH_TOPIC_IDS
from warmlog.protocol.partitions import TopicPartition

MAX_THROTTLE_S = 30.0  # longest throttle time of a broker that is obeyed
PARALLEL_TAKES = 64  # partitions appended to concurrently
PARTITIONS_AT_ONCE, BYTES_AT_ONCE = 64, 256 << 10  # then other tasks run
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

logger = logging.getLogger(__name__)


class Step(Enum):
    """The next step for a partition after its replica has processed the result of a fetch."""

    GO_ON = "go on"
    PAUSE = "pause"
    STOP = "stop"


class Replica(Protocol):
    """The copy of a partition."""

    topic: str
    topic_id: bytes  # NO_TOPIC_ID if unknown
    partition: int

    @property
    def throttled_s(self) -> float:
        """How long to pause fetching because the replication rate is exceeded; 0 if it is not."""

    async def position(self, leader_epoch: int) -> KafkaFetchPartition | None:
        """Return what to fetch next from the leader of this epoch; None to be called again after a pause."""

    def take_at_once(self, fetched: KafkaFetchedPartition) -> KafkaFetchPartition | None:
        """Process the result of a fetch if that needs no waiting, and return the next position.

        Returns None, with nothing changed, if `take` has to be called instead.
        """

    async def take(self, fetched: KafkaFetchedPartition) -> Step:
        """Process the result of a fetch from the latest `position`: records, a divergence, or an error.

        The last batch of the records may be incomplete; the next fetch begins with it.
        The error is INCONSISTENT_TOPIC_ID if the topic was deleted and created again; then the partition is unfollowed.
        """


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one fetch; those of a partition are in `Replica.position`.

    `patience_s`: how long a fetch may continue to wait after another partition was added to its fetcher.
    """

    max_wait_ms: int = 500  # Kafka's replica.fetch.wait.max.ms
    min_bytes: int = 1
    max_bytes: int = 10 << 20  # Kafka's replica.fetch.response.max.bytes
    fetchers: int = 2  # per leader, as num.replica.fetchers: one receives while the other writes
    patience_s: float = math.inf


class Following:
    """A followed partition and its fetcher."""

    __slots__ = ("delays", "fetcher", "leader", "lock", "replica", "resume_at")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.lock = trio.Lock()  # held during each use of the replica
        self.fetcher: Fetcher | None = None
        self.leader: Leader | None = None
        self.delays: Iterator[float] | None = None  # grows while it fails
        self.resume_at = 0.0  # on trio's clock

    @property
    def key(self) -> TopicPartition:
        """The partition's topic and index."""
        return self.replica.topic, self.replica.partition

    async def ended(self) -> None:
        """Wait until an unfollowed replica has processed its last result."""
        async with self.lock:
            pass

    def move(self, fetcher: "Fetcher | None") -> None:
        """Move the partition to another fetcher, or to none."""
        if self.fetcher is not None and self.fetcher is not fetcher:
            self.fetcher.drop(self.key)
        self.fetcher = fetcher
        if fetcher is not None:
            fetcher.give(self)


class GiveUp(Protocol):
    """Ends the following of a partition at its replica's request."""

    def __call__(self, following: Following) -> None:
        """Stop fetching the partition."""


class Fetcher:
    """Fetches the partitions that one broker leads, or a share of them."""

    def __init__(
        self,
        leaders: Leaders,
        node_id: int,
        number: int,
        *,
        limits: FetchLimits,
        throttle: Throttle,
        give_up: GiveUp,
        random: Random,
    ) -> None:
        self.heard_at: float | None = None  # when the leader last answered a fetch, on trio's clock
        self.received_bytes = 0  # of records
        self._leaders = leaders
        self._node_id = node_id
        self._number = number
        self._limits = limits
        self._throttle = throttle
        self._give_up = give_up
        self._random = random
        self._session = FetchSession(uses_topic_ids=True)
        self._mine: dict[TopicPartition, Following] = {}
        self._paused: set[TopicPartition] = set()
        self._inbox: dict[TopicPartition, Following | None] = {}  # added and dropped since the last fetch
        self._news = trio.Event()
        self._fetching = trio.CancelScope()  # of the fetch in progress
        self._delays = delays_s(random)  # grows while fetches fail
        self._is_failing = False

    def give(self, following: Following) -> None:
        """Start to fetch a partition, or continue with its leader's new epoch."""
        self._inbox[following.key] = following
        self._news.set()
        self._fetching.deadline = min(self._fetching.deadline, trio.current_time() + self._limits.patience_s)

    def drop(self, key: TopicPartition) -> None:
        """Stop fetching a partition."""
        self._inbox[key] = None
        self._news.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            await self._assign_partitions()
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
            if response is None:
                self._session.lose()
            else:
                await self._take(response)

    # -- what to fetch -------------------------------------------------------------------------------------------------

    async def _assign_partitions(self) -> None:
        """Apply added and dropped partitions, and pauses that have ended, to the session."""
        self._news = trio.Event()
        inbox, self._inbox = self._inbox, {}
        for key, following in inbox.items():
            self._paused.discard(key)
            if following is not self._mine.get(key):
                self._remove(key)
            if following is not None:
                self._mine[key] = following
                await self._assign(following)
        for key in [key for key in self._paused if self._mine[key].resume_at <= trio.current_time()]:
            self._paused.discard(key)
            await self._assign(self._mine[key])

    def _remove(self, key: TopicPartition) -> None:
        following = self._mine.pop(key, None)
        if following is not None:
            self._session.remove(self._session_key(following.replica))

    async def _assign(self, following: Following) -> None:
        """Fetch a partition from its replica's position, unless it pauses."""
        if following.resume_at > trio.current_time():
            self._paused.add(following.key)
            return
        async with following.lock:
            if following.fetcher is self:
                await self._set(following)

    async def _set(self, following: Following) -> bool:
        """Fetch a partition from its replica's position; return False if it pauses instead."""
        assert following.leader is not None
        if self._is_held_up(following):
            return False
        position = await following.replica.position(following.leader.epoch)
        if position is None:
            self._pause(following)
            return False
        if self._session.uses_topic_ids and following.replica.topic_id == NO_TOPIC_ID:
            self._name_topics()
        self._session.set(position)
        return True

    def _name_topics(self) -> None:
        """Begin another session with the same partitions, by topic names instead of ids."""
        old, self._session = self._session, FetchSession(uses_topic_ids=False)
        for following in self._mine.values():
            requested = old.wants(_key_in(old, following.replica))
            if requested is not None:
                self._session.set(requested)

    def _session_key(self, replica: Replica) -> FetchKey:
        return _key_in(self._session, replica)

    async def _wait(self) -> None:
        """Wait until there is a partition to fetch."""
        resume_at = min((self._mine[key].resume_at for key in self._paused), default=math.inf)
        with trio.move_on_at(resume_at):
            await self._news.wait()

    # -- fetching ------------------------------------------------------------------------------------------------------

    async def _fetch(self) -> KafkaFetchResponse | None:
        """Send a fetch; return None if it was abandoned in favour of added partitions. Raises PeerError."""
        connection = await self._leaders.connection(self._node_id, self._number)
        self._adapt_to(connection)
        limits = self._limits
        request = self._session.request(
            partial(
                KafkaFetchRequest,
                max_wait_ms=limits.max_wait_ms,
                min_bytes=limits.min_bytes,
                max_bytes=self._throttle.at_most(limits.max_bytes),
                replica=self._leaders.identity(),
            )
        )
        response = None
        with trio.CancelScope() as self._fetching:
            if self._inbox:
                self._fetching.deadline = trio.current_time() + limits.patience_s
            response = await connection.ask(FETCH, request, waits_s=limits.max_wait_ms / 1000)
        if response is None:
            connection.give_up()
        return response

    def _adapt_to(self, connection: PeerConnection) -> None:
        """Use topic ids if the broker supports them."""
        can = connection.supports(FETCH, FIRST_FETCH_WITH_TOPIC_IDS)
        if self._session.uses_topic_ids and not can:
            self._name_topics()

    async def _take(self, response: KafkaFetchResponse) -> None:
        """Pass the result of a fetch to the replicas."""
        try:
            fetched = self._session.take(response)
        except FetchResponseError as error:
            self._note_failure(str(error))
            await trio.sleep(next(self._delays))
            return
        if response.error is not ErrorCode.NONE:
            if response.error not in _SESSION_ERRORS:
                self._note_failure(f"it answered {response.error.name}")
            await trio.sleep(next(self._delays))
            return
        self._note_success()
        self.heard_at = trio.current_time()
        await self._take_partitions(fetched)
        size = sum([len(partition.records) for partition in response.partitions])
        self.received_bytes += size
        await self._throttle.passed(size)
        if response.throttle_ms > 0:
            await trio.sleep(min(response.throttle_ms / 1000, MAX_THROTTLE_S))

    async def _take_partitions(self, fetched: Sequence[Fetched]) -> None:
        left: list[Fetched] = []
        size = 0
        for number, partition in enumerate(fetched, 1):
            if not self._take_at_once(partition):
                left.append(partition)
            size += len(partition.result.records)
            if size > BYTES_AT_ONCE or number % PARTITIONS_AT_ONCE == 0:
                size = 0
                await trio.lowlevel.checkpoint()
        if len(left) == 1:
            await self._take_partition(left[0])
            return
        for start in range(0, len(left), PARALLEL_TAKES):
            async with trio.open_nursery() as nursery:
                for partition in left[start : start + PARALLEL_TAKES]:
                    nursery.start_soon(self._take_partition, partition)

    def _take_at_once(self, fetched: Fetched) -> bool:
        """Process a result if that needs no waiting; return False if `_take_partition` is needed."""
        following = self._mine[fetched.requested.topic, fetched.requested.partition]
        leader, replica = following.leader, following.replica
        if following.lock.locked() or following.fetcher is not self or leader is None:
            return False
        if fetched.requested.current_leader_epoch != leader.epoch:
            return False
        position = replica.take_at_once(fetched.result)
        if position is None:
            return False
        if not self._is_held_up(following):
            self._session.set(position)
        following.delays = None
        return True

    async def _take_partition(self, fetched: Fetched) -> None:
        requested, result = fetched.requested, fetched.result
        following = self._mine[requested.topic, requested.partition]
        async with following.lock:
            leader = following.leader
            if following.fetcher is not self or leader is None or requested.current_leader_epoch != leader.epoch:
                return  # from an earlier leader: the replica may have moved since
            if result.error is not ErrorCode.NONE:
                reaction = self._leaders.report(following.replica.topic, result.error)
                if reaction is not Reaction.REPORT:
                    self._pause(following)
                    return
            step = await following.replica.take(result)
            if step is Step.GO_ON:
                await self._go_on(following, fetched)
            elif step is Step.PAUSE:
                self._pause(following)
            else:
                self._give_up(following)

    async def _go_on(self, following: Following, fetched: Fetched) -> None:
        if following.fetcher is self and not await self._set(following):
            return
        if fetched.result.error is ErrorCode.NONE:
            following.delays = None
        elif self._session.wants(self._session_key(following.replica)) == fetched.requested:
            self._pause(following)  # the next fetch would have the same result

    def _is_held_up(self, following: Following) -> bool:
        """Return whether the replication rate is exceeded; then fetching pauses briefly."""
        throttled_s = following.replica.throttled_s
        if throttled_s > 0:
            following.resume_at = trio.current_time() + min(throttled_s, MAX_SLEEP_S)
            self._rest(following)
        return throttled_s > 0

    def _rest(self, following: Following) -> None:
        self._session.remove(self._session_key(following.replica))
        self._paused.add(following.key)

    def _pause(self, following: Following) -> None:
        """Stop fetching a partition for a while."""
        following.delays = following.delays or delays_s(self._random)
        following.resume_at = trio.current_time() + next(following.delays)
        self._rest(following)

    def _note_failure(self, problem: str) -> None:
        if not self._is_failing:
            logger.warning("cannot fetch from broker %d, retrying: %s", self._node_id, problem)
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            logger.info("resumed fetching from broker %d", self._node_id)
        self._is_failing = False
        self._delays = delays_s(self._random)


def _key_in(session: FetchSession, replica: Replica) -> FetchKey:
    """Return the key of a replica's partition in a session."""
    return (replica.topic_id if session.uses_topic_ids else replica.topic), replica.partition
