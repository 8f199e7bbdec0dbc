"""A small coordinator: its names are numbers with a text each, and requests wait until their text is stored."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.rig import START_MS, Rig, rig
from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.coordinator.term import Term, TermState
from warmlog.broker.coordinator.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError

TOPIC = "__three_parts"
PARTITIONS = 3
LOADING, NOT_COORDINATOR = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


def decode(key: bytes, value: bytes) -> tuple[str, str] | None:
    """Keys that begin with `?` are of an unknown type; values that begin with `!` are malformed."""
    if key.startswith(b"?"):
        return None
    if value.startswith(b"!"):
        raise MalformedError("an exclamation")
    return key.decode(), value.decode()


SMALL = CoordinatorTopic(
    name=TOPIC,
    keeps="name",
    count_setting="names.partitions",
    layout=lambda _: TopicLayout(PARTITIONS, {"cleanup.policy": "compact"}, 1),
    decode=decode,
)


class ToyShard:
    """Texts by name."""

    def __init__(self, term: Term) -> None:
        self.term = term
        self.texts: dict[str, str] = {}
        self.pending: dict[int, dict[str, str]] = {}
        self.offsets: dict[str, int] = {}
        self.waiting: list[PendingAnswer[ErrorCode]] = []
        self.is_held = False
        self.is_freed = False

    def replay(self, name: str, row: str, offset: int) -> None:
        self.texts[name] = row
        self.offsets[name] = offset

    def replay_pending(self, producer_id: int, name: str, row: str, offset: int) -> None:
        self.pending.setdefault(producer_id, {})[name] = row
        self.offsets[name] = offset

    def free(self) -> Iterator[None]:
        while self.texts:
            self.texts.popitem()
            yield
        self.is_freed = True


class Toy:
    """Loads that are `held` end when they are released, or fail with an `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_held = False
        self.events: list[str] = []

    def begin(self, term: Term) -> ToyShard:
        self.events.append(f"begin {term.index}")
        return ToyShard(term)

    def loaded(self, shard: ToyShard) -> Iterator[None]:
        self.events.append(f"load {shard.term.index}")
        while self.is_held:
            shard.is_held = True
            yield
        if self.error is not None:
            raise self.error

    def close(self, shard: ToyShard) -> Iterator[None]:
        self.events.append(f"end {shard.term.index}")
        while shard.waiting:
            shard.waiting.pop().settle(NOT_COORDINATOR)
            yield


class Serving:
    """A runtime whose topic exists, and what it loads."""

    def __init__(self, made: Rig, toy: Toy) -> None:
        self.made = made
        self.toy = toy
        self.runtime: CoordinatorRuntime[ToyShard] = CoordinatorRuntime(
            SMALL, made.partitions, made.writer, lambda: START_MS
        )
        self.runtime.bind(toy)
        self.reports: list[tuple[ErrorCode, list[int]]] = []

    def name_in(self, index: int, number: int = 0) -> str:
        """Return one of the names that belong to a partition."""
        return [name for name in map(str, range(999)) if self.runtime.partition_of(name) == index][number]

    def names_in(self, index: int, count: int) -> list[str]:
        return [self.name_in(index, number) for number in range(count)]

    def partition(self, index: int) -> Partition:
        found = self.made.partitions.get(TOPIC, index)
        assert found is not None
        return found

    def shard(self, index: int) -> ToyShard:
        found = self.runtime.shard_at(index)
        assert found is not None
        return found

    def texts(self, index: int) -> dict[str, str] | None:
        found = self.runtime.shard_at(index)
        return None if found is None else found.texts

    def append(self, index: int, count: int = 1, value: bytes = b"value", *, term: Term | None = None) -> None:
        """Append texts of some names of a partition."""
        rows = [(name.encode(), value) for name in self.names_in(index, count)]
        self.runtime.append(
            term or self.shard(index).term,
            self.name_in(index),
            rows,
            lambda error, found: self.reports.append((error, [*found])),
        )

    async def ask(self, index: int, text: str) -> ErrorCode:
        """Set the text of the first name of a partition; wait until it is stored, as the handler of a request does."""
        name = self.name_in(index)
        error = self.runtime.availability(name)
        if error is not ErrorCode.NONE:
            return error
        shard = self.shard(index)
        answer = PendingAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard.waiting.append(answer)

        def stored(error: ErrorCode, _: object) -> None:
            if answer in shard.waiting:
                shard.waiting.remove(answer)
                if error is ErrorCode.NONE:
                    shard.texts[name] = text
                answer.settle(error)

        self.runtime.append(shard.term, name, [(name.encode(), text.encode())], stored)
        return await answer.wait()

    def state(self, index: int) -> ErrorCode:
        return self.runtime.availability(self.name_in(index))

    def states(self) -> list[ErrorCode]:
        return [self.state(index) for index in range(PARTITIONS)]

    def resign(self, index: int) -> Partition:
        partition = self.partition(index)
        self.made.partitions.availability.resign(partition)
        return partition

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await trio.lowlevel.checkpoint()

    async def loads_held(self) -> None:
        """Wait until all loads are held that have begun."""
        await self.until(
            lambda: all(each.is_held or each.term.state is not TermState.LOADING for each in self.runtime.shards())
        )


async def at_rest() -> None:
    """Wait until all tasks and all worker threads wait. No load may be held."""
    threads = trio.to_thread.current_default_thread_limiter()
    while True:
        await wait_all_tasks_blocked()
        if not threads.borrowed_tokens:
            return
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(directory: Path, toy: Toy | None = None, *, reads: bool = True) -> AsyncIterator[Serving]:
    """Serve what a directory holds; wait until it is loaded, or until the loads are held."""
    async with rig(directory) as made:
        one = Serving(made, toy or Toy())
        assert await one.runtime.ensure() is ErrorCode.NONE
        async with trio.open_nursery() as nursery:
            if reads:
                nursery.start_soon(one.runtime.run)
                await (one.loads_held() if one.toy.is_held else at_rest())
            yield one
            nursery.cancel_scope.cancel()
