"""Load a shard from its log partition, without holding the event loop.

Invariants:
1. The loop decodes and replays `PIECE_BYTES` of records at a time; a worker decodes larger records. Replayed records
   are freed on the way: freeing a million of them in one step would hold the loop, too.
2. A record that cannot be decoded is skipped and reported: earlier ones of its key apply, as if it had not been
   written. The rest of the partition is served.
3. For most topics only the latest record of each key is replayed. Records that add to earlier ones of their key
   (`CoordinatorTopic.decode_tombstone`) are replayed in the order of the log; the shard serves no request before the
   high watermark covers them.
4. A record of a name that belongs to another partition, or of an unknown type, is ignored and counted.

Source: org.apache.kafka.coordinator.common.runtime.CoordinatorLoaderImpl.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import trio

from warmlog.broker.coordinator.reading import batches_of, read_partition, until_replicated
from warmlog.broker.coordinator.replay import Latest, Replay
from warmlog.broker.coordinator.shard import Shard
from warmlog.broker.coordinator.topic import CoordinatorTopic, DecodeTombstone
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.records.reader import Record

PIECE_BYTES = 8 << 10  # half a millisecond for committed offsets, 4 ms for the partitions of transactions
REPORTED = 10  # malformed records logged for a partition

logger = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(slots=True)
class _Decoded(Generic[R]):
    """A piece of the latest records."""

    rows: list[tuple[str, R, int]] = field(default_factory=list)  # with their offsets
    malformed: dict[bytes, tuple[int, str]] = field(default_factory=dict)  # malformed ones by key: offset, error
    foreign: int = 0


class ShardLoad(Generic[R]):
    """Loads one shard."""

    def __init__(self, topic: CoordinatorTopic[R], shard: Shard[R], partition_of: Callable[[str], int]) -> None:
        """`partition_of` returns the log partition of a name."""
        self._topic = topic
        self._shard = shard
        self._partition_of = partition_of
        self._name = f"{topic.name}-{shard.term.index}"
        self._malformed: dict[bytes, tuple[int, str]] = {}  # latest records by key: offset, error
        self._foreign = 0
        self._misplaced = 0

    async def run(self) -> None:
        """Replay the current contents of the partition. Raises OSError, LogError, ProtocolError, StorageError."""
        term = self._shard.term
        if self._topic.decode_tombstone is not None:
            await self._replay_in_order(self._topic.decode_tombstone)
            return
        replay = await read_partition(term.partition)
        term.loaded_to = replay.end
        await self._take_all(replay)
        if self._malformed:
            self._report_malformed()
            await self._take_all(await read_partition(term.partition, end=replay.end, takes=self._is_earlier))
        self._report_ignored()

    async def _replay_in_order(self, decode_tombstone: DecodeTombstone[R]) -> None:
        def decode(key: bytes, value: bytes | None) -> tuple[str, R] | None:
            return decode_tombstone(key) if value is None else self._topic.decode(key, value)

        term = self._shard.term
        term.loaded_to = term.partition.log.offsets.log_end_offset
        async with aclosing(batches_of(term.partition, term.loaded_to)) as batches:
            async for header, records in batches:
                if header.is_control or header.is_transactional:
                    continue  # coordinators of such topics write no transactions
                for piece, size in _pieces(records):
                    await self._take_piece(decode, piece, size, self._shard.replay)
        await until_replicated(term.partition, term.loaded_to)
        self._report_malformed()
        self._report_ignored()

    async def _take_all(self, replay: Replay) -> None:
        await self._take(replay.latest, self._shard.replay)
        while replay.open_transactions:
            producer_id, pending = replay.open_transactions.popitem()
            await self._take(pending, partial(self._shard.replay_pending, producer_id))

    async def _take(self, latest: dict[bytes, Latest], replay: Callable[[str, R, int], None]) -> None:
        while latest:
            piece, size = _take_latest(latest)
            await self._take_piece(self._topic.decode, piece, size, replay)

    async def _take_piece(
        self,
        decode: Callable[[bytes, Any], tuple[str, R] | None],
        piece: Sequence[tuple[bytes, int, bytes | None]],
        size: int,
        replay: Callable[[str, R, int], None],
    ) -> None:
        """Decode and replay records; `size` in bytes."""
        if size < 2 * PIECE_BYTES:
            decoded = _decode(decode, piece)
        else:
            decoded = await trio.to_thread.run_sync(_decode, decode, piece)
        self._foreign += decoded.foreign
        self._malformed |= decoded.malformed
        for name, row, offset in decoded.rows:
            if self._partition_of(name) == self._shard.term.index:
                replay(name, row, offset)
            else:
                self._misplaced += 1
        await trio.lowlevel.checkpoint()

    def _is_earlier(self, record: Record) -> bool:
        """Return whether a record applies in place of a later one of its key that is malformed."""
        key, value = record.key, record.value
        if key is None or key not in self._malformed:
            return False
        try:
            if value is not None:
                self._topic.decode(key, value)
        except MalformedError:
            return False
        return True

    def _report_malformed(self) -> None:
        for offset, error in islice(self._malformed.values(), REPORTED):
            logger.error("%s: ignored the record at offset %d, which is malformed: %s", self._name, offset, error)
        if len(self._malformed) > REPORTED:
            logger.error("%s: ignored %d more malformed records", self._name, len(self._malformed) - REPORTED)

    def _report_ignored(self) -> None:
        if self._misplaced:
            logger.warning(
                "%s: ignored %d records of %ss that belong to another partition: they were written to a topic with "
                "another number of partitions (%s)",
                self._name,
                self._misplaced,
                self._topic.keeps,
                self._topic.count_setting,
            )
        if self._foreign:
            logger.info("%s: ignored %d records of unknown types", self._name, self._foreign)


def _take_latest(latest: dict[bytes, Latest]) -> tuple[list[tuple[bytes, int, bytes | None]], int]:
    """Remove and return some of the latest records, and their size."""
    piece: list[tuple[bytes, int, bytes | None]] = []
    size = 0
    while latest and size < PIECE_BYTES:
        key, (offset, value) = latest.popitem()
        piece.append((key, offset, value))
        size += len(key) + len(value)
    return piece, size


def _pieces(records: Iterable[Record]) -> Iterator[tuple[list[tuple[bytes, int, bytes | None]], int]]:
    """Yield the records of a batch in pieces, with their sizes."""
    piece: list[tuple[bytes, int, bytes | None]] = []
    size = 0
    for record in records:
        if record.key is None:
            continue  # coordinators write no record without a key
        piece.append((record.key, record.offset, record.value))
        size += len(record.key) + len(record.value or b"")
        if size >= PIECE_BYTES:
            yield piece, size
            piece, size = [], 0
    if piece:
        yield piece, size


def _decode(
    decode: Callable[[bytes, Any], tuple[str, R] | None], piece: Iterable[tuple[bytes, int, bytes | None]]
) -> _Decoded[R]:
    decoded: _Decoded[R] = _Decoded()
    for key, offset, value in piece:
        try:
            outcome = decode(key, value)
        except MalformedError as error:
            decoded.malformed[key] = offset, str(error)
            continue
        if outcome is None:
            decoded.foreign += 1
        else:
            decoded.rows.append((*outcome, offset))
    return decoded
