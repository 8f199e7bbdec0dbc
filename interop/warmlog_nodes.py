"""Run several warmlog processes as a cluster on loopback addresses, which can be killed, frozen and restarted.

Nothing here imports warmlog. Synchronous; every process started here is also ended here.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from interop.nodes import LOOPBACK, Nodes, Place
from interop.ports import free_ports

START_LIMIT_S = 60
STOP_LIMIT_S = 60
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class WarmlogNode:
    """One broker process with its data directories. It keeps its ports across restarts, since clients know them."""

    def __init__(
        self,
        node_id: int,
        directory: Path,
        settings: Mapping[str, object],
        *,
        place: Place = LOOPBACK,
        directories: int = 1,
    ) -> None:
        """`directories`: number of data directories."""
        self.node_id = node_id
        self.data = directory / f"node-{node_id}"
        self.directories = [self.data, *[directory / f"node-{node_id}-{more}" for more in range(2, directories + 1)]]
        self.log = directory / f"node-{node_id}.log"
        ports = zip(("kafka", "native", "http"), free_ports(3), strict=True)
        self.addresses = {listener: f"{place.host}:{port}" for listener, port in ports}
        self.environment: dict[str, str] = {}  # environment variables in addition to those of this process
        self._settings = {"node.id": node_id, "log.dirs": ",".join(map(str, self.directories)), **settings}
        self._prefix = place.prefix
        self._process: subprocess.Popen[str] | None = None
        self._log_begin = 0  # start of the latest run's log, in bytes

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        """Its address for Kafka's clients."""
        return self.addresses["kafka"]

    def start(self) -> None:
        """Start the process, and wait until it is ready. Raises RuntimeError with the end of its log."""
        self.begin()
        self.wait_until_ready()

    def begin(self) -> None:
        """Start the process."""
        command = [*self._prefix, sys.executable, "-m", "warmlog", "serve"]
        for name, address in self.addresses.items():
            command += [f"--{name}", address]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        environment = {**os.environ, **self.environment}
        with self.log.open("a") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def wait_until_ready(self) -> None:
        """Wait until the broker is ready. Raises RuntimeError with the end of its log if it fails."""
        assert self._process is not None
        assert self._process.stdout is not None
        overdue = threading.Timer(START_LIMIT_S, self._process.kill)
        overdue.start()
        try:
            ready = next((line for line in self._process.stdout if line.startswith("ready")), None)
        finally:
            overdue.cancel()
        if ready is None:
            self._end()
            raise RuntimeError(f"node {self.node_id} did not start: {self.log.read_text()[-3000:]}")
        self.addresses = dict(word.split("=", 1) for word in ready.split()[1:])

    @property
    def logged(self) -> str:
        """The log of the latest run so far."""
        with self.log.open() as log:
            log.seek(self._log_begin)
            return log.read()

    def wait_until_logged(self, text: str) -> None:
        """Wait until the log of this run contains a text. Raises RuntimeError if the process ends first."""
        assert self._process is not None
        limit = time.monotonic() + START_LIMIT_S
        while text not in self.logged:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)
                limit = 0.0
            if time.monotonic() > limit and text not in self.logged:
                raise RuntimeError(f"node {self.node_id} did not log {text!r}: {self.logged[-3000:]}")

    def wait_until_ended(self) -> int:
        """Wait until the process ends by itself; return the exit status."""
        return self._end()

    def stop(self) -> int:
        """Stop cleanly; return the exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._end()

    def kill(self) -> None:
        """Kill the process; the kernel keeps what it has written."""
        if self._process is not None:
            self._process.kill()
            self._end()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the process within the block."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _end(self) -> int:
        assert self._process is not None
        try:
            status = self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        return status


class WarmlogNodes(Nodes[WarmlogNode]):
    """Brokers 1 to `count` of one cluster."""

    def __init__(
        self,
        directory: Path,
        etcd: str,
        *,
        count: int = 3,
        settings: Mapping[str, object] | None = None,
        places: Sequence[Place] | None = None,
        has_racks: bool = False,
        directories: int = 1,
    ) -> None:
        """`places`: one for each broker, unless all are on the loopback interface.

        `has_racks`: broker N is in `rack-N`, and a consumer reads from the replica in its rack. `directories`: number
        of data directories of each broker.
        """
        shared = {"warmlog.cluster.etcd": etcd, **(settings or {})}
        nodes = {}
        for number, place in enumerate(places or [LOOPBACK] * count, 1):
            racks = {"broker.rack": f"rack-{number}", "replica.selector.class": RACK_AWARE} if has_racks else {}
            nodes[number] = WarmlogNode(number, directory, {**shared, **racks}, place=place, directories=directories)
        super().__init__(nodes)

    def start(self) -> None:
        """Start all brokers, and wait until they are ready."""
        for node in self.nodes.values():
            node.begin()
        for node in self.nodes.values():
            node.wait_until_ready()
