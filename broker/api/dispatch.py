"""Pass each request to its handler, and turn exceptions into error responses.

Every request of both protocols goes through one of `begin_produce`, `fetch_now` and `handle` with its context, so that
authorization, quotas and tracing have a single place. Produces are queued; other handlers are awaited.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from time import perf_counter
from typing import Final

from warmlog.broker.api.audit.audit_log import AuditLog
from warmlog.broker.api.audit.changes import CHANGES
from warmlog.broker.api.authorization.guard import Guard, Refused, without
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.current_leaders import CurrentLeaders
from warmlog.broker.api.errors import EXPECTED, describe
from warmlog.broker.api.fetch.fetch import Fetch, Fetches
from warmlog.broker.api.handler import Family, Handler
from warmlog.broker.api.newcomers import Newcomers
from warmlog.broker.api.records import produce
from warmlog.broker.api.transactions.admission import Admit
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import NO_REPLICA, KafkaFetchResponse
from warmlog.protocol.request import FetchRequest, ProduceRequest, Request
from warmlog.protocol.response import ErrorResponse, FetchResponse, ProduceResponse, Response

logger = logging.getLogger(__name__)

# Requests of brokers (besides those with a replica id) and of logins.
EXEMPT: Final = frozenset({"write_txn_markers", "sasl_handshake", "sasl_authenticate", "authenticate"})
DEFECT: Final = ErrorResponse(
    error=ErrorCode.UNKNOWN_SERVER_ERROR, message="the broker failed to answer; its log says why"
)


class Dispatcher:
    """Calls the handler of each request; its exceptions become error responses and never reach the connection."""

    def __init__(
        self,
        partitions: Partitions,
        fetches: Fetches,
        families: Iterable[Family],
        admit: Admit,
        *,
        producers: Newcomers,
        quotas: ClientQuotas,
        leaders: CurrentLeaders | None = None,
        guard: Guard | None = None,
        audit: AuditLog | None = None,
        forget: Callable[[Session], None] | None = None,
    ) -> None:
        """Dispatch to these handlers. `producers` limits new producers; `guard` checks rights, with an authorizer.

        `leaders`: in a cluster, for clients that sent a request to the wrong broker. `audit` records changes and
        refusals. `forget` is called with each closed connection.
        """
        self._forget = forget
        self._guard = guard
        self._audit = audit
        self._quotas = quotas
        self._producers = producers
        self._partitions = partitions
        self._leaders = leaders
        self._admit = admit
        self._fetches = fetches
        self._handlers: dict[str, Handler] = {}
        for family in families:
            handlers = family.handlers() if guard is None else guard.guarded(family.handlers())
            assert not handlers.keys() & self._handlers.keys(), "an API has one handler"
            self._handlers.update(handlers)

    @property
    def apis(self) -> Collection[str]:
        """The `api` of every request handled, except produce and fetch."""
        return self._handlers.keys()

    def begin_produce(self, request: ProduceRequest, context: Context) -> produce.Produce | None:
        """Queue a produce request; the caller writes it with `Writer.write_queued`.

        Returns None and queues nothing for a request that takes longer: await `begin_large_produce` instead.
        """
        if self._guard is not None:
            return self._begin_guarded(self._guard, request, context)
        return self._begin(request, context)

    def _begin_guarded(self, guard: Guard, request: ProduceRequest, context: Context) -> produce.Produce | None:
        """Queue the batches that the sender may write."""
        if len(request.partitions) > produce.PIECE:
            return None
        refused = guard.refused_produce(request, context)
        if not refused:
            return self._begin(request, context)
        self._note_refused(request, refused, context)
        begun = self._begin(without(request, refused), context)
        if begun is not None:
            begun.add_refused(refused)
        return begun

    def _begin(self, request: ProduceRequest, context: Context) -> produce.Produce | None:
        begun = produce.begin(request, context, self._partitions, self._producers)
        if self._leaders is not None and begun is not None:
            begun.name_leaders(self._leaders, context.session)
        return begun

    async def begin_large_produce(
        self, request: ProduceRequest, context: Context, write: Callable[[], None]
    ) -> produce.Produce:
        """Queue a request with many partitions, or that begins a transaction or needs a topic to be created.

        Calls `write` (`Writer.write_queued`) after each piece.
        """
        context.start()
        refused: Refused = {}
        if self._guard is not None:
            refused = await self._guard.refused_large_produce(request, context)
            if refused:
                self._note_refused(request, refused, context)
                request = without(request, refused)
        begun = await produce.begin_in_pieces(
            request, context, self._partitions, self._producers, write=write, admit=self._admit, quotas=self._quotas
        )
        begun.add_refused(refused)
        if self._leaders is not None:
            begun.name_leaders(self._leaders, context.session)
        return begun

    def _note_refused(self, request: ProduceRequest, refused: Refused, context: Context) -> None:
        """Record the partitions to which a sender may not write."""
        if self._audit is not None:
            response = ProduceResponse(partitions=tuple(refused.values()))
            self._audit.refused("produce", request, response, context.session)

    def fetch_now(self, request: FetchRequest, context: Context) -> Fetch | FetchResponse | ErrorResponse:
        """Serve from the data available now, or return a pending `Fetch`; `Fetch.abandon` cancels it."""
        context.start()
        denials = 0 if self._audit is None else _denials(context.session)
        began = perf_counter() if self._quotas.is_on else 0.0
        try:
            result = self._with_leaders(self._fetches.begin(request, context), context)
        except Exception as error:  # noqa: BLE001  # the boundary
            return _defect("fetch", context, error)
        finally:
            if began:
                context.session.worked_s += perf_counter() - began
        if self._audit is not None and _denials(context.session) != denials and isinstance(result, FetchResponse):
            self._audit.refused("fetch", request, result, context.session)
        return result

    def fetch_again(
        self, fetch: Fetch, context: Context, *, is_over: bool = False
    ) -> Fetch | FetchResponse | ErrorResponse:
        """Resume a pending fetch after a notification or its timeout; it may be pending again."""
        began = perf_counter() if self._quotas.is_on else 0.0
        try:
            return self._with_leaders(fetch.resume(is_over=is_over), context)
        except Exception as error:  # noqa: BLE001  # the boundary
            return _defect("fetch", context, error)
        finally:
            if began:
                context.session.worked_s += perf_counter() - began

    async def fetch_work(self, fetch: Fetch, context: Context) -> Fetch | FetchResponse | ErrorResponse:
        """Run the part of a pending fetch that needs a task; it may be pending again."""
        try:
            work = fetch.work(context)
            return self._with_leaders(await (context.timed(work) if self._quotas.is_on else work), context)
        except Exception as error:  # noqa: BLE001  # the boundary
            return _defect("fetch", context, error)

    def _with_leaders(
        self, result: Fetch | FetchResponse | ErrorResponse, context: Context
    ) -> Fetch | FetchResponse | ErrorResponse:
        if self._leaders is not None and isinstance(result, KafkaFetchResponse):
            return self._leaders.in_fetch(result, context.session)
        return result

    def forget(self, session: Session) -> None:
        """Release the state kept for a connection that has closed; its login leaves the queue of checks."""
        if session.login is not None:
            session.login.failed()
        self._fetches.forget(session)
        if self._forget is not None:
            self._forget(session)

    async def handle(self, request: Request, context: Context) -> Response:
        """Answer any other request. An unexpected exception is logged and answered with UNKNOWN_SERVER_ERROR.

        Sets the session's `throttle_ms` if the client has to pause.
        """
        if not self._quotas.is_on:
            return await self._handle(request, context)
        session = context.session
        response = await context.timed(self._handle(request, context))
        if not _is_exempt(request, session):
            session.throttle_ms = max(session.throttle_ms, self._quotas.requested(session))
        return response

    async def _handle(self, request: Request, context: Context) -> Response:
        context.start()
        if self._audit is None:
            return await self._answer(request, context)
        denials = _denials(context.session)
        response = await self._answer(request, context)
        if request.api in CHANGES:
            await self._audit.changed(request.api, request, response, context)
        elif _denials(context.session) != denials:
            self._audit.refused(request.api, request, response, context.session)
        return response

    async def _answer(self, request: Request, context: Context) -> Response:
        try:
            response: Response = await self._handlers[request.api](request, context)
        except EXPECTED as error:
            code, message = describe(error)
            return ErrorResponse(error=code, message=message)
        except Exception as error:  # noqa: BLE001  # the boundary
            return _defect(request.api, context, error)
        return response


def _denials(session: Session) -> int:
    """Return a number that changes with each right that a session lacks."""
    return 0 if session.decisions is None else session.decisions.denials


def _is_exempt(request: Request, session: Session) -> bool:
    """Return whether a request's time is not charged: it is a broker's, or a login, whose user is not known yet."""
    is_known = session.login is None or session.login.principal is not None
    return request.api in EXEMPT or not is_known or getattr(request, "replica_id", NO_REPLICA) >= 0


def _defect(api: str, context: Context, error: Exception) -> ErrorResponse:
    """Log an unexpected exception and return the error response for the client."""
    logger.error("a request failed: %s from %s:%d", api, *context.session.peer, exc_info=error)
    return DEFECT
