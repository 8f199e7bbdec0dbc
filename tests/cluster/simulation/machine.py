"""A simulated machine with one broker: the real code from the data directory to the Kafka listener.

The machine outlives its brokers: `kill` ends one at once, as SIGKILL or a power cut does, `stop` in good order, and
`start` begins the next one on what is left of the data.
"""

import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

import trio

from tests.broker.log.io.crashing_disk import CrashingDisk
from tests.broker.rig import NO_QUOTAS
from tests.cluster.simulation.groups.coordination import coordinators_of, families_of
from tests.cluster.simulation.network import MACHINE, Network, clock_ms
from tests.cluster.simulation.server import SimulatedListener
from tests.cluster.simulation.store import CLUSTER
from warmlog.broker.api.addresses import Advertised
from warmlog.broker.api.cluster.features import Features
from warmlog.broker.api.cluster.greeting import GreetingApi
from warmlog.broker.api.dispatch import Dispatcher
from warmlog.broker.api.fetch.fetch import Fetches
from warmlog.broker.api.fetch.sessions import FetchSessions
from warmlog.broker.api.handler import Family
from warmlog.broker.api.newcomers import Newcomers
from warmlog.broker.api.records.delete_records import RecordsApi
from warmlog.broker.api.records.epochs import EpochsApi
from warmlog.broker.api.records.offsets import OffsetsApi
from warmlog.broker.api.topics.metadata import MetadataApi
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.clustered import ClusterMember, Reachable
from warmlog.broker.coordinators import Coordinators
from warmlog.broker.log.directory.belonging import METADATA_FILE
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.io.residency import Residency
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.maintenance.file_removal import FileRemoval
from warmlog.broker.maintenance.retention import Retention
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.net.turns.deadlines import Deadlines
from warmlog.broker.net.wire import KafkaWire
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead, ReadLimits
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.loading import load_settings
from warmlog.protocol.kafka.api import Codec
from warmlog.protocol.records.batch import headers
from warmlog.protocol.response import HelloResponse

PORT = 9092
SETTINGS = (
    "warmlog.cluster.etcd=http://simulated:2379",
    f"warmlog.cluster.id={CLUSTER}",
)


class Life(NamedTuple):
    """The parts of a running broker. `coordinators`: None if it serves no groups."""

    member: ClusterMember
    partitions: Partitions
    writer: Writer
    reads: ReadAhead
    metrics: Metrics
    coordinators: Coordinators | None


