"""`warmlog serve --nodes N`: a cluster of brokers on one machine, each in a separate process.

    this process   serves the store (`broker.cluster.local`), starts the brokers, and restarts them when they end
    a node         `warmlog serve` at the address of the first node with a separate port, and the next node id

    DIR/nodes/ID        the data directory of a node, in each of log.dirs
    DIR/store.sqlite    the store, in the first of log.dirs

1. The store stops last. A node also stops when its parent has ended, which closes the node's standard input.
2. Lines that nodes write to standard error are passed on with the node's name.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import Signals
from typing import TYPE_CHECKING

import trio

from warmlog.broker.cluster.local import STORE
from warmlog.broker.cluster.local.private_socket import private_socket, url_of
from warmlog.broker.cluster.local.server import serve_store
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.log.directory.data_directory import PRIVATE
from warmlog.broker.process import stop_at_eof, stop_on_signal
from warmlog.broker.settings.listeners import advertised_addresses, join_address, parse_listeners
from warmlog.broker.start_errors import first_of
from warmlog.cli.failure import CannotStart, Failure
from warmlog.protocol.backoff import delays_s

if TYPE_CHECKING:
    from warmlog.broker.settings.settings import Settings

NODES = "nodes"  # not `node-1`, which could be the name of a partition's directory
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0  # delay before a node is restarted
STEADY_S = 60.0  # a node that has run this long is restarted immediately
STOP_FACTOR = 3  # multiples of warmlog.stop.timeout.ms: handing over, unanswered requests, closing the logs

_READY = re.compile(r"ready kafka=(\S+) native=(\S+) http=(\S+)( .*)?\n?")
_LISTENERS = ("kafka", "native", "http")

PORT_STEP = 10  # distance between the ports of two nodes, since the default ports are adjacent
Addresses = Mapping[str, str]  # "host:port" or "none" by listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The configuration of all nodes. `options`: options of `serve` for every node. `addresses`: the first node's."""

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
        if self.settings.warmlog_cluster_etcd:
            raise CannotStart(
                "--nodes: the nodes share a store of their own; start brokers of a cluster on etcd "
                "(warmlog.cluster.etcd) one by one, without --nodes"
            )
        if self.addresses["kafka"] == "none":
            raise CannotStart("--kafka: nodes of a cluster need a Kafka listener, since followers fetch over it")
        for directory in self.settings.data_paths:
            if (directory / "meta.properties").exists():
                raise CannotStart(f"{directory}: has the data of a standalone broker; --nodes needs another --data-dir")
            known = [int(path.name) for path in directory.glob(f"{NODES}/*") if path.name.isdecimal()]
            if left_out := sorted(set(known) - set(self.ids)):
                raise CannotStart(
                    f"{directory / NODES}: has node {left_out[-1]}, which would not run with node.id={self.ids[0]} and "
                    f"--nodes {self.count}; move its partitions to other nodes (warmlog partition move "
                    "--replace), then remove its directory"
                )

    def addresses_of(self, number: int) -> Addresses:
        """Return the addresses of a node; 0 is the first. Raises CannotStart."""
        return {listener: _shifted(f"--{listener}", self.addresses[listener], number) for listener in _LISTENERS}

    def command(self, number: int, store: str, addresses: Addresses) -> list[str]:
        """Return the command of a node; 0 is the first."""
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
        options = ("http",) if self.settings.listeners else _LISTENERS
        given = [word for listener in options for word in (f"--{listener}", addresses[listener])]
        assigned = [word for name, value in own.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "warmlog", "serve", "--until-eof", *self.options, *given, *assigned]

    def _listeners(self, number: int) -> Iterator[str]:
        for name, (host, port) in parse_listeners("listeners", self.settings.listeners).items():
            yield f"{name}://{_shifted('listeners', join_address(host, port), number)}"

    def _advertised(self, number: int) -> Iterator[str]:
        for name, (host, port) in advertised_addresses(self.settings).items():
            yield f"{name}://{_shifted('advertised.listeners', join_address(host, port), number)}"


def _shifted(option: str, address: str, number: int) -> str:
    host, _, port = address.rpartition(":")
    if address == "none" or port == "0" or not port.isdecimal():  # the node reports the problem of the address
        return address
    own = int(port) + number * PORT_STEP
    if own > 65_535:
        raise CannotStart(f"{option}: the ports of all nodes must be at most 65535, and {own} is not")
    return f"{host}:{own}"


