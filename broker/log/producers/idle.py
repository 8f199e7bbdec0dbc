"""Idle producers packed as bytes, their budget over all logs, and the producers of a log at one moment."""

from collections.abc import Iterator, Sequence
from struct import Struct
from threading import Lock
from typing import Final

from warmlog.broker.log.producers.snapshot import ENTRY, ENTRY_SIZE, NO_BATCH, encode_entry
from warmlog.broker.log.producers.state import ProducerBatch, ProducerState

DEFAULT_LIMIT: Final = 500_000
ENTRIES_PER_PIECE: Final = 1000  # bytes of an entry in a snapshot

# An idle producer: its snapshot entry, the time since which it is idle (ms), and the timestamp of its last batch; then
# its earlier batches, oldest first.
_REST: Final = Struct(">qq")
_BATCH: Final = Struct(">iqiq")
SINCE: Final = Struct(">q")
LAST_TIMESTAMP: Final = 26  # position in an entry


class ProducerBudget:
    """The limit on the producers in all logs of a broker together. For any thread."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.count = 0
        self.refused = 0  # rejected batches
        self._lock = Lock()

    @property
    def is_full(self) -> bool:
        """Whether no producer may be added."""
        return self.count >= self.limit

    def add(self, count: int) -> None:
        """Add to the count, or subtract if negative."""
        with self._lock:
            self.count += count


class CapturedProducers:
    """The producers of a log at one moment. For any thread."""

    def __init__(self, states: Sequence[ProducerState], buckets: Sequence[dict[int, bytes]]) -> None:
        self._states = states
        self._buckets = buckets

    def __len__(self) -> int:
        return len(self._states) + sum(map(len, self._buckets))

    def __iter__(self) -> Iterator[ProducerState]:
        yield from self._states
        for bucket in self._buckets:
            yield from map(unpack, bucket.values())

    def with_several_batches(self) -> Iterator[ProducerState]:
        """Yield the states of more than one batch; the others of idle producers are not unpacked."""
        for state in self._states:
            if len(state.batches) > 1:
                yield state
        for bucket in self._buckets:
            for packed in bucket.values():
                if len(packed) > ENTRY_SIZE + _REST.size:
                    yield unpack(packed)

    def pieces(self) -> Iterator[bytes]:
        """Yield the entries for a snapshot, in pieces."""
        entries: list[bytes] = [encode_entry(state) for state in self._states]
        for bucket in self._buckets:
            for packed in bucket.values():
                entries.append(packed[:ENTRY_SIZE])
                if len(entries) >= ENTRIES_PER_PIECE:
                    yield b"".join(entries)
                    entries.clear()
        yield b"".join(entries)


def pack(state: ProducerState, since_ms: int) -> bytes:
    """Pack the state of an idle producer."""
    *older, last = state.batches or (NO_BATCH,)
    parts = [_BATCH.pack(each.last_sequence, each.last_offset, each.offset_delta, each.timestamp) for each in older]
    return b"".join((encode_entry(state), _REST.pack(since_ms, last.timestamp), *parts))


def unpack(packed: bytes) -> ProducerState:
    """Unpack a state."""
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_offset = ENTRY.unpack_from(packed)
    batches: tuple[ProducerBatch, ...] = ()
    if offset >= 0:
        _, last_timestamp = _REST.unpack_from(packed, ENTRY_SIZE)
        older = _BATCH.iter_unpack(memoryview(packed)[ENTRY_SIZE + _REST.size :])
        batches = (
            *[ProducerBatch(*fields) for fields in older],
            ProducerBatch(sequence, offset, delta, last_timestamp),
        )
    return ProducerState(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches)
