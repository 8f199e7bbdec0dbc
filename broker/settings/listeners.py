"""The listeners of a broker: names, addresses, security protocols, and settings of one listener.

`listeners` names them as in Kafka. Without it there are two, `kafka` and `native`, at the addresses of the command
line. Names are compared without regard to case, and kept in lower case.

A setting of the form `listener.name.NAME.ssl.…` replaces `ssl.…` for one listener; likewise
`sasl.enabled.mechanisms`, `sasl.oauthbearer.…`, `max.connections` and `max.connection.creation.rate`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, Literal, cast

from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError, parts

Protocol = Literal["kafka", "native"]
Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

KAFKA: Final = "kafka"
NATIVE: Final = "native"
DEFAULT_KAFKA: Final = "127.0.0.1:9092"
DEFAULT_NATIVE: Final = "127.0.0.1:9091"
MAX_PORT: Final = 65_535
SUPPORTED: Final[tuple[Security, ...]] = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Listeners whose names are security protocols, unless `listener.security.protocol.map` overrides this.
DEFAULT_PROTOCOLS: Final[Mapping[str, str]] = {
    **{name.lower(): name for name in SUPPORTED},
    KAFKA: "PLAINTEXT",
    NATIVE: "PLAINTEXT",
}
RESERVED: Final = frozenset({"http", "none"})
CONNECTION_RATE: Final = "max.connection.creation.rate"
MAX_CONNECTIONS: Final = "max.connections"
OVERRIDES: Final = "max.connections.per.ip.overrides"
UNLIMITED_CONNECTIONS: Final = (1 << 31) - 1
#: Settings that may be given for one listener.
OF_ONE_LISTENER: Final = frozenset({
    CONNECTION_RATE,
    MAX_CONNECTIONS,
    "sasl.enabled.mechanisms",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.principal.mapping.rules",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "warmlog.sasl.oauthbearer.ca.file",
})  # fmt: skip

_LISTENER = re.compile(r"([\w-]+)://\[?([^/\[\]]*?)\]?:(\d{1,5})")
_PREFIXED = re.compile(r"listener\.name\.([^.]+)\.(.+)")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerPlan:
    """A listener to open. An empty `host` means all addresses."""

    name: str
    protocol: Protocol
    security: Security
    host: str
    port: int

    @property
    def address(self) -> Address:
        """The host and port."""
        return self.host, self.port

    @property
    def is_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self.security in {"SSL", "SASL_SSL"}


def plan_listeners(settings: Settings, *, kafka: str, native: str) -> tuple[ListenerPlan, ...]:
    """Return the listeners to open.

    `kafka` and `native` are the addresses of the short form, "host:port" or "none"; `listeners` replaces both.

    Raises SettingError.
    """
    addresses = parse_listeners("listeners", settings.listeners)
    if not settings.listeners:
        short = {KAFKA: kafka, NATIVE: native}
        addresses = {name: parse_address(address) for name, address in short.items() if address != "none"}
    natives = {NATIVE} if not settings.listeners else set(native_names(settings))
    plans = tuple(
        [
            ListenerPlan(
                name=name,
                protocol=NATIVE if name in natives else KAFKA,
                security=security_of(settings, name),
                host=host,
                port=port,
            )
            for name, (host, port) in addresses.items()
        ]
    )
    _check_overrides(settings, [plan.name for plan in plans])
    return plans


def inter_broker_listener(settings: Settings) -> str:
    """Return the name of the listener over which the brokers of a cluster reach each other.

    Without `inter.broker.listener.name`, the first that speaks Kafka's protocol. Raises SettingError.
    """
    natives = native_names(settings) if settings.listeners else [NATIVE]
    known = [name for name in listener_names(settings) if name not in natives]
    chosen = settings.inter_broker_listener_name.strip().lower()
    if chosen and chosen not in known:
        raise SettingError(
            f"inter.broker.listener.name: {settings.inter_broker_listener_name} is no listener for Kafka's protocol"
        )
    return chosen or (known[0] if known else KAFKA)


def join_address(host: str, port: int) -> str:
    """Return "host:port", or "[v6]:port"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> Address:
    """Parse "host:port" or "[v6]:port". Raises SettingError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > MAX_PORT:
        raise SettingError(f"{address}: expected HOST:PORT")
    return host.strip("[]"), int(port)


@cache
def parse_listeners(setting: str, text: str) -> dict[str, Address]:
    """Parse `NAME://HOST:PORT,...` to {name in lower case: (host, port)}. Raises SettingError."""
    addresses: dict[str, Address] = {}
    for part in parts(text):
        match = _LISTENER.fullmatch(part)
        if match is None or int(match[3]) > MAX_PORT:
            raise SettingError(f"{setting}: expected NAME://HOST:PORT, not {part!r}")
        name, address = match[1].lower(), (match[2], int(match[3]))
        if name in RESERVED:
            raise SettingError(f"{setting}: {match[1]} cannot be the name of a listener")
        if name in addresses:
            raise SettingError(f"{setting}: {match[1]} occurs twice")
        if address[1] and address in addresses.values():
            raise SettingError(f"{setting}: {part} has the address of another listener")
        addresses[name] = address
    return addresses


def advertised_addresses(settings: Settings) -> Mapping[str, Address]:
    """Return the addresses of `advertised.listeners` by listener. Raises SettingError."""
    addresses = parse_listeners("advertised.listeners", settings.advertised_listeners)
    if not settings.listeners:  # PLAINTEXT is what Kafka calls the listener that is `kafka` here
        addresses = {KAFKA if name == "plaintext" else name: address for name, address in addresses.items()}
    return addresses


@cache
def parse_protocols(text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL,...` of `listener.security.protocol.map`. Raises SettingError."""
    protocols = {}
    for part in parts(text):
        name, colon, protocol = (word.strip() for word in part.partition(":"))
        if not colon or not name or protocol.upper() not in SUPPORTED:
            raise SettingError(
                f"listener.security.protocol.map: expected NAME:PROTOCOL with a protocol of {', '.join(SUPPORTED)}, "
                f"not {part!r}"
            )
        protocols[name.lower()] = protocol.upper()
    return protocols


