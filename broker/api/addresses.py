"""The address that a client is told to come back to.

Owns: the choice. Must not know: which replies carry it.

In this order:
1. `advertised.listeners`, where it names the listener.
2. `localhost`, for a client that reached a container through its default gateway: it came by a port that the engine
   maps on the host, so it is on the host (or came through it), and the container's own address means nothing there.
3. The address at which the client arrived: the local address of its socket. It reached us there, so it can again.

The second is right for equal ports and clients on the host only: the first such client is logged, with the line to set.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from broker.api.context import Session
from broker.settings.settings import Settings

logger = logging.getLogger(__name__)

# What the engines leave in a container: Docker, Podman; and the variable that systemd-nspawn and Podman set.
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
CONTAINER_VARIABLE = "container"
ROUTES = Path("/proc/net/route")
_ROUTE_GATEWAY = 0x2  # RTF_GATEWAY
_IPV4_MAPPED = "::ffff:"


class Advertised:
    """What the clients of a broker are told."""

    def __init__(self, settings: Callable[[], Settings], *, gateway: str | None) -> None:
        """`settings` as they are in force; `gateway`: the container's default gateway, None outside of one."""
        self._settings = settings
        self._gateway = gateway
        self._has_told = False

    def of(self, session: Session) -> tuple[str, int]:
        """(host, port) for the client of a session."""
        explicit = self._settings().advertised(session.listener)
        if explicit is not None:
            return explicit
        host, port = session.local
        if self._gateway is not None and _plain(session.peer[0]) == self._gateway:
            self._tell(session)
            return "localhost", port
        return _plain(host), port

    def _tell(self, session: Session) -> None:
        if not self._has_told:
            self._has_told = True
            logger.warning(
                "%s: a client came through the default gateway %s, by a port mapped on the host, and is told to come "
                "back to localhost:%d; for clients on other machines, or another port on the host, set "
                "advertised.listeners=%s://HOST:PORT",
                session.listener,
                self._gateway,
                session.local[1],
                session.listener,
            )


def container_gateway(settings: Settings) -> str | None:
    """The default gateway's IPv4 address, if this is a container (`warmlog.container`) and it has one."""
    is_container = settings.warmlog_container == "yes" or (
        settings.warmlog_container == "auto" and _looks_like_container()
    )
    return default_gateway(ROUTES) if is_container else None


def default_gateway(routes: Path) -> str | None:
    """The gateway of the default route in a table like /proc/net/route; None if there is none, or no such table."""
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
    """An IPv4 address without the coat that a socket for both families gives it; an IPv6 one without its scope."""
    return host.removeprefix(_IPV4_MAPPED).partition("%")[0]
