"""The topic of a coordinator: create it, append to it, read it at startup.

Invariants:
1. The partition of a name (a group, a transactional id) is the one that Kafka chooses (Java's hash of the name), so
   that directories can be exchanged.
2. Records of one name are written in the order in which they were appended.
3. A partition's names are not served until it has been read; if it cannot be read, they are not served at all.
4. Reading does not block the event loop: a worker reads and decompresses, the loop processes `PIECE` records at a time.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService (partitionFor), TransactionStateManager
(partitionFor, transactionTopicConfigs), org.apache.kafka.coordinator.common.runtime.CoordinatorLoaderImpl.
"""

import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from broker.coordinator_log.replay import Replay
from broker.log.errors import (
    IndexCorruptError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    LogError,
    LogFailedError,
)
from broker.log.io.files import FileSlice
from broker.log.producers.transactions import Origin
from broker.metadata.store import MetadataError
from broker.metadata.topic import InvalidPartitionsError, InvalidTopicError, RefusedError
from broker.partitions.appends.writer import Writer
from broker.partitions.partition import Append, Partition, StorageError
from broker.partitions.partitions import Partitions, TopicExistsError
from broker.settings.settings import Settings
from broker.settings.types import SettingError
from protocol.errors import BatchTooLargeError, ErrorCode, ProtocolError
from protocol.records.batch import headers, verify_crc
from protocol.records.builder import build_batch, record_size_bound
from protocol.records.layout import HEADER_SIZE, TRANSACTIONAL_BIT, BatchHeader
from protocol.records.reader import Record, decode_batch

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 20  # per read: some thousands of records, a few ms in the worker
_CODE_UNIT = struct.Struct("<H")
PIECE = 500  # records processed between two checkpoints: half a millisecond
Rows: TypeAlias = Sequence[tuple[bytes, bytes | None]]  # keys and values; no value: a tombstone
Settled: TypeAlias = Callable[[ErrorCode, Sequence[int]], None]  # called with an error, or with each row's offset
Loaded: TypeAlias = list[tuple[BatchHeader, list[Record]]]


class TopicLayout(NamedTuple):
    """The number of partitions, the configs, and (in a cluster) the number of replicas of a topic to create."""

    partitions: int
    configs: Mapping[str, str]
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTopic:
    """The differences between the topics of coordinators. `keeps`: what its names identify, for log messages."""

    name: str
    keeps: str
    layout: Callable[[Settings], TopicLayout]


class LogProducer(NamedTuple):
    """The producer of the transaction that appended records belong to, and a guard that allows it to begin one."""

    id: int
    epoch: int
    guard: int


