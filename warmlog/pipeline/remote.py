"""Partitions behind a broker: what they hold, splits of them, and reading these.

Owns: everything that is asked of a broker. Must not know: directories, Spark.

1. A broker that goes away is waited for, as long as `PATIENCE_S`; reading goes on at the offset where it was.
2. The next fetch is under way while the last one is decoded.
3. A partition's splits are equal in offsets: a broker does not tell how many bytes lie between two of them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from protocol.errors import ErrorCode, ProtocolError
from protocol.groups import OffsetCommitRequest, OffsetCommitResponse, OffsetToCommit
from protocol.native.messages import ReceivedFetch, ReceivedPartition
from protocol.records.batch import BatchHeader, headers, verify_crc
from protocol.records.columns import Wanted
from protocol.records.layout import TRANSACTIONAL_BIT
from protocol.request import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    Isolation,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetQuery,
)
from protocol.response import ListOffsetsResponse, MetadataResponse
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.positions import Range, check_named
from warmlog.pipeline.reading import BatchHandler, Damage, ReadRules, Tally
from warmlog.pipeline.wire import BrokerConnection, LostError, trouble

_log = logging.getLogger(__name__)

T = TypeVar("T")

FETCH_BYTES = 4 << 20  # of one reply; the next is on its way meanwhile, so a worker holds two
FETCH_MAX_WAIT_MS = 500
PATIENCE_S = 60.0  # with a broker that is away, or has nothing of what it said it had
RETRY_S = 0.2


@dataclass(frozen=True, kw_only=True)
class RemotePartition:
    """A partition, as the broker tells of it when it is asked."""

    broker: BrokerConnection
    topic: str
    partition: int
    topic_id: str | None = None

    @cached_property
    def start_offset(self) -> int:
        """The first offset that is there."""
        return self._ask(EARLIEST_TIMESTAMP)

    @cached_property
    def _end_offset(self) -> int:
        return self._ask(LATEST_TIMESTAMP)

    @cached_property
    def _stable_offset(self) -> int:
        return self._ask(LATEST_TIMESTAMP, Isolation.READ_COMMITTED)

    def end_offset(self, *, flushed_only: bool = False, committed_only: bool = False) -> int:  # noqa: ARG002
        """The offset after the last one that readers may see; of `flushed_only` a broker knows nothing."""
        return self._stable_offset if committed_only else self._end_offset

    def offset_at_time(self, timestamp_ms: int) -> int | None:
        """The offset of the first record at or past a time; None if all are earlier."""
        found = self._ask(max(timestamp_ms, 0))
        return None if found < 0 else found

    def _ask(self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> int:
        query = OffsetQuery(topic=self.topic, partition=self.partition, timestamp=timestamp)
        request = ListOffsetsRequest(partitions=(query,), isolation=isolation)
        (found,) = self.broker.ask(request, ListOffsetsResponse).partitions
        if found.error:
            raise trouble(found.error, found.message, about=f"{self.topic}-{self.partition}")
        return found.offset


def remote_partitions(broker: BrokerConnection, options: ReadOptions) -> list[RemotePartition]:
    """The partitions that are asked for, all named ones there. Raises PipelineError."""
    names = options.topics.named or None
    told = broker.ask(MetadataRequest(topics=names), MetadataResponse)
    for topic in told.topics:
        if topic.error and topic.name in options.topics.named:
            raise trouble(topic.error, topic.message, about=f"topic {topic.name}")
    found = [
        RemotePartition(broker=broker, topic=topic.name, partition=partition.partition, topic_id=topic.topic_id)
        for topic in told.topics
        for partition in topic.partitions
        if options.topics.wants(topic.name, partition.partition)
    ]
    for name, numbers in (options.topics.assigned or {}).items():
        missing = set(numbers) - {partition.partition for partition in found if partition.topic == name}
        if missing:
            raise PipelineError(f"topic {name} has no partition {min(missing)}")
    check_named(found, options)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSplit:
    """What one task reads of a partition behind a broker: offsets, the last one excluded."""

    bootstrap: str
    topic: str
    partition: int
    first_offset: int
    end_offset: int


def plan_remote(
    bootstrap: str, ranges: Mapping[tuple[str, int], Range], min_partitions: int | None
) -> list[RemoteSplit]:
    """Splits of these offsets: as many as there are partitions, or about as many as asked for."""
    total = sum(wanted.end - wanted.start for wanted in ranges.values())
    share = -(-total // min_partitions) if min_partitions else total
    return [
        RemoteSplit(bootstrap=bootstrap, topic=topic, partition=partition, first_offset=first, end_offset=end)
        for (topic, partition), wanted in ranges.items()
        for first, end in pairwise(_cuts(wanted, share))
    ]


def _cuts(wanted: Range, share: int) -> list[int]:
    size = wanted.end - wanted.start
    count = max(round(size / share), 1) if size else 0
    return [wanted.start + size * at // count for at in range(count)] + [wanted.end] if count else []


class RemoteReader:
    """Reads one split. Each step of `run` has handed one batch with a good CRC to the handler. `tally` counts."""

    def __init__(
        self,
        split: RemoteSplit,
        rules: ReadRules,
        handler: BatchHandler,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._split = split
        self._rules = rules
        self._handler = handler
        self._clock = clock
        self._sleep = sleep
        self._position = split.first_offset
        self._progressed_at = clock()
        self._stopped = False
        self.tally = Tally()

    def run(self) -> Iterator[None]:
        """Read to the end. Raises PipelineError."""
        self._progressed_at = self._clock()
        while self._wants_more:
            try:
                with BrokerConnection(self._split.bootstrap, max_reply_bytes=FETCH_BYTES) as broker:
                    yield from self._read(broker)
            except LostError:
                if self._clock() - self._progressed_at > PATIENCE_S:
                    raise
                self._sleep(RETRY_S)

    @property
    def _wants_more(self) -> bool:
        return self._position < self._split.end_offset and not self._stopped

    def _read(self, broker: BrokerConnection) -> Iterator[None]:
        broker.send(self._fetch(self._position))
        while self._wants_more:
            (part,) = broker.receive(ReceivedFetch).partitions
            self._check(part)
            batches = self._whole_batches(part)
            following = batches[-1][1].next_offset if batches else self._position
            if following < self._split.end_offset:
                broker.send(self._fetch(following))
            for at, header in batches:
                if self._take(part.records, at, header):
                    yield
                if self._stopped or self._position >= self._split.end_offset:
                    return

    def _fetch(self, offset: int) -> FetchRequest:
        split = self._split
        wanted = FetchPartition(topic=split.topic, partition=split.partition, offset=offset, max_bytes=FETCH_BYTES)
        return FetchRequest(partitions=(wanted,), max_wait_ms=FETCH_MAX_WAIT_MS, max_bytes=FETCH_BYTES)

    def _whole_batches(self, part: ReceivedPartition) -> list[tuple[int, BatchHeader]]:
        try:
            batches = list(headers(part.records))
        except ProtocolError as error:
            raise PipelineError(f"{self._name}: what came at offset {self._position} is no batch: {error}") from error
        if batches:
            self._progressed_at = self._clock()
        elif self._clock() - self._progressed_at > PATIENCE_S:
            raise PipelineError(
                f"{self._name}: nothing comes at offset {self._position}; the log ends at {part.high_watermark}"
            )
        return batches

    def _check(self, part: ReceivedPartition) -> None:
        """Raise what the broker says of the partition; LostError for what may pass."""
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE and self._position < part.log_start_offset:
            self._lose(part.log_start_offset)
            raise LostError(f"{self._name}: to be asked anew")
        if part.error:
            raise trouble(part.error, part.message, about=f"{self._name}, offset {self._position}")

    def _lose(self, log_start_offset: int) -> None:
        end = min(log_start_offset, self._split.end_offset)
        what = f"{self._name}: offsets {self._position} to {end - 1} were deleted before they were read"
        if self._rules.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false reads on without them)")
        _log.warning("%s", what)
        self.tally.lost_offsets += end - self._position
        self._position = end

    def _take(self, records: memoryview, at: int, header: BatchHeader) -> bool:
        """Hand a batch over, or pass it by; whether it was handed over."""
        rules, split = self._rules, self._split
        handed = False
        if rules.committed_only and header.attributes & TRANSACTIONAL_BIT and not header.is_control:
            raise PipelineError(
                f"{self._name}: offset {header.base_offset} is of a transaction, and a broker cannot tell yet how that "
                'ended: read_committed reads it from the directory, option("path", ...)'
            )
        if header.is_control or header.next_offset <= split.first_offset or header.max_timestamp < rules.first_ms:
            self.tally.skipped_batches += 1
        else:
            handed = self._hand_over(records, at, header)
        if not self._stopped:
            self._position = header.next_offset
        return handed

    def _hand_over(self, records: memoryview, at: int, header: BatchHeader) -> bool:
        wanted = Wanted(self._split.first_offset, self._split.end_offset - 1, self._rules.first_ms, self._rules.last_ms)
        try:
            verify_crc(records, at, header)
            self._handler(records, at, header, wanted)
        except ProtocolError as error:
            self._damaged(header, error)
            return False
        self.tally.batches += 1
        self.tally.bytes += header.size
        return True

    def _damaged(self, header: BatchHeader, error: ProtocolError) -> None:
        what = f"{self._name}: damaged batch at offset {header.base_offset}: {error}"
        if self._rules.on_corrupt == "fail":
            raise PipelineError(f"{what} (onCorrupt=skip reads on behind it, onCorrupt=stop ends before it)") from error
        self.tally.damaged.append(Damage(path=self._name, position=header.base_offset, reason=str(error)))
        self._stopped = self._rules.on_corrupt == "stop"
        _log.warning("%s", what)

    @property
    def _name(self) -> str:
        return f"{self._split.topic}-{self._split.partition}"


def patiently(
    act: Callable[[], T],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `act` gives, tried again up to PATIENCE_S while a broker is away. Raises what `act` raises."""
    until = clock() + PATIENCE_S
    while True:
        try:
            return act()
        except LostError as error:
            if clock() > until:
                raise
            _log.warning("%s; trying again", error)
            sleep(RETRY_S)


def commit_offsets(bootstrap: str, group: str, offsets: Iterable[tuple[str, int, int]]) -> None:
    """Tell the broker how far a group is: (topic, partition, next offset). Raises PipelineError."""
    partitions = tuple(
        OffsetToCommit(topic=topic, partition=partition, offset=offset) for topic, partition, offset in offsets
    )
    with BrokerConnection(bootstrap) as broker:
        told = broker.ask(OffsetCommitRequest(group=group, partitions=partitions), OffsetCommitResponse)
    for one in told.partitions:
        if one.error is ErrorCode.UNKNOWN_MEMBER_ID:
            raise PipelineError(f"group {group} has members: a job commits only for a group of its own")
        if one.error:
            raise trouble(one.error, one.message, about=f"group {group}, {one.topic}-{one.partition}")
