"""The client's settings: names, units, defaults and validation.

Names follow Kafka's, with the unit appended.
"""

import re
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypedDict

from warmlog.protocol.oauthbearer import OAUTHBEARER
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.scram import MECHANISMS, PLAIN

DEFAULT_PORT = 9091
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"

Acks: TypeAlias = Literal[0, 1, -1, "all"]
Mechanism: TypeAlias = Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
Token: TypeAlias = str | Callable[[], str]
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class SettingNames(TypedDict, total=False):
    """The settings as keyword arguments of `connect` and `Client`; see `Settings`."""

    client: str
    acks: Acks
    compression: Compression
    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    max_in_flight: int
    delivery_timeout_s: float
    request_timeout_s: float
    connect_timeout_s: float
    fetch_bytes: int
    fetch_partition_bytes: int
    fetch_max_wait_ms: int
    tls: ssl.SSLContext | None
    username: str | None
    password: str | None
    mechanism: Mechanism
    delegation_token: bool
    token: Token | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a client. Raises ValueError for a value out of range.

    `client`: name for the broker's logs. `acks`: 0 (no acknowledgement), 1 (written by the leader) or "all".
    `linger_ms`: how long a batch waits for more records; with 0, records produced at the same moment still share a
    batch. `batch_bytes`: limit of one batch, uncompressed. `buffer_bytes`: limit of unacknowledged records, above which
    `produce` waits. `max_in_flight`: concurrent produce requests per broker; with 1, records keep their order across
    retries. `delivery_timeout_s`: how long a record is retried. `request_timeout_s`: limit for one reply.
    `fetch_bytes`, `fetch_partition_bytes`: limits of one fetch and of each partition in it. The next fetch is in flight
    while the last one is read, so a stream uses up to twice as much memory. `fetch_max_wait_ms`: how long the broker
    holds a fetch while there are no records. `tls`: a context that encrypts connections and verifies hosts, such as
    `ssl.create_default_context(cafile="ca.pem")`; None for no encryption.
    `username`, `password`: credentials for the SASL `mechanism`. Without encryption, use SCRAM, since PLAIN sends the
    password in clear text. `delegation_token`: whether the credentials are the id and the HMAC of a delegation token.
    `token`: an access token (OAUTHBEARER), or a function that returns one, such as `TokenFile` or `ClientCredentials`,
    which is called in a worker thread for each login.
    """

    client: str = ""
    acks: Acks = "all"
    compression: Compression = "none"
    linger_ms: float = 0
    batch_bytes: int = 256 << 10  # a quarter of the broker's default limit; larger is not faster
    buffer_bytes: int = 32 << 20  # Kafka's buffer.memory
    max_in_flight: int = 5  # Kafka's max.in.flight.requests.per.connection
    delivery_timeout_s: float = 120  # Kafka's delivery.timeout.ms
    request_timeout_s: float = 30  # Kafka's request.timeout.ms
    connect_timeout_s: float = 10  # Kafka's socket.connection.setup.timeout.ms
    fetch_bytes: int = 8 << 20  # Kafka's default of 50 MiB would use too much memory
    fetch_partition_bytes: int = 1 << 20  # Kafka's max.partition.fetch.bytes
    fetch_max_wait_ms: int = 500  # Kafka's fetch.max.wait.ms
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    mechanism: Mechanism = "SCRAM-SHA-512"
    delegation_token: bool = False
    token: Token | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_tls(self.tls)
        if self.acks not in {0, 1, -1, "all"}:
            raise ValueError(f"acks must be 0, 1 or 'all', not {self.acks!r}")
        if self.compression.upper() not in Codec.__members__:
            known = ", ".join(name.lower() for name in Codec.__members__)
            raise ValueError(f"compression must be one of {known}, not {self.compression!r}")
        for name in ("linger_ms", "fetch_max_wait_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        self._check_login()
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")

    def _check_login(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password must be set together")
        if self.token is not None and self.username is not None:
            raise ValueError("log in with a username and a password, or with a token")
        if self.mechanism not in {*MECHANISMS, PLAIN}:
            raise ValueError(f"mechanism must be one of {', '.join((*MECHANISMS, PLAIN))}, not {self.mechanism!r}")
        if self.delegation_token and (self.username is None or self.mechanism == PLAIN):
            raise ValueError("delegation_token needs a username and a password, the token's id and HMAC, and SCRAM")

    @property
    def required_acks(self) -> Literal[-1, 0, 1]:
        """The value of `acks` as encoded in a request."""
        return -1 if self.acks == "all" else self.acks

    @property
    def sasl_mechanism(self) -> str | None:
        """The SASL mechanism of connections; None if they do not log in."""
        if self.token is not None:
            return OAUTHBEARER
        return None if self.username is None else self.mechanism

    @property
    def codec(self) -> Codec:
        """The value of `compression` as encoded in a batch."""
        return Codec[self.compression.upper()]


def _check_tls(tls: object) -> None:
    """Raise ValueError unless `tls` is an SSL context (a file name, for example, is not)."""
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise ValueError("tls must be an ssl.SSLContext, such as ssl.create_default_context(cafile='ca.pem')")


_POSITIVE = (
    "batch_bytes",
    "buffer_bytes",
    "max_in_flight",
    "delivery_timeout_s",
    "request_timeout_s",
    "connect_timeout_s",
    "fetch_bytes",
    "fetch_partition_bytes",
)


_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>[0-9]+))?")


def parse_address(address: str) -> tuple[str, int]:
    """Parse "host:port", "host" (port 9091) or "[::1]:port". Raises ValueError."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"address must be host:port, not {address!r}")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port < 1 << 16:
        raise ValueError(f"port must be from 1 to 65535, not {port}")
    return match["bracketed"] or match["host"], port


def parse_bootstrap(bootstrap: str | Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Parse the addresses of the first brokers: "host:port,host:port", or one text per address. Raises ValueError."""
    addresses = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    return tuple(parse_address(address.strip()) for address in addresses)
