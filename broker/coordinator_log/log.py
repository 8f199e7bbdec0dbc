"""The topic of a coordinator: create it, and load and serve the partitions that this broker leads.

A broker by itself leads all partitions that are online, from startup on; in a cluster they come and go. Both begin and
end terms (`term.py`) in the same way.

Invariants:
1. A name is served in a term of its partition only, and not before the whole partition has been loaded.
2. A term ends at once: before the log may be truncated, and before another broker serves its names.
3. Partitions that are loaded do not keep others from being served, and at most `LOADS` are loaded at the same time.
"""

import logging
from collections.abc import Awaitable, Callable

import trio

from warmlog.broker.coordinator_log.appends import UNLIMITED_MS, CoordinatorAppends, LogProducer, Rows, Settled
from warmlog.broker.coordinator_log.reading import read_partition
from warmlog.broker.coordinator_log.term import Shards, Term, TermState
from warmlog.broker.coordinator_log.topic import CoordinatorTopic, partition_of
from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import InvalidPartitionsError, InvalidTopicError, RefusedError
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError
from warmlog.broker.settings.types import SettingError
from warmlog.protocol.errors import ErrorCode, ProtocolError

logger = logging.getLogger(__name__)

LOADS = 4  # at the same time: more would only share the disk and the event loop
_CREATION_ERRORS: tuple[type[Exception], ...] = (
    InvalidTopicError,
    InvalidPartitionsError,
    SettingError,
    MetadataError,
    LogError,
    OSError,
    RefusedError,
)


class CoordinatorLog:
    """The topic as a coordinator uses it. Call all methods on the event loop."""

    def __init__(
        self, topic: CoordinatorTopic, partitions: Partitions, writer: Writer, clock: Callable[[], int]
    ) -> None:
        """`bind` follows. `clock` returns ms since the epoch."""
        self._topic = topic
        self._partitions = partitions
        self._writer = writer
        self._appends = CoordinatorAppends(writer, clock, topic.keeps)
        self._count = 0
        self._terms: dict[int, Term] = {}
        self._shards: Shards | None = None
        self._unloaded: list[Term] = []  # terms to load
        self._has_unloaded = trio.Event()
        self._loads = trio.CapacityLimiter(LOADS)
        self._last: tuple[str, int] = ("", 0)  # a request asks for the partition of the same name several times

    def bind(self, shards: Shards) -> None:
        """Begin terms of the partitions that this broker leads, from now on and in the future, with this state."""
        self._shards = shards
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

    # -- the topic --

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._topic.name

    @property
    def partition_count(self) -> int:
        """The number of partitions that names are spread over: the topic's count when it was found, 0 without one."""
        return self._count

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
            logger.warning("creating %s failed; no %s is served: %s", self._topic.name, self._topic.keeps, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._take_count()
        return ErrorCode.NONE

    def _deleted(self, topic: str) -> None:
        """End all terms if this topic was deleted; another one of its name may have other partitions."""
        if topic == self._topic.name:
            self.end_all()
            self._count = 0

    # -- terms --

    def term_of(self, name: str) -> Term | None:
        """Return the current term of a name's partition; None while this broker does not lead it."""
        index = self.partition_of(name)
        return self._terms.get(index) if self._count else None

    def state_of(self, name: str) -> ErrorCode:
        """Return NONE, or the code that answers requests for a name.

        A broker by itself answers before there is a topic: nothing is stored then. In a cluster this broker may merely
        not have heard of it.
        """
        term = self.term_of(name)
        if term is not None:
            return term.error
        if not self._count and not self._partitions.is_clustered:
            return ErrorCode.NONE
        will_lead = self._partitions.will_lead(self._topic.name, self.partition_of(name))
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if will_lead else ErrorCode.NOT_COORDINATOR

    @property
    def is_loading(self) -> bool:
        """Whether a partition that this broker leads is not loaded yet."""
        return any(term.state is TermState.LOADING for term in self._terms.values())

    def end_all(self) -> None:
        """End all terms."""
        for term in list(self._terms.values()):
            self._end(term)

    def _lead(self, partition: Partition) -> None:
        if partition.topic != self._topic.name:
            return
        self._take_count()
        self._lose(partition.topic, partition.index)
        term = self._terms[partition.index] = Term(partition)
        assert self._shards is not None, "bound before"
        self._shards.begin(term)
        if term.is_empty:
            term.state = TermState.SERVING
        else:
            self._unloaded.append(term)
            self._has_unloaded.set()

    def _lose(self, topic: str, index: int) -> None:
        if topic == self._topic.name and index in self._terms:
            self._end(self._terms[index])

    def _end(self, term: Term) -> None:
        assert self._shards is not None, "bound before"
        del self._terms[term.index]
        term.state = TermState.OVER
        term.loading.cancel()
        self._shards.end(term)
        for append in list(term.unsettled):
            append.fail()

    # -- loading --

    async def run(self) -> None:
        """Load the partitions that this broker leads, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                unloaded, self._unloaded = self._unloaded, []
                for term in unloaded:
                    nursery.start_soon(self._load, term)
                await self._has_unloaded.wait()
                self._has_unloaded = trio.Event()

    async def _load(self, term: Term) -> None:
        is_good = False
        async with self._loads:
            if not term.is_over:
                with term.loading:
                    is_good = await self._try_to_load(term)
        if term.is_over:
            return
        if is_good:
            term.state = TermState.SERVING
        else:
            term.state = TermState.REFUSED
            assert self._shards is not None, "bound before"
            self._shards.end(term)

    async def _try_to_load(self, term: Term) -> bool:
        """Load a partition; return False if it cannot be served."""
        assert self._shards is not None, "bound before"
        place = f"{self._topic.name}-{term.index}"
        try:
            replay = await read_partition(term.partition)
            return not term.is_over and await self._shards.load(term, replay)
        except (OSError, LogError, ProtocolError, StorageError) as error:
            logger.error("%s: reading failed; no %s in it is served: %s", place, self._topic.keeps, error)  # noqa: TRY400  # no traceback
        except Exception:  # a defect that one partition triggers must not stop the others
            logger.exception("%s: loading failed; no %s in it is served", place, self._topic.keeps)
        return False

    # -- appending --

    def append(
        self,
        name: str,
        rows: Rows,
        settled: Settled,
        *,
        term: Term | None = None,
        producer: LogProducer | None = None,
        limit_ms: int = UNLIMITED_MS,
    ) -> None:
        """Append records of a name in a term, by default in the current one; see `CoordinatorAppends.append`."""
        term = term or self.term_of(name)
        if term is None:
            settled(ErrorCode.NOT_COORDINATOR, ())
        else:
            self._appends.append(term, name, rows, settled, producer=producer, limit_ms=limit_ms)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work in the background; it ends before the logs are closed."""
        self._writer.spawn(work)
