"""Write undeliverable records of a share group to its dead-letter topic (KIP-1191).

A dead letter has headers with the origin of its record, the number of deliveries, and the reason; with
`errors.deadletterqueue.copy.record.enable` also the record's key and value. The topic must opt in. Dead letters that
cannot be written after some attempts are logged and counted, and their records are archived nevertheless, as in Kafka.

Invariant: the records of a share-partition are archived when their dead letters are on all in-sync replicas, so that
none is lost with a broker. A dead letter may be written again after a restart.

Source: org.apache.kafka.server.share.dlq.ShareGroupDLQStateManager, ShareGroupDLQRecordFetcher.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import trio

from warmlog.broker.coordinator.peer_queue import PeerQueue, Peers
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.residency import ColdReadError
from warmlog.broker.log.producers.transactions import Origin
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError
from warmlog.broker.settings.groups.deliveries import ShareRules
from warmlog.broker.settings.topics import TAKES_DEAD_LETTERS
from warmlog.broker.share.partitions.delivery import Delivery, Status
from warmlog.broker.share.partitions.transitions import DeadLetter
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.messages.records.produce import KafkaProduceRequest
from warmlog.protocol.kafka.peer_apis import PRODUCE
from warmlog.protocol.records.builder import build_batch, record_size_bound
from warmlog.protocol.records.layout import HEADER_SIZE
from warmlog.protocol.records.reader import decoded_batches
from warmlog.protocol.records.record import Headers, Row
from warmlog.protocol.request import PartitionRecords

MAX_ATTEMPTS: Final = 5
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
MAX_READ_BYTES: Final = 1 << 20  # bytes of records copied at a time
MAX_READS: Final = 8  # attempts, with reads of index and header pages from disk
MAX_RECORDS: Final = 500  # bytes of a batch of dead letters
MAX_ITEMS = 100  # ranges taken from a share-partition's queue at a time
CONNECTION: Final = -5  # a separate connection: an answer waits for the in-sync replicas
REMOTE_LIMIT_MS: Final = 15_000
UNLIMITED_MS: Final = 1 << 31  # time for replicas of a leader here: an appended batch must not be appended twice
_EXPECTED = (OSError, LogError, StorageError, MetadataError, ProtocolError)

logger = logging.getLogger(__name__)


class DeadLetterError(Exception):
    """Dead letters cannot be written; a retry would not help."""


class RetriableError(Exception):
    """Dead letters cannot be written now; a retry may succeed."""


class Copy(NamedTuple):
    """The copied parts of a record."""

    key: bytes | None
    value: bytes | None


class DeadLetters:
    """Writes the dead letters of this broker's share-partitions, in order. Belongs to the event loop."""

    def __init__(self, partitions: Partitions, write: Callable[[], None], peers: Peers | None) -> None:
        """Append with `write`, which writes queued appends. `peers` are the other brokers of a cluster."""
        self._partitions = partitions
        self._write = write
        self._peers = peers
        self._queue: PeerQueue[Delivery, DeadLetter] = PeerQueue(self._write_all, max_items=MAX_ITEMS)
        self.written = 0  # number of records since startup
        self.failed = 0

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of dead letters."""
        metrics.counter(
            "warmlog_share_dead_letters_total",
            "Dead letters of share groups: written, or failed, so that a record was archived without one.",
            lambda: [(("written",), self.written), (("failed",), self.failed)],
            ("outcome",),
        )

    def put(self, delivery: Delivery, letter: DeadLetter) -> None:
        """Queue dead letters of a share-partition, which is informed when they are written."""
        self._queue.put(delivery, letter)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._queue.run()

    async def _write_all(self, delivery: Delivery, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            if delivery.status is not Status.ACTIVE:
                return  # the next leader writes them
            size = letter.last - letter.first + 1
            try:
                await self._write_letter(delivery, letter)
            except (DeadLetterError, RetriableError) as error:
                self.failed += size
                offsets = f"offsets {letter.first} to {letter.last}"
                logger.warning("%r: %s are archived without dead letters: %s", delivery, offsets, error)
            else:
                self.written += size
            delivery.dead_letter_written(letter)

    async def _write_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        """Write the dead letters of a range, in batches. Raises DeadLetterError, RetriableError."""
        first = letter.first
        while first <= letter.last:
            last = min(letter.last, first + MAX_RECORDS - 1)
            for attempt in range(MAX_ATTEMPTS):
                try:
                    first = await self._write_some(delivery, letter._replace(first=first, last=last)) + 1
                    break
                except RetriableError:
                    if attempt == MAX_ATTEMPTS - 1 or delivery.status is not Status.ACTIVE:
                        raise
                    await trio.sleep(min(FIRST_PAUSE_S * 2**attempt, MAX_PAUSE_S))

    async def _write_some(self, delivery: Delivery, letter: DeadLetter) -> int:
        """Write dead letters from the beginning of a range on, and return the last offset among them."""
        rules = delivery.rules
        if rules.dead_letter_topic == delivery.partition.topic:
            raise DeadLetterError(f"{rules.dead_letter_topic} is the topic that the records are from")
        topic = await self._topic(delivery.key.group, rules)
        copies, last = await self._copies(delivery.partition, letter) if rules.copies_records else ({}, letter.last)
        index = delivery.partition.index % topic.partitions
        for batch in self._batches(delivery, letter._replace(last=last), copies, self._max_bytes(topic)):
            await self._append(topic.name, index, batch)
        return last

    async def _topic(self, group: str, rules: ShareRules) -> Topic:
        """Return the dead-letter topic of a group; create it if enabled. Raises DeadLetterError, RetriableError."""
        name, settings = rules.dead_letter_topic, self._partitions.settings
        if not name:
            raise DeadLetterError(f"share group {group} has no dead-letter topic")
        prefix = settings.errors_deadletterqueue_topic_name_prefix
        if not name.startswith(prefix) or name.startswith("__"):
            raise DeadLetterError(f"the name of topic {name} does not begin with {prefix!r}")
        topic = self._partitions.topic(name)
        if topic is not None:
            if topic.configs.get(TAKES_DEAD_LETTERS) != "true":
                raise DeadLetterError(f"topic {name} takes no dead letters: {TAKES_DEAD_LETTERS} is not true")
            return topic
        if not settings.errors_deadletterqueue_auto_create_topics_enable:
            raise DeadLetterError(
                f"there is no topic {name}, and errors.deadletterqueue.auto.create.topics.enable is false"
            )
        configs = {TAKES_DEAD_LETTERS: "true", "message.timestamp.type": "CreateTime"}
        try:
            return await self._partitions.create(name, configs=configs)
        except TopicExistsError as error:
            raise RetriableError(f"topic {name} was just created") from error
        except _EXPECTED as error:
            raise RetriableError(f"cannot create topic {name}: {error}") from error

    def _max_bytes(self, topic: Topic) -> int:
        own = topic.configs.get("max.message.bytes")
        return self._partitions.settings.message_max_bytes if own is None else int(own)

    def _batches(
        self, delivery: Delivery, letter: DeadLetter, copies: Mapping[int, Copy], max_bytes: int
    ) -> Iterator[bytes]:
        """Yield batches of dead letters, none larger than the topic allows."""
        rows: list[Row] = []
        size, now_ms = HEADER_SIZE, self._partitions.clock()
        for offset in range(letter.first, letter.last + 1):
            headers = headers_of(delivery, letter, offset)
            copy = copies.get(offset, Copy(None, None))
            bound = record_size_bound(copy.key, copy.value, headers)
            if HEADER_SIZE + bound > max_bytes:
                copy = Copy(None, None)
                bound = record_size_bound(None, None, headers)
            if rows and size + bound > max_bytes:
                yield build_batch(rows)
                rows, size = [], HEADER_SIZE
            rows.append((now_ms, copy.key, copy.value, headers))
            size += bound
        yield build_batch(rows)

    async def _copies(self, partition: Partition, letter: DeadLetter) -> tuple[dict[int, Copy], int]:
        """Return copies of the first records of a range, limited by size, and the last offset covered.

        A record that is unreadable or no longer exists gets a dead letter without a copy.
        """
        try:
            for _ in range(MAX_READS):
                try:
                    read = partition.read(letter.first, MAX_READ_BYTES, min_one_batch=True)
                except ColdReadError as cold:
                    await trio.to_thread.run_sync(cold.job)
                    continue
                if read is None or read.slice is None:
                    break
                return await trio.to_thread.run_sync(_copies_in, read.slice, letter)
        except _EXPECTED as error:
            logger.warning("%s-%d: cannot copy records: %s", partition.topic, partition.index, error)
        return {}, letter.last

    async def _append(self, topic: str, index: int, batch: bytes) -> None:
        """Append a batch at the leader of a partition, and wait for its in-sync replicas. Raises RetriableError."""
        partition = self._partitions.get(topic, index)
        if partition is not None:
            try:
                append = partition.append(batch, Origin.COORDINATOR, 0, UNLIMITED_MS)
                self._write()
                await append.wait()
                if append.error is not None:
                    raise append.error
            except _EXPECTED as error:
                raise RetriableError(f"{topic}-{index}: {error}") from error
            return
        leader = None if self._peers is None else self._peers.leader_id(topic, index)
        if leader is None or self._peers is None:
            raise RetriableError(f"{topic}-{index} has no leader")
        requested = PartitionRecords(topic=topic, partition=index, records=memoryview(batch))
        request = KafkaProduceRequest(acks=-1, timeout_ms=REMOTE_LIMIT_MS, partitions=(requested,))
        response = await self._peers.answer(leader, PRODUCE, request, CONNECTION)
        errors = [] if response is None else [each.error for each in response.partitions]
        if errors != [ErrorCode.NONE]:
            text = errors[0].name if errors else "no answer"
            raise RetriableError(f"broker {leader}, {topic}-{index}: {text}")


def headers_of(delivery: Delivery, letter: DeadLetter, offset: int) -> Headers:
    """Return the headers of a dead letter, with Kafka's names and texts."""
    partition = delivery.partition
    texts = {
        "topic": partition.topic,
        "partition": str(partition.index),
        "offset": str(offset),
        "group": delivery.key.group,
        "delivery.count": str(letter.deliveries),
    }
    if letter.cause is not None:
        texts["message"] = letter.cause
    return tuple([(f"__dlq.errors.{name}", text.encode()) for name, text in texts.items()])


def _copies_in(records: FileSlice, letter: DeadLetter) -> tuple[dict[int, Copy], int]:
    """Read the records of a range in a slice; return them and the last offset covered. For a worker thread."""
    copies: dict[int, Copy] = {}
    last = letter.last
    for header, batch in decoded_batches(records.read_all(), from_offset=letter.first):
        last = header.last_offset
        for record in batch:
            if record.offset <= letter.last:
                copies[record.offset] = Copy(_bytes(record.key), _bytes(record.value))
        if last >= letter.last:
            break
    return copies, min(last, letter.last)


def _bytes(data: bytes | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)
