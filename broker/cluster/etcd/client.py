"""Calls of etcd's JSON gateway at the first of several endpoints that answers.

Invariants:
1. Every connection is greeted before its first call: the store compares the endpoint's identity with the one known.
2. A call that may not be repeated is sent to one endpoint at most. If that does not answer, its outcome is unknown.
3. A connection whose call failed or was cancelled is closed.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

import msgspec
import trio
from msgspec import Struct

from broker.cluster.etcd import gateway
from broker.cluster.etcd.endpoints import Endpoint, Timeouts
from broker.cluster.etcd.http import HttpClientConnection, HttpError, Response
from broker.cluster.store import StoreError, StoreUnavailableError

logger = logging.getLogger(__name__)

MAX_IDLE = 16  # connections kept for each endpoint

T = TypeVar("T")


class StatusError(StoreError):
    """etcd has refused a call."""

    def __init__(self, endpoint: Endpoint, status: gateway.Status) -> None:
        super().__init__(f"{endpoint}: {status.message}")
        self.status = status


class EndpointError(Exception):
    """An endpoint did not answer, or cannot serve now. `str()` is one line that names it."""

    def __init__(self, endpoint: Endpoint, why: str, *, is_sent: bool) -> None:
        super().__init__(f"{endpoint}: {why}")
        self.is_sent = is_sent  # the call may have been carried out


class EndpointConnection:
    """A connection to one endpoint."""

    def __init__(self, endpoint: Endpoint, connection: HttpClientConnection) -> None:
        self.endpoint = endpoint
        self._connection = connection

    @property
    def is_idle(self) -> bool:
        """Whether a call can be sent."""
        return self._connection.is_idle

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def call(self, path: str, request: Struct, message: type[T]) -> T:
        """Return the response of a call. Raises EndpointError, StatusError."""
        try:
            response = await self._connection.post(path, gateway.encode(request))
        except HttpError as error:
            raise EndpointError(self.endpoint, str(error), is_sent=True) from None
        if response.status != 200:
            raise self._refusal(path, response)
        return self._decode(response.body, message)

    async def open_watch(self, request: gateway.WatchRequest) -> None:
        """Begin a watch, which `watch_response` continues. Raises EndpointError, StatusError."""
        try:
            status = await self._connection.open_stream(gateway.WATCH, gateway.encode(request))
            if status != 200:
                raise self._refusal(gateway.WATCH, Response(status, await self._connection.read_line()))
        except HttpError as error:
            raise EndpointError(self.endpoint, str(error), is_sent=True) from None

    async def watch_response(self) -> gateway.WatchResponse:
        """Return what a watch reports next. Cancelling it loses nothing. Raises EndpointError."""
        try:
            line = await self._connection.read_line()
        except HttpError as error:
            raise EndpointError(self.endpoint, str(error), is_sent=True) from None
        if not line:
            raise EndpointError(self.endpoint, "the watch ended", is_sent=True)
        response: gateway.Line[gateway.WatchResponse] = self._decode(line, gateway.Line[gateway.WatchResponse])
        if response.result is None:
            why = response.error.message if response.error else "an empty line"
            raise EndpointError(self.endpoint, f"the watch ended: {why}", is_sent=True)
        return response.result

    def _decode(self, body: bytes, message: type[T]) -> T:
        try:
            return gateway.decode(body, message)
        except msgspec.MsgspecError as error:
            raise EndpointError(self.endpoint, f"not a response of etcd: {error}", is_sent=True) from None

    def _refusal(self, path: str, response: Response) -> EndpointError | StatusError:
        """Return the error for a response that is not 200."""
        try:
            status = gateway.decode(response.body, gateway.Status)
        except msgspec.MsgspecError:
            status = gateway.Status()
        if not status.message:
            why = f"HTTP {response.status} to {path}: is this etcd 3.4 or newer?"
            return EndpointError(self.endpoint, why, is_sent=response.status >= 500)
        if status.code in {gateway.INVALID_ARGUMENT, gateway.NOT_FOUND, gateway.OUT_OF_RANGE}:
            return StatusError(self.endpoint, status)
        return EndpointError(self.endpoint, status.message, is_sent=True)


class GatewayClient:
    """The endpoints of one store, and their idle connections."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        greet: Callable[[EndpointConnection], Awaitable[None]],
        timeouts: Timeouts,
    ) -> None:
        """`greet` makes the first call of each connection; what it raises is raised by the caller's call."""
        self._endpoints = list(endpoints)  # the one that answered last comes first
        self._greet = greet
        self._timeouts = timeouts
        self._idle: dict[Endpoint, list[EndpointConnection]] = {endpoint: [] for endpoint in endpoints}
        self._failing: set[Endpoint] = set()
        self._checking = trio.Lock()
        self._is_checked = False

    def close(self) -> None:
        """Close the idle connections."""
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    async def call(self, path: str, request: Struct, message: type[T], *, is_repeatable: bool = True) -> T:
        """Return the response of a call. Raises StatusError, StoreUnavailableError, and what greeting raises."""
        await self._check_endpoints()
        timeout_s = self._timeouts.attempt_s if is_repeatable else self._timeouts.commit_s
        failures: list[str] = []
        for endpoint in list(self._endpoints):
            try:
                response = await self._call_at(endpoint, path, request, message, timeout_s)
            except EndpointError as error:
                self._failed(endpoint, error)
                failures.append(str(error))
                if error.is_sent and not is_repeatable:
                    raise StoreUnavailableError(f"{error}; the transaction may have been committed") from None
            else:
                self._answered(endpoint)
                return response
        raise StoreUnavailableError("; ".join(failures))

    async def open_watch(self, request: gateway.WatchRequest) -> EndpointConnection:
        """Open a connection of its own for a watch. Raises like `call`."""
        await self._check_endpoints()
        failures = []
        for endpoint in list(self._endpoints):
            try:
                connection = await self._open_watch_at(endpoint, request)
            except EndpointError as error:
                self._failed(endpoint, error)
                failures.append(str(error))
            else:
                self._answered(endpoint)
                return connection
        raise StoreUnavailableError("; ".join(failures))

    async def _check_endpoints(self) -> None:
        """Before the first call, greet all endpoints that can be reached, so that one of another store is found."""
        async with self._checking:
            if self._is_checked:
                return
            failures = []
            for endpoint in list(self._endpoints):
                try:
                    self._keep(await self._connect(endpoint))
                except EndpointError as error:
                    self._failed(endpoint, error)
                    failures.append(str(error))
            if len(failures) == len(self._endpoints):
                raise StoreUnavailableError("; ".join(failures))
            self._is_checked = True

    async def _call_at(self, endpoint: Endpoint, path: str, request: Struct, message: type[T], timeout_s: float) -> T:
        connection = self._take_idle(endpoint) or await self._connect(endpoint)
        try:
            with trio.fail_after(timeout_s):
                return await connection.call(path, request, message)
        except trio.TooSlowError:
            raise EndpointError(endpoint, f"no response in {timeout_s:g} s", is_sent=True) from None
        finally:
            self._keep(connection)

    async def _connect(self, endpoint: Endpoint) -> EndpointConnection:
        """Open and greet a connection. Raises EndpointError, with `is_sent` false, and what greeting raises."""
        limit_s = self._timeouts.connect_s
        try:
            with ExitStack() as unless_greeted, trio.fail_after(limit_s):
                connection = EndpointConnection(endpoint, await HttpClientConnection.connect(*endpoint))
                unless_greeted.callback(connection.close)
                await self._greet(connection)
                unless_greeted.pop_all()
        except HttpError as error:
            raise EndpointError(endpoint, str(error), is_sent=False) from None
        except trio.TooSlowError:
            raise EndpointError(endpoint, f"no connection in {limit_s:g} s", is_sent=False) from None
        except EndpointError as error:
            error.is_sent = False
            raise
        return connection

    async def _open_watch_at(self, endpoint: Endpoint, request: gateway.WatchRequest) -> EndpointConnection:
        connection = await self._connect(endpoint)
        limit_s = self._timeouts.attempt_s
        try:
            with ExitStack() as unless_open, trio.fail_after(limit_s):
                unless_open.callback(connection.close)
                await connection.open_watch(request)
                unless_open.pop_all()
        except trio.TooSlowError:
            raise EndpointError(endpoint, f"no response in {limit_s:g} s", is_sent=True) from None
        return connection

    def _take_idle(self, endpoint: Endpoint) -> EndpointConnection | None:
        idle = self._idle[endpoint]
        while idle:
            connection = idle.pop()
            if connection.is_idle:
                return connection
            connection.close()
        return None

    def _keep(self, connection: EndpointConnection) -> None:
        """Keep a connection for later calls, or close it, as after a call that failed or was cancelled."""
        idle = self._idle[connection.endpoint]
        if len(idle) < MAX_IDLE and connection.is_idle:
            idle.append(connection)
        else:
            connection.close()

    def _failed(self, endpoint: Endpoint, error: EndpointError) -> None:
        if endpoint not in self._failing:
            self._failing.add(endpoint)
            logger.warning("cluster store: %s", error)
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    def _answered(self, endpoint: Endpoint) -> None:
        if endpoint in self._failing:
            self._failing.discard(endpoint)
            logger.info("cluster store: %s answers again", endpoint)
