"""A connection to one endpoint of etcd's JSON gateway: one call at a time, or a watch.

The gateway is itself a client of its member: it uses the member's certificate, and does not pass on the certificate of
its own client. So a broker can only be identified by a user with a password. etcd rules out mistaken identities in two
ways: once authentication is enabled, it refuses client certificates with a common name; and it ignores the common name
of the member's certificate in calls that carry the `accept` header of the gateway's clients, which is passed on.

Source: etcd's server/embed/serve.go (accessController) and server/auth/store.go (AuthInfoFromTLS).
"""

import logging
from typing import TypeVar

import msgspec
from msgspec import Struct

from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.etcd.account import Account, EtcdPasswordFileError
from warmlog.broker.cluster.etcd.endpoints import EtcdEndpoint
from warmlog.broker.cluster.etcd.http import HttpClientConnection, HttpError, Response
from warmlog.broker.cluster.store import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StatusError(StoreError):
    """etcd has refused a call."""

    def __init__(self, endpoint: EtcdEndpoint, status: gateway.Status) -> None:
        super().__init__(f"{endpoint}: {status.message}")
        self.status = status


class EndpointError(Exception):
    """An endpoint did not answer, or cannot serve now. `str()` is one line that names it."""

    def __init__(self, endpoint: EtcdEndpoint, why: str, *, is_sent: bool, is_refusal: bool = False) -> None:
        super().__init__(f"{endpoint}: {why}")
        self.is_sent = is_sent  # the call may have been carried out
        self.is_refusal = is_refusal  # the endpoint rejects this client, or this client does not trust it


class EndpointConnection:
    """A connection to one endpoint."""

    def __init__(
        self, endpoint: EtcdEndpoint, connection: HttpClientConnection, account: Account | None = None
    ) -> None:
        self.endpoint = endpoint
        self._connection = connection
        self._account = account

    @property
    def is_idle(self) -> bool:
        """Whether a call can be sent."""
        return self._connection.is_idle

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def call(self, path: str, request: Struct, message: type[T]) -> T:
        """Return the response of a call. Raises EndpointError, StatusError."""
        body = gateway.encode(request)
        token = "" if self._account is None else await self._token(self._account)
        response = await self._post(path, body, token)
        if self._account is not None and response.status != 200 and _status(response).asks_for_token:
            token = await self._token(self._account, refused=token)
            response = await self._post(path, body, token)
        if response.status != 200:
            raise self._refusal(path, response)
        return self._decode(response.body, message)

    async def open_watch(self, request: gateway.WatchRequest) -> None:
        """Begin a watch; `watch_response` reads it. Raises EndpointError, StatusError."""
        token = "" if self._account is None else await self._token(self._account)
        try:
            status = await self._connection.open_stream(gateway.WATCH, gateway.encode(request), token)
            if status != 200:
                raise self._refusal(gateway.WATCH, Response(status, await self._connection.read_line()))
        except HttpError as error:
            raise self._lost(error) from None

    async def watch_response(self) -> gateway.WatchResponse:
        """Return the next response of a watch. Cancelling it loses nothing. Raises EndpointError."""
        try:
            line = await self._connection.read_line()
        except HttpError as error:
            raise self._lost(error) from None
        if not line:
            raise EndpointError(self.endpoint, "the watch ended", is_sent=True)
        response: gateway.Line[gateway.WatchResponse] = self._decode(line, gateway.Line[gateway.WatchResponse])
        if response.result is None:
            why = response.error.message if response.error else "an empty line"
            raise EndpointError(self.endpoint, f"the watch ended: {why}", is_sent=True)
        return response.result

    async def _token(self, account: Account, *, refused: str | None = None) -> str:
        """Return the token for this endpoint, a new one if it is the refused one. Raises EndpointError."""
        session = account.session(self.endpoint)
        async with session.renewing:
            if session.token is None or session.token == refused:
                try:
                    session.token = await self._authenticate(account)
                except EndpointError as error:
                    error.is_sent = False  # the call itself
                    raise
            return session.token

    async def _authenticate(self, account: Account) -> str:
        """Return a new token, or an empty one if authentication is not enabled. Raises EndpointError."""
        try:
            request = await account.request()
        except EtcdPasswordFileError as error:
            raise EndpointError(self.endpoint, str(error), is_sent=False, is_refusal=True) from None
        response = await self._post(gateway.AUTHENTICATE, gateway.encode(request), "")
        if response.status == 200:
            return self._decode(response.body, gateway.AuthenticateResponse).token
        status = _status(response)
        if status.code == gateway.FAILED_PRECONDITION:
            logger.warning(
                "cluster store: authentication is not enabled at %s, continuing without a user: %s",
                self.endpoint,
                status.message,
            )
            return ""
        if status.code == gateway.INVALID_ARGUMENT:
            why = f"{status.message} (user {account.user})"
            raise EndpointError(self.endpoint, why, is_sent=False, is_refusal=True)
        raise self._refusal(gateway.AUTHENTICATE, response)

    async def _post(self, path: str, body: bytes, token: str) -> Response:
        try:
            return await self._connection.post(path, body, token)
        except HttpError as error:
            raise self._lost(error) from None

    def _lost(self, error: HttpError) -> EndpointError:
        return EndpointError(self.endpoint, str(error), is_sent=True, is_refusal=error.is_refusal)

    def _decode(self, body: bytes, message: type[T]) -> T:
        try:
            return gateway.decode(body, message)
        except msgspec.MsgspecError as error:
            raise EndpointError(self.endpoint, f"not a response of etcd: {error}", is_sent=True) from None

    def _refusal(self, path: str, response: Response) -> EndpointError | StatusError:
        """Return the error for a response whose status is not 200."""
        status = _status(response)
        if why := self._why_not_authorized(response, status):
            return EndpointError(self.endpoint, why, is_sent=False, is_refusal=True)
        if not status.message:
            why = f"HTTP {response.status} to {path}: is this etcd 3.4 or newer?"
            return EndpointError(self.endpoint, why, is_sent=response.status >= 500)
        if status.asks_for_token:  # again, after a new one
            return EndpointError(self.endpoint, status.message, is_sent=False)
        if status.code in {gateway.INVALID_ARGUMENT, gateway.NOT_FOUND, gateway.OUT_OF_RANGE}:
            return StatusError(self.endpoint, status)
        return EndpointError(self.endpoint, status.message, is_sent=True)

    def _why_not_authorized(self, response: Response, status: gateway.Status) -> str:
        """Return why a call was not authorized (user or certificate), or an empty text."""
        if status.code == gateway.PERMISSION_DENIED:
            who = "" if self._account is None else f" (user {self._account.user})"
            return f"{status.message}{who}: the user's role needs readwrite permission for the cluster's keys"
        if status.asks_for_token and self._account is None:
            return f"{status.message}: set warmlog.cluster.etcd.user"
        if gateway.COMMON_NAME in response.body:
            return "it refuses certificates with a common name: see warmlog.cluster.etcd.certificate.file"
        return ""


def _status(response: Response) -> gateway.Status:
    """Return the error in a response; an empty one if the response is not etcd's."""
    try:
        return gateway.decode(response.body, gateway.Status)
    except msgspec.MsgspecError:
        return gateway.Status()
