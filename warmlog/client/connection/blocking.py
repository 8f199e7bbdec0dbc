"""The client's view of the cluster for a thread without an event loop, as in the pipeline's tasks.

The event loop is private to the thread and runs while the thread waits in `run`, so there is no second thread to switch
to. Bytes that arrive between two calls wait in the kernel's buffers.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from random import Random
from types import TracebackType
from typing import Self, TypeVar

import anyio

from warmlog.client.connection.cluster import Cluster
from warmlog.client.settings import Settings, parse_bootstrap

T = TypeVar("T")


class BlockingCluster:
    """A `Cluster` that a plain thread uses through `run`; a context manager. Not thread-safe.

    `retry_s`: see `Cluster`.
    """

    def __init__(self, bootstrap: str | Iterable[str], settings: Settings, *, retry_s: float | None = None) -> None:
        """Prepare to connect. Raises ValueError for an invalid address."""
        self._bootstrap = parse_bootstrap(bootstrap)
        self._settings = settings
        self._retry_s = retry_s
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        ready: asyncio.Future[Cluster] = self._loop.create_future()
        self._tasks = self._loop.create_task(self._hold_tasks(ready))
        self.cluster = self._loop.run_until_complete(ready)

    async def _hold_tasks(self, ready: "asyncio.Future[Cluster]") -> None:
        """Keep the task group of the connections open."""
        async with anyio.create_task_group() as tasks:
            random = Random()  # noqa: S311 - for jitter
            ready.set_result(Cluster(self._bootstrap, tasks, self._settings, random, retry_s=self._retry_s))
            await self._closing.wait()
            tasks.cancel_scope.cancel()

    def run(self, act: Awaitable[T]) -> T:
        """Wait for a coroutine; the connections send and receive meanwhile."""
        task = asyncio.ensure_future(act, loop=self._loop)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # interrupted from outside
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task]))
            raise

    def close(self) -> None:
        """Close all connections. Further calls do nothing."""
        if self._loop.is_closed():
            return
        try:
            self.cluster.close()
            self._closing.set()
            self._loop.run_until_complete(self._tasks)
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
