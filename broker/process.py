"""The process of a broker: limits on descriptors, garbage collection, thread switches, signals."""

import gc
import os
import resource
import signal
from collections.abc import Awaitable, Callable

import trio

from warmlog.broker.settings.settings import Settings

# A garbage collection holds the event loop for up to 1 us per object, and requests and connections leave no cycles. So
# young collections are small and full ones rare. `Pacer` excludes the objects of large requests from both.
YOUNG_OBJECTS, YOUNG_PASSES, MIDDLE_PASSES = 5_000, 2, 500
SWITCH_INTERVAL_S = 0.001  # longest time that the event loop waits for a worker thread to release the GIL
# Reserved for the metadata store, HTTP, files that workers open briefly, and a reply's slices (up to MAX_SLICES).
RESERVED_DESCRIPTORS = 256


def raise_descriptor_limit() -> None:
    """Raise the limit on descriptors to the maximum: each log takes several, each client one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit(settings: Settings) -> int:
    """Return `warmlog.open.files`, by default half of the process's limit; connections share the other half."""
    if settings.warmlog_open_files >= 0:
        return settings.warmlog_open_files
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


def connections_limit(settings: Settings) -> int:
    """Return `max.connections`, reduced so that enough descriptors remain for the logs."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    reserve = min(RESERVED_DESCRIPTORS, limit // 4)
    return max(1, min(settings.max_connections, limit - open_files_limit(settings) - reserve))


def tune_garbage_collector() -> None:
    """Exclude the objects of startup from collections, and make full collections rare.

    No collection runs first: clients may already be waiting, and startup leaves few objects in cycles.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, MIDDLE_PASSES)


async def stop_on_signal(stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    """Set `stop` on SIGTERM or SIGINT, also during startup; further signals have no effect."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            stop.set()


async def stop_at_eof(stop: trio.Event) -> None:
    """Set `stop` when standard input ends, for example because the process at the other end of the pipe has died."""
    async with trio.lowlevel.FdStream(os.dup(0)) as stream:
        async for _ in stream:
            pass
    stop.set()


async def unless(
    stop: trio.Event, run: Callable[[], Awaitable[None]], *, gave_up: Callable[[], None] = lambda: None
) -> None:
    """Run a part of the startup; if `stop` is set, cancel it and call `gave_up`."""

    async def give_up() -> None:
        await stop.wait()
        gave_up()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        await run()
        nursery.cancel_scope.cancel()
