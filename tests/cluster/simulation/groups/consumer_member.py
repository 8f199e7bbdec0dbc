"""A member of a consumer group (KIP-848): it owns partitions, commits offsets, and lives and dies again and again.

It behaves as Java's consumer: it gives up what is revoked before it says so, after a last commit, and everything when
it is fenced. What it consumes is only counted: each owner continues from the committed offset.
"""

from typing import Any

import trio

from tests.cluster.simulation.clients import Client, Recorder
from tests.cluster.simulation.groups.consumer_model import GROUP, ConsumerModel, PartitionKey
from tests.cluster.simulation.groups.member import (
    FENCED,
    HEARTBEAT_S,
    LIVES_S,
    MOVED,
    SESSION_S,
    TOO_SLOW_S,
    Coordinator,
)
from tests.cluster.simulation.network import MACHINE
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from warmlog.protocol.kafka.peer import PeerApi

HEARTBEAT: PeerApi[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse] = PeerApi(API_BY_KEY[68], 1, 1)
COMMIT: PeerApi[dict[str, Any], dict[str, Any]] = PeerApi(API_BY_KEY[8], 9, 9, bound=False)
FETCH_COMMITTED: PeerApi[dict[str, Any], dict[str, Any]] = PeerApi(API_BY_KEY[9], 9, 9, bound=False)
OTHERS = ("other0", "other1", "other2")  # topics that operators create and delete
MAX_INT32 = (1 << 31) - 1

_COMMITS_REFUSED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.REQUEST_TIMED_OUT,
    *MOVED,
}


