"""The context of a request: its session, its version, and its share of the event loop's time.

The `Dispatcher` passes it to every handler of both protocols, including produce and fetch. Everything that depends on
the sender of a request (authorization, quotas, tracing) belongs here.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from warmlog.broker.api.fair_queue import Slot
from warmlog.broker.api.pacing import PIECE_S, SHORT_PIECES, Pacer
from warmlog.broker.security.authorizer import Decisions
from warmlog.broker.security.principal import ANONYMOUS, Principal
from warmlog.broker.security.sasl import Login

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """A connection's session; also the key of other modules' state about the connection.

    `peer` and `local` are (host, port): the client's address, and the broker's address to which it connected.
    `client_id` is the most recent one. `protocol_version` is None before hello (native listener only). `introduced`
    counts the producers and transactional ids that it created (`broker.api.newcomers`). `login` is None on a listener
    without SASL. `worked_s` is the time that its requests have taken on the loop and in workers and that is not yet
    charged to a quota; `throttle_ms` is how long it has to pause after the current request.
    """

    listener: str
    peer: tuple[str, int]
    local: tuple[str, int]
    principal: Principal = ANONYMOUS
    client_id: str = ""
    protocol_version: int | None = None
    introduced: set[str | int] = field(default_factory=set)
    decisions: Decisions | None = None  # the authorizer's decisions for it
    login: Login | None = None
    worked_s: float = 0.0
    throttle_ms: int = 0

    @property
    def holder(self) -> str:
        """The holder whose share is charged for its groups' memory: the authenticated principal, or the address."""
        return self.peer[0] if self.principal == ANONYMOUS else str(self.principal)

    @property
    def is_native(self) -> bool:
        """Whether the client speaks the native protocol."""
        return self.protocol_version is not None


class _Timed(Awaitable[A]):
    """Measures the running time of a coroutine, without its waits."""

    __slots__ = ("_clock", "_session", "_work")

    def __init__(self, work: Coroutine[Any, Any, A], session: Session, clock: Callable[[], float]) -> None:
        self._work = work
        self._session = session
        self._clock = clock

    def __await__(self) -> Generator[Any, Any, A]:
        work, session, clock = self._work, self._session, self._clock
        step: Callable[[Any], Any] = work.send
        sent: Any = None
        while True:
            began = clock()
            try:
                trap = step(sent)
            except StopIteration as end:
                value: A = end.value
                return value
            finally:
                session.worked_s += clock() - began
            try:
                sent, step = (yield trap), work.send
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is the coroutine's
                sent, step = error, work.throw


class Context:
    """The request that a connection is handling. One object per connection, reused for each request.

    A context is valid while its handler runs, since a request whose handler is awaited is answered before the next one
    is decoded. Afterwards, only the session may be kept.
    """

    __slots__ = ("_clock", "_pacer", "_piece_end", "_pieces", "_slot", "session", "subject", "version")

    def __init__(self, session: Session, pacer: Pacer) -> None:
        self.session = session
        self.version = 0  # version of the API (Kafka) or of the protocol (native)
        self.subject = ""  # for the audit log: the name of the changed object, if the request does not have it
        self._pacer = pacer
        self._clock = pacer.clock  # stored, because loops read it for each item
        self._piece_end = 0.0
        self._pieces = 0  # number of finished pieces
        self._slot: Slot | None = None  # whether it counts as a long request

    def start(self) -> None:
        """Begin the first piece of the request. Called by the dispatcher."""
        self._pieces = 0
        self._piece_end = self._pacer.piece_end()

    async def checkpoint(self) -> None:
        """Yield to other tasks if this request has held the event loop for a piece. Costs 0.1 us otherwise.

        Call it in every loop whose length depends on the client or on the size of the broker. State that was read
        before it may have changed afterwards.
        """
        if self._clock() >= self._piece_end:
            await self.pause()

    @property
    def is_piece_over(self) -> bool:
        """Whether to `pause`. For tight loops, where awaiting `checkpoint` each time would cost as much as the work."""
        return self._clock() >= self._piece_end

    async def pause(self) -> None:
        """Yield to other tasks, then begin another piece; a long request may have to wait for other long ones."""
        self._pieces += 1
        if self._slot is None and self._pieces >= SHORT_PIECES:
            self._slot = await self._pacer.long_requests.acquire(self.session)
        await self._pacer.pause()
        self._piece_end = self._pacer.piece_end()

    def end(self) -> None:
        """Stop counting as a long request: its reply is encoded, or it waits for something else."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            self._pacer.long_requests.release(slot)

    async def wait(self, answer: Awaitable[A]) -> A:
        """Wait for other tasks; their time does not count as this request's work.

        A result within a piece counts as work: a thousand results without any waiting must not form one piece.
        """
        self.end()
        began = self._clock()
        waited = await answer
        if self._clock() - began >= PIECE_S:
            self._piece_end = self._pacer.piece_end()
        return waited

    def timed(self, work: Coroutine[Any, Any, A]) -> Awaitable[A]:
        """Await a coroutine, and charge its running time on the loop to this session."""
        return _Timed(work, self.session, self._clock)

    async def in_worker(self, work: Callable[[], A], size: int) -> A:
        """Run indivisible work in a worker, in turn with other connections. `size` grows with the work."""
        return await self._pacer.in_worker(work, self.session, size)

    async def map(self, function: Callable[..., A], *arguments: Iterable[Any]) -> tuple[A, ...]:
        """Return the results of the builtin `map` as a tuple, computed in pieces."""
        results = []
        for each in zip(*arguments, strict=True):
            results.append(function(*each))
            if self._clock() >= self._piece_end:
                await self.pause()
        return tuple(results)

    async def answer(self, answer: Callable[[Q], A], questions: Iterable[Q]) -> tuple[A, ...]:
        """Return the answer to each question in order, computed in pieces, and once for equal questions.

        `answer` must be cheap and without side effects.
        """
        answers: dict[Q, A] = {}
        given = []
        for question in questions:
            known = answers.get(question)
            if known is None:
                known = answers[question] = answer(question)
            given.append(known)
            if self._clock() >= self._piece_end:
                await self.pause()
        return tuple(given)

    async def answer_at_length(self, answer: Callable[[Q], Awaitable[A]], questions: Iterable[Q]) -> tuple[A, ...]:
        """Answer as `answer` does, with an async function, for answers that take several pieces each."""
        answers: dict[Q, A] = {}
        given = []
        for question in questions:
            known = answers.get(question)
            if known is None:
                known = answers[question] = await answer(question)
            given.append(known)
            await self.checkpoint()
        return tuple(given)

    async def repeated(self, keys: Iterable[Q]) -> set[Q]:
        """Return the keys that occur more than once, computed in pieces."""
        seen: set[Q] = set()
        repeated: set[Q] = set()
        for key in keys:
            (repeated if key in seen else seen).add(key)
            if self._clock() >= self._piece_end:
                await self.pause()
        await self.empty(seen)
        return repeated

    async def empty(self, values: dict[Q, Any] | set[Q] | list[Any]) -> None:
        """Clear a container in pieces: freeing 100,000 objects in one step takes several milliseconds."""
        while values:
            if isinstance(values, dict):
                values.popitem()
            else:
                values.pop()
            if self._clock() >= self._piece_end:
                await self.pause()
