"""A broker as a member of a cluster: the parts that `app.py` adds if `warmlog.cluster.etcd` is set.

    start   connect to etcd -> read the image -> (open the logs) -> register -> lead and follow -> (accept)
    stop    let others lead -> (stop accepting, close the logs) -> end the registration

`cluster.state_file` stores the identity and epoch that the next start validates. `cluster.history` decides whether the
data here continues the history of the latest registration.
"""

import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from warmlog.broker.api.records.producers import largest_producer_id
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.controller import Controller, Rebalancing
from warmlog.broker.cluster.history import ScannedDirectory, history_of
from warmlog.broker.cluster.image import BROKER_DEFAULTS
from warmlog.broker.cluster.node import ClusterNode, Identity
from warmlog.broker.cluster.rules import SHARED
from warmlog.broker.cluster.state_file import StateFile
from warmlog.broker.cluster.store import StoreError, StoreMismatchError
from warmlog.broker.cluster.values import NO_EPOCH, Endpoint, broker_client_id
from warmlog.broker.cluster_start import ClusterStartError, check_login, check_rights, connect_store, peer_login
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.directory_names import decode_topic_id
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.mirror.own_cluster import OwnCluster
from warmlog.broker.net.turns.deadlines import Deadlines
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.replication.deleted_topics import judge
from warmlog.broker.replication.following.fetcher import FetchLimits
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.peers.brokers import ClusterBrokers
from warmlog.broker.replication.peers.connection import PeerSettings
from warmlog.broker.replication.replicas import Replicas
from warmlog.broker.replication.self_fencing import SelfFencing
from warmlog.broker.settings.listeners import inter_broker_listener
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import as_text
from warmlog.protocol.version import VERSION

WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # addresses that nobody can connect to
REMEMBER_S = 10.0  # interval between writes of the state file
# How long a change of leader waits for a pending fetch: a tenth of the default fetch wait, and far longer than it takes
# to answer a fetch that has records.
FETCH_PATIENCE_S = 0.05

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reachable:
    """The addresses at which clients and brokers reach this broker, by listener: as advertised, or as bound.

    `peers`: the listener for brokers.
    """

    addresses: Mapping[str, tuple[str, int]]
    peers: str

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the addresses to register. Raises ClusterStartError for an address that others cannot use."""
        present = []
        for listener, (host, port) in self.addresses.items():
            if host in WILDCARDS:
                raise ClusterStartError(
                    f"{listener} listener: other brokers cannot connect to {host or '*'}:{port}; "
                    f"set advertised.listeners={listener}://HOST:PORT"
                )
            present.append(Endpoint(listener=listener, host=host, port=port))
        if not any(endpoint.listener == self.peers for endpoint in present):
            raise ClusterStartError("a broker of a cluster needs a Kafka listener: followers fetch over it")
        return tuple(present)


class ClusterMember:
    """The parts of a member of a cluster, in the order in which a start needs them."""

    def __init__(
        self,
        settings: Settings,
        directories: DataDirectories,
        metrics: Metrics,
        disk: Disk,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Prepare to connect. Raises ClusterStartError, DataDirectoryError, OSError.

        `tls`: the context for connections to other brokers, if these are encrypted.
        """
        self._settings = settings
        self._directories = directories
        self._metrics = metrics
        self._state = StateFile(disk, directories.first.path)
        self._since = NO_EPOCH  # the first epoch of the history that the data here continues
        for each in directories.live:
            each.recognize(self._state.epoch)
        random = Random()  # noqa: S311  # jitter and placement
        self.store = connect_store(settings, metrics, self._state.store, random)
        self.node = ClusterNode(
            self.store,
            settings.node_id,
            lease_s=settings.warmlog_cluster_lease_ms / 1000,
            random=random,
            peer_listener=inter_broker_listener(settings),
        )
        self._login = peer_login(settings)
        self.brokers = ClusterBrokers(
            self.node,
            PeerSettings(client_id=broker_client_id(settings.node_id), tls=tls, login=self._login),
            random=random,
        )
        self._random = random
        self._controller: Controller | None = None
        self._replicas: Replicas | None = None

    async def load(self, adopted_since: int = NO_EPOCH) -> None:
        """Read the image, and rename partition directories whose replicas are no longer assigned to this broker.

        `adopted_since`: the first epoch of the history, if the cluster has just adopted the topics of this broker.
        Raises ClusterStartError, StoreMismatchError, StoreRefusedError, OSError.
        """
        await self.node.load()
        self._check_registration()
        check_rights(self._settings, self.node.image, self.node.id)
        if self._login is not None:
            await trio.to_thread.run_sync(check_login, self._login, self.node.image)
        self._since = self._continued() if adopted_since == NO_EPOCH else adopted_since
        await self._remember()
        await trio.to_thread.run_sync(self._directories.sort_out, partial(judge, self.node.image, self.node.id))

    def _check_registration(self) -> None:
        """Detect a store that was restored from a backup, even if it has advanced since.

        A store without this broker is accepted: it may have been unregistered. Raises StoreMismatchError.
        """
        known, epoch = self.node.image.known.get(self.node.id), self._state.epoch
        if known is not None and known.epoch < epoch:
            raise StoreMismatchError(
                f"etcd knows broker {self.node.id} as registered at revision {known.epoch}, not at {epoch}: it was "
                "restored from a backup that lacks decisions already carried out; restore its latest state"
            )

    async def run(
        self,
        partitions: Partitions,
        deadlines: Deadlines,
        reachable: Reachable,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Take part in the cluster until cancelled; started when every replica here leads or follows.

        Raises ClusterStartError, UsedIdError, StoreMismatchError, StoreRefusedError.
        """
        settings, node = self._settings, self.node
        identity = Identity(
            broker=node.id,
            endpoints=reachable.endpoints(),
            directories=tuple([decode_topic_id(each.directory_id) for each in self._directories.live]),
            rack=settings.broker_rack or None,
            version=VERSION,
            checks_rights=bool(settings.authorizer_class_name),
        )
        async with trio.open_nursery() as nursery:
            brokers = self.brokers
            await nursery.start(brokers.run)
            limits = FetchLimits(
                max_wait_ms=settings.replica_fetch_wait_max_ms,
                min_bytes=settings.replica_fetch_min_bytes,
                max_bytes=settings.replica_fetch_response_max_bytes,
                fetchers=settings.num_replica_fetchers,
                patience_s=FETCH_PATIENCE_S,
            )
            follower = Follower(brokers, limits=limits, random=self._random)
            self._replicas = replicas = Replicas(
                node,
                partitions,
                brokers=brokers,
                follower=follower,
                deadlines=deadlines,
                settings=lambda: partitions.settings,
            )
            replicas.declare(self._metrics)
            self._controller = controller = Controller(
                node, replicas.ask_log_ends, self._rebalancing(), elected=self._declare_election_times()
            )
            self._declare(controller)
            await nursery.start(node.run, identity, self._since)
            fencing = SelfFencing(node, brokers, lease_s=settings.warmlog_cluster_lease_ms / 1000, random=self._random)
            nursery.start_soon(fencing.run)
            await self._remember()
            nursery.start_soon(follower.run)
            nursery.start_soon(controller.run)
            nursery.start_soon(self._share_settings)
            nursery.start_soon(self._remember_now_and_then)
            nursery.start_soon(self._raise_producer_ids, partitions)
            await nursery.start(replicas.run)
            task_status.started()

    def own_cluster(self) -> OwnCluster:
        """Return a mirror's view of the cluster; it has no replicas before `run`."""
        return OwnCluster(
            node=self.node,
            brokers=self.brokers,
            find=lambda topic, index: None if self._replicas is None else self._replicas.find(topic, index),
        )

    async def drain(self) -> None:
        """Hand leadership to other brokers, for at most `warmlog.stop.timeout.ms`."""
        limit_s = self._settings.warmlog_stop_timeout_ms / 1000
        await self.node.drain(limit_s)
        with trio.move_on_after(limit_s):
            if self._controller is not None and self._controller.is_active:
                await self._controller.resign()

    async def leave(self) -> None:
        """End the registration, after the logs were closed."""
        if self._replicas is None:
            return  # startup failed or was cancelled before registration
        try:
            await self._remember()
        except OSError as error:
            logger.warning("cannot write %s: %s", self._state.path, error)
        await self.node.leave()

    def close(self) -> None:
        """Close the connections to the store."""
        self.store.close()

    def _rebalancing(self) -> Rebalancing:
        settings = self._settings
        return Rebalancing(
            interval_s=settings.leader_imbalance_check_interval_seconds
            if settings.auto_leader_rebalance_enable
            else None,
            max_imbalance=settings.leader_imbalance_per_broker_percentage / 100,
        )

    def _continued(self) -> int:
        """Return the first epoch of the history that the data here continues; NO_EPOCH if records may be lost."""
        node, directories = self.node, self._directories
        present = [
            ScannedDirectory(each.path, decode_topic_id(each.directory_id), each.closed_in, not each.partitions())
            for each in directories.live
        ]
        missing = {decode_topic_id(directory_id): what for directory_id, what in directories.gone.items()}
        names, held = node.image.names, node.image.held.get(node.id, ())
        replicas = [(names[key.topic_id], key.partition) for key in held if key.topic_id in names]
        since, objections = history_of(node.image.known.get(node.id), self._state.epoch, present, missing)
        objections = [
            *objections,
            *[f"{path} is offline" for path in directories.offline],
            *[f"{path} is missing" for path in directories.find_lost(replicas).values()],
            *[finding for each in directories.live for finding in each.findings],
        ]
        if not objections:
            return since
        logger.warning(
            "broker %d counts none of its replicas as complete until they have caught up with their leaders: %s",
            node.id,
            "; ".join(objections),
        )
        return NO_EPOCH

    def closing_epoch(self) -> int:
        """Return the epoch that a clean stop writes into the markers of the data directories.

        NO_EPOCH if a replica has lost records, so that the next run does not continue the history.
        """
        replicas, node = self._replicas, self.node
        if replicas is not None and replicas.has_lost:
            return NO_EPOCH
        if node.epoch == NO_EPOCH:  # it was not registered in this run: nothing was written
            return NO_EPOCH if self._since == NO_EPOCH else self._state.epoch
        return node.latest_epoch

    async def _remember(self) -> None:
        """Write the state file. Raises OSError."""
        known = self.store.known
        if known is not None:
            epoch = self._state.epoch if self.node.epoch == NO_EPOCH else self.node.latest_epoch
            await self._state.write(known, epoch)

    async def _raise_producer_ids(self, partitions: Partitions) -> None:
        """Keep the store, which may be restored from a snapshot, from allocating producer ids that are in logs here."""
        needed = largest_producer_id(partitions) + 1
        if needed > self.node.image.producer_ids.next_id:
            logger.warning(
                "logs of this broker have producer ids up to %d; the cluster allocates ids after them", needed - 1
            )
            with suppress(StoreError):  # this broker itself never allocates one that is in a log here
                await admin.take_producer_ids(self.node, 0, at_least=needed)

    async def _remember_now_and_then(self) -> None:
        while True:
            await trio.sleep(REMEMBER_S)
            try:
                await self._remember()
            except OSError as error:
                logger.warning("cannot write %s: %s", self._state.path, error)

    async def _share_settings(self) -> None:
        """Write the settings in SHARED to the store; log a warning where the store has other values."""
        defaults, image = Settings(), self.node.image
        there = image.configs.get(BROKER_DEFAULTS)
        for name in SHARED:
            value = self._settings.effective(name)
            if value == defaults.effective(name):
                continue
            text = as_text(value) or ""
            known = None if there is None else there.values.get(name)
            if known is None:
                await admin.set_configs(self.node, BROKER_DEFAULTS, partial(_with_default, name, text))
            elif known != text:
                logger.warning(
                    "%s: using %s, the value of the cluster, instead of %s as configured here", name, known, text
                )

    def _declare_election_times(self) -> Callable[[float], None]:
        return self._metrics.histogram(
            "warmlog_cluster_election_seconds",
            "Time from the detection that a partition needs another leader until one was elected.",
        ).observe

    def _declare(self, controller: Controller) -> None:
        metrics, node = self._metrics, self.node
        gauges: Mapping[str, tuple[str, Callable[[], float]]] = {
            "warmlog_cluster_brokers": ("Registered brokers.", lambda: len(node.image.brokers)),
            "warmlog_cluster_registered": ("1 while this broker is registered.", lambda: node.is_registered),
            "warmlog_cluster_controller": ("1 on the controller, 0 elsewhere.", lambda: controller.is_active),
            "warmlog_cluster_revision": ("Revision of this broker's cluster image.", lambda: node.image.revision),
            "warmlog_cluster_leaderless_partitions": (
                "Partitions of the cluster without a leader.",
                lambda: sum(
                    state.leader is None or not node.image.is_good(state.leader)
                    for state in list(node.image.partitions.values())
                ),
            ),
            "warmlog_cluster_missing_revisions": (
                "Revisions of the cluster's store that this broker has not seen yet.",
                lambda: node.statistics().missing_revisions,
            ),
            "warmlog_cluster_store_silence_seconds": (
                "Time since the cluster's store last answered this broker.",
                lambda: node.statistics().since_contact_s,
            ),
        }
        for name, (text, read) in gauges.items():
            metrics.gauge(name, text, partial(_reading, read))
        metrics.counter(
            "warmlog_cluster_elections_total",
            "Elections decided by this broker; unclean: the longest log was chosen, or one that lacks records.",
            lambda: [
                (("clean",), controller.elections - controller.unclean_elections),
                (("unclean",), controller.unclean_elections),
            ],
            ("kind",),
        )


def _reading(read: Callable[[], float]) -> list[tuple[tuple[str, ...], float]]:
    return [((), read())]


def _with_default(name: str, text: str, old: Mapping[str, str]) -> Mapping[str, str]:
    return {name: text, **old}