class CoordinatorLog:
    """The topic as a coordinator uses it. Call all methods on the event loop."""

    def __init__(
        self, topic: CoordinatorTopic, partitions: Partitions, writer: Writer, clock: Callable[[], int]
    ) -> None:
        """Use the topic if it exists; its partitions are then `unread`. `clock` returns ms since the epoch."""
        self._topic = topic
        self._partitions = partitions
        self._writer = writer
        self._clock = clock
        self._count = 0
        self._unread: dict[int, ErrorCode] = {}
        self._turns: dict[int, int] = {}  # how often this broker began or ceased to lead a partition, in a cluster
        self._more_unread = trio.Event()
        self._take_count()
        if not partitions.is_clustered:
            self._unread = dict.fromkeys(range(self._count), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    # -- the topic --

    async def wait_unread(self) -> None:
        """Wait until there are unread partitions."""
        await self._more_unread.wait()
        self._more_unread = trio.Event()

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._topic.name

    @property
    def unread(self) -> list[int]:
        """The partitions that have not been read yet."""
        return [index for index, why in self._unread.items() if why is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

    @property
    def partition_count(self) -> int:
        """The number of partitions that names are spread over: the topic's count when it was found, 0 without one."""
        return self._count

    def state_of(self, name: str) -> ErrorCode:
        """Return NONE, or the error code of a name that cannot be served."""
        index = self.partition_of(name)
        state = self._unread.get(index)
        if state is not None:
            return state
        is_elsewhere = self._partitions.is_clustered and self._partitions.get(self._topic.name, index) is None
        return ErrorCode.NOT_COORDINATOR if is_elsewhere else ErrorCode.NONE

    def find(self) -> None:
        """Take note of the topic if another broker has created it."""
        self._take_count()

    def partition_of(self, name: str) -> int:
        """Return the partition of a name, 0 while there is no topic."""
        return abs_int32(java_hash(name)) % self._count if self._count else 0

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
        if not self._count:
            self._take_count()
            if not self._partitions.is_clustered:
                self._read_existing_records()
        return ErrorCode.NONE

    def _read_existing_records(self) -> None:
        """Queue the partitions of a new topic that are not empty: their directories were copied here before."""
        for index in range(self._count):
            partition = self._partitions.get(self._topic.name, index)
            if partition is not None and partition.log.log_end_offset > partition.log.log_start_offset:
                self._unread[index] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if self._unread:
            self._more_unread.set()

    def lead(self, partition: Partition) -> bool:
        """Read a partition that this broker leads from now on; return False if it is another topic's."""
        if partition.topic != self._topic.name:
            return False
        self._take_count()
        self._turns[partition.index] = self.turn_of(partition.index) + 1
        self._unread[partition.index] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._more_unread.set()
        return True

    def turn_of(self, index: int) -> int:
        """Return a number that is another one whenever this broker began or ceased to lead a partition."""
        return self._turns.get(index, 0)

    def lose(self, index: int) -> None:
        """Stop serving the names of a partition that has gone offline, or that another broker leads."""
        self._turns[index] = self.turn_of(index) + 1
        self._unread[index] = ErrorCode.NOT_COORDINATOR

    def forget(self) -> None:
        """Reset after the topic was deleted."""
        self._count = 0
        self._unread = {}

    def _take_count(self) -> None:
        topic = self._partitions.topic(self._topic.name)
        if topic is not None and not self._count:
            self._count = topic.partitions

    # -- append --

    def append(self, name: str, rows: Rows, settled: Settled, *, producer: LogProducer | None = None) -> None:
        """Append records of a name with acks=all. `settled` is called once they are written, possibly before return.

        With a producer they are part of its transaction: they count once its commit marker is in the partition.
        """
        try:
            appends = [self._append(name, batch, producer) for batch in self._batches(rows)]
        except _NotAppendedError as error:
            self._writer.write_queued()  # batches queued before the failed one are still written
            settled(error.code, ())
            return
        self._writer.write_queued()
        if all(append.done for append, _ in appends):
            _settle(appends, settled)
        else:
            self._writer.spawn(partial(_settle_later, appends, settled))

    def open_guard(self, name: str, producer_id: int) -> int:
        """Return a guard for a transaction in the partition of a name; call it before the transaction is verified.

        A marker that is written meanwhile invalidates it. 0, with which none can begin, if the partition is offline.
        """
        partition = self._partitions.get(self._topic.name, self.partition_of(name))
        return 0 if partition is None else partition.log.producers.guards.open(producer_id)

    def _append(self, name: str, rows: Rows, producer: LogProducer | None) -> tuple[Append, int]:
        partition = self._partitions.get(self._topic.name, self.partition_of(name))
        if partition is None:
            raise _NotAppendedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        now_ms = self._clock()
        records = [(now_ms, key, value, ()) for key, value in rows]
        try:
            _check_size(rows, partition.log.config.max_message_bytes)
            if producer is None:
                batch = build_batch(records)
            else:
                batch = build_batch(
                    records, producer_id=producer.id, producer_epoch=producer.epoch, attributes=TRANSACTIONAL_BIT
                )
            guard = 0 if producer is None else producer.guard
            timeout_ms = self._partitions.settings.offsets_commit_timeout_ms
            return partition.append(batch, Origin.COORDINATOR, guard, timeout_ms), len(rows)
        except (ProtocolError, LogError) as error:
            if not isinstance(error, LogFailedError):  # reported once for all its appends
                topic = self._topic
                logger.warning("%s %.200r: appending to %s failed: %s", topic.keeps, name, topic.name, error)
            raise _NotAppendedError(_code_of(error)) from error

    def _batches(self, rows: Rows) -> Iterator[Rows]:
        """Split rows into batches within the topic's `max.message.bytes`."""
        partition = self._partitions.get(self._topic.name, 0)
        max_bytes = (1 << 20 if partition is None else partition.log.config.max_message_bytes) - HEADER_SIZE
        start = size = 0
        for index, (key, value) in enumerate(rows):
            row_size = record_size_bound(key, value)
            if size + row_size > max_bytes and index > start:
                yield rows[start:index]
                start, size = index, 0
            size += row_size
        yield rows[start:]

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work in the background; it ends before the logs are closed."""
        self._writer.spawn(work)

    # -- read --

    async def read(self, index: int) -> Replay | None:
        """Read a whole partition; return None if it cannot be read. Call `finish_reading` afterwards."""
        partition = self._partitions.get(self._topic.name, index)
        replay = Replay()
        if partition is None:
            is_elsewhere = self._partitions.is_clustered or self._partitions.is_offline(self._topic.name, index)
            return None if is_elsewhere else replay
        try:
            async for header, records in _batches_of(partition):
                for start in range(0, len(records), PIECE):
                    replay.take(header, records[start : start + PIECE])
                    await trio.lowlevel.checkpoint()
        except (OSError, LogError, ProtocolError, StorageError) as error:
            unread = f"{self._topic.name}-{index}: reading failed; no {self._topic.keeps} in it is served"
            logger.error("%s: %s", unread, error)  # noqa: TRY400  # no traceback
            return None
        return replay

    def finish_reading(self, index: int, *, good: bool) -> None:
        """Start serving a partition's names, or refuse them with NOT_COORDINATOR if it could not be read.

        Does nothing if the partition went offline or the topic was deleted meanwhile.
        """
        if self._unread.get(index) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
        if good:
            del self._unread[index]
        else:
            self._unread[index] = ErrorCode.NOT_COORDINATOR


_CREATION_ERRORS: tuple[type[Exception], ...] = (
    InvalidTopicError,
    InvalidPartitionsError,
    SettingError,
    MetadataError,
    LogError,
    OSError,
    RefusedError,
)
_TOO_FEW_REPLICAS = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT}
)


class _NotAppendedError(Exception):
    """Records were rejected before they were queued."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, 32 bits, signed."""
    digest = 0
    for (unit,) in _CODE_UNIT.iter_unpack(text.encode("utf-16-le", "surrogatepass")):
        digest = (digest * 31 + unit) & 0xFFFFFFFF
    return digest - (1 << 32) if digest >> 31 else digest


def abs_int32(number: int) -> int:
    """Return Kafka's Utils.abs: 0 for -2^31, which has no positive counterpart in 32 bits."""
    return 0 if number == -(1 << 31) else abs(number)


def _code_of(error: Exception) -> ErrorCode:
    """Map an append's failure to an error code (Kafka: appendGroupMetadataErrorToResponseError)."""
    if isinstance(error, BatchTooLargeError):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(error, InvalidProducerEpochError):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, InvalidTransactionStateError):
        return ErrorCode.INVALID_TXN_STATE
    if isinstance(error, ProtocolError) and error.code in _TOO_FEW_REPLICAS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NOT_COORDINATOR


def _check_size(rows: Rows, max_bytes: int) -> None:
    """Raise BatchTooLargeError for records that no batch can hold, before it is built: a member may send megabytes."""
    size = sum([len(key) + len(value or b"") for key, value in rows])
    if size > max_bytes:
        raise BatchTooLargeError(f"records of {size} bytes, more than a batch of {max_bytes} bytes can hold")


def _settle(appends: Sequence[tuple[Append, int]], settled: Settled) -> None:
    failure = next((append.error for append, _ in appends if append.error is not None), None)
    if failure is not None:
        settled(_code_of(failure), ())
        return
    offsets = [append.planned.base_offset + index for append, count in appends for index in range(count)]
    settled(ErrorCode.NONE, offsets)


async def _settle_later(appends: Sequence[tuple[Append, int]], settled: Settled) -> None:
    for append, _ in appends:
        await append.wait()
    _settle(appends, settled)


async def _batches_of(partition: Partition) -> AsyncIterator[tuple[BatchHeader, list[Record]]]:
    """Yield every batch up to the current log end offset, control batches included."""
    log = partition.log
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        try:
            found = log.read(offset, READ_BYTES, min_one_message=True)
        except IndexCorruptError as error:
            await partition.rebuilt(error)
            continue
        if found.slice is None:
            return
        loaded = await trio.to_thread.run_sync(_load, found.slice)
        if not loaded:
            raise StorageError(f"no batch can be read at offset {offset}")
        for header, records in loaded:
            yield header, records
            offset = header.next_offset


def _load(part: FileSlice) -> Loaded:
    """Read a slice, and check and decompress its complete batches. Blocks: runs in a worker."""
    data = part.read_all()
    loaded = []
    for position, header in headers(data):
        verify_crc(data, position, header)
        loaded.append((header, decode_batch(data, position, header)))
    return loaded
