"""A real broker inside a test: `Broker`, and the pytest fixtures `warmlog_broker` and `warmlog_shared_broker`.

    from warmlog.testing import Broker

    with Broker() as broker:
        broker.kafka, broker.native, broker.http      # each "host:port"

    def test_orders(warmlog_broker): ...          # the same as a fixture, a new broker for each test
    def test_orders(warmlog_shared_broker): ...   # one broker for all tests of the run

1. Importing this module imports neither the broker nor trio: pytest loads the plugin in every run, whether or not a
   test uses it.
2. The broker runs a trio loop in its own thread, so a test may use asyncio, trio or no event loop.
3. It is the same broker as in `warmlog serve`, with real files and sockets.
"""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from warmlog.broker.listening import Addresses
    from warmlog.broker.settings.settings import Settings

__all__ = ["Broker"]

FREE_PORT = "127.0.0.1:0"
STOP_TIMEOUT_S = 60  # longer than the broker's own deadline for a graceful stop, so exceeding it means a hang


class _Running(NamedTuple):
    """A serving broker: its addresses, and how to stop it from any thread."""

    addresses: "Addresses"
    request_stop: Callable[[], None]


class Broker:
    """A broker in this process; a context manager.

    `data_dir`: directory of the logs, which replaces the first of `log.dirs`; by default that of the settings, or
    without one a temporary directory, removed at the end.
    `settings`: names as for `warmlog serve --set` (`{"log.segment.bytes": 1 << 20}`). Environment variables are
    ignored, so that a test behaves the same everywhere. `kafka`, `native`, `http`: addresses of the listeners,
    "host:port"; by default a free port of 127.0.0.1. The setting `listeners` replaces the first two.

    Entering raises the errors that `warmlog serve` reports: SettingError (`warmlog.broker.settings.types`), StartError
    (`warmlog.broker.start_errors`).
    Leaving raises the error of a broker that crashed. Call all methods from one thread.
    """

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        settings: Mapping[str, object] | None = None,
        kafka: str = FREE_PORT,
        native: str = FREE_PORT,
        http: str = FREE_PORT,
    ) -> None:
        if data_dir is None and (named := (settings or {}).get("log.dirs")):
            data_dir = str(named).split(",")[0].strip()
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._temporary: Path | None = None
        self._assignments = tuple(f"{name}={_text(value)}" for name, value in (settings or {}).items())
        self._listen = (kafka, native, http)
        self._thread: threading.Thread | None = None
        self._running: _Running | None = None
        self._ended: Future[None] = Future()

    @property
    def kafka(self) -> str:
        """Address of the Kafka listener, "host:port": bootstrap server for Kafka clients."""
        return self._addresses.kafka

    @property
    def native(self) -> str:
        """Address of the native listener, "host:port": argument of `warmlog.connect`."""
        return self._addresses.native

    @property
    def http(self) -> str:
        """Address of /metrics, /healthz and /readyz, "host:port"."""
        return self._addresses.http

    def address(self, listener: str) -> str:
        """Return the address, "host:port", of a listener named in the setting `listeners`. Raises KeyError."""
        return self._addresses.named[listener.lower()]

    @property
    def data_dir(self) -> Path:
        """The directory of the logs. Raises RuntimeError before the first start."""
        directory = self._given_dir or self._temporary
        if directory is None:
            raise RuntimeError("the broker has not been started")
        return directory

    @property
    def _addresses(self) -> "Addresses":
        if self._running is None:
            raise RuntimeError("the broker is not running")
        return self._running.addresses

    def start(self) -> None:
        """Start, and return when all listeners accept connections. Entering the context calls it."""
        from warmlog.broker.settings.loading import load_settings  # imported here because of invariant 1

        if self._thread is not None:
            raise RuntimeError("the broker is running")
        if self._given_dir is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="warmlog-"))
        settings = load_settings(None, {}, self._assignments, data_dir=self.data_dir)
        kafka, native, http = self._listen
        listen = (None, None, http) if settings.listeners else (kafka, native, http)
        started: Future[_Running] = Future()
        self._ended = Future()
        self._thread = threading.Thread(
            target=_run, args=(settings, listen, started, self._ended), name="warmlog-broker", daemon=True
        )
        self._thread.start()
        try:
            self._running = started.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise

    def stop(self) -> None:
        """Stop as on SIGTERM, and wait for the end. Stopping twice is allowed.

        The data is kept. Raises the error of a broker that crashed.
        """
        if self._thread is None or self._running is None:
            return
        self._running.request_stop()
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the broker did not stop within {STOP_TIMEOUT_S} s")
        self._thread = self._running = None
        self._ended.result()

    def restart(self) -> None:
        """Stop and start with the same data at the same addresses, so that clients reconnect."""
        self._listen = (self.kafka, self.native, self.http)
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._remove_temporary()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def _text(value: object) -> str:
    """Return a setting in the form of `--set NAME=VALUE`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _run(
    settings: "Settings",
    listen: tuple[str | None, str | None, str],
    started: "Future[_Running]",
    ended: "Future[None]",
) -> None:
    """Serve on a trio loop in this thread until stopped. Any error is set on one of the two futures."""
    import trio

    from warmlog.broker.app import serve
    from warmlog.broker.metrics.loop_guard import LoopGuard

    kafka, native, http = listen
    guard = LoopGuard(settings.warmlog_loop_stall_log_ms / 1000)

    async def main() -> None:
        token, stop = trio.lowlevel.current_trio_token(), trio.Event()

        def request_stop() -> None:
            with suppress(trio.RunFinishedError):  # the broker has crashed; `ended` holds the error
                token.run_sync_soon(stop.set)

        def ready(addresses: "Addresses") -> None:
            started.set_result(_Running(addresses, request_stop))

        await serve(settings, kafka=kafka, native=native, http=http, ready=ready, stop=stop, guard=guard)

    try:
        trio.run(main, clock=guard.clock)
    except BaseException as error:  # noqa: BLE001  # raised in the thread that waits for the future
        (ended if started.done() else started).set_exception(error)
    else:
        ended.set_result(None)


try:
    import pytest
except ImportError:  # `Broker` works without pytest
    pass
else:

    @pytest.fixture
    def warmlog_broker() -> Iterator[Broker]:
        """Provide a running broker in a temporary directory, a new one for each test."""
        with Broker() as broker:
            yield broker

    @pytest.fixture(scope="session")
    def warmlog_shared_broker() -> Iterator[Broker]:
        """Provide one running broker for all tests of a run; each test should use its own topics."""
        with Broker() as broker:
            yield broker