class Machine:
    """A machine, its disk, and the broker that runs on it."""

    def __init__(
        self,
        number: int,
        root: Path,
        network: Network,
        nursery: trio.Nursery,
        random: Random,
        failed: Callable[[str, BaseException], None],
        settings: Sequence[str],
        *,
        directories: int = 1,
        has_groups: bool = False,
    ) -> None:
        self.id = number
        self._has_groups = has_groups
        self.name = host_of(number)
        self.path = root / self.name
        self.directories = [self.path / f"disk-{index}" for index in range(directories)]
        for each in self.directories:
            each.mkdir(parents=True)
        self.disk = CrashingDisk(self.path)
        self.life: Life | None = None  # while a broker serves
        self.is_up = False  # a broker runs, or starts, or stops
        self._network = network
        self._nursery = nursery
        self._random = random
        self._failed = failed
        log_dirs = ",".join(map(str, self.directories))
        own = [f"node.id={number}", f"broker.rack={rack_of(number)}", f"log.dirs={log_dirs}"]
        self.beside: Callable[[Life], Awaitable[None]] | None = None  # run with each broker, if there is one
        self._settings = load_settings(assignments=[*own, *SETTINGS, *settings])
        self._scope = trio.CancelScope()
        self._stop = trio.Event()
        self._ended = trio.Event()

    # -- faults --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a broker."""
        assert not self.is_up
        self.is_up = True
        self._scope, self._stop, self._ended = trio.CancelScope(), trio.Event(), trio.Event()
        self._nursery.start_soon(self._live)

    @property
    def is_stopping(self) -> bool:
        """Whether the broker stops, in one way or the other."""
        return self._stop.is_set() or self._scope.cancel_called

    def copy_directory(self, index: int) -> None:
        """Keep a copy of a data directory, while no broker runs."""
        copy = self._copy_of(index)
        if copy.is_dir():
            shutil.rmtree(copy)
        shutil.copytree(self.directories[index], copy)

    def restore_directory(self, index: int) -> bool:
        """Replace a data directory by its copy, while no broker runs; return False if there is none.

        Partitions that lie in another directory by now are left out: a broker refuses to choose.
        """
        assert not self.is_up
        copy = self._copy_of(index)
        if not copy.is_dir():
            return False
        others = [each for each in self.directories if each != self.directories[index]]
        for path in [path for path in copy.iterdir() if path.is_dir()]:
            if any((other / path.name).exists() for other in others):
                shutil.rmtree(path)
        shutil.rmtree(self.directories[index])
        copy.rename(self.directories[index])
        self.disk = CrashingDisk(self.path)
        return True

    def _copy_of(self, index: int) -> Path:
        return self.path.with_name(f"{self.name}-copy-{index}")

    async def stop(self) -> None:
        """Stop the broker in good order."""
        self._stop.set()
        await self._ended.wait()

    async def kill(self, *, is_power_cut: bool) -> None:
        """End the broker at once. What was not synced may be lost if the power is cut."""
        self.disk.gone = True
        self._network.stop_listening(self.name, is_power_cut=is_power_cut)
        self._scope.cancel()
        await self._ended.wait()
        if is_power_cut:
            self._lose_unsynced()
        else:
            self.disk.gone = False
            self.disk.forget_lost_syncs()

    def _lose_unsynced(self) -> None:
        left = self.path.with_name(f"{self.name}-left")
        self.disk.crash(left, self._random)
        first = self.directories[0]
        shutil.copy(first / METADATA_FILE, left / first.name)  # SQLite syncs what it writes
        shutil.rmtree(self.path)
        left.rename(self.path)
        self.disk = CrashingDisk(self.path)

    # -- the broker ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        MACHINE.set(self.name)
        disk = self.disk
        try:
            with self._scope, ExitStack() as stack:
                await self._serve(stack)
        except BaseException as error:
            if not disk.gone:
                if isinstance(error, Exception):
                    self._failed(f"broker {self.id}", error)
                else:
                    raise
        finally:
            self.life = None
            self.is_up = False
            self._ended.set()

    async def _serve(self, stack: ExitStack) -> None:
        settings, metrics = self._settings, Metrics()
        directories = stack.enter_context(
            DataDirectories.open(self.directories, node_id=self.id, cluster_id=CLUSTER, disk=self.disk)
        )
        local = MetadataFile(self.directories[0] / METADATA_FILE, self.id)
        stack.callback(local.close)
        directories.join(local.directories(), [])
        if directories.remembered() != local.directories():
            local.set_directories(directories.remembered())
        member = ClusterMember(settings, directories, metrics, self.disk)
        stack.callback(member.close)
        files = OpenFiles(disk=self.disk, residency=Residency())
        async with trio.open_nursery() as background:
            writer = Writer(nursery=background, metrics=metrics, loop_write_max_bytes=1 << 16)
            limits = ReadLimits(threads=2, piece_bytes=1 << 20, ahead_bytes=1 << 20, drop_passed=False)
            reads = ReadAhead(nursery=background, residency=files.residency, metrics=metrics, limits=limits)
            storage = Storage(
                directories=directories,
                files=files,
                clock=clock_ms,
                random=Random(self._random.random()),
                is_in_cluster=True,
                closing_epoch=member.closing_epoch,
            )
            partitions = Partitions(storage, LiveSettings(settings), writer, metrics, member.node)
            try:
                await member.load()
                await partitions.open_all()
                coordinators = (
                    coordinators_of(member, partitions, writer, settings, metrics) if self._has_groups else None
                )
                await self._accept(Life(member, partitions, writer, reads, metrics, coordinators))
            finally:
                if not self.disk.gone:
                    with trio.CancelScope(shield=True):
                        await partitions.close_all()
                        await member.leave()

    async def _accept(self, parts: Life) -> None:
        member, partitions, deadlines = parts.member, parts.partitions, Deadlines()
        async with trio.open_nursery() as maintained:
            maintained.start_soon(deadlines.run)
            maintained.start_soon(parts.reads.run)
            maintained.start_soon(self._checkpoint_now_and_then, partitions)
            maintained.start_soon(self._delete_now_and_then, partitions, parts.metrics)
            listener = self._listener(parts)
            if parts.coordinators is not None:
                maintained.start_soon(parts.coordinators.run)
            await maintained.start(member.run, partitions, deadlines, Reachable({"kafka": (self.name, PORT)}, "kafka"))
            self.life = parts
            if self.beside is not None:
                maintained.start_soon(self.beside, parts)
            self._network.listen(self.name, PORT, listener.serve)
            await self._stop.wait()
            await member.drain()
            if parts.coordinators is not None:
                parts.coordinators.stop()
            self.life = None
            self._network.stop_listening(self.name)
            maintained.cancel_scope.cancel()

    async def _checkpoint_now_and_then(self, partitions: Partitions) -> None:
        while True:
            await trio.sleep(self._settings.log_flush_offset_checkpoint_interval_ms / 1000)
            await partitions.checkpoint()

    async def _delete_now_and_then(self, partitions: Partitions, metrics: Metrics) -> None:
        unlinking = FileRemoval()
        retention = Retention(partitions, unlinking, metrics)
        while True:
            await trio.sleep(self._settings.log_retention_check_interval_ms / 1000)
            await retention.check()
            for directory in partitions.data_directories:
                await unlinking.unlink_due(directory)

    def _listener(self, parts: Life) -> SimulatedListener:
        partitions = parts.partitions
        codec = Codec(topic_names=partitions.topic_name)
        sessions = FetchSessions(slots=100, clock=trio.current_time, random=Random(self._random.random()))
        advertised = Advertised(lambda: partitions.settings, gateway=None)
        hello = HelloResponse(
            version=0, broker="simulated", cluster_id=CLUSTER, node_id=self.id, max_frame_bytes=100 << 20
        )
        coordinators = parts.coordinators
        changed = (lambda *_: None) if coordinators is None else coordinators.share.feature_changed
        features = Features(parts.member.node, changed)
        families: list[Family] = [
            GreetingApi(hello, codec.api_versions, features),
            MetadataApi(partitions, CLUSTER, advertised, NO_QUOTAS),
            OffsetsApi(partitions, parts.metrics),
            EpochsApi(partitions),
            RecordsApi(partitions),
        ]
        if coordinators is not None:
            families += families_of(coordinators, partitions, parts.reads, advertised, features)
        of = {"limit": 1000, "of_connection": 100, "window_s": 1.0}
        producers = Newcomers("producers", "a limit", **of, clock=trio.current_time)
        fetches = Fetches(partitions, sessions, parts.reads, quotas=NO_QUOTAS)
        forget = None if coordinators is None else coordinators.share.forget
        dispatcher = Dispatcher(
            partitions, fetches, families, _refuse_transactions, producers=producers, quotas=NO_QUOTAS, forget=forget
        )
        return SimulatedListener(KafkaWire(codec), dispatcher, parts.writer.write_queued)


async def _refuse_transactions(*_: object) -> None:
    raise NotImplementedError("simulated producers begin no transactions")


def host_of(broker: int) -> str:
    """Return the name of a broker's machine."""
    return f"b{broker}"


def rack_of(broker: int) -> str:
    """Return a broker's rack; each is in one of its own."""
    return f"r{broker}"


def batches_of(log: PartitionLog, from_offset: int = 0) -> bytes:
    """Return the batches of a log from an offset on, as they are on its disk."""
    data = b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))
    begin = end = 0
    for position, header in headers(data):
        if header.base_offset >= log.offsets.log_end_offset:
            break
        end = position + header.size
        if header.last_offset < from_offset:
            begin = end
    return data[begin:end]
