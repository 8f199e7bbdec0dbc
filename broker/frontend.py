"""Connect clients to the broker: the handlers of all requests, the state that connections share, and the listeners."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import trio

from warmlog.broker.api.addresses import Advertised, container_gateway
from warmlog.broker.api.audit.opening import open_audit_log
from warmlog.broker.api.authorization.guard import Guard
from warmlog.broker.api.cluster.acls import AclsApi
from warmlog.broker.api.cluster.authentication import AuthenticationApi
from warmlog.broker.api.cluster.cluster import ClusterApi
from warmlog.broker.api.cluster.controller import ControllerApi
from warmlog.broker.api.cluster.credentials import CredentialsApi
from warmlog.broker.api.cluster.delegation_tokens import DelegationTokensApi
from warmlog.broker.api.cluster.features import GROUP_FEATURE, STREAMS_FEATURE, Features
from warmlog.broker.api.cluster.greeting import GreetingApi
from warmlog.broker.api.cluster.quotas import QuotasApi
from warmlog.broker.api.configs.configs import ConfigsApi
from warmlog.broker.api.current_leaders import CurrentLeaders
from warmlog.broker.api.dispatch import Dispatcher
from warmlog.broker.api.fetch.fetch import Fetches
from warmlog.broker.api.fetch.sessions import FetchSessions
from warmlog.broker.api.groups.consumer_groups import ConsumerGroupsApi
from warmlog.broker.api.groups.internal_topics import InternalTopics
from warmlog.broker.api.groups.kafka_groups import group_families
from warmlog.broker.api.groups.native_descriptions import NativeDescriptionsApi
from warmlog.broker.api.groups.native_groups import NativeGroupsApi
from warmlog.broker.api.groups.share_groups import ShareGroupsApi
from warmlog.broker.api.groups.streams_groups import StreamsGroupsApi
from warmlog.broker.api.handler import Family
from warmlog.broker.api.logins import Logins
from warmlog.broker.api.newcomers import Newcomers
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.api.records.delete_records import RecordsApi
from warmlog.broker.api.records.epochs import EpochsApi
from warmlog.broker.api.records.explain import ExplainApi
from warmlog.broker.api.records.native_producers import NativeProducersApi
from warmlog.broker.api.records.offsets import OffsetsApi
from warmlog.broker.api.records.producers import ProducersApi
from warmlog.broker.api.share.fetch import ShareFetchApi
from warmlog.broker.api.share.fetching import ShareFetching
from warmlog.broker.api.share.native_share import NativeShareApi
from warmlog.broker.api.share.state import ShareStateApi
from warmlog.broker.api.topics.assignments import AssignmentsApi
from warmlog.broker.api.topics.describe_topics import DescribeTopicsApi
from warmlog.broker.api.topics.log_dirs import LogDirsApi
from warmlog.broker.api.topics.metadata import MetadataApi
from warmlog.broker.api.topics.mirrors import MirrorsApi
from warmlog.broker.api.topics.topics import TopicsApi
from warmlog.broker.api.transactions.listing import ListTransactionsApi
from warmlog.broker.api.transactions.markers import TransactionMarkersApi
from warmlog.broker.api.transactions.requests import TransactionsApi
from warmlog.broker.client_rules import (
    authorizer_of,
    client_quotas,
    client_windows,
    connection_rate,
    connections_of_address,
    login_rules,
    warn_of_open_listeners,
)
from warmlog.broker.cluster.access.credentials import users_of
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.groups.service import GroupService
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.maintenance.log_moves import LogMoves
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.metrics.requests import wall_clock_ms
from warmlog.broker.net.guard import guarded
from warmlog.broker.net.listener import Bound, Limits, Listener, declare_listener_metrics
from warmlog.broker.net.memory_budget import MemoryBudget
from warmlog.broker.net.sendfile import SlicePath
from warmlog.broker.net.services import Services
from warmlog.broker.net.transport.certificates import ServerTls
from warmlog.broker.net.turns.turn import ServingTurn
from warmlog.broker.net.wire import KafkaWire, NativeWire, Wire
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead
from warmlog.broker.process import connections_limit
from warmlog.broker.security.delegation_tokens import TokenSecret, token_lookup
from warmlog.broker.security.quotas.connection_rates import ConnectionRates
from warmlog.broker.security.scram import TokenLookup
from warmlog.broker.settings.http import HTTP
from warmlog.broker.settings.listeners import (
    KAFKA,
    MAX_CONNECTIONS,
    NATIVE,
    UNLIMITED_CONNECTIONS,
    inter_broker_listener,
)
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.share.service import SHARE_FEATURE, ShareService
from warmlog.broker.share.state.service import ShareStateService
from warmlog.broker.transactions.service import TransactionService
from warmlog.protocol.kafka.api import Codec as KafkaCodec
from warmlog.protocol.response import HelloResponse
from warmlog.protocol.version import VERSION

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from warmlog.broker.api.audit.topic_appends import Brokers
    from warmlog.broker.mirror.service import MirrorService  # most brokers do not need it

LOGIN_BYTES: Final = 16 << 20  # memory for frames of more than 4 KiB received before a login is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The parts of the broker that handlers serve requests from.

    `write_queued` writes queued appends; `brokers` are the others of a cluster.
    """

    settings: Settings
    live_settings: LiveSettings
    directories: DataDirectories
    metrics: Metrics
    partitions: Partitions
    groups: GroupService
    transactions: TransactionService
    share_states: ShareStateService
    share: ShareService
    mirror: "MirrorService | None"
    node: StoreNode
    moves: LogMoves
    reads: ReadAhead
    logins: Logins
    http_tls: ServerTls | None
    write_queued: Callable[[], None]
    brokers: "Brokers | None"


