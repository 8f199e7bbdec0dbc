"""Directories that we write for Kafka to judge: what goes in, and what should come out."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT, Codec
from warmlog.protocol.records.markers import Outcome

EPOCH_MS = 1_700_000_000_000
BATCH_COUNTS = (1, 2, 5, 13, 1, 30)
SMALL = LogConfig(segment_bytes=8192, index_interval_bytes=512, segment_index_bytes=4096)
#: What a power cut leaves of the last batch: more than a header, less than the whole.
TORN_BATCH_SIZE = 75

#: Time in ms, key, value, headers: what the builder takes.
Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass(slots=True, kw_only=True)
class Written:
    """A partition directory of ours and the rows in it, by offset. `uncommitted`: the offsets of open and aborted ones.

    `aborted`: producer id, first and last offset, last stable offset of the transactions, by segment. `stable_offset`:
    where the oldest open transaction begins.
    """

    topic: str
    directory: Path
    config: LogConfig
    rows: dict[int, Row] = field(default_factory=dict)
    uncommitted: set[int] = field(default_factory=set)
    aborted: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    stable_offset: int = 0

    def open(self, *, clean: bool = True) -> PartitionLog:
        """Open the log as a broker would; the clock stands still, so that rolling is the records' doing."""
        log = PartitionLog.open(
            self.directory,
            topic=self.topic,
            partition=0,
            config=self.config,
            files=OpenFiles(),
            clock=lambda: EPOCH_MS,
            random=random.Random(1),
            clean=clean,
        )
        assign_epoch(log, records_lost=not clean)
        return log

    def append(self, log: PartitionLog, rows: list[Row], codec: Codec, **producer: int) -> None:
        """Append one batch and note its rows; `producer`: id, epoch and sequence as `build_batch` takes them."""
        planned = log.appends.append(build_batch(rows, compression=codec, **producer))
        self.rows.update(zip(range(planned.base_offset, planned.last_offset + 1), rows, strict=True))


def write_all(data: Path) -> list[Written]:
    """Write every kind of partition below a data directory."""
    by_codec = [filled(data, f"ours-{codec.name.lower()}", codec=codec) for codec in Codec]
    return [
        *by_codec,
        filled(data, "ours-sparse", config=replace(SMALL, index_interval_bytes=4096)),
        filled(data, "ours-index-full", config=replace(SMALL, segment_index_bytes=96, segment_bytes=1 << 20)),
        filled(data, "ours-aged", config=replace(SMALL, segment_ms=6000, segment_bytes=1 << 20)),
        truncated(data),
        torn(data),
        idempotent(data),
        transactional(data),
    ]


def filled(data: Path, topic: str, *, codec: Codec = Codec.NONE, config: LogConfig = SMALL) -> Written:
    """A partition of several segments, closed cleanly."""
    written = Written(topic=topic, directory=data / f"{topic}-0", config=config)
    log = written.open()
    for rows in batches(random.Random(topic), 36):
        written.append(log, rows, codec)
    log.close()
    return written


def truncated(data: Path) -> Written:
    """Cut back into an older segment and written on."""
    written = filled(data, "ours-truncated")
    log = written.open()
    log.truncation.truncate_to(100)
    end = log.offsets.log_end_offset
    written.rows = {offset: row for offset, row in written.rows.items() if offset < end}
    for rows in batches(random.Random(2), 12):
        written.append(log, rows, Codec.NONE)
    log.close()
    return written


def torn(data: Path) -> Written:
    """Killed, the last batch cut in two, recovered, written on."""
    written = Written(topic="ours-torn", directory=data / "ours-torn-0", config=SMALL)
    log = written.open()
    for rows in batches(random.Random(3), 24):
        written.append(log, rows, Codec.LZ4)
    last = log.appends.append(build_batch(next(iter(batches(random.Random(4), 1)))))
    active = max(written.directory.glob("*.log"))
    with active.open("r+b") as file:
        file.truncate(last.position + TORN_BATCH_SIZE)
    log = written.open(clean=False)
    for rows in batches(random.Random(5), 6):
        written.append(log, rows, Codec.NONE)
    log.close()
    return written


