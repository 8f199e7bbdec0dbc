"""Call etcd's JSON gateway at the first of several endpoints that answers.

Invariants:
1. Every connection is greeted before its first call: the store compares the endpoint's identity with the one known.
2. A call that must not be repeated is carried out by one endpoint at most: another one is tried only if the call was
   not sent, or was refused because of its user or token. Without an answer its outcome is unknown.
3. A connection whose call failed or was cancelled is closed.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

import trio
from msgspec import Struct

from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.etcd.account import Account
from warmlog.broker.cluster.etcd.connection import EndpointConnection, EndpointError
from warmlog.broker.cluster.etcd.endpoints import EtcdEndpoint, Timeouts
from warmlog.broker.cluster.etcd.http import HttpClientConnection, HttpError
from warmlog.broker.cluster.store import StoreRefusedError, StoreUnavailableError
from warmlog.broker.security.client_tls import ClientTls

logger = logging.getLogger(__name__)

MAX_IDLE = 16  # connections kept for each endpoint

T = TypeVar("T")


class GatewayClient:
    """The endpoints of one store, and their idle connections."""

    def __init__(
        self,
        endpoints: Sequence[EtcdEndpoint],
        greet: Callable[[EndpointConnection], Awaitable[None]],
        timeouts: Timeouts,
        *,
        tls: ClientTls | None = None,
        account: Account | None = None,
    ) -> None:
        """Call these endpoints. `greet` makes the first call of each connection; callers get its exceptions."""
        self._endpoints = list(endpoints)  # the endpoint that answered last comes first
        self._greet = greet
        self._timeouts = timeouts
        self._tls = tls
        self._account = account
        self._idle: dict[EtcdEndpoint, list[EndpointConnection]] = {endpoint: [] for endpoint in endpoints}
        self._failing: dict[EtcdEndpoint, str] = {}  # the path of the call that an endpoint refused; "": none
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
        failures: list[EndpointError] = []
        for endpoint in list(self._endpoints):
            try:
                response = await self._call_at(endpoint, path, request, message, timeout_s)
            except EndpointError as error:
                self._failed(endpoint, error, path)
                failures.append(error)
                if error.is_sent and not is_repeatable:
                    raise StoreUnavailableError(f"{error}; the transaction may have been committed") from None
            else:
                self._answered(endpoint, path)
                return response
        raise _no_answer(failures)

    async def open_watch(self, request: gateway.WatchRequest) -> EndpointConnection:
        """Open a connection of its own for a watch. Raises like `call`."""
        await self._check_endpoints()
        failures: list[EndpointError] = []
        for endpoint in list(self._endpoints):
            try:
                connection = await self._open_watch_at(endpoint, request)
            except EndpointError as error:
                self._failed(endpoint, error, gateway.WATCH)
                failures.append(error)
            else:
                self._answered(endpoint, gateway.WATCH)
                return connection
        raise _no_answer(failures)

    async def _check_endpoints(self) -> None:
        """Greet all reachable endpoints before the first call, to detect one that belongs to another store."""
        async with self._checking:
            if self._is_checked:
                return
            failures: list[EndpointError] = []
            for endpoint in list(self._endpoints):
                try:
                    self._keep(await self._connect(endpoint))
                except EndpointError as error:
                    self._failed(endpoint, error)
                    failures.append(error)
            if len(failures) == len(self._endpoints):
                raise _no_answer(failures)
            self._is_checked = True

    async def _call_at(
        self, endpoint: EtcdEndpoint, path: str, request: Struct, message: type[T], timeout_s: float
    ) -> T:
        connection = self._take_idle(endpoint) or await self._connect(endpoint)
        try:
            with trio.fail_after(timeout_s):
                return await connection.call(path, request, message)
        except trio.TooSlowError:
            raise EndpointError(endpoint, f"no response in {timeout_s:g} s", is_sent=True) from None
        finally:
            self._keep(connection)

    async def _connect(self, endpoint: EtcdEndpoint) -> EndpointConnection:
        """Open and greet a connection. Raises EndpointError, with `is_sent` false, and what greeting raises."""
        limit_s = self._timeouts.connect_s
        try:
            with ExitStack() as unless_greeted, trio.fail_after(limit_s):
                tls = None if self._tls is None else await self._tls.context()
                http = await HttpClientConnection.connect(endpoint, tls)
                connection = EndpointConnection(endpoint, http, self._account)
                unless_greeted.callback(connection.close)
                await self._greet(connection)
                unless_greeted.pop_all()
        except HttpError as error:
            raise EndpointError(endpoint, str(error), is_sent=False, is_refusal=error.is_refusal) from None
        except trio.TooSlowError:
            raise EndpointError(endpoint, f"no connection in {limit_s:g} s", is_sent=False) from None
        except EndpointError as error:
            error.is_sent = False
            raise
        return connection

    async def _open_watch_at(self, endpoint: EtcdEndpoint, request: gateway.WatchRequest) -> EndpointConnection:
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

    def _take_idle(self, endpoint: EtcdEndpoint) -> EndpointConnection | None:
        idle = self._idle[endpoint]
        while idle:
            connection = idle.pop()
            if connection.is_idle:
                return connection
            connection.close()
        return None

    def _keep(self, connection: EndpointConnection) -> None:
        """Keep a connection for later calls; close it if a call on it failed or was cancelled."""
        idle = self._idle[connection.endpoint]
        if len(idle) < MAX_IDLE and connection.is_idle:
            idle.append(connection)
        else:
            connection.close()

    def _failed(self, endpoint: EtcdEndpoint, error: EndpointError, path: str = "") -> None:
        """Move an endpoint to the end of the list; log its first failure, and its first refusal, which is permanent."""
        refused = path if error.is_refusal else ""
        if endpoint not in self._failing or (refused and not self._failing[endpoint]):
            self._failing[endpoint] = refused
            logger.warning("cluster store: %s", error)
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    def _answered(self, endpoint: EtcdEndpoint, path: str) -> None:
        """Count an endpoint as working again; after a refusal, only if the refused path was called."""
        if self._failing.get(endpoint) in {"", path}:
            del self._failing[endpoint]
            logger.info("cluster store: %s answers again", endpoint)


def _no_answer(failures: Sequence[EndpointError]) -> StoreUnavailableError:
    """Return the error for a call that failed at every endpoint."""
    kind = StoreRefusedError if any(each.is_refusal for each in failures) else StoreUnavailableError
    return kind("; ".join(map(str, failures)))