@dataclass(slots=True)
class Node:
    """One broker: runs its process, and restarts it when it ends.

    Once it has been ready it keeps its addresses, including ports that the system chose.
    """

    plan: Plan
    number: int
    store: str
    addresses: Addresses
    ready: trio.Event = field(default_factory=trio.Event)
    named: str = ""  # addresses of `listeners`, as printed on that line
    failure: str = ""  # reason why the first start failed
    _process: trio.Process | None = None
    _creating: trio.Lock = field(default_factory=trio.Lock)
    _stopping: trio.Event = field(default_factory=trio.Event)

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"node {self.plan.ids[self.number]}"

    @property
    def line(self) -> str:
        """The addresses, as printed on the line that reports readiness."""
        return " ".join(f"{listener}={self.addresses[listener]}" for listener in _LISTENERS) + self.named

    async def run(self, failed: Callable[[], None]) -> None:
        """Run until stopped. Calls `failed` if the first start fails; `failure` is then the reason."""
        random = Random()  # noqa: S311  # jitter
        pauses_s = delays_s(random, FIRST_PAUSE_S, MAX_PAUSE_S)
        while True:
            began_s = trio.current_time()
            outcome = await self._run_once()
            if self._stopping.is_set():
                return
            if not self.ready.is_set():
                self.failure = f"{self.name} did not start: it {outcome}"
                failed()
                return
            if trio.current_time() - began_s >= STEADY_S:
                pauses_s = delays_s(random, FIRST_PAUSE_S, MAX_PAUSE_S)
            pause_s = next(pauses_s)
            self._report(f"{outcome}; restarting it in {pause_s:.1f} s")
            with trio.move_on_after(pause_s):
                await self._stopping.wait()
                return

    def end_restarts(self) -> None:
        """Do not restart the process when it ends; `stop` follows."""
        self._stopping.set()

    async def stop(self, limit_s: float) -> None:
        """Let the broker hand over its partitions and stop; kill it after the limit."""
        self.end_restarts()
        async with self._creating:
            process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with trio.move_on_after(limit_s):
            await process.wait()
        if process.poll() is None:
            self._report(f"did not stop within {limit_s:.0f} s and is killed")
            process.kill()
            await process.wait()

    async def _run_once(self) -> str:
        """Run the process until it ends, and return how it ended."""
        command = self.plan.command(self.number, self.store, self.addresses)
        environ = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        pipe = subprocess.PIPE
        async with self._creating:
            if self._stopping.is_set():
                return "was not started"
            # The process has its own session, so that Ctrl-C does not reach it before its turn to stop.
            self._process = process = await trio.lowlevel.open_process(
                command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=environ
            )
        assert process.stdout is not None
        assert process.stderr is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_each_line, process.stderr, self._pass_on)
            nursery.start_soon(_each_line, process.stdout, self._note)
            status = await process.wait()
        return f"was ended by {Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def _note(self, line: str) -> None:
        match = _READY.fullmatch(line)
        if match is not None:
            *addresses, self.named = match.groups(default="")
            self.addresses = dict(zip(_LISTENERS, addresses, strict=True))
            self.ready.set()

    def _pass_on(self, line: str) -> None:
        if self.plan.logs_json and line.startswith("{"):
            sys.stderr.write(f'{{"node": {self.plan.ids[self.number]}, {line[1:]}')
        else:
            sys.stderr.write(f"{self.name}: {line}")
        sys.stderr.flush()

    def _report(self, text: str) -> None:
        self._pass_on(f"{text}\n")


async def _each_line(stream: trio.abc.ReceiveStream, take: Callable[[str], None]) -> None:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            take(line.decode(errors="replace") + "\n")
    if rest:
        take(rest.decode(errors="replace") + "\n")


def run_nodes(plan: Plan, ready: Callable[[Sequence[Node]], None], *, until_eof: bool) -> None:
    """Run the store and the nodes until a signal arrives or, if `until_eof`, standard input ends.

    `ready` is called once when all nodes are ready.

    Raises CannotStart, and Failure if the store fails later.
    """
    plan.check()
    try:
        plan.store.parent.mkdir(PRIVATE, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStart(f"{plan.store.parent}: {error.strerror}") from error
    with ExitStack() as stack:
        try:
            sock = stack.enter_context(private_socket())
        except OSError as error:
            raise CannotStart(f"cannot listen for the nodes: {error}") from error
        trio.run(_Supervisor(plan).run, sock, ready, until_eof)


class _Supervisor:
    """Runs the store and the nodes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stop = trio.Event()
        self._store_error: BaseException | None = None

    async def run(  # called by trio.run
        self, sock: socket.socket, ready: Callable[[Sequence[Node]], None], until_eof: bool
    ) -> None:
        plan, store = self._plan, url_of(sock)
        nodes = [Node(plan, number, store, plan.addresses_of(number)) for number in range(plan.count)]
        was_ready = False
        async with trio.open_nursery() as nursery:
            await nursery.start(stop_on_signal, self._stop)
            if until_eof:
                nursery.start_soon(stop_at_eof, self._stop)
            opened = trio.Event()
            nursery.start_soon(self._serve_store, sock, opened)
            await opened.wait()
            if self._store_error is None:
                was_ready = await self._run_nodes(nodes, ready)
            nursery.cancel_scope.cancel()
        failures = [node.failure for node in nodes if node.failure]
        if self._store_error is not None:
            raise (Failure if was_ready else CannotStart)(str(self._store_error))
        if failures:
            raise CannotStart(", ".join(failures))

    async def _run_nodes(self, nodes: Sequence[Node], ready: Callable[[Sequence[Node]], None]) -> bool:
        """Run the nodes until stopped, then stop them in turn. Return whether all were ready."""
        limit_s = STOP_FACTOR * self._plan.settings.warmlog_stop_timeout_ms / 1000
        all_ready = False
        async with trio.open_nursery() as running:
            for node in nodes:
                running.start_soon(node.run, self._stop.set)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(_cancel_after, self._stop, waiting.cancel_scope)
                for node in nodes:
                    await node.ready.wait()
                all_ready = True
                waiting.cancel_scope.cancel()
            if all_ready:
                ready(nodes)
            await self._stop.wait()
            for node in nodes:
                node.end_restarts()
            for node in nodes:
                await node.stop(limit_s)
            running.cancel_scope.cancel()
        return all_ready

    async def _serve_store(self, sock: socket.socket, opened: trio.Event) -> None:
        """Serve the store. If it fails at any time, the nodes are stopped as well."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_store, self._plan.store, sock)
                opened.set()
        except* StoreError as group:
            self._store_error = first_of(group)
            self._stop.set()
        finally:
            opened.set()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