def security_of(settings: Settings, name: str) -> Security:
    """Return the security protocol of a listener. Raises SettingError."""
    chosen = parse_protocols(settings.listener_security_protocol_map)
    protocol = chosen.get(name) or DEFAULT_PROTOCOLS.get(name)
    if protocol is None and name in native_names(settings):
        protocol = "PLAINTEXT"
    if protocol is None:
        raise SettingError(f"listeners: {name.upper()} has no security protocol in listener.security.protocol.map")
    return cast("Security", protocol)


def native_names(settings: Settings) -> list[str]:
    """Return the names of listeners of the native protocol."""
    return [name.lower() for name in parts(settings.warmlog_native_listener_names)]


def is_of_listener(name: str) -> bool:
    """Return whether a setting is an effective setting of a listener."""
    match = _PREFIXED.fullmatch(name)
    return match is not None and match[2] in OF_ONE_LISTENER


def value_for(settings: Settings, listener: str, name: str) -> tuple[str, str]:
    """Return the name of the setting that applies to a listener, and its value."""
    own = f"listener.name.{listener}.{name}"
    value = settings.of_listeners.get(own)
    return (name, str(settings.effective(name))) if value is None else (own, value)


def check_listeners(settings: Settings) -> None:
    """Raise SettingError for names, addresses and protocols that are invalid or conflict with each other."""
    advertised = advertised_addresses(settings)
    known = listener_names(settings)
    for name in parse_protocols(settings.listener_security_protocol_map):
        if not settings.listeners and name not in known:  # Kafka's own configurations map more listeners than they open
            raise SettingError(
                f"listener.security.protocol.map: there is no listener {name}: expected one of {', '.join(known)}"
            )
    if settings.listeners and not parts(settings.listeners):
        raise SettingError(f"listeners: expected NAME://HOST:PORT, not {settings.listeners!r}")
    for name in advertised:
        if name not in known:
            raise SettingError(f"advertised.listeners: {name} is not a listener: expected one of {', '.join(known)}")
    for name, (host, port) in advertised.items():
        if not host or not port:
            raise SettingError(f"advertised.listeners: {name}: clients need a host and a port to connect to")
    for name in known:
        security_of(settings, name)
    inter_broker_listener(settings)


def listener_names(settings: Settings) -> list[str]:
    """Return the names of the listeners."""
    return list(parse_listeners("listeners", settings.listeners)) or [KAFKA, NATIVE]


def _check_overrides(settings: Settings, names: list[str]) -> None:
    """Raise SettingError for a setting of a listener that does not exist."""
    for name in settings.of_listeners:
        match = _PREFIXED.fullmatch(name)
        if match is not None and match[1] == "http" and match[2] == "sasl.enabled.mechanisms":
            raise SettingError(f"{name}: HTTP has no SASL: see warmlog.http.authentication")
        if match is not None and match[1] not in {*names, "http"}:
            raise SettingError(f"{name}: there is no listener {match[1]}: expected one of {', '.join(names)}")


# -- connections of an address (source: org.apache.kafka.network.ConnectionQuotas) --


def address_key(address: str) -> str:
    """Return an address in the form of `parse_overrides`: an IPv4 address in IPv6 form is an IPv4 address."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)


@lru_cache(maxsize=4)
def parse_overrides(text: str) -> Mapping[str, int]:
    """Parse `ADDRESS:NUMBER,...` of `max.connections.per.ip.overrides`. Raises SettingError."""
    overrides: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        address, _, number = part.rpartition(":")
        try:
            key = address_key(address.strip().removeprefix("[").removesuffix("]"))
        except ValueError:
            raise SettingError(
                f"{OVERRIDES}: expected ADDRESS:NUMBER, separated by commas, not {part!r} (names are not resolved)"
            ) from None
        if not number.strip().isdecimal() or int(number) > UNLIMITED_CONNECTIONS:
            raise SettingError(f"{OVERRIDES}: expected a number of connections for {address}, not {number!r}")
        overrides[key] = int(number)
    return overrides
