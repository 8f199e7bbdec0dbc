"""Check who may use the console, and answer with files, JSON or errors.

Rules, in this order:

1. Without HTTP authentication, only this machine is answered: the peer and the name in Host are loopback (a page whose
   name was rebound to 127.0.0.1 has another Host), and nothing can be changed.
2. A change needs a body of JSON and, from a browser, an Origin equal to Host: other sites can send neither. There are
   no CORS headers, so that they cannot read answers either.
3. ACLs decide what a caller may see and do, checked by the handlers of Kafka's requests or in the same way.
"""

import logging
import re
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.console.files import INDEX, PageFile, load_page, missing_page
from warmlog.broker.console.routes import Route, find_route
from warmlog.broker.console.values import Problem
from warmlog.broker.console.visit import ConsoleError, Download, Tools, Visit, path_parts
from warmlog.broker.net.http.http_listener import API, UI, Identified
from warmlog.broker.security.principal import ANONYMOUS
from warmlog.broker.settings.http import HTTP
from warmlog.protocol.native.messages import VERSIONS

if TYPE_CHECKING:
    from warmlog.broker.net.http.http_connection import Answer, HttpConnection, Request

logger = logging.getLogger(__name__)

JSON: Final = "application/json"
MAX_BODY_BYTES: Final = 64 << 10
STATIC: Final = f"{UI}/static/"
POLICY: Final = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
HEADERS: Final = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
FRESH: Final = ("cache-control", "no-store")
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:@/]+)(:[0-9]*)?")
CHECKED: Final = ("cache-control", "no-cache")  # browsers may cache it, and revalidate it


class BrokerConsole:
    """Answers the requests of one HTTP listener."""

    def __init__(self, tools: Tools, pacer: Pacer) -> None:
        self._tools = tools
        self._pacer = pacer

    async def answer(self, connection: "HttpConnection", request: "Request", caller: Identified) -> "Answer":
        """Answer a request."""
        try:
            _check_sender(request, caller)
            if request.path == API or request.path.startswith(f"{API}/"):
                return await self._answer_api(connection, request, caller)
            return await self._answer_page(request)
        except ConsoleError as error:
            return _problem(error)

    # -- the page --

    async def _answer_page(self, request: "Request") -> "Answer":
        if request.method not in {"GET", "HEAD"}:
            raise ConsoleError(405, "METHOD_NOT_ALLOWED", "only GET and HEAD")
        page = await trio.to_thread.run_sync(load_page, limiter=self._tools.threads)
        missing = missing_page()
        if missing is not None:
            return _file_answer(missing, request, status=503)
        if request.path.startswith(STATIC):
            name = request.path.removeprefix(STATIC)
            if name not in page:
                raise ConsoleError(404, "NOT_FOUND", f"no file {request.path}")
            return _file_answer(page[name], request)
        return _file_answer(page[INDEX], request)  # each view has a path, which the page itself reads

    # -- the data --

    async def _answer_api(self, connection: "HttpConnection", request: "Request", caller: Identified) -> "Answer":
        route, values = find_route(request.method, path_parts(request.path.removeprefix(API).strip("/")))
        body = b""
        if route.is_change:
            _check_change(request, caller)
            sent = await connection.body(MAX_BODY_BYTES)
            if sent is None:
                raise ConsoleError(413, "TOO_LARGE", f"the body has more than {MAX_BODY_BYTES} bytes, or is too slow")
            body = sent
        session = Session(
            listener=HTTP, peer=caller.peer, local=caller.local, principal=caller.principal or ANONYMOUS,
            client_id="console", protocol_version=max(VERSIONS),
        )  # fmt: skip
        context = Context(session, self._pacer)
        context.version = max(VERSIONS)
        context.start()
        visit = Visit(self._tools, session, context, request.query, body, may_write=caller.principal is not None)
        try:
            return await self._run(route, visit, values)
        finally:
            visit.close()

    async def _run(self, route: Route, visit: Visit, values: tuple[str, ...]) -> "Answer":
        from warmlog.broker.net.http.http_connection import Answer

        try:
            result = await route.handler(visit, *values)
        except ConsoleError:
            raise
        except Exception as error:  # the error boundary
            logger.exception("the console failed to answer: %s", route.path)
            raise ConsoleError(500, "UNKNOWN_SERVER_ERROR", "the broker failed to answer; its log says why") from error
        if isinstance(result, Download):
            disposition = f'attachment; filename="{result.name}"'
            headers = [*HEADERS, FRESH, ("content-disposition", disposition), *result.headers]
            return Answer(200, "application/octet-stream", result.data, headers)
        encode: Callable[[], bytes] = partial(msgspec.json.encode, result)
        body = await visit.in_thread(encode) if route.is_long else encode()
        return Answer(200, JSON, body, [*HEADERS, FRESH])


def _check_sender(request: "Request", caller: Identified) -> None:
    """Raise ConsoleError for an unauthenticated request that comes from another machine or another site."""
    if caller.principal is not None:
        return
    if not _is_loopback(caller.peer[0]):
        raise ConsoleError(
            403,
            "NOT_LOOPBACK",
            "without authentication the console answers this machine only: set warmlog.http.authentication, or use "
            "`warmlog serve --secure`",
        )
    if not _is_local_name(request.headers.get("host", "")):
        raise ConsoleError(
            403, "UNKNOWN_HOST", "without authentication the console is reached as localhost or 127.0.0.1 only"
        )


def _check_change(request: "Request", caller: Identified) -> None:
    """Raise ConsoleError for a change that this listener does not allow, or that comes from another site."""
    if caller.principal is None:
        raise ConsoleError(
            403, "READ_ONLY", "without authentication the console changes nothing: set warmlog.http.authentication"
        )
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
        raise ConsoleError(403, "CROSS_ORIGIN", f"changes are accepted from the console itself, not from {origin}")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise ConsoleError(415, "INVALID_REQUEST", f"a change needs content-type: {JSON}")


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_local_name(host: str) -> bool:
    """Return whether the value of Host names this machine, with or without a port."""
    match = _HOST.fullmatch(host)
    name = "" if match is None else match["name"].strip("[]")
    return name.lower() == "localhost" or _is_loopback(name)


def _file_answer(file: PageFile, request: "Request", *, status: int = 200) -> "Answer":
    from warmlog.broker.net.http.http_connection import Answer

    headers = [*HEADERS, CHECKED, ("etag", file.etag), ("vary", "accept-encoding")]
    if status == 200 and file.etag in [each.strip() for each in request.headers.get("if-none-match", "").split(",")]:
        return Answer(304, file.content_type, b"", headers)
    accepted = [each.partition(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")]
    if "gzip" in accepted:
        return Answer(status, file.content_type, file.packed, [*headers, ("content-encoding", "gzip")])
    return Answer(status, file.content_type, file.data, headers)


def _problem(error: ConsoleError) -> "Answer":
    from warmlog.broker.net.http.http_connection import Answer

    body: Any = Problem(error=error.error, message=str(error))
    return Answer(error.status, JSON, msgspec.json.encode(body), [*HEADERS, FRESH])
