"""The listeners of a broker that leads a topic with three replicas, and a follower that speaks Kafka's Fetch."""

import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio

from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.replication.leading.test_leader import Brokers
from tests.broker.replication.leading.test_progress import state_of
from tests.broker.rig import NO_QUOTAS, Rig, rig
from warmlog.broker.api.context import Context
from warmlog.broker.api.dispatch import Dispatcher
from warmlog.broker.api.fetch.fetch import Fetches
from warmlog.broker.api.fetch.sessions import FetchSessions
from warmlog.broker.api.handler import Handler
from warmlog.broker.api.newcomers import Newcomers
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.api.records.epochs import EpochsApi
from warmlog.broker.api.records.offsets import OffsetsApi
from warmlog.broker.api.topics.topics import TopicsApi
from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.net.listener import Bound, Limits, Listener
from warmlog.broker.net.memory_budget import MemoryBudget
from warmlog.broker.net.sendfile import SlicePath
from warmlog.broker.net.services import Services
from warmlog.broker.net.transport.listening_sockets import bind
from warmlog.broker.net.turns.turn import ServingTurn
from warmlog.broker.net.wire import KafkaWire, NativeWire
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.reads.read_ahead import ReadAhead, ReadLimits
from warmlog.broker.replication.leading.leader import PartitionLeader
from warmlog.broker.replication.leading.progress import Proposal
from warmlog.broker.security.quotas.connection_rates import UNLIMITED, ConnectionRates
from warmlog.broker.security.quotas.entities import QuotaIndex
from warmlog.broker.security.quotas.rates import Windows
from warmlog.broker.settings.listeners import ListenerPlan
from warmlog.protocol.kafka.api import Codec
from warmlog.protocol.request import HelloRequest
from warmlog.protocol.response import HelloResponse

TOPIC = "orders"
EPOCH = 5  # of the leader
BROKER_EPOCH = 10
LIMITS = Limits(
    max_connections=lambda: 100,
    max_connections_per_address=lambda _: 100,
    max_idle_s=60.0,
    send_buffer_bytes=-1,
    receive_buffer_bytes=-1,
    rates=ConnectionRates(QuotaIndex(), Windows(), trio.current_time, lambda: UNLIMITED),
)


class Serving:
    """A broker with one topic, its leader and its addresses."""

    def __init__(
        self, made: Rig, partition: Partition, turn: ServingTurn, addresses: dict[str, str], min_isr: int
    ) -> None:
        self.min_isr = min_isr
        self.partitions = made.partitions
        self.partition = partition
        self.log = partition.log
        self.topic_id = self.id_of(TOPIC)
        self.addresses = addresses
        self.brokers = Brokers()
        self.proposals: list[Proposal] = []
        self._turn = turn

    def id_of(self, name: str) -> bytes:
        topic = self.partitions.topic(name)
        assert topic is not None
        return topic.id.bytes

    def lead(self, state: PartitionState) -> None:
        self.log.epochs.assign(state.leader_epoch, self.log.offsets.log_end_offset)
        self.leader = PartitionLeader(
            self.partition,
            state,
            Member(0, BROKER_EPOCH),
            min_isr=self.min_isr,
            brokers=self.brokers,
            deadlines=self._turn.deadlines,
            propose=lambda _, proposal: self.proposals.append(proposal),
        )
        self.leader.start()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KafkaClient]:
        async with kafka_client(self.addresses["kafka"]) as client:
            yield client

    @asynccontextmanager
    async def follower(self, broker: int, version: int = 17) -> AsyncIterator["FollowerClient"]:
        async with self.client() as client:
            yield FollowerClient(client, self.topic_id, broker, version)


