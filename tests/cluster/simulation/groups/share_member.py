"""A member of a share group: it joins, fetches from the leaders of its partitions, and does all that members do.

Each of its lives ends with a leave, a death that brokers notice, or one that they do not. While it lives, it accepts,
releases, rejects and renews, alone or with a fetch; forgets some records, and is late with others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import trio

from tests.cluster.simulation.clients import Client, Recorder
from tests.cluster.simulation.groups.member import FENCED, HEARTBEAT_S, LIVES_S, MOVED, Coordinator
from tests.cluster.simulation.groups.share_model import GROUP, LOCK_S, ShareModel
from tests.cluster.simulation.network import MACHINE
from warmlog.broker.replication.peers.connection import PeerConnection
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.messages.share.fetch import (
    ACCEPT,
    BATCH_OPTIMIZED,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgedPartition,
    AcknowledgedRange,
    AcknowledgeResult,
    ForgottenSharePartitions,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    SharedPartition,
    ShareFetchRequest,
    ShareFetchResponse,
)
from warmlog.protocol.kafka.messages.share.groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.records.reader import records_in

HEARTBEAT: PeerApi[ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse] = PeerApi(API_BY_KEY[76], 1, 1)
FETCH: PeerApi[ShareFetchRequest, ShareFetchResponse] = PeerApi(API_BY_KEY[78], 2, 2)
ACKNOWLEDGE: PeerApi[ShareAcknowledgeRequest, ShareAcknowledgeResponse] = PeerApi(API_BY_KEY[79], 2, 2)
STALLS = 0.03  # of fetches, after which the member does nothing for about as long as its locks last
LATE, FORGET = -1, -2  # in place of a type of acknowledgement
_KINDS, _WEIGHTS = (ACCEPT, RELEASE, REJECT, RENEW, LATE, FORGET), (60, 15, 5, 8, 4, 4)

#: Errors of a partition that members expect: they ask for its leader again.
_OF_PARTITION = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
}
# The last is for offsets that the present leader has not delivered yet.
_OF_ACKNOWLEDGEMENT = _OF_PARTITION | {ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST}
_OF_SESSION = {ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH}


class Held(NamedTuple):
    """A record that the member has."""

    partition: int
    offset: int
    deliveries: int


class Sent(NamedTuple):
    """An acknowledgement."""

    held: Held
    kind: int


class ShareMember:
    """One client, which is a member again and again."""

    def __init__(self, clients: tuple[Client, Client], recorder: Recorder, model: ShareModel, brokers: int) -> None:
        """Use a client for heartbeats, and another one for records."""
        self.is_calm = False  # it only accepts, and lives on
        self.is_ending = False
        self._client = clients[1]
        self._random = clients[1].random
        self._recorder = recorder
        self._model = model
        self._brokers = range(1, brokers + 1)
        self._coordinator = Coordinator(clients[0], GROUP, brokers)
        self._lives = 0
        self._life_s = self._random.choice(LIVES_S)
        self.id = ""
        self._epoch = 0
        self.assigned: set[int] = set()

    async def run(self) -> None:
        """Live until told to end, as calm as wanted."""
        MACHINE.set(self._client.name)
        while not self.is_ending:
            self._lives += 1
            self.id, self._epoch, self.assigned = f"{self._client.name}-{self._lives}", 0, set()
            self._recorder.note(f"{self.id} begins")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heartbeats)
                for broker in self._brokers:
                    nursery.start_soon(_Session(self, broker).run)
                await self._live()
                nursery.cancel_scope.cancel()
            if not self.is_ending:
                await self._end()

    async def _live(self) -> None:
        ends_s = trio.current_time() + self._random.expovariate(1 / self._life_s)
        while not self.is_ending and (self.is_calm or trio.current_time() < ends_s):  # noqa: ASYNC110  # simulated time
            await trio.sleep(0.1)

    async def _end(self) -> None:
        """End a life: leave the group, or not; close the connections, or not."""
        how = self._random.choice(["leave", "die", "vanish"])
        self._recorder.note(f"{self.id} ends: {how}")
        if how == "leave":
            request = ShareGroupHeartbeatRequest(group=GROUP, member_id=self.id, member_epoch=-1)
            with trio.move_on_after(1):
                await self._coordinator.ask(HEARTBEAT, request)
        if how != "vanish":
            self._client.disconnect()
        else:
            self._client.abandon()
        await trio.sleep(self._random.random())

    async def _heartbeats(self) -> None:
        is_full = True  # also after an answer that may be lost, which is then given again
        while True:
            topics = (self._recorder.topic,) if self._epoch == 0 or is_full else None
            request = ShareGroupHeartbeatRequest(
                group=GROUP, member_id=self.id, member_epoch=self._epoch, topics=topics
            )
            answer = await self._coordinator.ask(HEARTBEAT, request)
            is_full = answer is None
            if answer is not None:
                self._take(answer[1])
            await trio.sleep(HEARTBEAT_S)

    def _take(self, response: ShareGroupHeartbeatResponse) -> None:
        if response.error in MOVED:
            self._recorder.note(f"{self.id}: heartbeat: {response.error.name}")
            self._coordinator.broker = None
        elif response.error in FENCED:
            self._recorder.note(f"{self.id} is fenced: {response.error.name}")
            self._epoch = 0
            self.assigned = set()
        elif response.error is not ErrorCode.NONE:
            self._recorder.problem(f"{self.id}: heartbeat: {response.error.name} {response.message}")
        else:
            self._epoch = response.member_epoch
            if response.assignment is not None:
                self.assigned = {index for each in response.assignment.partitions for index in each.partitions}
                self._recorder.note(f"{self.id} has {sorted(self.assigned)} in epoch {self._epoch}")

    # -- for sessions --

    @property
    def client(self) -> Client:
        """The client for records."""
        return self._client

    @property
    def recorder(self) -> Recorder:
        """Where problems are noted."""
        return self._recorder

    @property
    def model(self) -> ShareModel:
        """The model of the group."""
        return self._model

    def choose(self) -> int:
        """Return what to do with a record."""
        if self.is_calm:
            return ACCEPT
        return self._random.choices(_KINDS, _WEIGHTS)[0]


class _Session:
    """The share session of a member at one broker."""

    def __init__(self, member: ShareMember, broker: int) -> None:
        self._member = member
        self._broker = broker
        self._epoch = 0
        self._connection: PeerConnection | None = None
        self._partitions: set[int] = set()
        self._held: dict[tuple[int, int], Held] = {}  # by partition and offset
        self._random = member.client.random
        self._name = member.id

    async def run(self) -> None:
        """Fetch and acknowledge until cancelled."""
        while True:
            wanted = await self._wanted()
            if not wanted and not self._partitions:
                await trio.sleep(0.2)
                continue
            try:
                await self._round(wanted)
            except PeerError:
                self._lose("no answer")
                for index in self._member.assigned:
                    self._member.client.forget(self._member.recorder.topic, index)
                await self._member.client.pause()

    async def _wanted(self) -> set[int]:
        """Return the assigned partitions that the broker leads."""
        client, topic = self._member.client, self._member.recorder.topic
        wanted = set()
        for index in sorted(self._member.assigned):
            leader = await client.leader_of(topic, index)
            if leader is not None and leader.leader == self._broker:
                wanted.add(index)
        return wanted

    async def _round(self, wanted: set[int]) -> None:
        """Fetch once, decide on what comes, and acknowledge. Raises PeerError."""
        connection = await self._member.client.connection_to(self._broker)
        if connection is not self._connection:
            self._lose("another connection")
            self._connection = connection
        if self._epoch == 0 and not wanted:
            return
        if self._epoch:
            self._member.model.connections[self._name, self._broker] = connection
        with_fetch = self._decide() if self._random.random() < 0.5 and self._epoch else []
        await self._fetch(wanted, with_fetch)
        if not self._member.is_calm and self._random.random() < STALLS:
            await trio.sleep(LOCK_S * (0.5 + self._random.random()))
        renewed = await self._acknowledge(self._decide())
        if renewed:
            await trio.sleep(self._random.random() * LOCK_S)

    def _decide(self) -> list[Sent]:
        """Choose what to do with the records that are held; keep those that are for later."""
        chosen: list[Sent] = []
        kept: dict[tuple[int, int], Held] = {}
        if self._random.random() < 0.7:  # all alike
            common: int | None = self._member.choose()
        else:
            common = None
        for held in self._held.values():
            kind = self._member.choose() if common is None else common
            if kind == LATE:
                kept[held.partition, held.offset] = held
            elif kind == FORGET:
                self._member.model.dropped(self._name, held.partition, held.offset)
            else:
                chosen.append(Sent(held, kind))
                if kind == RENEW:
                    kept[held.partition, held.offset] = held
        self._held = kept
        return chosen

    async def _fetch(self, wanted: set[int], sent: Sequence[Sent]) -> None:
        random, client = self._random, self._member.client
        topic_id = client.topic_ids[self._member.recorder.topic]
        is_renewal = any(each.kind == RENEW for each in sent)
        if is_renewal:  # a fetch that renews fetches nothing
            wanted = set(self._partitions)
        added = wanted if self._epoch == 0 else wanted - self._partitions
        removed = () if self._epoch == 0 else tuple(sorted(self._partitions - wanted))
        ranges = _ranges(sent)
        request = ShareFetchRequest(
            group=GROUP,
            member_id=self._name,
            epoch=self._epoch,
            max_wait_ms=0 if is_renewal else 500,
            min_bytes=0 if is_renewal else 1,
            max_bytes=0 if is_renewal else random.choice([1, 2000, 100_000]),
            max_records=0 if is_renewal else random.choice([1, 5, 100]),
            batch_size=0 if is_renewal else random.choice([1, 5, 100]),
            acquire_mode=random.choice([BATCH_OPTIMIZED, RECORD_LIMIT]),
            is_renewal=is_renewal,
            partitions=tuple(
                AcknowledgedPartition(topic_id=topic_id, partition=index, acknowledgements=ranges.get(index, ()))
                for index in sorted(added | ranges.keys())
            ),
            forgotten=(ForgottenSharePartitions(topic_id=topic_id, partitions=removed),) if removed else (),
        )
        assert self._connection is not None
        if self._epoch == 0:
            self._member.model.connections[self._name, self._broker] = self._connection
        sent_s = self._begin(sent)
        self._partitions = wanted | (ranges.keys() & self._partitions)
        response = await self._connection.ask(FETCH, request, waits_s=0.5)
        if not self._is_open(response.error, response.message, "fetch"):
            return
        self._epoch += 1
        errors = {each.partition: each for each in response.partitions}
        for each in sent:
            found = errors.get(each.held.partition)
            if found is not None:
                self._finish(each, found.acknowledge_error, found.acknowledge_message, sent_s)
        for found in response.partitions:
            self._take(found)

    def _take(self, found: SharedPartition) -> None:
        recorder, index = self._member.recorder, found.partition
        if found.error is not ErrorCode.NONE:
            recorder.note(f"{self._name}: {index} at {self._broker}: {found.error.name} {found.message}")
            if found.error not in _OF_PARTITION:
                recorder.problem(f"{self._name}: fetch: {found.error.name} {found.message}")
            self._member.client.forget(recorder.topic, index)
        offsets = {record.offset for record in records_in(memoryview(found.records))} if found.acquired else set()  # type: ignore[arg-type]
        for acquired in found.acquired:
            recorder.note(f"{self._name} got {index}: {acquired} from {self._broker}")
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                self._held[index, offset] = Held(index, offset, acquired.deliveries)
                if offset not in offsets:
                    recorder.problem(f"{self._name}: acquired offset {offset} of {index} without its record")

    async def _acknowledge(self, sent: Sequence[Sent]) -> bool:
        """Acknowledge; return whether locks were renewed. Raises PeerError."""
        if not sent or not self._epoch:
            return False
        topic_id = self._member.client.topic_ids[self._member.recorder.topic]
        is_renewal = any(each.kind == RENEW for each in sent)
        request = ShareAcknowledgeRequest(
            group=GROUP,
            member_id=self._name,
            epoch=self._epoch,
            is_renewal=is_renewal,
            partitions=tuple(
                AcknowledgedPartition(topic_id=topic_id, partition=index, acknowledgements=ranges)
                for index, ranges in sorted(_ranges(sent).items())
            ),
        )
        assert self._connection is not None
        sent_s = self._begin(sent)
        response = await self._connection.ask(ACKNOWLEDGE, request, waits_s=1.0)
        if not self._is_open(response.error, response.message, "acknowledge"):
            return False
        self._epoch += 1
        results: dict[int, AcknowledgeResult] = {each.partition: each for each in response.partitions}
        for each in sent:
            found = results[each.held.partition]
            self._finish(each, found.error, found.message, sent_s)
        return is_renewal

    def _begin(self, sent: Sequence[Sent]) -> float:
        for each in sent:
            self._member.model.acknowledges(self._name, each.held.partition, each.held.offset, each.kind)
        if sent:
            self._member.recorder.note(f"{self._name} sends to {self._broker}: {_ranges(sent)}")
        return trio.current_time()

    def _finish(self, sent: Sent, error: ErrorCode, message: str | None, sent_s: float) -> None:
        held, recorder = sent.held, self._member.recorder
        if error is ErrorCode.NONE:
            self._member.model.answered(self._name, held.partition, held.offset, sent.kind, held.deliveries, sent_s)
            return
        recorder.note(f"{self._name}: {sent} refused by {self._broker}: {error.name} {message}")
        if error not in _OF_ACKNOWLEDGEMENT:
            recorder.problem(f"{self._name}: acknowledge: {error.name} {message}")

    def _is_open(self, error: ErrorCode, message: str | None, what: str) -> bool:
        if error is ErrorCode.NONE:
            return True
        self._lose(f"{what}: {error.name} {message}")
        if error not in _OF_SESSION:
            self._member.recorder.problem(f"{self._name}: {what}: {error.name} {message}")
        return False

    def _lose(self, why: str) -> None:
        """Begin a new session with the next fetch."""
        if self._epoch or self._held:
            self._member.recorder.note(f"{self._name} has no session at {self._broker}: {why}")
        for held in self._held.values():
            self._member.model.dropped(self._name, held.partition, held.offset)
        self._member.model.connections.pop((self._name, self._broker), None)
        self._epoch, self._partitions, self._held = 0, set(), {}


def _ranges(sent: Sequence[Sent]) -> dict[int, tuple[AcknowledgedRange, ...]]:
    """Return acknowledgements by partition: one range for each offset that does not follow the one before."""
    found: dict[int, list[AcknowledgedRange]] = {}
    for each in sorted(sent):
        ranges, offset = found.setdefault(each.held.partition, []), each.held.offset
        if ranges and ranges[-1].last_offset + 1 == offset:
            latest = ranges.pop()
            first, types = latest.first_offset, (*latest.types, each.kind)
            ranges.append(AcknowledgedRange(first_offset=first, last_offset=offset, types=types))
        else:
            ranges.append(AcknowledgedRange(first_offset=offset, last_offset=offset, types=(each.kind,)))
    return {index: tuple(ranges) for index, ranges in found.items()}
