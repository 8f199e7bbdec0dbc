"""Begin fetches in their sessions, resume the pending ones, and return responses."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.fetch.fetch import Fetch
from warmlog.broker.api.fetch.session import FetchSession, FetchSessionError
from warmlog.broker.api.fetch.sessions import ConnectionSessions, FetchSessions
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead
from warmlog.protocol.kafka.messages.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    KafkaFetchRequest,
    KafkaFetchResponse,
)
from warmlog.protocol.request import FetchRequest
from warmlog.protocol.response import FetchResponse


class Fetches:
    """Begins each fetch in its session and returns its response, now or later."""

    def __init__(
        self,
        partitions: Partitions,
        sessions: FetchSessions,
        reads: ReadAhead,
        access: Callable[[Session], Access] | None = None,
    ) -> None:
        """`access` returns the rights of a client, if there is an authorizer."""
        self._access = access
        self._partitions = partitions
        self.sessions = sessions
        self._own = ConnectionSessions(sessions.closed)
        self._reads = reads

    def begin(self, request: FetchRequest, context: Context) -> Fetch | FetchResponse:
        """Serve from the data available now, or return a pending `Fetch`.

        Continue a pending one with `look_again`, `expire` or `continue_in_task` until one of them returns the response,
        or give it up with `abandon`.
        """
        try:
            fetch = self._open(request, context.session)
        except FetchSessionError as error:
            return _refused(error)
        return self._advance(fetch, self._begin(fetch))

    def look_again(self, fetch: Fetch) -> Fetch | FetchResponse:
        """Resume a fetch that was woken; returns as `begin` does."""
        fetch.withdraw()
        return self._advance(fetch, fetch.look())

    def expire(self, fetch: Fetch) -> Fetch | FetchResponse:
        """Resume a fetch whose wait time has passed; it may need a task, but does not wait again."""
        fetch.withdraw()
        return self._advance(fetch, fetch.look() if fetch.expire() else iter(()))

    async def continue_in_task(self, fetch: Fetch, context: Context) -> Fetch | FetchResponse:
        """Run the part of a fetch that needs a task; returns the fetch if it then has to wait."""
        is_pending = is_answered = False
        try:
            await fetch.take_steps(context)
            await fetch.warm_up(self._reads, context)
            is_pending = not (fetch.is_enough or fetch.is_cold)
            if is_pending:
                return fetch
            for _ in fetch.gather():
                await context.checkpoint()
            response = self._register_and_answer(fetch)
            for _ in fetch.settle():
                await context.checkpoint()
            is_answered = True
        except FetchSessionError as error:
            return _refused(error)
        finally:
            if not is_pending:
                self._close(fetch, keep=is_answered)
        return response

    def abandon(self, fetch: Fetch) -> None:
        """Give up a pending fetch without a response."""
        fetch.withdraw()
        self._close(fetch, keep=False)

    def _advance(self, fetch: Fetch, steps: Iterator[None]) -> Fetch | FetchResponse:
        """Take the first step of a look, and respond if that completes the fetch; returns as `begin` does."""
        is_pending = is_answered = False
        try:
            if next(steps, fetch) is None:
                fetch.steps = steps
            is_pending = fetch.needs_task or not fetch.is_enough
            if is_pending:
                return fetch
            for _ in fetch.gather():
                pass
            response = self._register_and_answer(fetch)
            for _ in fetch.settle():
                pass
            is_answered = True
        except FetchSessionError as error:
            return _refused(error)
        finally:
            if not is_pending:
                self._close(fetch, keep=is_answered)
        return response

    def forget(self, connection: Hashable) -> None:
        """Close the session of a connection that has closed."""
        self._own.forget(connection)

    def _open(self, request: FetchRequest, connection: Session) -> Fetch:
        """Find or create the session. Raises FetchSessionError."""
        sessions, principal = self.sessions, connection.principal
        access = None if self._access is None else partial(self._access, connection)
        if isinstance(request, KafkaFetchRequest):
            epoch = request.session_epoch
            if epoch not in {INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH}:
                session = sessions.find(
                    request.session_id, epoch, uses_topic_ids=request.uses_topic_ids, principal=principal
                )
                session.advance()
                return Fetch(request, session, self._partitions, tells_all=False, access=access)
            sessions.remove_own(request.session_id, principal)
            if epoch == INITIAL_SESSION_EPOCH:
                session = FetchSession(uses_topic_ids=request.uses_topic_ids)
                session.principal = principal
                return Fetch(request, session, self._partitions, tells_all=True, wants_session=True, access=access)
        return Fetch(
            request, self._own.take(connection), self._partitions, tells_all=True, connection=connection, access=access
        )

    def _begin(self, fetch: Fetch) -> Iterator[None]:
        for _ in fetch.begin(self.sessions):
            self.sessions.closed.detach()
            yield

    def _register_and_answer(self, fetch: Fetch) -> FetchResponse:
        """Return the response, after registering the session of a client that asked for one, if there is room."""
        if fetch.wants_session:
            self.sessions.register(fetch.session)
        return fetch.response()

    def _close(self, fetch: Fetch, *, keep: bool = True) -> None:
        """Return the session to its connection, or close it, unless it is an incremental one."""
        session = fetch.session
        if session.id == NO_SESSION:
            if keep and fetch.connection is not None:
                self._own.put(fetch.connection, session)
            else:
                self.sessions.closed.add(session)


def _refused(error: FetchSessionError) -> KafkaFetchResponse:
    return KafkaFetchResponse(partitions=(), error=error.code, asked=())
