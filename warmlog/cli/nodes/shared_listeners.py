"""The sockets on which all nodes accept: the addresses that users give to clients.

    supervisor   binds and listens, never accepts      a taken port is an error before any node starts
    node         inherits the descriptors, accepts     whichever node comes first serves a client

1. There is one queue of connections for an address, in the kernel. It outlives every node: what a killed node had not
   accepted, another one accepts, and a node that stands still keeps no client waiting.
2. Clients find every node at an address of its own (`broker.net.listener`); here they only learn these.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from warmlog.broker.net.transport.listening_sockets import ListenError, listen_on
from warmlog.broker.settings.listeners import KAFKA, NATIVE, join_address, plan_listeners
from warmlog.broker.settings.types import SettingError
from warmlog.cli.failure import CannotStart
from warmlog.cli.nodes.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedListeners:
    """Listening sockets by the names of their listeners, and the first one of each protocol as "host:port" or "none".

    `is_named`: the names are those of the setting `listeners`.
    """

    sockets: Mapping[str, socket.socket]
    kafka: str
    native: str
    is_named: bool

    @classmethod
    @contextmanager
    def of(cls, plan: Plan) -> "Iterator[SharedListeners]":
        """Listen on the addresses of a plan, until the end of the block. Raises CannotStart."""
        settings, given = plan.settings, plan.addresses
        with ExitStack() as stack:
            sockets, first = dict[str, socket.socket](), dict[str, str]()
            try:
                for listener in plan_listeners(settings, kafka=given["kafka"], native=given["native"]):
                    sock = listen_on(listener.name, listener.address, settings.socket_listen_backlog_size)
                    sockets[listener.name] = stack.enter_context(sock)
                    first.setdefault(listener.protocol, _address_of(sock))
            except (SettingError, ListenError) as error:
                raise CannotStart(str(error)) from None
            yield cls(
                sockets=sockets,
                kafka=first.get(KAFKA, "none"),
                native=first.get(NATIVE, "none"),
                is_named=bool(settings.listeners),
            )

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors that a node inherits."""
        return [sock.fileno() for sock in self.sockets.values()]

    @property
    def options(self) -> Sequence[str]:
        """The options of `serve` that tell a node what it has inherited."""
        return [word for name, sock in self.sockets.items() for word in ("--shared", f"{name}={sock.fileno()}")]

    def line(self, http: str) -> str:
        """Return the addresses, as printed on the line that reports readiness."""
        words = [f"kafka={self.kafka}", f"native={self.native}", f"http={http}"]
        named = [f"{name}={_address_of(sock)}" for name, sock in self.sockets.items()]
        return " ".join([*words, *(named if self.is_named else ())])


def _address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return join_address(host, port)
