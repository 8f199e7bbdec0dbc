"""Clients of simulated brokers, which behave as Kafka's do and keep the history of what they saw.

A producer is idempotent, sends one batch at a time to a partition, and sends it again, with the same sequence numbers,
until it knows the outcome. A consumer reads one partition from its beginning to its end, wherever its leader is. One
with a rack reads from the follower that the leader names, until that has an error (KIP-392).
"""

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import trio

from tests.cluster.history import Outcome, PartitionHistory, Poll, Read, Sent
from tests.cluster.simulation.machine import PORT, host_of
from tests.cluster.simulation.network import MACHINE, clock_ms
from tests.cluster.simulation.tempo import Tempo
from warmlog.broker.log.io.directory_names import decode_topic_id
from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import (
    DivergedPartition,
    KafkaFetchPartition,
    KafkaFetchRequest,
    RedirectedPartition,
)
from warmlog.protocol.kafka.messages.records.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
)
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.kafka.peer_apis import FETCH, LIST_OFFSETS, METADATA
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import decoded_batches
from warmlog.protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from warmlog.protocol.response import PartitionMetadata

Q = TypeVar("Q")
R = TypeVar("R")

SETTINGS = PeerSettings(client_id="client", connect_timeout_s=2.0, request_timeout_s=4.0)
PRODUCE_TIMEOUT_MS = 3000
ALL_REPLICAS = -1  # acks
NO_REPLICA = -1


# In the mapping form: its records would be kept apart from the rest of the request.
PRODUCE: PeerApi[dict[str, Any], dict[str, Any]] = PeerApi(API_BY_KEY[0], 9, 12, bound=False)
DELETE_RECORDS: PeerApi[DeleteRecordsRequest, DeleteRecordsResponse] = PeerApi(API_BY_KEY[21], 0, 2)

# After these, the same batch is sent again. It may be in the log already.
RETRIABLE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.REPLICA_NOT_AVAILABLE,
}


