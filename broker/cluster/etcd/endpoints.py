"""Addresses of etcd, and how long to wait for them."""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

DEFAULT_PORT = 2379


class EtcdEndpoint(NamedTuple):
    """The address of a member of etcd's cluster."""

    host: str
    port: int
    is_tls: bool = False

    @property
    def authority(self) -> str:
        """The host and the port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


class Timeouts(NamedTuple):
    """How long to wait, in seconds.

    `attempt_s` for a call that can be repeated at another endpoint, `commit_s` for one that cannot, `quiet_s` for
    events of a watch before its connection is checked.
    """

    connect_s: float = 2.0
    attempt_s: float = 2.0
    commit_s: float = 5.0
    quiet_s: float = 3.0


def parse_endpoints(text: str) -> tuple[EtcdEndpoint, ...]:
    """Parse endpoints such as `http://a:2379,http://b:2379`, all with TLS or all without it.

    Raises ValueError, one line.
    """
    endpoints = tuple(_parse_endpoints(text))
    if not endpoints:
        raise ValueError("no endpoint of etcd is given")
    if len(set(endpoints)) < len(endpoints):
        raise ValueError(f"an endpoint is given twice: {text}")
    if len({each.is_tls for each in endpoints}) > 1:
        raise ValueError(f"write https:// for all endpoints or for none: {text}")
    return endpoints


def _parse_endpoints(text: str) -> Iterator[EtcdEndpoint]:
    for url in filter(None, (part.strip() for part in text.split(","))):
        if "@" in url:  # shown without the user part, which may contain a password
            raise ValueError("an endpoint of etcd cannot contain a user: set warmlog.cluster.etcd.user")
        form = f"{url!r} is not an endpoint of etcd: write it like http://127.0.0.1:2379"
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ValueError(form) from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(form)
        yield EtcdEndpoint(parts.hostname, port, parts.scheme == "https")