class Frontend:
    """Constructs everything between the sockets and the core of a broker."""

    def __init__(self, core: Core, turn: ServingTurn) -> None:
        """Raise StartError if the audit log cannot be written."""
        self._core = core
        self._turn = turn
        self._authorizer = authorizer_of(core.settings, core.node)
        self.guard = None if self._authorizer is None else Guard(self._authorizer, core.partitions)
        self._quotas = client_quotas(core.settings, core.node, core.metrics)
        key = core.settings.delegation_token_secret_key
        self._secret = TokenSecret(key) if key else None
        self._advertised = Advertised(lambda: core.partitions.settings, gateway=container_gateway(core.settings))
        self._leaders = None if core.node.is_alone else CurrentLeaders(core.partitions, self._advertised)
        self._audit = open_audit_log(
            core.settings, core.metrics, core.partitions, write=core.write_queued, brokers=core.brokers
        )
        self.pacer = Pacer()

    async def run(self) -> None:
        """Serve the requests that connections have queued, and write the audit log, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._turn.run)
            if self._audit is not None:
                nursery.start_soon(self._audit.run)

    async def finish(self) -> None:
        """Let the audit log write the events of the last requests."""
        if self._audit is not None:
            await self._audit.finish()

    def listeners(self, bound: Sequence[Bound]) -> list[Listener]:
        """Return a listener for each bound socket; they share all handlers and limits."""
        core, settings = self._core, self._core.settings
        codec = KafkaCodec(topic_names=core.partitions.topic_name)
        requests = MemoryBudget(settings.queued_max_request_bytes, self._turn.run_beside)
        replies = MemoryBudget(settings.warmlog_queued_max_reply_bytes, self._turn.run_beside)
        logins = MemoryBudget(max(LOGIN_BYTES, 2 * settings.sasl_server_max_receive_size), self._turn.run_beside)
        producers, transactional_ids = self._newcomers()
        dispatcher = self.dispatcher = Dispatcher(
            core.partitions,
            self._fetches(),
            self._families(codec, transactional_ids),
            core.transactions.admission.admit,
            producers=producers,
            quotas=self._quotas,
            guard=self.guard,
            audit=self._audit,
            leaders=self._leaders,
            forget=core.share.forget,
        )
        limits = Limits(
            max_connections=lambda: connections_limit(core.live_settings.current),
            max_connections_per_address=partial(connections_of_address, core.live_settings),
            max_idle_s=settings.connections_max_idle_ms / 1000,
            send_buffer_bytes=settings.socket_send_buffer_bytes,
            receive_buffer_bytes=settings.socket_receive_buffer_bytes,
            rates=ConnectionRates(
                core.node.image.quotas,
                client_windows(settings),
                trio.current_time,
                lambda: core.live_settings.current.max_connection_creation_rate,
            ),
        )
        services = partial(
            Services,
            turn=self._turn,
            dispatcher=dispatcher,
            metrics=core.metrics,
            requests=requests,
            logins=logins,
            replies=replies,
            slices=SlicePath(core.reads),
            pacer=self.pacer,
            quotas=self._quotas,
            max_frame_bytes=settings.socket_request_max_bytes,
            max_reply_bytes=settings.warmlog_reply_max_bytes,
            max_requests=settings.warmlog_connection_inflight_requests,
            slow_peer_s=settings.warmlog_slow_peer_timeout_ms / 1000,
            slow_peer_bytes=settings.warmlog_slow_peer_bytes,
        )
        wires: Mapping[str, Wire] = {KAFKA: KafkaWire(codec), NATIVE: NativeWire()}
        listeners = []
        for each in bound:
            rules = login_rules(settings, each)
            of_listener = services(
                name=each.plan.name, wire=wires[each.plan.protocol], login_rules=rules, guard=guarded
            )
            rate = partial(connection_rate, core.live_settings, each.plan.name)
            is_protected = len(bound) > 1 and each.plan.name == inter_broker_listener(settings)
            own = settings.of_listeners.get(f"listener.name.{each.plan.name}.{MAX_CONNECTIONS}")
            most = UNLIMITED_CONNECTIONS if own is None else int(own)
            listeners.append(Listener(each, of_listener, limits, rate, is_protected=is_protected, max_connections=most))
        certificates = {each.plan.name: each.tls for each in bound if each.tls is not None}
        if core.http_tls is not None:
            certificates[HTTP] = core.http_tls
        declare_listener_metrics(core.metrics, listeners, requests, replies, certificates)
        warn_of_open_listeners(bound, settings)
        if not core.node.image.credentials and any(
            each.plan.security.startswith("SASL") and each.tokens is None for each in bound
        ):
            logger.warning(
                "no client can log in: there is no user; stop, and create one with `warmlog user create --data-dir`"
            )
        return listeners

    def _families(self, codec: KafkaCodec, transactional_ids: Newcomers) -> list[Family]:
        """Return the handlers of all requests except produce and fetch."""
        core, settings = self._core, self._core.settings
        partitions, groups, transactions = core.partitions, core.groups, core.transactions
        cluster_id = core.directories.cluster_id
        advertised = self._advertised
        hello = HelloResponse(
            version=0,
            broker=f"warmlog/{VERSION}",
            cluster_id=cluster_id,
            node_id=partitions.node_id,
            max_frame_bytes=settings.socket_request_max_bytes,
        )
        catalog = partitions.catalog
        features = Features(core.node, transactions.feature_changed, core.share.feature_changed)
        consumer_groups = ConsumerGroupsApi(
            groups.consumers, self._authorizer, is_enabled=lambda: features.level(GROUP_FEATURE) > 0
        )
        share_groups = ShareGroupsApi(
            groups.shares, groups.share_offsets, is_enabled=lambda: features.level(SHARE_FEATURE) > 0
        )
        topics = TopicsApi(partitions, self._quotas)
        streams_groups = StreamsGroupsApi(
            groups.streams,
            InternalTopics(topics.create),
            self._authorizer,
            is_enabled=lambda: features.level(STREAMS_FEATURE) > 0,
        )
        return [
            GreetingApi(hello, codec.api_versions, features),
            MetadataApi(partitions, cluster_id, advertised, self._quotas),
            topics,
            DescribeTopicsApi(partitions),
            ExplainApi(partitions),
            configs := ConfigsApi(partitions),
            ClusterApi(partitions, cluster_id, advertised),
            ControllerApi(core.node, features, advertised, clock=wall_clock_ms, catalog=catalog),
            AssignmentsApi(partitions, core.node),
            AclsApi(core.node, is_enabled=self._authorizer is not None),
            AuthenticationApi(users_of(core.node, self._token_lookup()), core.logins, self._audit),
            DelegationTokensApi(
                core.node,
                self._secret,
                max_lifetime_ms=settings.delegation_token_max_lifetime_ms,
                expiry_ms=settings.delegation_token_expiry_time_ms,
                clock_ms=wall_clock_ms,
            ),
            CredentialsApi(core.node),
            QuotasApi(core.node),
            OffsetsApi(partitions, core.metrics),
            EpochsApi(partitions),
            RecordsApi(partitions),
            LogDirsApi(partitions, core.directories, core.moves),
            ProducersApi(partitions),
            TransactionsApi(transactions, groups.registry.runtime, groups.commits, partitions, transactional_ids),
            ListTransactionsApi(transactions),
            TransactionMarkersApi(transactions.markers, partitions),
            ShareStateApi(core.share_states.coordinator),
            *(
                families := group_families(
                    groups,
                    transactions,
                    core.share_states.runtime,
                    partitions,
                    advertised=advertised,
                    consumer_groups=consumer_groups,
                )
            ),
            NativeGroupsApi(families, partitions),
            NativeDescriptionsApi((*families, share_groups, streams_groups), partitions),
            share_groups,
            streams_groups,
            share_fetch := ShareFetchApi(
                core.share,
                ShareFetching(partitions, core.reads, self._quotas),
                is_enabled=lambda: features.level(SHARE_FEATURE) > 0,
                authorizer=self._authorizer,
                leaders=self._leaders,
            ),
            NativeShareApi((share_groups, share_fetch, configs), partitions),
            NativeProducersApi(partitions),
            MirrorsApi(partitions, core.mirror, core.node),
        ]

    def _token_lookup(self) -> TokenLookup | None:
        """Return the lookup of delegation tokens; None if they are not enabled."""
        if self._secret is None:
            return None
        node = self._core.node
        return token_lookup(self._secret, lambda: node.image.delegation_tokens, wall_clock_ms)

    def _newcomers(self) -> tuple[Newcomers, Newcomers]:
        """Return the limits on new producers and transactional ids."""
        settings = self._core.settings
        known = partial(Newcomers, of_connection=settings.warmlog_connection_names_max, clock=trio.current_time)
        producers = known(
            "producers",
            "warmlog.producers.max",
            limit=settings.warmlog_producers_max,
            window_s=settings.warmlog_producers_min_idle_ms / 1000,
        )
        transactional_ids = known(
            "transactional ids",
            "warmlog.transactional.ids.max",
            limit=settings.warmlog_transactional_ids_max,
            window_s=settings.transactional_id_expiration_ms / 1000,
        )
        self._core.metrics.counter(
            "warmlog_refused_names_total",
            "Producers and transactional ids refused because their connection or address had created too many.",
            lambda: [(("producer",), producers.refused), (("transactional_id",), transactional_ids.refused)],
            ("kind",),
        )
        return producers, transactional_ids

    def _fetches(self) -> Fetches:
        slots = self._core.settings.max_incremental_fetch_session_cache_slots
        sessions = FetchSessions(slots=slots, clock=trio.current_time, random=SystemRandom())
        sessions.declare(self._core.metrics)
        access = None if self.guard is None else self.guard.access
        return Fetches(self._core.partitions, sessions, self._core.reads, quotas=self._quotas, access=access)