def idempotent(data: Path) -> Written:
    """Two idempotent producers in turn, over several segments, with a kill in the middle."""
    written = Written(topic="ours-idempotent", directory=data / "ours-idempotent-0", config=SMALL)
    log = written.open()
    sequences = {4: 0, 5: (1 << 31) - 10}  # the second one comes past the largest sequence
    for number, rows in enumerate(batches(random.Random(6), 36)):
        if number == 20:
            log.close(clean=False)
            log = written.open(clean=False)
        producer_id = 4 + number % 2
        sequence = sequences[producer_id]
        written.append(log, rows, Codec.NONE, producer_id=producer_id, producer_epoch=2, base_sequence=sequence)
        sequences[producer_id] = (sequence + len(rows)) % (1 << 31)
    log.close()
    return written


class Transaction:
    """One producer's transactions in a log, one after the other."""

    def __init__(self, written: Written, producer_id: int) -> None:
        self.producer_id = producer_id
        self.offsets: list[int] = []  # of the open transaction
        self._written = written
        self._sequence = 0

    def append(self, log: PartitionLog, rows: list[Row]) -> None:
        """Append a batch to the open transaction, or begin one."""
        batch = build_batch(
            rows,
            producer_id=self.producer_id,
            producer_epoch=1,
            base_sequence=self._sequence,
            attributes=TRANSACTIONAL_BIT,
        )
        planned = log.appends.append(batch, guard=log.producers.guards.open(self.producer_id))
        offsets = range(planned.base_offset, planned.last_offset + 1)
        self._sequence += len(rows)
        self.offsets += offsets
        self._written.rows.update(zip(offsets, rows, strict=True))
        self._written.uncommitted.update(offsets)

    def end(self, log: PartitionLog, outcome: Outcome) -> None:
        """Append the marker."""
        planned = log.appends.append_marker(TransactionMarker(self.producer_id, 1, 0, outcome))
        if outcome is Outcome.COMMIT:
            self._written.uncommitted.difference_update(self.offsets)
        else:
            ended = (self.producer_id, self.offsets[0], planned.base_offset, log.offsets.last_stable_offset)
            self._written.aborted.setdefault(log.active_base_offset, []).append(ended)
        self.offsets = []


def transactional(data: Path) -> Written:
    """Transactions of three producers over several segments, with a kill in the middle of some; two stay open."""
    written = Written(topic="ours-transactional", directory=data / "ours-transactional-0", config=SMALL)
    log = written.open()
    chance = random.Random(7)
    transactions = [Transaction(written, producer_id) for producer_id in (6, 7, 8)]
    for number, rows in enumerate(batches(random.Random(8), 120)):
        if number == 60:
            log.close(clean=False)
            log = written.open(clean=False)
        chosen = transactions[number % 3]
        if number % 10 == 9:
            written.append(log, rows, Codec.NONE)
        else:
            chosen.append(log, rows)
            if number < 110 and chance.random() < 0.3:
                chosen.end(log, chance.choice(list(Outcome)))
    for outcome in Outcome:
        transactions[0].append(log, [(EPOCH_MS, b"key", outcome.name.encode(), ())])
        transactions[0].end(log, outcome)
    transactions[1].append(log, [(EPOCH_MS, b"key", b"open", ())])
    written.stable_offset = min(each.offsets[0] for each in transactions if each.offsets)
    log.close()
    return written


def batches(chance: random.Random, count: int) -> Iterable[list[Row]]:
    """Batches of all sizes, with every shape of record; text only, so that a dump's lines can be parted."""
    for number in range(count):
        late = 1500 if number % 4 == 3 else 0
        yield [
            (EPOCH_MS + number * 1000 + i * 37 % 101 - late, key_of(chance), value_of(chance), headers_of(chance))
            for i in range(BATCH_COUNTS[number % len(BATCH_COUNTS)])
        ]


def key_of(chance: random.Random) -> bytes | None:
    """No key, an empty one, or one of twenty."""
    return chance.choice([None, b"", *(b"key-%d" % i for i in range(20))])


def value_of(chance: random.Random) -> bytes | None:
    """Now and then a tombstone or nothing, else text that no codec makes much smaller than half."""
    return chance.choice([None, b"", *(chance.randbytes(size).hex().encode() for size in range(1, 90, 8))])


def headers_of(chance: random.Random) -> tuple[tuple[str, bytes | None], ...]:
    """Mostly none; sometimes with and without a value."""
    return chance.choice([(), (), (), (("trace", b"7"),), (("a", None), ("b", b""))])
