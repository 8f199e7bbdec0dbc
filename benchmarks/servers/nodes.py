"""`warmlog serve --nodes 2` as a contestant: the brokers of one machine, beside a single broker and Kafka's.

Topics have one replica, and their partitions are distributed over the nodes. A connection is opened to the leader of
its partition.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.load.generator import ROOT
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.load.processor_time import children
from benchmarks.servers.cluster import Cluster, ClusterBroker
from benchmarks.servers.contestants import ENVIRONMENT, STOP_S, Running, StartError
from benchmarks.servers.kafka import Standing

NODES = 2
_NODE = re.compile(r"node (\d+) kafka=(\S+) .*\n")
_LISTENERS = ("--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "127.0.0.1:0")


class ServedNode:
    """A broker of a running `serve --nodes`. The command starts and restarts it."""

    def __init__(self, bootstrap: str, pid: int) -> None:
        self.bootstrap = bootstrap
        self.pid = pid

    def kill(self) -> None:
        """Not needed."""
        raise NotImplementedError

    start = kill


@contextmanager
def start_nodes(cluster: Cluster, directory: Path) -> Iterator[Running]:
    """Start the command, and wait until all nodes are ready."""
    command = [sys.executable, "-m", "warmlog", "serve", "--nodes", str(NODES), "--data-dir", str(directory / "data")]
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(
            [*command, *_LISTENERS], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=ENVIRONMENT
        ) as process,
    ):
        try:
            addresses = dict(_addresses(process))
            if len(addresses) < NODES:
                raise StartError(f"the nodes did not start: {(directory / 'log').read_text()[-2000:]}")
            pids = _nodes(process.pid)
            cluster.nodes.update(
                {number: ServedNode(bootstrap, pids[number]) for number, bootstrap in addresses.items()}
            )
            cluster.pids = (process.pid,)
            yield cluster.running()
        finally:
            process.terminate()
            process.wait(STOP_S)


def _addresses(process: "subprocess.Popen[str]") -> Iterator[tuple[int, str]]:
    assert process.stdout is not None
    for line in process.stdout:
        if found := _NODE.fullmatch(line):
            yield int(found[1]), found[2]
        if line.startswith("ready "):
            return


def _nodes(pid: int) -> dict[int, int]:
    """Return the process ids of the nodes by node id."""
    commands = {child: Path(f"/proc/{child}/cmdline").read_text().split("\0") for child in children(pid)}
    return {_node_id(words): child for child, words in commands.items()}


def _node_id(words: Sequence[str]) -> int:
    return next(int(word.removeprefix("node.id=")) for word in words if word.startswith("node.id="))


def _contestant() -> ClusterBroker:
    cluster = Cluster()
    name = f"warmlog, {NODES} nodes"
    standing = Standing(name, partial(start_nodes, cluster))
    return ClusterBroker(name=name, start=standing.start, wire=KafkaWire(), standing=standing, cluster=cluster)


WARMLOG_NODES = _contestant()
