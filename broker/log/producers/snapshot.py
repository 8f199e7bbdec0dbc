"""The `.snapshot` files of a log: its producers' states at an offset, so that no start needs the whole log for them.

Owns the files: their layout, when one is believed, which are kept. Must not know what the states mean.

     0   2   version             1
     2   4   CRC-32C             of everything from byte 6 on
     6   4   count of entries, each 46 bytes, big-endian:
         8   producer id
         2   epoch
         4   last sequence       -1: no batch since the epoch began
         8   last offset         of its last batch; -1: none
         4   offset delta        last offset minus first, of that batch
         8   last timestamp      ms
         4   coordinator epoch   -1: no transaction of it has ended here
         8   first offset of the transaction that is open, -1: none

A file's name is the offset after the last batch that it covers, in 20 digits. One is written when a segment is rolled
(named as the new segment) and when the log is closed in order (at its end).

Invariants:
1. A file is whole or not believed: CRC, size and version are held against its bytes. A damaged one is removed.
2. A snapshot says nothing that the log does not: if one cannot be written, or is lost, a start reads more of the log.
3. Kept are those at a segment's base offset, and the newest one if it is past the last segment's.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager, ProducerSnapshot.json.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import Protocol

from broker.log.errors import CorruptSnapshotError
from broker.log.io.directory_names import SNAPSHOT_SUFFIX, base_offset_of, segment_path
from broker.log.io.disk import Disk, read_file, replace_file_by, write_all
from broker.log.producers.state import ProducerBatch, ProducerState
from protocol.records.crc import crc32c

VERSION = 1
_HEADER = Struct(">hIi")
_CRC_START = 6
ENTRY = Struct(">qhiqiqiq")
HEADER_SIZE, ENTRY_SIZE = _HEADER.size, ENTRY.size
NO_BATCH = ProducerBatch(-1, -1, 0, -1)


class Entries(Protocol):
    """The entries of a snapshot."""

    def __len__(self) -> int:
        """How many there are."""

    def pieces(self) -> Iterator[bytes]:
        """Return them end to end, some thousand at a time."""


def encode_entry(state: ProducerState) -> bytes:
    """Return the entry of one producer."""
    last = state.batches[-1] if state.batches else NO_BATCH
    return ENTRY.pack(
        state.producer_id,
        state.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        state.last_timestamp,
        state.coordinator_epoch,
        state.transaction_first_offset,
    )


def encode_snapshot(states: Iterable[ProducerState]) -> bytes:
    """Return a file's content."""
    entries = [encode_entry(state) for state in states]
    body = len(entries).to_bytes(4, "big") + b"".join(entries)
    return VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


def decode_snapshot(data: bytes) -> list[ProducerState]:
    """Return the states in a file, each with its last batch. Raises CorruptSnapshotError."""
    return decode_entries(sound_entries(data))


def decode_entries(entries: memoryview) -> list[ProducerState]:
    """Return the states of entries."""
    return [_state(fields) for fields in ENTRY.iter_unpack(entries)]


def sound_entries(data: bytes) -> memoryview:
    """Return the entries of a file, end to end, if it is whole. Raises CorruptSnapshotError."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(f"{len(data)} bytes, less than a header")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"version {version}, expected {VERSION}")
    if crc != (found := crc32c(memoryview(data)[_CRC_START:])):
        raise CorruptSnapshotError(f"its CRC is {found:#010x}, its header says {crc:#010x}")
    if len(data) != _HEADER.size + count * ENTRY.size:
        raise CorruptSnapshotError(f"{len(data)} bytes for {count} entries")
    return memoryview(data)[_HEADER.size :]


def _state(fields: tuple[int, ...]) -> ProducerState:
    producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = fields
    batches = (ProducerBatch(last_sequence, last_offset, offset_delta, timestamp),) if last_offset >= 0 else ()
    return ProducerState(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches)


class ProducerSnapshots:
    """The snapshot files of one log's directory; `offsets` says where there are some, ascending.

    `take` belongs to the loop; all else is for a worker, or the start.
    """

    __slots__ = ("_directory", "_disk", "_taken", "offsets", "removed")

    def __init__(self, disk: Disk, directory: str, offsets: Iterable[int] = ()) -> None:
        """`offsets`: where snapshots were found."""
        self._disk = disk
        self._directory = directory
        self._taken: deque[tuple[int, Entries]] = deque()
        self.offsets = sorted(offsets)
        self.removed: list[int] = []  # those that were damaged, or strays

    def path(self, offset: int) -> str:
        """The file of the snapshot at an offset."""
        return segment_path(self._directory, offset, SNAPSHOT_SUFFIX)

    def find(self) -> None:
        """Look into the directory for `offsets`. Raises OSError."""
        names = (entry.name for entry in self._disk.scan(self._directory) if entry.name.endswith(SNAPSHOT_SUFFIX))
        self.offsets = sorted(offset for offset in map(base_offset_of, names) if offset is not None)

    def has(self, offset: int) -> bool:
        """Whether there is a snapshot at an offset, sound or not. Raises OSError."""
        try:
            self._disk.modified_ms(self.path(offset))
        except FileNotFoundError:
            return False
        return True

    def read(self, offset: int) -> memoryview | None:
        """Return the entries at an offset; None if there is no file, or a damaged one, which is removed.

        Raises OSError.
        """
        try:
            return sound_entries(read_file(self._disk, self.path(offset)))
        except FileNotFoundError:
            return None
        except CorruptSnapshotError:
            self._remove(offset)
            return None

    def write(self, offset: int, entries: Entries, *, sync: bool) -> None:
        """Make the snapshot at an offset. Raises OSError.

        Piece by piece: between two of them the GIL is free, however many producers there are.
        """

        def write(fd: int) -> None:
            size = len(entries).to_bytes(4, "big")
            crc, position = crc32c(size), _HEADER.size
            for piece in entries.pieces():
                write_all(self._disk, fd, [piece], position)
                crc, position = crc32c(piece, crc), position + len(piece)
            write_all(self._disk, fd, [VERSION.to_bytes(2, "big"), crc.to_bytes(4, "big"), size], 0)

        replace_file_by(self._disk, self.path(offset), write, sync=sync)

    def take(self, offset: int, entries: Entries) -> None:
        """Remember entries for `write_taken`."""
        self._taken.append((offset, entries))

    def write_taken(self) -> None:
        """Write what was taken. What cannot be written is left out: the log says it, too."""
        while True:
            try:
                offset, entries = self._taken.popleft()
            except IndexError:
                return
            with suppress(OSError):
                self.write(offset, entries, sync=False)

    def remove_strays(self, base_offsets: Iterable[int], end: int) -> list[int]:
        """Remove those past a log's end, and strays; gives the offsets of the others, ascending.

        A stray is at no segment's base offset, and not the newest of all past the last segment's. Raises OSError.
        """
        bases, kept = set(base_offsets), []
        newest = max((offset for offset in self.offsets if offset <= end), default=-1)
        for offset in self.offsets:
            if offset <= end and (offset in bases or offset == newest > max(bases, default=-1)):
                kept.append(offset)
            else:
                self._remove(offset)
        self.offsets = kept
        return kept

    def _remove(self, offset: int) -> None:
        self.removed.append(offset)
        with suppress(FileNotFoundError):
            self._disk.unlink(self.path(offset))