class ConsumerMember:
    """One client, which is a member again and again."""

    def __init__(self, client: Client, recorder: Recorder, model: ConsumerModel, brokers: int) -> None:
        self.is_ending = False
        self.only_watches = False  # it is no member, and fetches committed offsets
        self.answered_s = 0.0
        self.id = ""
        self.owned: dict[PartitionKey, int | None] = {}  # with the next offset, if it is known
        self._client = client
        self._random = client.random
        self._recorder = recorder
        self._model = model
        self._coordinator = Coordinator(client, GROUP, brokers)
        self._epoch = 0
        self._topics: tuple[str, ...] = ()
        self._has_changed = True  # what it subscribes to, or owns
        self._lives = 0
        self._life_s = self._random.choice(LIVES_S)

    @property
    def is_settled(self) -> bool:
        """Whether it has joined, and has nothing to report."""
        return self.only_watches or (self._epoch > 0 and not self._has_changed)

    async def run(self) -> None:
        """Live until told to end."""
        MACHINE.set(self._client.name)
        if self.only_watches:
            await self._watch()
        while not self.is_ending:
            self._begin()
            ends_s = trio.current_time() + self._random.expovariate(1 / self._life_s)
            while not self.is_ending and (self._model.is_calm or trio.current_time() < ends_s):
                await self._round()
                await trio.sleep(HEARTBEAT_S * self._random.random())
            if not self.is_ending:
                await self._end()

    def _begin(self) -> None:
        self._lives += 1
        self.id, self._epoch = f"{self._client.name}-{self._lives}", 0
        self._subscribe()

    def _subscribe(self) -> None:
        every = (self._recorder.topic, *OTHERS)
        if self._model.is_calm or self._random.random() < 0.5:
            self._topics = every
        else:
            self._topics = tuple(topic for topic in every if self._random.random() < 0.6) or every
        self._has_changed = True

    async def _end(self) -> None:
        how = self._random.choice(["leave", "die", "vanish"])
        self._recorder.note(f"{self.id} ends: {how}")
        self._give_up_all()
        if how == "leave":
            with trio.move_on_after(1):
                await self._coordinator.ask(
                    HEARTBEAT, ConsumerGroupHeartbeatRequest(group=GROUP, member_id=self.id, member_epoch=-1)
                )
        if how == "vanish":
            self._client.abandon()
        else:
            self._client.disconnect()
        await trio.sleep(self._random.random())

    def _give_up_all(self) -> None:
        for key in list(self.owned):
            self._give_up(key)

    def _give_up(self, key: PartitionKey) -> None:
        del self.owned[key]
        self._model.given_up(self, key)

    # -- heartbeats --

    async def _round(self) -> None:
        """Send a heartbeat, act on the answer, and commit."""
        random = self._random
        if self._model.is_calm and len(self._topics) <= len(OTHERS):
            self._subscribe()
        if not self._model.is_calm and random.random() < 0.02:
            self._subscribe()
        if not self._model.is_calm and random.random() < 0.01:
            self._recorder.note(f"{self.id} stands still")
            await trio.sleep(TOO_SLOW_S * random.random() * 1.3)
            if random.random() < 0.7:
                await self._commit(list(self.owned))  # it may have been removed meanwhile, and not know it
        await self._heartbeat()
        for key in list(self.owned):
            if self.owned.get(key) is None:
                await self._fetch_committed(key)
        if random.random() < 0.5:
            await self._commit(list(self.owned))

    async def _heartbeat(self) -> None:
        sent_s, is_full = trio.current_time(), self._has_changed or self._epoch == 0
        if sent_s > self.answered_s + SESSION_S and self.owned and self._random.random() < 0.5:
            self._give_up_all()  # it is no member any more, as far as it knows
            self._epoch, is_full = 0, True
        owned = self._owned() if self._epoch else ()
        request = ConsumerGroupHeartbeatRequest(
            group=GROUP,
            member_id=self.id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=int(2 * SESSION_S * 1000) if is_full else -1,
            topics=self._topics if is_full else None,
            owned=owned if is_full else None,
        )
        answer = await self._coordinator.ask(HEARTBEAT, request)
        if answer is None:
            self._has_changed = True  # an answer may be lost; it is given again to a full request
        else:
            broker, response = answer
            await self._take(broker, response, sent_s)

    def _owned(self) -> tuple[TopicPartitions, ...]:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(index)
        return tuple(TopicPartitions(topic_id=each, partitions=tuple(of)) for each, of in by_topic.items())

    async def _take(self, broker: int, response: ConsumerGroupHeartbeatResponse, sent_s: float) -> None:
        if response.error in MOVED:
            self._recorder.note(f"{self.id}: heartbeat: {response.error.name}")
            self._coordinator.broker = None
            return
        if response.error in FENCED:
            self._recorder.note(f"{self.id} is fenced: {response.error.name}")
            self._give_up_all()
            self._epoch, self._has_changed = 0, True
            return
        if response.error is not ErrorCode.NONE:
            self._recorder.problem(f"{self.id}: heartbeat: {response.error.name} {response.message}")
            return
        if self._model.is_coordinator(broker):
            self.answered_s = sent_s
        self._epoch, self._has_changed = response.member_epoch, False
        if response.assignment is None:
            return
        assigned = {(each.topic_id, index) for each in response.assignment.partitions for index in each.partitions}
        self._recorder.note(f"{self.id} is to have {len(assigned)} partitions in epoch {self._epoch} of {broker}")
        reported = set(self.owned)
        revoked = [key for key in self.owned if key not in assigned]
        for key in sorted(assigned - self.owned.keys()):
            self.owned[key] = None
            self._model.gained(self, key)
        if revoked:
            await self._commit(revoked)
        for key in revoked:
            if key in self.owned:
                self._give_up(key)
        self._has_changed = self.owned.keys() != reported

    # -- offsets --

    def _name(self, key: PartitionKey) -> str | None:
        """Return the topic of a partition, if its offsets are counted: the one that is never deleted."""
        topic = self._recorder.topic
        return topic if self._client.topic_ids.get(topic) == key[0] else None

    async def _commit(self, keys: list[PartitionKey]) -> None:
        """Consume some, and commit."""
        await self._client.leader_of(self._recorder.topic, 0)
        for key in keys:
            position, topic = self.owned.get(key), self._name(key)
            if position is None or topic is None:
                continue
            self.owned[key] = position = position + self._random.choice([0, 1, 7])
            committed = {"partition_index": key[1], "committed_offset": position, "committed_metadata": ""}
            request = {
                "group_id": GROUP,
                "generation_id_or_member_epoch": self._epoch,
                "member_id": self.id,
                "group_instance_id": None,
                "topics": ({"name": topic, "partitions": (committed,)},),
            }
            before = self._model.committed(key)
            answer = await self._coordinator.ask(COMMIT, request)
            if answer is None:
                continue
            [result] = answer[1]["topics"][0]["partitions"]
            error = ErrorCode(result["error_code"])
            if error is ErrorCode.NONE:
                self._model.answered(self, key, position, before)
                self._recorder.note(f"{self.id} committed {position} for {key[1]} at {answer[0]}")
            else:
                self._refused("commit", error)

    async def _fetch_committed(self, key: PartitionKey) -> None:
        """Continue a partition from its committed offset."""
        await self._client.leader_of(self._recorder.topic, 0)
        if self._recorder.topic not in self._client.topic_ids:
            return
        if self._name(key) is None:
            self.owned[key] = 0
            return
        offset = await self._committed_offset(key, self.id, self._epoch)
        if offset is not None and key in self.owned:
            self.owned[key] = max(offset, 0)

    async def _committed_offset(self, key: PartitionKey, member_id: str | None, epoch: int) -> int | None:
        before = self._model.committed(key)
        asked: dict[str, Any] = {"name": self._recorder.topic, "partition_indexes": (key[1],)}
        group = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, "topics": (asked,)}
        broker = self._coordinator.broker
        was_coordinator = broker is not None and self._model.is_coordinator(broker)
        answer = await self._coordinator.ask(FETCH_COMMITTED, {"groups": (group,), "require_stable": True})
        if answer is None:
            return None
        [found] = answer[1]["groups"]
        error = ErrorCode(found["error_code"])
        if error is ErrorCode.NONE:
            [partition] = found["topics"][0]["partitions"]
            error = ErrorCode(partition["error_code"])
        if error is not ErrorCode.NONE:
            self._refused("fetch of offsets", error)
            return None
        offset: int = partition["committed_offset"]
        if member_id is not None or (was_coordinator and broker == answer[0] and self._model.is_coordinator(answer[0])):
            self._model.fetched(self, key, offset, before)
        return offset

    def _refused(self, what: str, error: ErrorCode) -> None:
        self._recorder.note(f"{self.id}: {what}: {error.name}")
        if error in MOVED:
            self._coordinator.broker = None
        elif error not in _COMMITS_REFUSED:
            self._recorder.problem(f"{self.id}: {what}: {error.name}")

    async def _watch(self) -> None:
        """Fetch committed offsets now and then."""
        self.id = self._client.name
        while not self.is_ending:
            await trio.sleep(self._random.random())
            if await self._client.leader_of(self._recorder.topic, 0) is not None:
                topic_id = self._client.topic_ids[self._recorder.topic]
                index = self._random.randrange(len(self._recorder.histories))
                await self._committed_offset((topic_id, index), None, -1)
