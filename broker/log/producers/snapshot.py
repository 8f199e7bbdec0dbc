"""The `.snapshot` files of a log: producer states at an offset, so that startup need not read the whole log.

     0   2   version             1
     2   4   CRC-32C             of everything from byte 6 on
     6   4   count of entries, each 46 bytes, big-endian:
         8   producer id
         2   epoch
         4   last sequence       -1: no batch since the epoch began
         8   last offset         of its last batch; -1: none
         4   offset delta        last offset minus first, of that batch
         8   last timestamp      ms
         4   coordinator epoch   -1: none of its transactions has ended here
         8   first offset of its open transaction; -1: none

A file is named after the offset that follows the last batch it covers, in 20 digits. Snapshots are written by a roll
(named after the new segment) and by a clean shutdown (at the log end).

Invariants:
1. A file with an invalid CRC, size or version is removed, not used.
2. A snapshot contains nothing that is not in the log: if one is lost or cannot be written, startup reads more of the
   log.
3. Snapshots are kept at the base offsets of segments, and the newest one if it is past the last base offset.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager, ProducerSnapshot.json.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import Protocol

from warmlog.broker.log.errors import CorruptSnapshotError
from warmlog.broker.log.io.directory_names import SNAPSHOT_SUFFIX, base_offset_of, segment_path
from warmlog.broker.log.io.disk import Disk, read_file, replace_file_by, write_all
from warmlog.broker.log.producers.state import ProducerBatch, ProducerState
from warmlog.protocol.records.crc import crc32c

VERSION = 1
_HEADER = Struct(">hIi")
_CRC_START = 6
ENTRY = Struct(">qhiqiqiq")
HEADER_SIZE, ENTRY_SIZE = _HEADER.size, ENTRY.size
NO_BATCH = ProducerBatch(-1, -1, 0, -1)


class Entries(Protocol):
    """The entries of a snapshot."""

    def __len__(self) -> int:
        """Return the number of entries."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoded entries, about a thousand at a time."""


def encode_entry(state: ProducerState) -> bytes:
    """Encode the entry of one producer."""
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
    """Encode a whole file."""
    entries = [encode_entry(state) for state in states]
    body = len(entries).to_bytes(4, "big") + b"".join(entries)
    return VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


def decode_snapshot(data: bytes) -> list[ProducerState]:
    """Decode a file to producer states, each with its last batch. Raises CorruptSnapshotError."""
    return decode_entries(sound_entries(data))


def decode_entries(entries: memoryview) -> list[ProducerState]:
    """Decode consecutive entries."""
    return [_state(fields) for fields in ENTRY.iter_unpack(entries)]


def sound_entries(data: bytes) -> memoryview:
    """Validate a file and return its entries, encoded. Raises CorruptSnapshotError."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(f"{len(data)} bytes are less than a header")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"version {version}, expected {VERSION}")
    if crc != (computed := crc32c(memoryview(data)[_CRC_START:])):
        raise CorruptSnapshotError(f"computed CRC {computed:#010x} differs from the header's {crc:#010x}")
    if len(data) != _HEADER.size + count * ENTRY.size:
        raise CorruptSnapshotError(f"{len(data)} bytes for {count} entries")
    return memoryview(data)[_HEADER.size :]


def _state(fields: tuple[int, ...]) -> ProducerState:
    producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = fields
    batches = (ProducerBatch(last_sequence, last_offset, offset_delta, timestamp),) if last_offset >= 0 else ()
    return ProducerState(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches)


class ProducerSnapshots:
    """The snapshot files in one log's directory; `offsets` lists their offsets, ascending.

    `take` is for the event loop, everything else for a worker or for startup.
    """

    __slots__ = ("_directory", "_disk", "_taken", "offsets", "removed")

    def __init__(self, disk: Disk, directory: str, offsets: Iterable[int] = ()) -> None:
        """Begin with the offsets of existing snapshots."""
        self._disk = disk
        self._directory = directory
        self._taken: deque[tuple[int, Entries]] = deque()
        self.offsets = sorted(offsets)
        self.removed: list[int] = []  # offsets of damaged and stray snapshots

    def path(self, offset: int) -> str:
        """Return the path of the snapshot at an offset."""
        return segment_path(self._directory, offset, SNAPSHOT_SUFFIX)

    def find(self) -> None:
        """List the directory and set `offsets`. Raises OSError."""
        names = (entry.name for entry in self._disk.scan(self._directory) if entry.name.endswith(SNAPSHOT_SUFFIX))
        self.offsets = sorted(offset for offset in map(base_offset_of, names) if offset is not None)

    def has(self, offset: int) -> bool:
        """Return whether there is a snapshot at an offset, valid or not. Raises OSError."""
        try:
            self._disk.modified_ms(self.path(offset))
        except FileNotFoundError:
            return False
        return True

    def read(self, offset: int) -> memoryview | None:
        """Read the entries at an offset; None if there is no file. A damaged file is removed. Raises OSError."""
        try:
            return sound_entries(read_file(self._disk, self.path(offset)))
        except FileNotFoundError:
            return None
        except CorruptSnapshotError:
            self._remove(offset)
            return None

    def write(self, offset: int, entries: Entries, *, sync: bool) -> None:
        """Write the snapshot at an offset. Raises OSError.

        Writes in pieces, so that the GIL is released often, however many producers there are.
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
        """Queue entries for `write_taken`."""
        self._taken.append((offset, entries))

    def write_taken(self) -> None:
        """Write the queued snapshots, skipping those that fail: the log has the same information."""
        while True:
            try:
                offset, entries = self._taken.popleft()
            except IndexError:
                return
            with suppress(OSError):
                self.write(offset, entries, sync=False)

    def remove_strays(self, base_offsets: Iterable[int], end: int) -> list[int]:
        """Remove snapshots past the log end, and strays; return the offsets of the others, ascending. Raises OSError.

        A stray is not at a base offset, and is not the newest snapshot past the last base offset.
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

    def remove_all(self) -> None:
        """Remove all snapshots, because the log restarts without its records, durably. Raises OSError."""
        self._taken.clear()
        for offset in self.offsets:
            self._remove(offset)
        self.offsets = []
        self._disk.sync_directory(self._directory)

    def _remove(self, offset: int) -> None:
        self.removed.append(offset)
        with suppress(FileNotFoundError):
            self._disk.unlink(self.path(offset))
