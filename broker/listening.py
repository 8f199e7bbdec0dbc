"""The listening sockets of a broker, with their certificates and token checkers; opened first."""

import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import trio

from warmlog.broker.net.listener import Bound
from warmlog.broker.net.transport.certificates import ServerTls, TlsError
from warmlog.broker.net.transport.listening_sockets import ListenError, inherit, listen_on
from warmlog.broker.settings.http import HTTP, HttpSettings, http_settings
from warmlog.broker.settings.listeners import (
    DEFAULT_KAFKA,
    DEFAULT_NATIVE,
    KAFKA,
    NATIVE,
    ListenerPlan,
    inter_broker_listener,
    join_address,
    parse_address,
    plan_listeners,
)
from warmlog.broker.settings.oauth import OAuthSettings
from warmlog.broker.settings.sasl import sasl_settings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.tls import tls_settings
from warmlog.broker.settings.types import SettingError
from warmlog.broker.start_errors import StartError

NOTHING_SHARED: Final[Mapping[str, int]] = MappingProxyType({})

if TYPE_CHECKING:
    from warmlog.broker.net.http.jwks import TokenSources
    from warmlog.broker.security.tokens import TokenChecker


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The address of each listener as "host:port", or "none" if it is disabled."""

    kafka: str  # the first of `listeners` that speaks Kafka's protocol
    native: str  # the same for the native one
    http: str
    named: Mapping[str, str] = field(default_factory=dict)  # all of `listeners`, by name

    def line(self) -> str:
        """Return the line that reports readiness."""
        known = {"kafka": self.kafka, "native": self.native, "http": self.http}
        return " ".join(["ready", *[f"{name}={address}" for name, address in {**known, **self.named}.items()]])


@dataclass(frozen=True, slots=True)
class Web:
    """The HTTP socket, and how its clients authenticate."""

    sock: socket.socket
    settings: HttpSettings
    tls: ServerTls | None
    tokens: "TokenChecker | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The sockets of a broker.

    `peers`: the certificate of the listener for brokers, if that encrypts. `tokens`: the keys of the issuers of tokens,
    if a listener accepts them.
    """

    bound: Sequence[Bound]
    web: Web | None
    peers: ServerTls | None
    tokens: "TokenSources | None"

    def addresses(self, *, is_named: bool) -> Addresses:
        """Return the addresses of all listeners. `is_named`: also by the names that `listeners` gives them."""
        first = {each.plan.protocol: _address_of(each.sock) for each in reversed(self.bound)}
        return Addresses(
            kafka=first.get(KAFKA, "none"),
            native=first.get(NATIVE, "none"),
            http=_address_of(None if self.web is None else self.web.sock),
            named={each.plan.name: _address_of(each.sock) for each in self.bound} if is_named else {},
        )


async def listen(
    settings: Settings,
    stack: ExitStack,
    *,
    kafka: str | None,
    native: str | None,
    http: str,
    shared: Mapping[str, int] = NOTHING_SHARED,
) -> Listening:
    """Bind all sockets, which `stack` closes, and load certificates and keys. Raises StartError.

    `shared`: inherited sockets by listener, on which other brokers accept as well, as descriptors.
    """
    plans = _plans(settings, kafka, native)
    if unknown := shared.keys() - {plan.name for plan in plans}:
        raise StartError(f"--shared: there is no listener {min(unknown)}")
    certificates = {plan.name: _certificate(settings, plan.name) for plan in plans if plan.is_tls}
    backlog = settings.socket_listen_backlog_size
    try:
        common = {name: stack.enter_context(inherit(name, descriptor)) for name, descriptor in shared.items()}
        sockets = {plan.name: stack.enter_context(listen_on(plan.name, plan.address, backlog)) for plan in plans}
        sock = None if http == "none" else stack.enter_context(listen_on(HTTP, _parse(http), backlog))
    except ListenError as error:
        raise StartError(str(error)) from None
    of_http = http_settings(settings)
    if sock is not None and of_http.is_encrypted:
        certificates[HTTP] = _certificate(settings, HTTP)
    tokens = await _tokens(settings, plans, None if sock is None else of_http.oauth)
    checkers = {} if tokens is None else tokens[1]
    return Listening(
        bound=[
            Bound(
                plan,
                sockets[plan.name],
                certificates.get(plan.name),
                checkers.get(plan.name),
                common.get(plan.name),
            )
            for plan in plans
        ],
        web=None if sock is None else Web(sock, of_http, certificates.get(HTTP), checkers.get(HTTP)),
        peers=certificates.get(inter_broker_listener(settings)),
        tokens=None if tokens is None else tokens[0],
    )


def _plans(settings: Settings, kafka: str | None, native: str | None) -> tuple[ListenerPlan, ...]:
    """Return the listeners to open. Raises StartError."""
    for option, given in (("--kafka", kafka), ("--native", native)):
        if settings.listeners and given is not None:
            raise StartError(f"{option}: cannot be combined with the setting `listeners`; add it there")
    try:
        return plan_listeners(settings, kafka=kafka or DEFAULT_KAFKA, native=native or DEFAULT_NATIVE)
    except SettingError as error:
        raise StartError(str(error)) from None


def _certificate(settings: Settings, listener: str) -> ServerTls:
    """Load a listener's certificate for TLS. Raises StartError."""
    try:
        return ServerTls(listener, tls_settings(settings, listener))
    except (SettingError, TlsError) as error:
        raise StartError(str(error)) from None


async def _tokens(
    settings: Settings, plans: Iterable[ListenerPlan], of_http: OAuthSettings | None
) -> "tuple[TokenSources, dict[str, TokenChecker]] | None":
    """Return the token checkers of listeners that accept tokens; None if there is none. Raises StartError."""
    by_listener = [(plan.name, sasl_settings(settings, plan.name)) for plan in plans]
    wanted = [(name, sasl.oauth) for name, sasl in by_listener if sasl is not None and sasl.oauth is not None]
    if of_http is not None:
        wanted.append((HTTP, of_http))
    return await trio.to_thread.run_sync(_token_sources, wanted) if wanted else None


def _token_sources(wanted: Sequence[tuple[str, OAuthSettings]]) -> "tuple[TokenSources, dict[str, TokenChecker]]":
    """Import joserfc and read key files, in a thread. Raises StartError."""
    try:
        from warmlog.broker.net.http.jwks import token_sources
        from warmlog.broker.security.tokens import KeysError
    except ModuleNotFoundError as error:
        missing = error.name
        raise StartError(f"tokens need the package {missing}: pip install 'warmlog[oauth]'") from None
    try:
        return token_sources(wanted)
    except KeysError as error:
        raise StartError(str(error)) from None


def _parse(address: str) -> tuple[str, int]:
    """Parse "host:port" or "[v6]:port". Raises StartError."""
    try:
        return parse_address(address)
    except SettingError as error:
        raise StartError(str(error)) from None


def _address_of(sock: socket.socket | None) -> str:
    """Return a bound socket's "host:port", or "none"."""
    if sock is None:
        return "none"
    host, port = sock.getsockname()[:2]
    return join_address(host, port)
