"""The context of a request: who sent it, in which version, and what answering it may cost.

Every handler of both protocols gets it, produce and fetch included, through the one `Dispatcher`; what depends on the
sender of a request (authorization, quotas, tracing) belongs there.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from broker.api.pacing import Pacer

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """A connection's session. Also the key for what is kept of the connection elsewhere.

    `peer` and `local` are (host, port): the client's address, and the one at which it reached the broker. `client_id`
    is the name that the client gave last. `protocol_version` is None until the client has said hello (native listener).
    """

    listener: str
    peer: tuple[str, int]
    local: tuple[str, int]
    principal: str = "anonymous"
    client_id: str = ""
    protocol_version: int | None = None


class Context:
    """The request that a connection is handling. One object per connection, which moves on from request to request.

    A connection's requests are begun one after the other, and one that is awaited is answered before the next one is
    decoded, so a context holds for as long as its handler runs; keep nothing of it beyond that but the session.
    """

    __slots__ = ("_pacer", "_piece_end", "session", "version")

    def __init__(self, session: Session, pacer: Pacer) -> None:
        self.session = session
        self.version = 0  # of the API (Kafka), or of the protocol (native)
        self._pacer = pacer
        self._piece_end = 0.0

    def start(self) -> None:
        """Begin the first piece of the request. Called by the dispatcher."""
        self._piece_end = self._pacer.piece_end()

    async def checkpoint(self) -> None:
        """Let others run if this request has held the event loop for a piece. Costs 0.1 us otherwise.

        Call it in every loop whose length the client, or the size of the broker, decides. What is read before it may
        have changed after it.
        """
        if self._pacer.is_over(self._piece_end):
            await self.pause()

    @property
    def is_piece_over(self) -> bool:
        """Whether to `pause`: for short loops, where awaiting `checkpoint` each time costs as much as the work."""
        return self._pacer.is_over(self._piece_end)

    async def pause(self) -> None:
        """Let others run, and begin another piece."""
        await self._pacer.pause()
        self._piece_end = self._pacer.piece_end()

    async def map(self, function: Callable[..., A], *arguments: Iterable[Any]) -> tuple[A, ...]:
        """Call a function with each of the arguments, as the builtin does, in pieces."""
        is_over = self._pacer.is_over
        results = []
        for each in zip(*arguments, strict=True):
            results.append(function(*each))
            if is_over(self._piece_end):
                await self.pause()
        return tuple(results)

    async def answer(self, answer: Callable[[Q], A], questions: Iterable[Q]) -> tuple[A, ...]:
        """Answer each question, in order and in pieces, equal questions once.

        `answer` must be cheap and must not change anything.
        """
        is_over = self._pacer.is_over
        answers: dict[Q, A] = {}
        given = []
        for question in questions:
            found = answers.get(question)
            if found is None:
                found = answers[question] = answer(question)
            given.append(found)
            if is_over(self._piece_end):
                await self.pause()
        return tuple(given)

    async def answer_at_length(self, answer: Callable[[Q], Awaitable[A]], questions: Iterable[Q]) -> tuple[A, ...]:
        """Answer each question as `answer` does, where a single answer may take several pieces."""
        answers: dict[Q, A] = {}
        given = []
        for question in questions:
            found = answers.get(question)
            if found is None:
                found = answers[question] = await answer(question)
            given.append(found)
            await self.checkpoint()
        return tuple(given)

    async def repeated(self, keys: Iterable[Q]) -> set[Q]:
        """Find the keys that occur more than once, in pieces."""
        is_over = self._pacer.is_over
        seen: set[Q] = set()
        repeated: set[Q] = set()
        for key in keys:
            (repeated if key in seen else seen).add(key)
            if is_over(self._piece_end):
                await self.pause()
        await self.empty(seen)
        return repeated

    async def empty(self, values: dict[Q, Any] | set[Q]) -> None:
        """Empty a set or a dictionary in pieces: freeing 100,000 keys in one go takes several milliseconds."""
        is_over = self._pacer.is_over
        while values:
            if isinstance(values, dict):
                values.popitem()
            else:
                values.pop()
            if is_over(self._piece_end):
                await self.pause()