class Client:
    """A machine with connections to brokers, and what it knows of their topics.

    Metadata of an earlier leader epoch than known is ignored (KIP-320): a broker that lags has sent it.
    """

    def __init__(self, name: str, brokers: int, nursery: trio.Nursery, random: Random, tempo: Tempo) -> None:
        self.name = name
        self.random = random
        self.tempo = tempo
        self.partitions: dict[tuple[str, int], PartitionMetadata] = {}
        self.topic_ids: dict[str, bytes] = {}
        self._epochs: dict[tuple[str, int], int] = {}  # the latest leader epochs seen
        self._brokers = range(1, brokers + 1)
        self._nursery = nursery
        self._connections: dict[int, PeerConnection] = {}

    async def ask(self, broker: int, api: PeerApi[Q, R], request: Q, *, waits_s: float = 0.0) -> R:
        """Ask a broker. Raises PeerError."""
        return await (await self.connection_to(broker)).ask(api, request, waits_s=waits_s)

    async def connection_to(self, broker: int) -> PeerConnection:
        """Return a connection to a broker. Raises PeerError."""
        found = self._connections.get(broker)
        if found is None or not found.is_open:
            found = await PeerConnection.connect(host_of(broker), PORT, SETTINGS, self._nursery)
            self._connections[broker] = found
        return found

    def disconnect(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def abandon(self) -> None:
        """Leave all connections as they are, as a client does whose machine is gone."""
        self._connections.clear()

    async def leader_of(self, topic: str, partition: int) -> PartitionMetadata | None:
        """Return what is known of a partition, after a refresh if it is not known."""
        if (topic, partition) not in self.partitions:
            try:
                await self._refresh(topic)
            except PeerError:
                return None
        return self.partitions.get((topic, partition))

    async def pause(self) -> None:
        """Wait before something is tried again."""
        await trio.sleep(self.tempo.retry_s * (1 + self.random.random()))

    def forget(self, topic: str, partition: int) -> None:
        """Ask again for the leader of a partition."""
        self.partitions.pop((topic, partition), None)

    async def _refresh(self, topic: str) -> None:
        request = KafkaMetadataRequest(topics=(topic,), topic_ids=(NO_TOPIC_ID,), auto_create=False)
        response = await self.ask(self.random.choice(self._brokers), METADATA, request)
        for found in response.topics:
            if found.name == topic and found.error is ErrorCode.NONE and found.topic_id is not None:
                self.topic_ids[topic] = decode_topic_id(found.topic_id).bytes
                for one in found.partitions:
                    if one.leader >= 0 and one.leader_epoch >= self._epochs.get((topic, one.partition), -1):
                        self._epochs[topic, one.partition] = one.leader_epoch
                        self.partitions[topic, one.partition] = one


class Recorder:
    """The histories of the partitions of one topic, and what clients saw that no history can explain."""

    def __init__(
        self, topic: str, partitions: int, note: Callable[[str], None], problem: Callable[[str], None]
    ) -> None:
        """`problem` is called with what must not happen."""
        self.topic = topic
        self.histories = [PartitionHistory() for _ in range(partitions)]
        self.note = note
        self.problem = problem
        self.stored = 0
        self._deletable = [0.0] * partitions  # offsets below which records may be gone

    def may_delete(self, partition: int, offset: float) -> None:
        """Record that records below an offset may be deleted from now on."""
        self._deletable[partition] = max(self._deletable[partition], offset)

    def may_be_deleted(self, partition: int, offset: int) -> bool:
        """Whether a record may be deleted."""
        return offset < self._deletable[partition]

    def begins(self, partition: int, offset: int) -> None:
        """Note a log that has lost more than was to be deleted."""
        if offset > self._deletable[partition]:
            self.problem(f"partition {partition} begins at {offset}; only {self._deletable[partition]} may be deleted")


class Producer:
    """Sends batches to one partition until told to end."""

    def __init__(self, client: Client, producer_id: int, recorder: Recorder, partition: int) -> None:
        self._client = client
        self._id = producer_id
        self._recorder = recorder
        self._partition = partition
        self._sequence = 0
        self.is_paused = False
        self.is_ending = False

    async def run(self) -> None:
        """Send batches; the last one until its outcome is known."""
        MACHINE.set(self._client.name)
        random = self._client.random
        history = self._recorder.histories[self._partition]
        while not self.is_ending:
            name = f"{self._client.name}/{self._partition}"
            numbers = range(self._sequence, self._sequence + random.choice([1, 1, 2, 5]))
            sent = [Sent(name, number, f"{name}:{number}".encode()) for number in numbers]
            places = range(len(history.sent), len(history.sent) + len(sent))
            history.sent += sent
            base = await self._send(sent)
            for place, one in zip(places, sent, strict=True):
                offset = None if base < 0 else base + one.number - numbers.start
                history.sent[place] = one._replace(outcome=Outcome.STORED, offset=offset)
            self._recorder.stored += len(sent)
            self._recorder.note(f"{name} stored {numbers.start}+{len(numbers)} at {base}")
            self._sequence = numbers.stop
            await trio.sleep(random.expovariate(self._client.tempo.rate))
            while self.is_paused and not self.is_ending:  # noqa: ASYNC110  # simulated time
                await trio.sleep(self._client.tempo.retry_s)

    async def _send(self, sent: list[Sent]) -> int:
        """Send a batch until it is stored; return its base offset."""
        now_ms = clock_ms()
        padding = b"." * self._client.random.choice([10, 100, 400])
        records = build_batch(
            [(now_ms, padding, one.value, ()) for one in sent],
            producer_id=self._id,
            producer_epoch=0,
            base_sequence=sent[0].number,
        )
        topic, partition = self._recorder.topic, self._partition
        data = {"name": topic, "partition_data": ({"index": partition, "records": records},)}
        request = {
            "transactional_id": None,
            "acks": ALL_REPLICAS,
            "timeout_ms": PRODUCE_TIMEOUT_MS,
            "topic_data": (data,),
        }
        while True:
            leader = await self._client.leader_of(topic, partition)
            if leader is not None:
                try:
                    response = await self._client.ask(leader.leader, PRODUCE, request)
                except PeerError:
                    pass
                else:
                    [found] = response["responses"][0]["partition_responses"]
                    error = ErrorCode(found["error_code"])
                    if error in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
                        base_offset: int = found["base_offset"]
                        return base_offset
                    self._recorder.note(f"{sent[0].value!r} refused by {leader.leader}: {error.name}")
                    if error not in RETRIABLE:
                        message = f"{error.name} {found['error_message']}"
                        self._recorder.problem(f"{sent[0]}: broker {leader.leader}: {message}")
                        await trio.sleep(5)
                self._client.forget(topic, partition)
            await self._client.pause()


class Consumer:
    """Reads one partition from its beginning."""

    def __init__(self, client: Client, recorder: Recorder, partition: int, rack: str = "") -> None:
        self._client = client
        self._recorder = recorder
        self.partition = partition
        self.offset = 0
        self._epoch = -1  # of the last record
        self._is_new = True  # it has just started, or has skipped deleted records
        self._rack = rack
        self._nearest = NO_REPLICA  # from which to read instead of the leader
        self._shown = (NO_REPLICA, -1, -1)  # a broker, a leader epoch, and the latest high watermark of both
        self._end = 0  # the largest high watermark or end that it was shown

    async def run(self) -> None:
        """Read until cancelled."""
        MACHINE.set(self._client.name)
        while True:
            try:
                is_read = await self.poll()
                if self._client.random.random() < 0.2:
                    await self.look_for_the_end()
            except PeerError:
                is_read = False
            if not is_read and self._nearest != NO_REPLICA:
                self._nearest = NO_REPLICA
            elif not is_read:
                self._client.forget(self._recorder.topic, self.partition)
                await self._client.pause()

    async def poll(self) -> bool:
        """Fetch once; return False after an error. Raises PeerError."""
        topic, partition = self._recorder.topic, self.partition
        leader = await self._client.leader_of(topic, partition)
        if leader is None:
            return False
        wanted = KafkaFetchPartition(
            topic=topic,
            partition=partition,
            offset=self.offset,
            max_bytes=self._client.random.choice([1, 1000, 100_000]),
            topic_id=self._client.topic_ids[topic],
            current_leader_epoch=leader.leader_epoch,
            last_fetched_epoch=self._epoch,
        )
        wait_s = self._client.tempo.max_wait_s
        request = KafkaFetchRequest(
            partitions=(wanted,), max_wait_ms=int(wait_s * 1000), uses_topic_ids=True, rack=self._rack
        )
        source = leader.leader if self._nearest == NO_REPLICA else self._nearest
        response = await self._client.ask(source, FETCH, request, waits_s=wait_s)
        if response.error is not ErrorCode.NONE or not response.partitions:
            return False
        [found] = response.received
        ends_before = found.error is ErrorCode.OFFSET_OUT_OF_RANGE or isinstance(found, DivergedPartition)
        if ends_before and self._nearest != NO_REPLICA:
            return False  # it lags behind, or has deleted more
        if ends_before and await self._skip_deleted(leader):
            return True
        if ends_before:
            self._recorder.problem(f"{self._client.name}: partition {partition} ends before {self.offset}: {found}")
            await trio.sleep(5)
        if found.error is not ErrorCode.NONE:
            return False
        self._compare_high_watermarks(source, leader.leader_epoch, found.high_watermark)
        if isinstance(found, RedirectedPartition):
            self._nearest = found.preferred_replica
        reads = []
        for header, records in decoded_batches(found.records, from_offset=self.offset):
            reads += [Read(record.offset, bytes(record.value)) for record in records]
            self._epoch = header.leader_epoch
        if reads:
            poll = Poll(self._client.name, tuple(reads), is_new=self._is_new)
            self._recorder.histories[partition].polls.append(poll)
            self._is_new = False
            self.offset = reads[-1].offset + 1
            self._recorder.note(f"{self._client.name}/{partition} read to {self.offset} from {source}")
        return True

    async def _skip_deleted(self, leader: PartitionMetadata) -> bool:
        """Continue at the log start offset if it is past the position; return whether it is. Raises PeerError."""
        topic, partition = self._recorder.topic, self.partition
        query = KafkaOffsetQuery(
            topic=topic,
            partition=partition,
            timestamp=EARLIEST_TIMESTAMP,
            current_leader_epoch=leader.leader_epoch,
        )
        response = await self._client.ask(leader.leader, LIST_OFFSETS, KafkaListOffsetsRequest(partitions=(query,)))
        [found] = response.partitions
        if found.error is not ErrorCode.NONE or found.offset <= self.offset:
            return False
        self._recorder.begins(partition, found.offset)
        self._recorder.note(f"{self._client.name}/{partition} skips from {self.offset} to {found.offset}")
        self.offset, self._epoch, self._is_new = found.offset, -1, True
        return True

    def _compare_high_watermarks(self, source: int, epoch: int, shown: int) -> None:
        """Note a high watermark that falls. That of a fetch may begin lower at another broker, as in Kafka."""
        latest_source, latest_epoch, latest = self._shown
        if (source, epoch) == (latest_source, latest_epoch) and shown < latest:
            self._recorder.problem(
                f"{self._client.name} saw {shown} after {latest} in epoch {epoch} of {self.partition} at {source}"
            )
        self._shown = source, epoch, shown
        self._end = max(self._end, shown)

    async def look_for_the_end(self) -> None:
        """Ask where the log ends, and note an end below one that was shown before, by any leader (KIP-207).

        Raises PeerError.
        """
        topic, partition, before = self._recorder.topic, self.partition, self._end
        leader = await self._client.leader_of(topic, partition)
        if leader is None:
            return
        query = KafkaOffsetQuery(
            topic=topic,
            partition=partition,
            timestamp=LATEST_TIMESTAMP,
            current_leader_epoch=leader.leader_epoch,
        )
        request = KafkaListOffsetsRequest(partitions=(query,))
        response = await self._client.ask(leader.leader, LIST_OFFSETS, request)
        [found] = response.partitions
        if found.error is ErrorCode.NONE:
            if found.offset < before:
                name = self._client.name
                self._recorder.problem(f"{name}: partition {partition} ends at {found.offset} after {before}")
            self._end = max(self._end, found.offset)
        elif found.error is ErrorCode.OFFSET_NOT_AVAILABLE:
            self._recorder.note(f"{self._client.name}/{partition}: the end is not known yet to {leader.leader}")
