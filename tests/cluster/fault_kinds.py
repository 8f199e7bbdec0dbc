"""Faults of a cluster of processes in network namespaces. Each is a context manager in which it lasts."""

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import EtcdProcess, etcdctl
from tests.cluster.switch import Link, Switch

BROKERS, STORE, CLIENTS = (1, 2, 3), (11, 12, 13), 9  # places in the network
DELAY_S, LOSS = 0.2, 0.1
WHILE_S = 3.0  # of a fault that stops nothing
DISK_BYTES = 192 << 20
STORE_BYTES, FILLER_BYTES = 16 << 20, 100_000  # the quota of etcd
SYNC_DELAY_S = 0.5
_FILLER = "filler"
_PIECE = bytes(1 << 20)


class Kind(NamedTuple):
    """A kind of fault. `make` makes it at the broker with this id.

    It lasts until records are acknowledged that were sent after its beginning, perhaps by another leader, and at least
    `at_least_s`. Where nothing can be acknowledged meanwhile, `goes_on` is false.
    """

    make: Callable[[int], AbstractContextManager[None]]
    at_least_s: float = 0.0
    goes_on: bool = True


class Faults:
    """The faults of one cluster."""

    def __init__(
        self, switch: Switch, nodes: WarmlogNodes, store: Sequence[EtcdProcess], random: Random, lease_s: float
    ) -> None:
        self._switch, self._nodes, self._store, self._random = switch, nodes, store, random
        everyone = (*BROKERS, *STORE, CLIENTS)
        servers = (*BROKERS, *STORE)
        cut, link = self._cut, self._link
        self.kinds: Mapping[str, Kind] = {
            "unplugged": Kind(lambda broker: cut([broker], everyone)),
            # The leader keeps leading without followers: with two in-sync replicas wanted, nothing is acknowledged.
            "no-peers": Kind(lambda broker: cut([broker], BROKERS), 2 * lease_s, goes_on=False),
            "no-store": Kind(lambda broker: cut([broker], STORE), 2 * lease_s),
            "deaf": Kind(lambda broker: link(everyone, [broker], Link(loss=1.0))),
            "mute": Kind(lambda broker: link([broker], everyone, Link(loss=1.0))),
            "two-apart": Kind(lambda broker: cut([broker], [self._other(broker)])),
            "slow": Kind(lambda _: link(servers, everyone, Link(delay_s=DELAY_S)), WHILE_S),
            "lossy": Kind(lambda _: link(servers, everyone, Link(loss=LOSS)), WHILE_S),
            "frozen": Kind(lambda broker: nodes[broker].frozen()),
            "died-unplugged": Kind(self._died_unplugged),
            "restarted": Kind(lambda broker: self._restarted(nodes[broker])),
            "full-leader": Kind(lambda broker: self._full(nodes[broker])),
            "full-follower": Kind(lambda broker: self._full(nodes[self._other(broker)])),
            "slow-sync": Kind(lambda broker: self._slow_sync(nodes[broker]), WHILE_S),
            "store-member": Kind(lambda _: self._away([self._random.choice(store)]), 2 * lease_s),
            "store-leader": Kind(lambda _: self._away([self._leading_member()]), 2 * lease_s),
            "store-frozen": Kind(lambda _: self._frozen_store(), 2 * lease_s),
            "store-full": Kind(lambda _: self._full_store(), 2 * lease_s),
            "store-away": Kind(lambda _: self._away(store), 60.0),
        }

    def _other(self, broker: int) -> int:
        return self._random.choice([other for other in BROKERS if other != broker])

    @contextmanager
    def _cut(self, some: Sequence[int], others: Sequence[int]) -> Iterator[None]:
        self._switch.cut(some, others)
        yield
        self._switch.heal()

    @contextmanager
    def _link(self, sources: Sequence[int], destinations: Sequence[int], link: Link) -> Iterator[None]:
        self._switch.set(sources, destinations, link)
        yield
        self._switch.heal()

    @contextmanager
    def _died_unplugged(self, broker: int) -> Iterator[None]:
        """Kill a broker so that others see neither its connections end nor its port refuse new ones."""
        self._switch.unplug(broker)
        self._nodes[broker].kill()
        yield
        self._switch.heal()
        self._nodes[broker].start()

    @contextmanager
    def _restarted(self, node: WarmlogNode) -> Iterator[None]:
        """Stop a broker as an operator does."""
        if status := node.stop():
            raise RuntimeError(f"broker {node.node_id} stopped with status {status}")
        yield
        node.start()

    @contextmanager
    def _full(self, node: WarmlogNode) -> Iterator[None]:
        filler = node.data / _FILLER
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(_PIECE):
                    pass
            except OSError:
                pass  # it is full
        yield
        filler.unlink()

    @contextmanager
    def _slow_sync(self, node: WarmlogNode) -> Iterator[None]:
        delay = f"fsync,fdatasync,sync_file_range,msync:delay_enter={round(SYNC_DELAY_S * 1e6)}"
        command = ["strace", "-f", "-q", "-o", os.devnull, "-e", f"inject={delay}", "-p", str(node.pid)]
        with subprocess.Popen(command) as tracer:
            yield
            tracer.terminate()

    @contextmanager
    def _away(self, members: Sequence[EtcdProcess]) -> Iterator[None]:
        for member in members:
            member.kill()
        yield
        with ExitStack() as stack:
            sockets = [stack.enter_context(member.begin()) for member in members]
            for member, ready in zip(members, sockets, strict=True):
                member.await_ready(ready)

    @contextmanager
    def _frozen_store(self) -> Iterator[None]:
        for member in self._store:
            member.freeze()
        yield
        for member in self._store:
            member.thaw()

    @contextmanager
    def _full_store(self) -> Iterator[None]:
        """Fill etcd up to its quota: it refuses to write, until there is space again and its alarm is disarmed."""
        members = ("--endpoints", ",".join(member.url for member in self._store))
        try:
            for number in range(STORE_BYTES // FILLER_BYTES + 1):
                etcdctl(*members, "put", f"{_FILLER}/{number}", "x" * FILLER_BYTES)
        except subprocess.CalledProcessError as error:
            if b"space exceeded" not in error.stderr:
                raise
        yield
        etcdctl(*members, "del", "--prefix", _FILLER)
        etcdctl(*members, "compact", str(self._revision()))
        etcdctl(*members, "defrag")
        etcdctl(*members, "alarm", "disarm")

    def _revision(self) -> int:
        return int(_status(self._store[0])["header"]["revision"])

    def _leading_member(self) -> EtcdProcess:
        while True:
            for member in self._store:
                status = _status(member)
                if status.get("leader") == status["header"]["member_id"]:
                    return member


def _status(member: EtcdProcess) -> Any:
    request = urllib.request.Request(f"{member.url}/v3/maintenance/status", data=b"{}")
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)


@contextmanager
def small_disks(paths: Sequence[Path]) -> Iterator[None]:
    """Mount a small disk at each of these directories, so that it can become full."""
    mount = shutil.which("mount") or "mount"
    with ExitStack() as stack:
        for path in paths:
            path.mkdir(parents=True)
            subprocess.run([mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(path)], check=True)
        yield
