"""Plan splits of directories, about equal in bytes; one task reads one split.

Invariants:
1. Splits begin at batches that are taken from the offset index and confirmed by their headers. Without a suitable index
entry, a split is larger.
2. The offsets of a partition's splits are disjoint, and together cover the requested range. Positions are those of
   planning time; a reader that finds a replaced file uses the offsets.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from warmlog.inspect.index_files import OffsetEntries
from warmlog.inspect.log_file import LogFile, Segment
from warmlog.inspect.lookup import confirmed_entries, position_of
from warmlog.inspect.partition import StoredPartition
from warmlog.inspect.transactions import Aborted
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.ranges import Range, cuts
from warmlog.protocol.errors import ProtocolError

REST_SHARE = 0.25  # a remainder smaller than this share of a split is added to the previous split


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a segment: its batches between two positions, its records between two offsets (ends excluded).

    `identity`: identity of the file that the positions refer to.
    """

    path: str
    identity: tuple[int, int]
    position: int
    end_position: int
    first_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end_position - self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Consecutive pieces of one partition for one task, which skips batches of `aborted` transactions.

    `brokers`: brokers with the records that the directory lacks; None without a broker.
    """

    topic: str
    partition: int
    directory: str
    pieces: tuple[Piece, ...]
    aborted: tuple[Aborted, ...] = ()
    topic_id: str | None = None
    brokers: Brokers | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(piece.size for piece in self.pieces)


def plan_splits(parts: Iterable[tuple[StoredPartition, Range]], options: ReadOptions) -> list[Split]:
    """Return the splits of these partitions and offsets. Raises InspectError, OSError."""
    spans = [
        (partition, list(pieces_of(partition, Range(start=first, end=end))))
        for partition, wanted in parts
        for first, end in pairwise(cuts(wanted, 1, options))
    ]
    total = sum(piece.size for _, pieces in spans for piece in pieces)
    share = min(options.max_split_bytes, max(-(-total // (options.min_partitions or 1)), 1))
    splits = []
    for partition, pieces in spans:
        size = sum(piece.size for piece in pieces)
        whole = options.on_corrupt == "stop"  # stopping at a damaged batch ends the whole partition
        count = 1 if whole else max(round(size / share), 1)
        for group in _cut(partition, pieces, -(-size // count)):
            split = Split(
                topic=partition.topic,
                partition=partition.partition,
                directory=partition.directory,
                pieces=group,
                aborted=_aborted_in(partition, group) if options.committed_only else (),
                topic_id=partition.topic_id,
            )
            splits.append(split)
    return splits


def _aborted_in(partition: StoredPartition, pieces: Sequence[Piece]) -> tuple[Aborted, ...]:
    """Return the aborted transactions that have offsets in these pieces."""
    first, end = pieces[0].first_offset, pieces[-1].end_offset
    aborted = partition.transactions.aborted
    return tuple(
        transaction for transaction in aborted if transaction.first_offset < end and transaction.last_offset >= first
    )


def pieces_of(partition: StoredPartition, wanted: Range) -> Iterator[Piece]:
    """Yield a piece for each segment that holds wanted offsets."""
    segments = partition.segments
    ends = [*(segment.base_offset for segment in segments[1:]), wanted.end]
    for segment, next_base in zip(segments, ends[: len(segments)], strict=True):
        first, end = max(wanted.start, segment.base_offset), min(wanted.end, next_base)
        if first < end:
            yield located(segment, first, end, readable_size=partition.readable_size(segment), until=next_base)


def located(segment: Segment, first_offset: int, end_offset: int, *, readable_size: int, until: int) -> Piece:
    """Locate offsets in a segment whose own offsets end before `until`. Raises SegmentGoneError, OSError."""
    with segment.open() as file:
        if file.identity != segment.identity:  # compaction has replaced the file with a complete segment
            readable_size = file.size
        position, end_position = 0, readable_size
        if first_offset > segment.base_offset:
            position = position_of(file, segment, first_offset, readable_size)
        if end_offset < until:
            end_position = _after(file, position_of(file, segment, end_offset - 1, readable_size), readable_size)
        identity = file.identity
    return Piece(
        path=segment.path,
        identity=identity,
        position=position,
        end_position=max(position, end_position),
        first_offset=first_offset,
        end_offset=end_offset,
    )


def _after(file: LogFile, position: int, end: int) -> int:
    """Return the position after the batch at `position`, or `end` if its header is damaged."""
    try:
        return min(position + file.header(position).size, end) if position < end else end
    except ProtocolError:
        return end


def _cut(partition: StoredPartition, pieces: Sequence[Piece], share: int) -> Iterator[tuple[Piece, ...]]:
    """Yield the pieces in groups of about `share` bytes, cutting pieces where needed."""
    bases = {segment.path: segment.base_offset for segment in partition.segments}
    group: list[Piece] = []
    left_bytes = share
    left = sum(piece.size for piece in pieces)
    for piece in pieces:
        rest = piece
        left -= piece.size
        entries: OffsetEntries | None = None
        while rest.size > left_bytes + share * REST_SHARE:
            if entries is None:  # up to 2 MiB for a full segment, so read only once for all cuts
                entries = OffsetEntries(piece.path, bases[piece.path])
            halves = _cut_piece(rest, entries, bases[piece.path], rest.position + max(left_bytes, 1))
            if halves is None:
                break
            group.append(halves[0])
            yield tuple(group)
            group, left_bytes, rest = [], share, halves[1]
        group.append(rest)
        left_bytes -= rest.size
        if left_bytes <= share * REST_SHARE < left:
            yield tuple(group)
            group, left_bytes = [], share
    if group:
        yield tuple(group)


def _cut_piece(piece: Piece, entries: OffsetEntries, base_offset: int, position: int) -> tuple[Piece, Piece] | None:
    """Cut a piece in two at the indexed batch nearest to a position; None if there is none inside it."""
    segment = Segment(path=piece.path, base_offset=base_offset, size=piece.end_position, identity=piece.identity)
    with segment.open() as file:
        slot = min(entries.slot_at_position(position), len(entries) - 1)
        for at, header in confirmed_entries(file, entries, slot):
            if piece.position < at < piece.end_position and piece.first_offset < header.base_offset < piece.end_offset:
                return (
                    replace(piece, end_position=at, end_offset=header.base_offset),
                    replace(piece, position=at, first_offset=header.base_offset),
                )
    return None
