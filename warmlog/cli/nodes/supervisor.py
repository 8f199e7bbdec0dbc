"""Run the store and the nodes until stopped.

The store stops last. A node also stops when its parent has ended, which closes the node's standard input.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import trio

from warmlog.broker.cluster.local.private_socket import private_socket, url_of
from warmlog.broker.cluster.local.server import serve_store
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.log.directory.data_directory import PRIVATE
from warmlog.broker.process import stop_at_eof, stop_on_signal
from warmlog.broker.start_errors import first_of
from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.nodes.node import Node
from warmlog.cli.nodes.plan import Plan
from warmlog.cli.nodes.shared_listeners import SharedListeners

STOP_FACTOR = 3  # multiples of warmlog.stop.timeout.ms: handing over, unanswered requests, closing the logs


Ready = Callable[[Sequence[Node], SharedListeners], None]


def run_nodes(plan: Plan, ready: Ready, *, until_eof: bool) -> None:
    """Run the store and the nodes until a signal arrives or, if `until_eof`, standard input ends.

    `ready` is called once when all nodes are ready.

    Raises CannotStart, and Failure if the store fails later.
    """
    plan.check()
    with SharedListeners.of(plan) as shared:
        _run_with(shared, plan, ready, until_eof=until_eof)


def _run_with(shared: SharedListeners, plan: Plan, ready: Ready, *, until_eof: bool) -> None:
    try:
        plan.store.parent.mkdir(PRIVATE, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStart(f"{plan.store.parent}: {error.strerror}") from error
    with ExitStack() as stack:
        try:
            sock = stack.enter_context(private_socket())
        except OSError as error:
            raise CannotStart(f"cannot listen for the nodes: {error}") from error
        trio.run(_Supervisor(plan, shared).run, sock, ready, until_eof)


class _Supervisor:
    """Runs the store and the nodes."""

    def __init__(self, plan: Plan, shared: SharedListeners) -> None:
        self._plan = plan
        self._shared = shared
        self._stop = trio.Event()
        self._store_error: BaseException | None = None

    async def run(self, sock: socket.socket, ready: Ready, until_eof: bool) -> None:  # called by trio.run
        plan, store = self._plan, url_of(sock)
        nodes = [Node(plan, number, store, self._shared, plan.addresses_of(number)) for number in range(plan.count)]
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

    async def _run_nodes(self, nodes: Sequence[Node], ready: Ready) -> bool:
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
                ready(nodes, self._shared)
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
