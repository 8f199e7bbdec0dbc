"""A broker in the simulation: real partitions, logs, handlers, leaders, followers and controller on one machine.

It has no clients' listeners besides Kafka's, and neither groups nor transactions. Its machine is named after its id.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import trio

from broker.api.cluster.features import Features
from broker.api.cluster.greeting import GreetingApi
from broker.api.dispatch import Dispatcher
from broker.api.fetch.fetches import Fetches
from broker.api.fetch.sessions import FetchSessions
from broker.api.records.epochs import EpochsApi
from broker.api.records.offsets import OffsetsApi
from broker.cluster.controller import Controller, Rebalancing
from broker.cluster.memory import Faults, MemoryCluster, MemoryStore
from broker.cluster.metadata import ClusterMetadata
from broker.cluster.node import ClusterNode, Identity
from broker.cluster.values import NO_EPOCH, Endpoint
from broker.log.directory.data_directories import METADATA_FILE, DataDirectories
from broker.log.io.directory_names import decode_topic_id
from broker.log.io.disk import Disk
from broker.log.io.files import OpenFiles
from broker.maintenance.failed_logs import FailedLogs
from broker.metadata.sqlite import SqliteMetadataStore
from broker.metrics.registry import Metrics
from broker.net.deadlines import Deadlines
from broker.net.wire import KafkaWire
from broker.partitions.appends.writer import Writer
from broker.partitions.disks.storage import Storage
from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from broker.partitions.reads.read_ahead import ReadAhead, ReadLimits
from broker.replication.following.fetcher import FetchLimits
from broker.replication.following.follower import Follower
from broker.replication.peers.brokers import ClusterBrokers
from broker.replication.peers.connection import PeerSettings
from broker.replication.replicas import Replicas, is_foreign
from broker.settings.live import LiveSettings
from broker.settings.settings import load_settings
from protocol.errors import ErrorCode
from protocol.kafka.api import Codec as KafkaCodec
from protocol.response import HelloResponse
from tests.cluster.simulation.network import MACHINE, Network
from tests.cluster.simulation.server import SimulatedListener

LEASE_S = 6.0
PORT = 9092
START_MS = 1_700_000_000_000
CLUSTER_ID = "simulated-cluster-id00"
READS = ReadLimits(threads=4, piece_bytes=1 << 20, ahead_bytes=1 << 20, drop_passed=False)


class SimulatedBroker:
    """One broker: `run` it in a task; `stop` or `kill` it, and run it again over the same directories."""

    def __init__(
        self,
        cluster: MemoryCluster,
        network: Network,
        node_id: int,
        directories: Sequence[Path],
        random: Random,
        *,
        disk: Disk | None = None,
        faults: Faults | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        self.id = node_id
        self.machine = f"machine-{node_id}"
        self.disk = disk or Disk()
        self.directories = list(directories)
        self._store = MemoryStore(cluster, faults)
        self._network = network
        self._random = random
        self._settings = load_settings(assignments=[f"node.id={node_id}", *settings])
        self._since = NO_EPOCH  # of the last run, if it ended cleanly
        self._scope = trio.CancelScope()
        self._stopping = trio.Event()
        self._ended = trio.Event()
        self._ended.set()
        self.is_serving = False
        self.node: ClusterNode
        self.partitions: Partitions
        self.replicas: Replicas
        self.failed_logs: FailedLogs
        self.writer: Writer
        self.data: DataDirectories
        self.opened: dict[tuple[str, int], tuple[int, int]] = {}  # high watermark, log end after the logs were opened

    def local(self, topic: str = "t", index: int = 0) -> Partition | None:
        """Return the partition that has a log here."""
        return self.partitions.local(topic, index)

    @property
    def is_running(self) -> bool:
        """Whether `run` runs."""
        return not self._ended.is_set()

    # -- life --

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop` or `kill`; started when it serves."""
        MACHINE.set(self.machine)
        self._stopping, self._ended = trio.Event(), trio.Event()
        since, self._since = self._since, NO_EPOCH
        try:
            with trio.CancelScope() as self._scope, ExitStack() as stack:
                await self._run(stack, since, task_status)
        finally:
            self.is_serving = False
            self._ended.set()

    async def stop(self) -> None:
        """Stop cleanly."""
        self._stopping.set()
        await self._ended.wait()

    async def kill(self, *, is_power_cut: bool = False) -> None:
        """End everything at once; the files stay as they are."""
        self._network.stop_listening(self.machine, is_power_cut=is_power_cut)
        self._scope.cancel()
        await self._ended.wait()

    async def _run(self, stack: ExitStack, since: int, task_status: trio.TaskStatus[None]) -> None:
        data = self.data = DataDirectories.open(
            self.directories, node_id=self.id, cluster_id=CLUSTER_ID, disk=self.disk
        )
        stack.enter_context(data)
        store = SqliteMetadataStore(self.directories[0] / METADATA_FILE)
        stack.callback(store.close)
        data.join(store.directories(), ())
        is_clean = since != NO_EPOCH and not data.offline and all(each.was_clean for each in data.live)
        self.node = ClusterNode(self._store, self.id, lease_s=LEASE_S, random=self._random)
        self._files = OpenFiles(disk=self.disk)
        async with trio.open_nursery() as background:
            self._make(background, ClusterMetadata(self.node, store))
            await self.node.load()
            await trio.to_thread.run_sync(data.set_aside, partial(is_foreign, self.node.image, self.id))
            await self.partitions.open_all()
            self.opened = {
                (each.topic, each.index): (each.log.high_watermark, each.log.log_end_offset) for each in self.partitions
            }
            async with trio.open_nursery() as nursery:
                await self._serve(nursery, since if is_clean else NO_EPOCH)
                self.is_serving = True
                task_status.started()
                await self._stopping.wait()
                with trio.move_on_after(30):
                    await self.node.drain(30)
                self._network.stop_listening(self.machine)
                nursery.cancel_scope.cancel()
            await self.partitions.close_all()
            self._since = self.replicas.history
            await self.node.leave()
            background.cancel_scope.cancel()

    def _make(self, background: trio.Nursery, metadata: ClusterMetadata) -> None:
        self.metrics = metrics = Metrics()
        clock = trio.lowlevel.current_clock()  # which threads may read
        self.writer = Writer(nursery=background, metrics=metrics, loop_write_max_bytes=1 << 16)
        storage = Storage(
            directories=self.data,
            files=self._files,
            store=metadata,
            clock=lambda: START_MS + round(clock.current_time() * 1000),
            random=self._random,
            is_in_cluster=True,
        )
        self.live_settings = LiveSettings(self._settings)
        self.partitions = Partitions(storage, self.live_settings, self.writer, metrics, self.node)
        self.failed_logs = FailedLogs(self.partitions, metrics)
        self._metadata = metadata
        self._reads = ReadAhead(nursery=background, residency=self._files.residency, metrics=metrics, limits=READS)

    async def _serve(self, nursery: trio.Nursery, since: int) -> None:
        settings, node = self._settings, self.node
        deadlines = Deadlines()
        brokers = ClusterBrokers(node, PeerSettings(client_id=f"broker-{self.id}"), random=self._random)
        limits = FetchLimits(max_wait_ms=settings.replica_fetch_wait_max_ms, fetchers=1, patience_s=0.05)
        follower = Follower(brokers, limits=limits, random=self._random)
        self.replicas = Replicas(
            node,
            self.partitions,
            brokers=brokers,
            follower=follower,
            deadlines=deadlines,
            settings=lambda: self.partitions.settings,
        )
        self.replicas.declare(self.metrics)
        controller = Controller(node, self.replicas.ask_log_ends, Rebalancing(interval_s=None))
        identity = Identity(
            broker=self.id,
            endpoints=(Endpoint(listener="kafka", host=self.machine, port=PORT),),
            directories=tuple([decode_topic_id(each.directory_id) for each in self.data.live]),
        )
        nursery.start_soon(deadlines.run)
        await nursery.start(brokers.run)
        await nursery.start(node.run, identity, since)
        nursery.start_soon(follower.run)
        nursery.start_soon(controller.run)
        await nursery.start(self.replicas.run)
        self._network.listen(self.machine, PORT, self._listener().serve)

    def _listener(self) -> SimulatedListener:
        codec = KafkaCodec(topic_names=self.partitions.topic_name)
        sessions = FetchSessions(slots=1000, clock=trio.current_time, random=self._random)
        hello = HelloResponse(version=0, broker="simulated", cluster_id=CLUSTER_ID, node_id=self.id, max_frame_bytes=1)
        features = Features(self.id, self._metadata, lambda *_: None)
        families = [
            GreetingApi(hello, codec.api_versions, features),
            OffsetsApi(self.partitions, self.metrics),
            EpochsApi(self.partitions),
        ]
        dispatcher = Dispatcher(self.partitions, Fetches(self.partitions, sessions, self._reads), families, _admit)
        return SimulatedListener(KafkaWire(codec), dispatcher, self.writer.write_queued)


async def _admit(*_: object) -> dict[tuple[str, int], ErrorCode]:
    """Admit nothing to transactions, as there are none."""
    await trio.lowlevel.checkpoint()
    return {}
