"""etcd processes for tests, each on free ports of the loopback interface with a directory of its own."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from interop.nodes import LOOPBACK, Place
from interop.ports import free_ports
from tests.requires import lacks

START_S = 30.0


class EtcdProcess:
    """One member. `url` stays the same over restarts; `bootstrap` lists the members with their peer addresses."""

    def __init__(
        self, command: Sequence[str | Path], directory: Path, name: str, urls: tuple[str, str], bootstrap: str
    ) -> None:
        """`urls`: its addresses for clients and for other members."""
        self.url, self._peer_url = urls
        self._command = command
        self._directory = directory
        self.name = name
        self.bootstrap = bootstrap
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> socket.socket:
        """Start the process, and return the socket that `await_ready` reads."""
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = str(Path(tempfile.gettempdir()) / f"etcd-{uuid4().hex}")  # a file, which all network namespaces see
        ready.bind(name)
        ready.settimeout(0.2)
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [
            *self._command,
            *("--name", self.name, "--data-dir", str(self._directory / "data"), "--log-level", "warn"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", self._peer_url, "--initial-advertise-peer-urls", self._peer_url),
            *("--initial-cluster", self.bootstrap),
        ]
        with (self._directory / "log").open("ab") as log:
            environment = {**os.environ, "NOTIFY_SOCKET": name}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        return ready

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        with self.begin() as ready:
            self.await_ready(ready)

    def await_ready(self, ready: socket.socket) -> None:
        """Wait until it serves. Raises OSError if it has ended instead."""
        assert self._process is not None
        deadline = time.monotonic() + START_S
        try:
            while not _is_ready(ready):
                if self._process.poll() is not None:
                    raise OSError(f"etcd has ended: {(self._directory / 'log').read_text()[-1000:]}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"etcd does not serve after {START_S:g} s")
        finally:
            os.unlink(ready.getsockname())

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def save(self, snapshot: Path) -> None:
        """Write a backup of its data."""
        etcdctl("--endpoints", self.url, "snapshot", "save", str(snapshot))

    def restore(self, snapshot: Path) -> None:
        """Replace its data, while it does not run, with a backup."""
        self.wipe()
        member = ("--name", self.name, "--initial-cluster", self.bootstrap)
        peers = ("--initial-advertise-peer-urls", self._peer_url)
        etcdctl("snapshot", "restore", str(snapshot), "--data-dir", str(self.data), *member, *peers)

    def wipe(self) -> None:
        """Remove its data."""
        shutil.rmtree(self.data)

    def freeze(self) -> None:
        """Stop the process without closing its sockets; return when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def data(self) -> Path:
        """Its data, to be copied while it does not run."""
        return self._directory / "data"


def etcdctl(*arguments: str | Path, given: str = "") -> None:
    """Run etcdctl. `given`: its standard input."""
    binary = shutil.which("etcdctl")
    if binary is None:
        lacks("etcdctl is not installed: apt-get install etcd-client")
    environment = {**os.environ, "ETCDCTL_API": "3"}
    subprocess.run((binary, *arguments), check=True, capture_output=True, env=environment, input=given.encode())


def _is_ready(ready: socket.socket) -> bool:
    """Whether a process has said that it serves. Waits for a moment."""
    try:
        return b"READY=1" in ready.recv(4096)
    except TimeoutError:
        return False


@contextmanager
def etcd(
    directory: Path,
    members: int = 1,
    places: Sequence[Place] | None = None,
    options: Sequence[str | Path] = (),
    *,
    scheme: str = "http",
) -> Iterator[Sequence[EtcdProcess]]:
    """Run a cluster of etcd. The environment variable ETCD names another binary than the one on the path.

    `places`: one for each member, if they are not all on the loopback interface. `options`: of each command.
    `scheme`: of the addresses for clients; https needs options that name a certificate.
    """
    binary = os.environ.get("ETCD") or shutil.which("etcd")
    if binary is None:
        lacks("etcd is not installed: apt-get install etcd-server")
    chosen = places or [LOOPBACK] * members
    ports = iter(free_ports(2 * len(chosen)))
    urls = [(f"{scheme}://{place.host}:{next(ports)}", f"http://{place.host}:{next(ports)}") for place in chosen]
    bootstrap = ",".join(f"m{number}={peer}" for number, (_, peer) in enumerate(urls))
    processes = [
        EtcdProcess((*place.prefix, binary, *options), directory / f"m{number}", f"m{number}", pair, bootstrap)
        for number, (place, pair) in enumerate(zip(chosen, urls, strict=True))
    ]
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.kill)
        sockets = [stack.enter_context(process.begin()) for process in processes]
        for process, ready in zip(processes, sockets, strict=True):
            process.await_ready(ready)
        yield processes
