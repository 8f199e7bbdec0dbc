"""The rules for clients of a listener, from the settings: authorizer, logins, quotas, connections."""

import logging
from collections.abc import Iterable
from ipaddress import ip_address
from time import perf_counter

import trio

from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.net.listener import Bound
from warmlog.broker.security.authorizer import Authorizer, parse_super_users
from warmlog.broker.security.principal import ANONYMOUS
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.broker.security.quotas.rates import MS, Windows
from warmlog.broker.security.sasl import LoginRules
from warmlog.broker.settings.listeners import (
    CONNECTION_RATE,
    address_key,
    inter_broker_listener,
    join_address,
    listener_names,
    parse_overrides,
    security_of,
    value_for,
)
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.sasl import sasl_settings
from warmlog.broker.settings.settings import Settings

logger = logging.getLogger(__name__)


def authorizer_of(settings: Settings, node: StoreNode) -> Authorizer | None:
    """Return the configured authorizer. Warn if it may refuse other brokers, or if there are ACLs and no authorizer."""
    chosen = new_authorizer(settings, node)
    image = node.image
    asks = any(sasl_settings(settings, name) is not None for name in listener_names(settings))
    if chosen is None and (image.acls or (image.credentials and not asks)):
        logger.warning(
            "there are users or ACLs here, but authorizer.class.name is not set: every client may do everything; start "
            "this broker with --secure, or with the settings that it had"
        )
    is_known = str(ANONYMOUS) in parse_super_users(settings.super_users)
    if chosen is not None and not node.is_alone and not is_known:
        _warn_of_anonymous_brokers(settings)
    return chosen


def new_authorizer(settings: Settings, node: StoreNode) -> Authorizer | None:
    """Return the configured authorizer with the ACLs that a broker has now; None if none is configured."""
    if not settings.authorizer_class_name:
        return None
    super_users = parse_super_users(settings.super_users)
    return Authorizer(node.image.acls, super_users, allows_unnamed=settings.allow_everyone_if_no_acl_found)


def client_windows(settings: Settings) -> Windows:
    """Return the time windows over which clients and connections are measured."""
    return Windows(settings.quota_window_num, settings.quota_window_size_seconds * MS)


def connection_rate(settings: LiveSettings, listener: str) -> int:
    """Return how many connections a listener accepts per second."""
    current = settings.current
    own = current.of_listeners.get(f"listener.name.{listener}.{CONNECTION_RATE}")
    return current.max_connection_creation_rate if own is None else int(own)


def connections_of_address(settings: LiveSettings, address: str) -> int:
    """Return how many connections an address may have."""
    current = settings.current
    overrides = parse_overrides(current.max_connections_per_ip_overrides)
    own = overrides.get(address_key(address)) if overrides else None
    return current.max_connections_per_ip if own is None else own


def client_quotas(settings: Settings, node: StoreNode, metrics: Metrics) -> ClientQuotas:
    """Return the client quotas of the store with their meters, and declare their metrics."""
    mutation_windows = Windows(settings.controller_quota_window_num, settings.controller_quota_window_size_seconds * MS)
    quotas = ClientQuotas(
        node.image.quotas, client_windows(settings), trio.current_time, mutation_windows=mutation_windows
    )
    metrics.counter(
        "warmlog_throttled_replies_total",
        "Replies after which a client had to pause because of a quota.",
        quotas.throttled,
        ("quota",),
    )
    metrics.counter(
        "warmlog_throttle_seconds_total",
        "Time that clients had to pause because of quotas.",
        quotas.throttled_s,
        ("quota",),
    )
    metrics.counter(
        "warmlog_client_throttle_seconds_total",
        "Time that clients had to pause because of quotas, of the 100 users and clients that were throttled last.",
        quotas.throttled_s_of_shares,
        ("quota", "user", "client_id"),
    )
    return quotas


def login_rules(settings: Settings, bound: Bound) -> LoginRules | None:
    """Return the login rules for clients of a listener; None without SASL."""
    chosen = sasl_settings(settings, bound.plan.name)
    if chosen is None:
        return None
    return LoginRules(
        mechanisms=chosen.mechanisms,
        is_encrypted=chosen.is_encrypted,
        max_frame_bytes=chosen.max_frame_bytes,
        timeout_s=chosen.timeout_ms / 1000,
        failure_delay_s=chosen.failure_delay_ms / 1000,
        session_s=chosen.session_ms / 1000,
        clock=perf_counter,
        tokens=bound.tokens,
    )


def warn_of_open_listeners(bound: Iterable[Bound], settings: Settings) -> None:
    """Log a warning for each listener that grants other machines everything without a login."""
    if settings.authorizer_class_name:
        return
    for plan, address in [(each.plan, each.sock.getsockname()) for each in bound]:
        asks = plan.is_tls and value_for(settings, plan.name, "ssl.client.auth")[1] == "required"
        if asks or plan.security.startswith("SASL") or ip_address(address[0].partition("%")[0]).is_loopback:
            continue
        logger.warning(
            "%s listener: every client that reaches %s may read, change and delete everything; `warmlog serve "
            "--secure` encrypts and asks for logins",
            plan.name,
            join_address(*address[:2]),
        )


def _warn_of_anonymous_brokers(settings: Settings) -> None:
    """Log a warning if other brokers cannot authenticate, since then they may not be allowed to replicate."""
    listener = inter_broker_listener(settings)
    security, (_, client_auth) = security_of(settings, listener), value_for(settings, listener, "ssl.client.auth")
    if security == "PLAINTEXT" or (security == "SSL" and client_auth == "none"):
        logger.warning(
            "%s listener: other brokers are %s there, and replicate only with CLUSTER_ACTION on the cluster; "
            "encrypt it, and set ssl.client.auth, to let them show certificates",
            listener,
            ANONYMOUS,
        )
