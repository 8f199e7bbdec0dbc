"""Construct all objects of a broker; start and stop them in order.

start   raise the limit on descriptors -> bind every listener -> lock the data directories -> open the metadata -> HTTP
        (not ready) -> open or recover the logs -> accept -> ready
stop    stop accepting -> answer received requests, for at most `warmlog.stop.timeout.ms` -> finish writes -> flush and
        close the logs, write the clean-shutdown marker -> HTTP
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import trio

from warmlog.broker.api.logins import Logins
from warmlog.broker.client_rules import new_authorizer
from warmlog.broker.cluster.access.credentials import users_of
from warmlog.broker.cluster.access.delegation_tokens import delete_expired_tokens
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.local.local_store import LocalStore
from warmlog.broker.cluster.local.lone_node import LoneNode
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import NO_EPOCH
from warmlog.broker.coordinators import Coordinators
from warmlog.broker.frontend import Core, Frontend
from warmlog.broker.groups.service import GroupService
from warmlog.broker.http_console import connect_console
from warmlog.broker.listening import NOTHING_SHARED, Addresses, Listening, Web, listen
from warmlog.broker.log.directory.belonging import METADATA_FILE
from warmlog.broker.log.directory.condition import report_directories
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.runs import begin_run
from warmlog.broker.log.errors import DirectoryFailedError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.io.page_cache import choose_method
from warmlog.broker.log.io.residency import Residency
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.maintenance.disk_watch import DiskWatch
from warmlog.broker.maintenance.log_moves import LogMoves
from warmlog.broker.maintenance.schedule import Maintenance
from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.metrics.requests import wall_clock_ms
from warmlog.broker.net.http.access import HttpAccess
from warmlog.broker.net.http.http_listener import HttpListener
from warmlog.broker.net.listener import Bound
from warmlog.broker.net.turns.turn import ServingTurn
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.log_metrics import declare_file_metrics, declare_log_metrics, declare_startup_metrics
from warmlog.broker.partitions.partition_metrics import declare_partition_metrics
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead, ReadLimits
from warmlog.broker.partitions.topics.topics import kept_settings
from warmlog.broker.process import (
    SWITCH_INTERVAL_S,
    open_files_limit,
    raise_descriptor_limit,
    stop_at_eof,
    stop_on_signal,
    tune_garbage_collector,
    unless,
)
from warmlog.broker.settings.listeners import advertised_addresses, inter_broker_listener
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.start_errors import BrokenError, StartError, first_of, start_errors
from warmlog.protocol.version import VERSION

if TYPE_CHECKING:
    from warmlog.broker.clustered import ClusterMember, Reachable
    from warmlog.broker.mirror.service import MirrorService

logger = logging.getLogger(__name__)


def run(
    settings: Settings,
    *,
    kafka: str | None,
    native: str | None,
    http: str,
    ready: Callable[[Addresses], None],
    until_eof: bool = False,
    shared: Mapping[str, int] = NOTHING_SHARED,
) -> None:
    """Serve in this thread until SIGTERM or SIGINT, then stop cleanly, as `serve` does. Raises StartError.

    `until_eof`: also stop when standard input ends.
    """
    serving = partial(serve, settings, kafka=kafka, native=native, http=http, shared=shared)
    guard = LoopGuard(settings.warmlog_loop_stall_log_ms / 1000)

    def settled(addresses: Addresses) -> None:
        tune_garbage_collector()
        ready(addresses)

    async def main() -> None:
        stop = trio.Event()
        failure: StartError | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(stop_on_signal, stop)
            if until_eof:
                nursery.start_soon(stop_at_eof, stop)
            try:
                await serving(ready=settled, stop=stop, guard=guard)
            except StartError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    trio.run(main, clock=guard.clock)


async def serve(
    settings: Settings,
    *,
    kafka: str | None,
    native: str | None,
    http: str,
    ready: Callable[[Addresses], None],
    stop: trio.Event,
    guard: LoopGuard | None = None,
    shared: Mapping[str, int] = NOTHING_SHARED,
) -> None:
    """Serve until `stop` is set.

    `kafka`, `native` and `http` are "host:port" or "none"; the first two are None for the default, or where `listeners`
    is set. `ready` is called when all listeners accept connections.
    `shared`: inherited sockets on which other brokers accept as well, as descriptors by listener.
    `guard` is this event loop's stall-measuring clock; without it, stalls are not reported.

    Raises StartError. Flushes and closes the logs even if cancelled.
    """
    raise_descriptor_limit()
    with ExitStack() as stack, start_errors():
        listening = await listen(settings, stack, kafka=kafka, native=native, http=http, shared=shared)
        broker = Broker(settings, stack, guard or LoopGuard(0.0), listening)
        with broker.guard.watching():
            await broker.serve(ready, stop)


class Broker:
    """Constructs the objects of one broker in dependency order; `serve` runs them."""

    def __init__(self, settings: Settings, stack: ExitStack, guard: LoopGuard, listening: Listening) -> None:
        """Lock the data directories and open the metadata; `stack` releases them.

        Raises LogError, MetadataError, OSError.
        """
        self._settings = settings
        self._listening = listening
        self._tokens = listening.tokens
        self._directories = stack.enter_context(self._open_directories(settings))
        file, first = settings.data_paths[0] / METADATA_FILE, self._directories.first
        self._metadata = MetadataFile(file, settings.node_id, release_reserve=first.release_reserve)
        stack.callback(self._metadata.close)
        alone = self._lone_node()
        self._join_directories(alone.image)
        self._metrics = Metrics()
        self._logins = Logins(self._metrics)
        self._member = self._join_cluster(stack, alone.image) if settings.warmlog_cluster_etcd else None
        self._peers = None if self._member is None else self._member.brokers
        self._node: StoreNode = alone if self._member is None else self._member.node
        self._live_settings = LiveSettings(settings)
        self._live_settings.take_kept(kept_settings(self._node.image, self._node.id))
        self._files = OpenFiles(limit=open_files_limit(settings), residency=Residency())
        self.guard = guard
        self._not_ready: str | None = "starting"

    def _open_directories(self, settings: Settings) -> DataDirectories:
        return DataDirectories.open(
            settings.data_paths,
            node_id=settings.node_id,
            cluster_id=settings.warmlog_cluster_id if settings.warmlog_cluster_etcd else None,
            reserve_bytes=settings.warmlog_disk_reserve_bytes,
        )

    def _lone_node(self) -> LoneNode:
        """Return the node of a standalone broker, with the contents of its store. Raises MetadataError."""
        store = LocalStore(self._metadata.store, kept_revisions=0)
        return LoneNode(store, self._settings.node_id, self._metadata.contents(), Random())  # noqa: S311  # jitter

    def _join_cluster(self, stack: ExitStack, alone: ClusterImage) -> "ClusterMember":
        """Prepare to join a cluster. Raises ClusterStartError, DataDirectoryError, OSError."""
        from warmlog.broker.clustered import ClusterMember  # imported only by members of a cluster

        self._own = None if alone.is_empty else alone
        peers = self._listening.peers
        tls = None if peers is None else (lambda: peers.client_context)
        member = ClusterMember(self._settings, self._directories, self._metrics, Disk(), tls)
        stack.callback(member.close)
        return member

    def _join_directories(self, alone: ClusterImage) -> None:
        """Open the other data directories, validated against the metadata, and store the new list there.

        Raises DataDirectoryError, MetadataError, OSError.
        """
        directories, known = self._directories, self._metadata.directories()
        live = [(name, topic) for name, topic in alone.topics.items() if topic.is_live]
        there_are = {(name, index) for name, topic in live for index in range(topic.partitions)}
        directories.join(known, there_are, alone.gone)
        is_alone = not self._settings.warmlog_cluster_etcd
        report_directories(directories, is_alone=is_alone)
        if is_alone:
            begin_run(directories, wall_clock_ms())
        if directories.remembered() != known:
            self._metadata.set_directories(directories.remembered())

    async def serve(self, ready: Callable[[Addresses], None], stop: trio.Event) -> None:
        """Open the logs, serve on the bound sockets until `stop` is set, close the logs."""
        async with trio.open_nursery() as background:
            writer = Writer(
                nursery=background,
                metrics=self._metrics,
                loop_write_max_bytes=self._settings.warmlog_loop_write_max_bytes,
            )
            self._reads = self._read_ahead(background)
            partitions = self._partitions(writer)
            web = self._web = self._http(self._listening.web, partitions)
            if web is not None:
                background.start_soon(web.serve)
            if self._tokens is not None:
                background.start_soon(self._tokens.run)
            try:
                await unless(stop, partial(self._open, partitions), gave_up=partitions.progress.cancel)
                if not stop.is_set():
                    await self._close_gate()
                    await self._accept(partitions, writer, ready, stop)
            finally:
                with trio.CancelScope(shield=True):
                    await partitions.close_all()
                    if self._member is not None:
                        await self._member.leave()
                writer.stop()
            if web is not None:
                web.stop()
            if self._tokens is not None:
                self._tokens.stop()

    async def _open(self, partitions: Partitions) -> None:
        """Read the image of the cluster, and open all logs. A standalone broker's topics become part of its cluster."""
        if self._member is not None:
            since = NO_EPOCH
            if self._own is not None:
                from warmlog.broker.growth import grow  # imported only when a broker joins a cluster

                since = await grow(self._member.node, self._directories, self._metadata, self._own)
            await self._member.load(since)
        await partitions.open_all()

    async def _accept(
        self, partitions: Partitions, writer: Writer, ready: Callable[[Addresses], None], stop: trio.Event
    ) -> None:
        bound = self._listening.bound
        coordinators = Coordinators(
            partitions, writer, self._settings, self._metrics, node=self._node, peers=self._peers
        )
        groups = coordinators.groups
        mirror = self._mirror(partitions, groups) if self._settings.warmlog_mirror_from else None
        self._moves = LogMoves(partitions, self._directories, writer, self._metrics)
        turn = ServingTurn(writer.write_queued, self.guard)
        core = Core(
            settings=self._settings,
            live_settings=self._live_settings,
            directories=self._directories,
            metrics=self._metrics,
            partitions=partitions,
            groups=groups,
            transactions=coordinators.transactions,
            share_states=coordinators.share_states,
            share=coordinators.share,
            mirror=mirror,
            node=self._node,
            moves=self._moves,
            reads=self._reads,
            logins=self._logins,
            http_tls=self._http_tls,
            write_queued=writer.write_queued,
            brokers=self._peers,
        )
        frontend = Frontend(core, turn)
        listeners = frontend.listeners(bound)
        async with trio.open_nursery() as maintained:
            maintained.start_soon(Maintenance(partitions, self._metrics, self._settings).run)
            for task in (coordinators.run, self._moves.run, self._reads.run, frontend.run):
                maintained.start_soon(task)
            if self._settings.delegation_token_secret_key:
                every_s = self._settings.delegation_token_expiry_check_interval_ms / 1000
                maintained.start_soon(delete_expired_tokens, self._node, every_s, wall_clock_ms)
            if self._tokens is not None:
                await unless(stop, self._tokens.wait_read)
            maintained.start_soon(_watch, DiskWatch(partitions, self._directories, self._metrics))
            if self._member is not None:
                join = partial(maintained.start, self._member.run, partitions, turn.deadlines, self._reachable(bound))
                await unless(stop, join)
            if mirror is not None:
                maintained.start_soon(mirror.run)
            if not stop.is_set():
                async with trio.open_nursery() as listening:
                    for listener in listeners:
                        listening.start_soon(listener.serve)
                    self._not_ready = None
                    connect_console(self._web, core, frontend, self.guard, self._files.page_faults)
                    ready(self._listening.addresses(is_named=bool(self._settings.listeners)))
                    await stop.wait()
                    self._not_ready = "stopping"
                    if self._member is not None and self._settings.controlled_shutdown_enable:
                        await self._member.drain()
                    coordinators.stop()
                    for listener in listeners:
                        listener.stop()
                    limit_s = self._settings.warmlog_stop_timeout_ms / 1000
                    listening.cancel_scope.deadline = trio.current_time() + limit_s
            await frontend.finish()
            writer.opener.stop(NotLeaderError("the broker stops"))
            maintained.cancel_scope.cancel()

    def _reachable(self, bound: Sequence[Bound]) -> "Reachable":
        """Return the addresses at which other brokers reach this one: as advertised, or as bound."""
        from warmlog.broker.clustered import Reachable

        addresses = {each.plan.name: each.sock.getsockname()[:2] for each in bound}
        advertised = advertised_addresses(self._settings)
        reachable = {name: advertised.get(name, address) for name, address in addresses.items()}
        return Reachable(reachable, inter_broker_listener(self._settings))

    def _read_ahead(self, background: trio.Nursery) -> ReadAhead:
        settings = self._settings
        limits = ReadLimits(
            threads=settings.warmlog_gate_threads,
            piece_bytes=settings.warmlog_gate_piece_bytes,
            ahead_bytes=settings.warmlog_gate_ahead_bytes,
            drop_passed=settings.warmlog_gate_drop_passed,
        )
        return ReadAhead(nursery=background, residency=self._files.residency, metrics=self._metrics, limits=limits)

    async def _close_gate(self) -> None:
        """Enable residency checks: from now on no read on the event loop waits for a disk.

        Opening the logs reads without them, which lets the kernel read ahead.
        """
        paths = [str(path) for path in self._settings.data_paths]
        choose = partial(choose_method, self._settings.warmlog_gate, paths)
        self._files.residency.method = await trio.to_thread.run_sync(choose)
        self._files.close_files()

    def _partitions(self, writer: Writer) -> Partitions:
        storage = Storage(
            directories=self._directories,
            files=self._files,
            clock=wall_clock_ms,
            random=Random(),  # noqa: S311  # jitter of rolls, not a secret
            budget=ProducerBudget(self._settings.warmlog_producers_max),
            is_in_cluster=self._member is not None,
            closing_epoch=None if self._member is None else self._member.closing_epoch,
        )
        if isinstance(self._node, LoneNode):
            self._node.run_in = writer.spawn
        partitions = Partitions(storage, self._live_settings, writer, self._metrics, self._node)
        self._declare_metrics(partitions)
        return partitions

    def _http(self, web: Web | None, partitions: Partitions) -> HttpListener | None:
        self._http_tls = None if web is None else web.tls

        def why_not_ready() -> dict[str, object] | None:
            status = self._not_ready
            if status is None:
                return None
            return {"status": status} | (partitions.progress.form() if status == "starting" else {})

        if web is None:
            return None
        access, settings = None, self._settings
        if web.settings.ways:
            access = HttpAccess(
                web.settings.ways,
                self._logins,
                users_of(self._node),
                authorizer=partial(new_authorizer, settings, self._node),
                tokens=web.tokens,
                failure_delay_s=settings.connection_failed_authentication_delay_ms / 1000,
            )
        return HttpListener(web.sock, self._metrics.scrape, why_not_ready, web.tls, access)

    def _mirror(self, partitions: Partitions, groups: GroupService) -> "MirrorService":
        from warmlog.broker.mirror.options import mirror_options  # imported only by mirrors
        from warmlog.broker.mirror.service import MirrorService
        from warmlog.broker.replication.peers.login import PeerPasswordFileError
        from warmlog.broker.security.client_tls import TlsFileError

        try:
            options = mirror_options(self._live_settings)
        except (PeerPasswordFileError, TlsFileError) as error:
            raise StartError(str(error)) from error
        own_cluster = None if self._member is None else self._member.own_cluster()
        mirror = MirrorService(options, partitions, groups, own_cluster)
        mirror.declare(self._metrics)
        return mirror

    def _declare_metrics(self, partitions: Partitions) -> None:
        metrics = self._metrics
        metrics.gauge(
            "warmlog_build_info", "Always 1; the label is the version.", lambda: [((VERSION,), 1)], ("version",)
        )
        metrics.gauge(
            "warmlog_ready",
            "1 while the broker serves, 0 during startup and shutdown.",
            lambda: [((), self._not_ready is None)],
        )
        declare_startup_metrics(metrics, partitions.progress)
        declare_log_metrics(metrics, partitions)
        declare_file_metrics(metrics, self._files, self._directories)
        if self._settings.warmlog_metrics_partitions:
            declare_partition_metrics(metrics, partitions)
        self.guard.declare(metrics)
        if self._tokens is not None:
            self._tokens.declare(metrics)


async def _watch(watch: DiskWatch) -> None:
    """Watch the disks. Raises BrokenError when the broker cannot continue."""
    try:
        await watch.run()
    except* DirectoryFailedError as group:
        raise BrokenError(str(first_of(group))) from group
