"""The address advertised to a client.

The advertised address is the first of these that applies:
1. The listener's entry in `advertised.listeners`.
2. `localhost`, for a client that reached a container through its default gateway: the client used a port that the
   container engine maps on the host, so it runs on the host, where the container's own address is not reachable.
3. The local address of the client's socket, to which the client can evidently connect.

The second rule is correct only for clients on the host and for a port mapped to the same number. So the first such
client is logged, with the setting that overrides the guess.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from warmlog.broker.api.context import Session
from warmlog.broker.partitions.topics.catalog import BrokerInfo, Catalog
from warmlog.broker.settings.listeners import advertised_addresses
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.kafka.messages.common import KafkaBrokerMetadata

logger = logging.getLogger(__name__)

# Files that Docker and Podman create in a container, and the variable that systemd-nspawn and Podman set.
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
CONTAINER_VARIABLE = "container"
ROUTES = Path("/proc/net/route")
_ROUTE_GATEWAY = 0x2  # RTF_GATEWAY
_IPV4_MAPPED = "::ffff:"


class Advertised:
    """Chooses the address to advertise to each client."""

    def __init__(self, settings: Callable[[], Settings], *, gateway: str | None) -> None:
        """Store a function that returns the current settings, and the container's default gateway if there is one."""
        self._settings = settings
        self._gateway = gateway
        self._has_warned = False

    def of(self, session: Session) -> tuple[str, int]:
        """Return (host, port) for the client of a session."""
        explicit = advertised_addresses(self._settings()).get(session.listener)
        if explicit is not None:
            return explicit
        host, port = session.local
        if self._gateway is not None and _plain(session.peer[0]) == self._gateway:
            self._warn(session)
            return "localhost", port
        return _plain(host), port

    def _warn(self, session: Session) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: a client connected through the default gateway %s, so by a port mapped on the host; advertising "
                "localhost:%d to it. For clients on other machines, or for another port on the host, set "
                "advertised.listeners=%s://HOST:PORT",
                session.listener,
                self._gateway,
                session.local[1],
                session.listener,
            )


def described_brokers(
    catalog: Catalog, node_id: int, advertised: Advertised, session: Session
) -> tuple[KafkaBrokerMetadata, ...]:
    """Return the brokers that a client can reach over its listener, this broker at the address that the client used."""
    described = [
        _described(broker, advertised.of(session) if broker.node_id == node_id else _address(broker, session))
        for broker in catalog.brokers()
    ]
    return tuple([each for each in described if each is not None])


def described_fenced(catalog: Catalog, session: Session) -> tuple[KafkaBrokerMetadata, ...]:
    """Return the brokers that are registered but not alive, with their last addresses."""
    described = [_described(broker, _address(broker, session), is_fenced=True) for broker in catalog.fenced()]
    return tuple([each for each in described if each is not None])


def _address(broker: BrokerInfo, session: Session) -> tuple[str, int] | None:
    return broker.addresses.get(session.listener)


def _described(
    broker: BrokerInfo, address: tuple[str, int] | None, *, is_fenced: bool = False
) -> KafkaBrokerMetadata | None:
    if address is None:
        return None
    host, port = address
    return KafkaBrokerMetadata(node_id=broker.node_id, host=host, port=port, rack=broker.rack, is_fenced=is_fenced)


def container_gateway(settings: Settings) -> str | None:
    """Return the default gateway's IPv4 address if the broker runs in a container (`warmlog.container`), else None."""
    is_container = settings.warmlog_container == "yes" or (
        settings.warmlog_container == "auto" and _looks_like_container()
    )
    return default_gateway(ROUTES) if is_container else None


def default_gateway(routes: Path) -> str | None:
    """Return the gateway of the default route in a file like /proc/net/route; None without a route or a file."""
    try:
        lines = routes.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        _, destination, gateway, flags, *_ = line.split()
        if int(destination, 16) == 0 and int(flags, 16) & _ROUTE_GATEWAY:
            return socket.inet_ntoa(int(gateway, 16).to_bytes(4, sys.byteorder))
    return None


def _looks_like_container() -> bool:
    return CONTAINER_VARIABLE in os.environ or any(os.path.exists(mark) for mark in CONTAINER_MARKS)


def _plain(host: str) -> str:
    """Strip the IPv4-mapped prefix of a dual-stack socket's address, or the scope of an IPv6 address."""
    return host.removeprefix(_IPV4_MAPPED).partition("%")[0]
