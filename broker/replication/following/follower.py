"""Follow partitions: assign each to a fetcher of its leader, and to another one when the leader changes.

A partition is copied to a `Replica`; nothing here knows logs.

Invariants:
1. A replica is used by one fetcher at a time, in the order of the fetches: a partition that moves to another leader, or
   whose leader begins another epoch, is fetched from there only after the results of the old one have been taken or
   dropped.
2. An error of one partition pauses or ends that partition only. Pauses grow until a fetch of it succeeds.
3. Fetchers handle errors that other metadata or time can cure; the replica decides on all others.
"""

from collections.abc import Iterable, Mapping
from random import Random
from zlib import crc32

import trio

from warmlog.broker.replication.following.fetcher import Fetcher, FetchLimits, Following, Replica
from warmlog.broker.replication.peers.cluster_view import NO_LEADER
from warmlog.broker.replication.peers.leaders import Leaders
from warmlog.broker.replication.throttle import Throttle
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchedPartition
from warmlog.protocol.partitions import TopicPartition

PARTITIONS_PER_PIECE = 500  # assigned in one step: about a millisecond


class Follower:
    """Follows partitions of a cluster while `run` runs. Belongs to the event loop."""

    def __init__(
        self,
        leaders: Leaders,
        *,
        limits: FetchLimits | None = None,
        throttle: Throttle | None = None,
        random: Random,
    ) -> None:
        self.limits = limits or FetchLimits()
        self.throttle = throttle or Throttle()
        self._leaders = leaders
        self._random = random
        self._followed: dict[TopicPartition, Following] = {}
        self._fetchers: dict[tuple[int, int], Fetcher] = {}  # by leader and number
        self._due: dict[TopicPartition, None] = {}  # partitions whose leaders may have changed
        self._changed = trio.Event()
        leaders.on_change.append(self._note)

    def _note(self, keys: Iterable[TopicPartition] | None) -> None:
        self._due.update(dict.fromkeys(self._followed if keys is None else keys))
        self._changed.set()

    def follow(self, replica: Replica) -> Following:
        """Begin to fetch a partition that is not followed yet."""
        following = Following(replica)
        assert following.key not in self._followed
        self._followed[following.key] = following
        self._note((following.key,))
        return following

    def unfollow(self, topic: str, partition: int) -> Following | None:
        """Stop fetching a partition. Its replica may still process one last result: see `Following.ended`."""
        following = self._followed.pop((topic, partition), None)
        if following is not None:
            following.move(None)
        return following

    def follows(self, topic: str, partition: int) -> bool:
        """Return whether a partition is, or will be, fetched."""
        return (topic, partition) in self._followed

    def heard_at(self, topic: str, partition: int, now: float) -> float | None:
        """Return when the partition's leader last answered a fetch of its fetcher, on trio's clock.

        None if it never did, or if the partition is not being fetched.
        """
        following = self._followed.get((topic, partition))
        if following is None or following.fetcher is None or following.resume_at > now:
            return None
        return following.fetcher.heard_at

    def received_bytes(self) -> Mapping[int, int]:
        """Return how many bytes of records each leader has sent, by its id."""
        received: dict[int, int] = {}
        for (leader, _), fetcher in list(self._fetchers.items()):
            received[leader] = received.get(leader, 0) + fetcher.received_bytes
        return received

    async def stop(self, topic: str, partition: int) -> None:
        """Stop fetching a partition, and wait until its replica has processed the last result."""
        following = self.unfollow(topic, partition)
        if following is not None:
            await following.ended()

    async def run(self) -> None:
        """Fetch partitions from their leaders until cancelled; reassign them whenever either changes."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                due, self._due = list(self._due), {}
                for number, key in enumerate(due, 1):
                    await self._assign(key, nursery)
                    if number % PARTITIONS_PER_PIECE == 0:
                        await trio.lowlevel.checkpoint()
                await self._changed.wait()

    async def _assign(self, key: TopicPartition, nursery: trio.Nursery) -> None:
        """Assign a partition to a fetcher of its leader."""
        following = self._followed.get(key)
        if following is None:
            return
        topic, partition = key
        if _is_another(self._leaders.topic_id_of(topic), following.replica.topic_id):
            await self._end_recreated(following)
            return
        leader = self._leaders.leader_of(topic, partition)
        if leader is None or leader.node_id == NO_LEADER:
            self._leaders.report(topic, ErrorCode.LEADER_NOT_AVAILABLE)
            following.leader = None
            following.move(None)
            return
        if leader == following.leader:
            return
        number = self._fetcher_number(topic, partition)
        fetcher = self._fetchers.get((leader.node_id, number))
        if fetcher is None:
            fetcher = self._fetchers[leader.node_id, number] = Fetcher(
                self._leaders,
                leader.node_id,
                number,
                limits=self.limits,
                throttle=self.throttle,
                give_up=self._give_up,
                random=self._random,
            )
            nursery.start_soon(fetcher.run)
        following.leader = leader
        following.resume_at = 0.0
        following.move(fetcher)

    def _fetcher_number(self, topic: str, partition: int) -> int:
        """Return the number of the leader's fetcher that fetches a partition, counted from 1."""
        return 1 + (crc32(topic.encode()) + partition) % self.limits.fetchers

    def _give_up(self, following: Following) -> None:
        if self._followed.get(following.key) is following:
            self.unfollow(*following.key)

    async def _end_recreated(self, following: Following) -> None:
        """Report to a replica that its topic was deleted and created again, and unfollow it."""
        self._give_up(following)
        async with following.lock:
            await following.replica.take(
                KafkaFetchedPartition(
                    topic=following.replica.topic,
                    partition=following.replica.partition,
                    error=ErrorCode.INCONSISTENT_TOPIC_ID,
                )
            )


def _is_another(topic_id: bytes, followed: bytes) -> bool:
    """Return whether two topic ids are known and different."""
    return NO_TOPIC_ID not in {topic_id, followed} and topic_id != followed
