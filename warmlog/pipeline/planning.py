"""Splits of about equal bytes: what one task reads.

Owns: where a partition's bytes are cut. Must not know: how they are read (`reading`), or what runs the tasks.

1. A cut is where a batch begins, confirmed by its header: an entry of the offset index that the log does not confirm is
   not used. Where there is none, a split is larger.
2. The offsets of a partition's splits are disjoint and together those that were asked for; positions are those of
   when the plan was made, and a reader that finds another file there goes by the offsets.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from protocol.errors import ProtocolError
from warmlog.pipeline.directory import StoredPartition, confirmed_entries, position_of
from warmlog.pipeline.index_files import OffsetEntries
from warmlog.pipeline.log_file import LogFile
from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.positions import Range
from warmlog.pipeline.segments import Segment
from warmlog.pipeline.transactions import Aborted

# A rest smaller than this share of a split is read along with it.
REST_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a segment: batches from `position` to `end_position`, records from `first_offset` to before `end_offset`.

    `identity`: of the file that the positions are true of.
    """

    path: str
    identity: tuple[int, int]
    position: int
    end_position: int
    first_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end_position - self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one task reads: pieces of one partition, in their order, but for what was `aborted`."""

    topic: str
    partition: int
    directory: str
    pieces: tuple[Piece, ...]
    aborted: tuple[Aborted, ...] = ()

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(piece.size for piece in self.pieces)


def plan_splits(parts: Iterable[tuple[StoredPartition, Range]], options: ReadOptions) -> list[Split]:
    """The splits for these partitions and offsets. Raises PipelineError, OSError."""
    spans = [(partition, list(pieces_of(partition, wanted))) for partition, wanted in parts]
    total = sum(piece.size for _, pieces in spans for piece in pieces)
    share = min(options.max_split_bytes, max(-(-total // (options.min_partitions or 1)), 1))
    splits = []
    for partition, pieces in spans:
        size = sum(piece.size for piece in pieces)
        whole = options.on_corrupt == "stop"  # who stops at a damaged batch must have read all before it
        count = 1 if whole else max(round(size / share), 1)
        for group in _cut(partition, pieces, -(-size // count)):
            split = Split(
                topic=partition.topic,
                partition=partition.partition,
                directory=partition.directory,
                pieces=group,
                aborted=_aborted_in(partition, group) if options.committed_only else (),
            )
            splits.append(split)
    return splits


def _aborted_in(partition: StoredPartition, pieces: Sequence[Piece]) -> tuple[Aborted, ...]:
    """The aborted transactions that have offsets in these pieces."""
    first, end = pieces[0].first_offset, pieces[-1].end_offset
    aborted = partition.transactions.aborted
    return tuple(one for one in aborted if one.first_offset < end and one.last_offset >= first)


def pieces_of(partition: StoredPartition, wanted: Range) -> Iterator[Piece]:
    """The parts of segments that hold the offsets, whole."""
    segments = partition.segments
    ends = [*(segment.base_offset for segment in segments[1:]), wanted.end]
    for segment, next_base in zip(segments, ends, strict=True):
        first, end = max(wanted.start, segment.base_offset), min(wanted.end, next_base)
        if first < end:
            yield located(segment, first, end, readable_size=partition.readable_size(segment), until=next_base)


def located(segment: Segment, first_offset: int, end_offset: int, *, readable_size: int, until: int) -> Piece:
    """Where these offsets stand in a segment, which holds offsets before `until`. Raises SegmentGoneError, OSError."""
    with segment.open() as file:
        if file.identity != segment.identity:  # compaction has put another in its place, and is done with it
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
    """The position after the batch at one; the end where that cannot be told."""
    try:
        return min(position + file.header(position).size, end) if position < end else end
    except ProtocolError:
        return end


def _cut(partition: StoredPartition, pieces: Sequence[Piece], share: int) -> Iterator[tuple[Piece, ...]]:
    """The pieces in groups of about `share` bytes, cut where that is needed."""
    bases = {segment.path: segment.base_offset for segment in partition.segments}
    group: list[Piece] = []
    room = share
    left = sum(piece.size for piece in pieces)
    for piece in pieces:
        rest = piece
        left -= piece.size
        entries: OffsetEntries | None = None
        while rest.size > room + share * REST_SHARE:
            if entries is None:  # two megabytes of a full segment: read once, however often it is cut
                entries = OffsetEntries(piece.path, bases[piece.path])
            halves = _cut_piece(rest, entries, bases[piece.path], rest.position + max(room, 1))
            if halves is None:
                break
            group.append(halves[0])
            yield tuple(group)
            group, room, rest = [], share, halves[1]
        group.append(rest)
        room -= rest.size
        if room <= share * REST_SHARE < left:
            yield tuple(group)
            group, room = [], share
    if group:
        yield tuple(group)


def _cut_piece(piece: Piece, entries: OffsetEntries, base_offset: int, position: int) -> tuple[Piece, Piece] | None:
    """The piece in two, at the batch boundary that the index knows next to a position; None if it knows none."""
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
