"""The configuration of all nodes: their ids, directories, addresses and commands.

| port         | Kafka's protocol | native | HTTP |
|--------------|------------------|--------|------|
| of all nodes | 9092 (--kafka)   | 9091   |      |
| of node 1    | 9102             | 9101   | 9099 |
| of node 2    | 9112             | 9111   | 9109 |
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warmlog.broker.cluster.local import STORE
from warmlog.broker.settings.listeners import advertised_addresses, join_address, parse_listeners
from warmlog.cli.failure import CannotStart

if TYPE_CHECKING:
    from warmlog.broker.settings.settings import Settings

NODES = "nodes"  # not `node-1`, which could be the name of a partition's directory
LISTENERS = ("kafka", "native", "http")

PORT_STEP = 10  # distance between the ports of two nodes, since the default ports are adjacent
Addresses = Mapping[str, str]  # "host:port" or "none" by listener


def known_ids(settings: "Settings") -> list[int]:
    """Return the ids of the nodes that have a directory, sorted."""
    paths = (path for directory in settings.data_paths for path in directory.glob(f"{NODES}/*"))
    return sorted({int(path.name) for path in paths if path.name.isdecimal()})


def standalone_directory(settings: "Settings") -> Path | None:
    """Return the first data directory that has the data of a standalone broker."""
    return next((path for path in settings.data_paths if (path / "meta.properties").exists()), None)


def check_store(settings: "Settings") -> None:
    """Raise CannotStart if the brokers are to share a store other than that of the nodes."""
    if settings.warmlog_cluster_etcd:
        raise CannotStart(
            "--nodes: the nodes share a store of their own; start brokers of a cluster on etcd "
            "(warmlog.cluster.etcd) one by one, without --nodes"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The configuration of all nodes. `options`: options of `serve` for every node.

    `addresses`: those on which all nodes accept, and the first node's for HTTP.
    """

    settings: "Settings"
    count: int
    addresses: Addresses
    options: tuple[str, ...]
    logs_json: bool

    @property
    def store(self) -> Path:
        """The path of the store's file."""
        return self.settings.data_paths[0] / STORE

    @property
    def ids(self) -> range:
        """The node ids: `node.id` and the numbers that follow it."""
        return range(self.settings.node_id, self.settings.node_id + self.count)

    def check(self) -> None:
        """Raise CannotStart if the nodes cannot be started as configured."""
        check_store(self.settings)
        if self.addresses["kafka"] == "none":
            raise CannotStart("--kafka: nodes of a cluster need a Kafka listener, since followers fetch over it")
        if (alone := standalone_directory(self.settings)) is not None:
            raise CannotStart(f"{alone}: has the data of a standalone broker; --nodes needs another --data-dir")
        if left_out := sorted(set(known_ids(self.settings)) - set(self.ids)):
            (directory, *_) = (path for path in self.settings.data_paths if (path / NODES / str(left_out[-1])).exists())
            raise CannotStart(
                f"{directory / NODES}: has node {left_out[-1]}, which would not run with node.id={self.ids[0]} and "
                f"--nodes {self.count}; move its partitions to other nodes (warmlog partition move "
                "--replace), then remove its directory"
            )

    def addresses_of(self, number: int) -> Addresses:
        """Return the addresses of a node; 0 is the first. Raises CannotStart."""
        steps = {"kafka": number + 1, "native": number + 1, "http": number}  # HTTP is of each node alone
        return {name: _shifted(f"--{name}", self.addresses[name], steps[name]) for name in LISTENERS}

    def command(self, number: int, store: str, addresses: Addresses, shared: Sequence[str]) -> list[str]:
        """Return the command of a node; 0 is the first. `shared`: options for the sockets that it inherits."""
        paths = [str(directory / NODES / str(self.ids[number])) for directory in self.settings.data_paths]
        own = {
            "node.id": self.ids[number],
            "log.dirs": ",".join(paths),
            "warmlog.cluster.etcd": store,
            "advertised.listeners": ",".join(self._advertised(number)),
        }
        if self.settings.warmlog_audit_file:
            path = Path(self.settings.warmlog_audit_file)
            own["warmlog.audit.file"] = str(path.with_stem(f"{path.stem}-{self.ids[number]}"))
        if self.settings.listeners:
            own["listeners"] = ",".join(self._listeners(number))
        options = ("http",) if self.settings.listeners else LISTENERS
        given = [word for listener in options for word in (f"--{listener}", addresses[listener])]
        assigned = [word for name, value in own.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "warmlog", "serve", "--until-eof", *self.options, *shared, *given, *assigned]

    def _listeners(self, number: int) -> Iterator[str]:
        for name, (host, port) in parse_listeners("listeners", self.settings.listeners).items():
            yield f"{name}://{_shifted('listeners', join_address(host, port), number + 1)}"

    def _advertised(self, number: int) -> Iterator[str]:
        for name, (host, port) in advertised_addresses(self.settings).items():
            yield f"{name}://{_shifted('advertised.listeners', join_address(host, port), number + 1)}"


def _shifted(option: str, address: str, number: int) -> str:
    host, _, port = address.rpartition(":")
    if address == "none" or port == "0" or not port.isdecimal():  # the node reports the problem of the address
        return address
    own = int(port) + number * PORT_STEP
    if own > 65_535:
        raise CannotStart(f"{option}: the ports of all nodes must be at most 65535, and {own} is not")
    return f"{host}:{own}"
