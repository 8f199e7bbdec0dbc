"""Serve the shards of a coordinator: create its topic, load and unload the partitions that this broker leads, append.

A standalone broker leads all online partitions from startup on; in a cluster, leadership moves between brokers. Terms
(`term.py`) begin and end in the same way in both cases.

Invariants:
1. A name is served only in a term of its partition, and not before the whole partition is loaded.
2. A term ends immediately: before the log may be truncated, and before another broker serves its names.
3. Loading a partition does not keep others from being served; at most `LOADS` are loaded at the same time.
4. A shard is closed when its term ends, and when it cannot be loaded; its memory is freed afterwards, in steps.

Source: org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

import trio

from warmlog.broker.coordinator.appends import UNLIMITED_MS, CoordinatorAppends, LogProducer, Rows, Settled
from warmlog.broker.coordinator.loading import ShardLoad
from warmlog.broker.coordinator.shard import Coordinator, Shard
from warmlog.broker.coordinator.term import Term, TermState
from warmlog.broker.coordinator.topic import CoordinatorTopic, partition_of
from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import InvalidPartitionsError, InvalidTopicError, RefusedError
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError
from warmlog.broker.settings.types import SettingError
from warmlog.protocol.errors import ErrorCode, ProtocolError

logger = logging.getLogger(__name__)

LOADS = 4  # concurrent loads: more would only share the disk and the event loop
_CREATION_ERRORS: tuple[type[Exception], ...] = (
    InvalidTopicError,
    InvalidPartitionsError,
    SettingError,
    MetadataError,
    LogError,
    OSError,
    RefusedError,
)

S = TypeVar("S", bound=Shard[Any])


class CoordinatorRuntime(Generic[S]):
    """The shards of a coordinator. Call all methods on the event loop; `run` is the task."""

    def __init__(
        self, topic: CoordinatorTopic[Any], partitions: Partitions, writer: Writer, clock: Callable[[], int]
    ) -> None:
        """Call `bind` next. `clock` returns ms since the epoch."""
        self.is_stopped = False
        self._topic = topic
        self._partitions = partitions
        self._writer = writer
        self._appends = CoordinatorAppends(writer, clock, topic.keeps)
        self._count = 0
        self._terms: dict[int, Term] = {}
        self._shards: dict[int, S] = {}  # loaded or being served
        self._coordinator: Coordinator[S] | None = None
        self._unloaded: list[S] = []  # shards to load
        self._has_unloaded = trio.Event()
        self._loads = trio.CapacityLimiter(LOADS)
        self._last: tuple[str, int] = ("", 0)  # a request looks up the partition of the same name several times

    def bind(self, coordinator: Coordinator[S]) -> None:
        """Begin terms of the partitions that this broker leads, now and in the future, with shards of a coordinator."""
        self._coordinator = coordinator
        partitions = self._partitions
        partitions.availability.on_lead.append(self._lead)
        partitions.availability.on_resign.append(lambda partition: self._lose(partition.topic, partition.index))
        partitions.availability.on_offline.append(self._lose)
        partitions.changes.on_deleted.append(self._deleted)
        self._take_count()
        for index in range(self._count):
            partition = partitions.get(self._topic.name, index)
            if partition is not None:
                self._lead(partition)

    async def run(self) -> None:
        """Load the partitions that this broker leads, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                unloaded, self._unloaded = self._unloaded, []
                for shard in unloaded:
                    nursery.start_soon(self._load, shard)
                await self._has_unloaded.wait()
                self._has_unloaded = trio.Event()

    def stop(self) -> None:
        """Close all shards, because the broker stops. Appends in progress are still reported."""
        self.is_stopped = True
        for shard in self.shards():
            shard.term.loading.cancel()
            for _ in self._bound.close(shard):
                pass

    # -- the topic --

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._topic.name

    @property
    def partition_count(self) -> int:
        """The number of partitions that names are spread over: the topic's count when first seen; 0 without a topic."""
        return self._count

    @property
    def may_create(self) -> bool:
        """Whether nothing is stored: there is no topic, and no other broker that could have created it."""
        return not self._count and not self._partitions.is_clustered

    def partition_of(self, name: str) -> int:
        """Return the partition of a name, 0 while there is no topic."""
        if not self._count:
            self._take_count()  # another broker may have created it
        if not self._count:
            return 0
        if name != self._last[0]:
            self._last = (name, partition_of(name, self._count))
        return self._last[1]

    def _take_count(self) -> None:
        topic = self._partitions.topic(self._topic.name)
        if topic is not None and not self._count:
            self._count = topic.partitions
            self._last = ("", partition_of("", self._count))

    async def ensure(self) -> ErrorCode:
        """Create the topic unless it exists; return NONE, or COORDINATOR_NOT_AVAILABLE if that fails."""
        self._take_count()
        if self._count and self._partitions.has(self._topic.name):
            return ErrorCode.NONE
        layout = self._topic.layout(self._partitions.settings)
        factor = layout.replication_factor if self._partitions.is_clustered else 1
        try:
            await self._partitions.create(
                self._topic.name, layout.partitions, layout.configs, replication_factor=factor
            )
        except TopicExistsError:
            pass  # a concurrent request was faster
        except _CREATION_ERRORS as error:
            logger.warning("cannot create topic %s, so no %s is served: %s", self._topic.name, self._topic.keeps, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._take_count()
        return ErrorCode.NONE

    # -- shards --

    def shards(self) -> list[S]:
        """Return the shards of all partitions that this broker leads. May be called in a worker."""
        return list(self._shards.values())

    def shard_at(self, index: int) -> S | None:
        """Return the shard of a partition; None while this broker does not lead it or could not read it."""
        return self._shards.get(index)

    def shard_of(self, name: str) -> S | None:
        """Return the shard of a name."""
        index = self.partition_of(name)
        return self._shards.get(index) if self._count else None

    def leads(self, name: str) -> bool:
        """Return whether this broker leads a name's partition."""
        return self._term_of(name) is not None

    def availability(self, name: str) -> ErrorCode:
        """Return NONE, or the code that answers requests for a name."""
        term = self._term_of(name)
        if term is not None:
            return ErrorCode.NOT_COORDINATOR if self.is_stopped else term.error
        will_lead = self._partitions.will_lead(self._topic.name, self.partition_of(name))
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if will_lead else ErrorCode.NOT_COORDINATOR

    @property
    def is_loading(self) -> bool:
        """Whether a partition that this broker leads is not loaded yet."""
        return any(term.state is TermState.LOADING for term in self._terms.values())

    def _term_of(self, name: str) -> Term | None:
        index = self.partition_of(name)
        return self._terms.get(index) if self._count else None

    @property
    def _bound(self) -> Coordinator[S]:
        assert self._coordinator is not None, "bound before"
        return self._coordinator

    def _lead(self, partition: Partition) -> None:
        if partition.topic != self._topic.name:
            return
        self._take_count()
        self._lose(partition.topic, partition.index)
        term = self._terms[partition.index] = Term(partition)
        shard = self._shards[partition.index] = self._bound.begin(term)
        if term.is_empty:
            term.state = TermState.SERVING
        else:
            self._unloaded.append(shard)
            self._has_unloaded.set()

    def _lose(self, topic: str, index: int) -> None:
        if topic == self._topic.name and index in self._terms:
            self._end(self._terms[index])

    def _deleted(self, topic: str) -> None:
        """End all terms if the topic was deleted; a new one of its name may have other partitions."""
        if topic == self._topic.name:
            for term in list(self._terms.values()):
                self._end(term)
            self._count = 0

    def _end(self, term: Term) -> None:
        del self._terms[term.index]
        term.state = TermState.OVER
        term.loading.cancel()
        self._close(term.index)
        for append in list(term.unsettled):
            append.fail()

    def _close(self, index: int) -> None:
        """Close a shard, and free it in the background."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            steps = chain(self._bound.close(shard), shard.free())
            if next(steps, self) is not self:
                self._writer.spawn(partial(in_steps, steps))

    # -- loading --

    async def _load(self, shard: S) -> None:
        term = shard.term
        is_good = False
        async with self._loads:
            if not term.is_over:
                with term.loading:
                    is_good = await self._try_to_load(shard)
        if term.is_over:
            return
        if is_good:
            term.state = TermState.SERVING
        else:
            term.state = TermState.REFUSED
            self._close(term.index)

    async def _try_to_load(self, shard: S) -> bool:
        """Load a partition; return False if it cannot be served."""
        term, keeps = shard.term, self._topic.keeps
        name = f"{self._topic.name}-{term.index}"
        try:
            await ShardLoad(self._topic, shard, self.partition_of).run()
            if term.is_over:
                return False  # the term ended while a worker could not be cancelled
            await in_steps(self._bound.loaded(shard))
        except (OSError, LogError, ProtocolError, StorageError) as error:
            logger.error("%s: cannot load it, so no %s in it is served: %s", name, keeps, error)  # noqa: TRY400  # no traceback
        except Exception:  # a defect triggered by one partition must not stop the others
            logger.exception("%s: unexpected error while loading it; no %s in it is served", name, keeps)
        else:
            return True
        return False

    # -- appending --

    def append(
        self,
        term: Term,
        name: str,
        rows: Rows,
        settled: Settled,
        *,
        producer: LogProducer | None = None,
        limit_ms: int = UNLIMITED_MS,
    ) -> None:
        """Append records of a name in a term; see `CoordinatorAppends.append`."""
        self._appends.append(term, name, rows, settled, producer=producer, limit_ms=limit_ms)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work in the background; it is completed before the logs are closed."""
        self._writer.spawn(work)


async def in_steps(steps: Iterator[object]) -> None:
    """Run the steps of an iterator, and let other tasks run between them."""
    for _ in steps:
        await trio.lowlevel.checkpoint()