class FollowerClient:
    """Fetches one partition as a broker does."""

    def __init__(self, client: KafkaClient, topic_id: bytes, broker: int, version: int = 17) -> None:
        self.client = client
        self.version = version
        self.replica_id = broker
        self.replica_epoch = BROKER_EPOCH
        self.leader_epoch = EPOCH
        self.session_id = self.epoch = 0
        self._topic_id = topic_id

    async def send(self, offset: int | None, *, wait_ms: int = 0, last_epoch: int = -1, log_start: int = 0) -> None:
        """Fetch from an offset; without one, as the session remembers."""
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": self.leader_epoch,
            "last_fetched_epoch": last_epoch,
            "log_start_offset": log_start,
        }
        topic = {"topic": TOPIC, "topic_id": self._topic_id, "partitions": (partition,)}
        await self.client.send(
            "Fetch",
            self.version,
            replica_id=self.replica_id,
            replica_state={"replica_id": self.replica_id, "replica_epoch": self.replica_epoch},
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=() if offset is None else (topic,),
        )

    async def reply(self) -> dict[str, Any] | None:
        """Return what the reply has for the partition, None without a change."""
        reply = await self.client.reply()
        assert reply["error_code"] == 0
        self.session_id = reply["session_id"]
        self.epoch += 1 if self.session_id else 0
        return reply["responses"][0]["partitions"][0] if reply["responses"] else None

    async def fetch(self, offset: int | None, **options: int) -> Any:
        await self.send(offset, **options)
        return await self.reply()


def bound_as(name: str, sock: socket.socket) -> Bound:
    """Return a listener to open, by the name of its protocol."""
    protocol: Any = name
    return Bound(ListenerPlan(name=name, protocol=protocol, security="PLAINTEXT", host="127.0.0.1", port=0), sock)


@asynccontextmanager
async def serving(directory: Path, isr: Sequence[int] = (0, 1, 2), *, min_isr: int = 1) -> AsyncIterator[Serving]:
    """Serve both protocols on free ports, and lead the topic."""
    async with rig(directory) as made, AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        partition = await made.create(TOPIC)
        turn = ServingTurn(made.writer.write_queued, LoopGuard(0.0))
        addresses = {}
        nursery.start_soon(turn.run)
        for name, sock, services in _listening(made, partition, turn, nursery):
            addresses[name] = f"127.0.0.1:{stack.enter_context(sock).getsockname()[1]}"
            nursery.start_soon(
                Listener(bound_as(name, sock), services, LIMITS, lambda: UNLIMITED, is_protected=False).serve
            )
        one = Serving(made, partition, turn, addresses, min_isr)
        one.lead(state_of(*isr))
        yield one
        nursery.cancel_scope.cancel()


def _listening(
    made: Rig, partition: Partition, turn: ServingTurn, nursery: trio.Nursery
) -> Iterator[tuple[str, socket.socket, Services]]:
    reads = ReadAhead(
        nursery=nursery,
        residency=partition.log.residency,
        metrics=made.metrics,
        limits=ReadLimits(threads=1, piece_bytes=1 << 16, ahead_bytes=1 << 16, drop_passed=False),
    )
    sessions = FetchSessions(slots=10, clock=trio.current_time, random=Random(1))
    families = [_Greeting(), OffsetsApi(made.partitions, made.metrics), EpochsApi(made.partitions)]
    families.append(TopicsApi(made.partitions, NO_QUOTAS))
    producers = Newcomers("producers", "a limit", limit=100, of_connection=10, window_s=1.0, clock=trio.current_time)
    fetches = Fetches(made.partitions, sessions, reads, quotas=NO_QUOTAS)
    dispatcher = Dispatcher(made.partitions, fetches, families, _admit, producers=producers, quotas=NO_QUOTAS)
    for wire in (KafkaWire(Codec(topic_names=made.partitions.topic_name)), NativeWire()):
        services = Services(
            name=wire.name,
            wire=wire,
            turn=turn,
            dispatcher=dispatcher,
            metrics=made.metrics,
            requests=MemoryBudget(1 << 30, turn.run_beside),
            replies=MemoryBudget(1 << 30, turn.run_beside),
            slices=SlicePath(reads),
            pacer=Pacer(),
            quotas=NO_QUOTAS,
            max_frame_bytes=1 << 20,
            max_reply_bytes=1 << 30,
            max_requests=100,
            slow_peer_s=60.0,
            slow_peer_bytes=1,
        )
        yield wire.name, bind(("127.0.0.1", 0), 10), services


class _Greeting:
    """Accept every hello."""

    def handlers(self) -> Mapping[str, Handler]:
        return {HelloRequest.api: self._hello}

    async def _hello(self, _: HelloRequest, context: Context) -> HelloResponse:
        context.session.protocol_version = 1
        return HelloResponse(version=1, broker="test", cluster_id="", node_id=0, max_frame_bytes=1 << 20)


async def _admit(*_: Any) -> Any:
    raise AssertionError("there are no transactions here")
