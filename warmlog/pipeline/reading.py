"""A split to batches, as they stand in the files: found, checked, those that nobody wants left out unopened.

Owns: what is done about a damaged batch, about a file that went or was replaced, and which batches are skipped by their
headers alone. Must not know: columns (`arrow`), Spark.

1. A handler's refusal of a batch (a bad CRC, records that are none, a block that cannot be opened) counts as damage.
2. Records outside the split's offsets are never given: the handler is told which are wanted. So it does not matter
   whether positions are still true, only which file is read.
3. Damage is never passed over in silence: it is an error, or a line of the log that names file and position.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from broker.log.directory_names import base_offset_of
from protocol.errors import ProtocolError
from protocol.records.batch import BatchHeader
from protocol.records.columns import Wanted
from protocol.records.record import MAX_INT64, MIN_INT64
from warmlog.pipeline.directory import confirmed_entries
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.index_files import OffsetEntries
from warmlog.pipeline.log_file import WINDOW_BYTES, LogFile
from warmlog.pipeline.options import OnCorrupt
from warmlog.pipeline.planning import Piece, Split, located
from warmlog.pipeline.segments import Segment, SegmentGoneError, list_segments
from warmlog.pipeline.transactions import AbortedBatches

_log = logging.getLogger(__name__)

TRIES = 5  # to open a file that was just listed; each time somebody must have replaced it meanwhile

# Called with the file, the position of a batch in it, its header, and which of its records are wanted. Raises
# ProtocolError where the batch is not what the header says.
Handler = Callable[[LogFile, int, BatchHeader, Wanted], None]
# Called with the buffer and where in it the batch begins, its CRC checked.
BatchHandler = Callable[[memoryview, int, BatchHeader, Wanted], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRules:
    """How a split is read: what of it (times in ms, both included), and what about damage and loss.

    `committed_only`: for splits behind a broker; those of directories say themselves what was aborted.
    """

    on_corrupt: OnCorrupt = "fail"
    fail_on_data_loss: bool = True
    committed_only: bool = False
    first_ms: int = MIN_INT64
    last_ms: int = MAX_INT64


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A batch that cannot be read."""

    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: damaged batch at position {self.position}: {self.reason}"


@dataclass(slots=True, kw_only=True)
class Tally:
    """What happened while a split was read, in batches and bytes; offsets that were gone when they were to be read."""

    batches: int = 0
    bytes: int = 0
    skipped_batches: int = 0
    lost_offsets: int = 0
    damaged: list[Damage] = field(default_factory=list)


class _Stopped(Exception):  # noqa: N818 - never leaves this module
    """A damaged batch, and nothing after it is wanted."""


def checked(handler: BatchHandler) -> Handler:
    """A handler that is given whole batches with a good CRC."""

    def handle(file: LogFile, position: int, header: BatchHeader, wanted: Wanted) -> None:
        buffer, start = file.batch(position, header)
        handler(buffer, start, header, wanted)

    return handle


class SplitReader:
    """Reads one split. Each step of `run` has handed one batch to the handler. `tally` counts.

    `window_bytes`: what is read of a file at a time.
    """

    def __init__(self, split: Split, rules: ReadRules, handler: Handler, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._split = split
        self._rules = rules
        self._handler = handler
        self._window_bytes = window_bytes
        self._aborted = AbortedBatches(split.aborted)
        self.tally = Tally()

    def run(self) -> Iterator[None]:
        """Read to the end. Raises PipelineError, OSError."""
        try:
            for piece in self._split.pieces:
                yield from self._read_piece(piece, tries=TRIES)
        except _Stopped:
            return

    def _read_piece(self, piece: Piece, *, tries: int) -> Iterator[None]:
        """By positions, or by offsets where another file is there now."""
        try:
            file = LogFile(piece.path, window_bytes=min(self._window_bytes, max(piece.size, 1)))
        except FileNotFoundError:
            file = None
        if file is not None and file.identity == piece.identity:
            with file:
                yield from self._read_file(file, piece)
            return
        if file is not None:
            file.close()
        if not tries:
            raise PipelineError(f"{self._split.directory}: its segments are replaced faster than they can be read")
        for other in self._located_anew(piece):
            yield from self._read_piece(other, tries=tries - 1)

    def _located_anew(self, piece: Piece) -> list[Piece]:
        """Where the piece's records are now."""
        try:
            segments = list_segments(self._split.directory)
        except FileNotFoundError:
            segments = []
        first_kept = segments[0].base_offset if segments else piece.end_offset
        if first_kept > piece.first_offset:
            self._lose(piece.first_offset, min(first_kept, piece.end_offset))
        found = []
        ends = [segment.base_offset for segment in segments[1:]] + [MAX_INT64]
        for segment, end in zip(segments, ends, strict=True):
            first, last = max(piece.first_offset, segment.base_offset), min(piece.end_offset, end)
            if first < last:
                found += _still_there(segment, first, last, end)
        return found

    def _lose(self, first: int, end: int) -> None:
        name = f"{self._split.topic}-{self._split.partition}"
        what = f"{name}: offsets {first} to {end - 1} were deleted before they were read"
        if self._rules.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false reads on without them)")
        self.tally.lost_offsets += end - first
        _log.warning("%s", what)

    def _read_file(self, file: LogFile, piece: Piece) -> Iterator[None]:
        position = piece.position
        while position < piece.end_position:
            try:
                header = file.header(position)
                if header.base_offset >= piece.end_offset:
                    return
                handed = self._hand_over(file, position, header, piece)
            except ProtocolError as error:
                position = self._after_damage(file, piece, position, error)
                continue
            position += header.size
            if handed:
                yield
            if header.next_offset >= piece.end_offset:
                return  # what follows may be half a batch: it was not there when the plan was made

    def _hand_over(self, file: LogFile, position: int, header: BatchHeader, piece: Piece) -> bool:
        rules = self._rules
        if (
            header.is_control
            or header.next_offset <= piece.first_offset
            or header.max_timestamp < rules.first_ms
            or header in self._aborted
        ):
            self.tally.skipped_batches += 1
            return False
        wanted = Wanted(piece.first_offset, piece.end_offset - 1, rules.first_ms, rules.last_ms)
        self._handler(file, position, header, wanted)
        self.tally.batches += 1
        self.tally.bytes += header.size
        return True

    def _after_damage(self, file: LogFile, piece: Piece, position: int, error: ProtocolError) -> int:
        """Where to go on after a damaged batch. Raises PipelineError, or _Stopped, as the rules say."""
        what = Damage(path=piece.path, position=position, reason=str(error))
        if self._rules.on_corrupt == "fail":
            raise PipelineError(f"{what} (onCorrupt=skip reads on behind it, onCorrupt=stop ends before it)") from error
        self.tally.damaged.append(what)
        if self._rules.on_corrupt == "stop":
            _log.warning("%s; stopped there", what)
            raise _Stopped
        following = _next_sound(file, piece, position)
        _log.warning("%s; went on at position %d", what, following)
        return following


def _still_there(segment: Segment, first: int, end: int, until: int) -> list[Piece]:
    """The piece of a segment, none if it went meanwhile: then it is looked for once more by whoever finds it gone."""
    try:
        return [located(segment, first, end, readable_size=segment.size, until=until)]
    except SegmentGoneError:
        gone = Piece(path=segment.path, identity=(0, 0), position=0, end_position=1, first_offset=first, end_offset=end)
        return [gone]


def _next_sound(file: LogFile, piece: Piece, position: int) -> int:
    """Where the next sound batch begins: where the damaged one says it ends, else where the index knows one."""
    try:
        damaged = file.header(position)
        following = position + damaged.size
        if following == piece.end_position or file.header(following).base_offset >= damaged.next_offset:
            return following
    except ProtocolError:
        pass
    entries = OffsetEntries(piece.path, _base_offset(piece.path))
    for slot in range(entries.slot_at_position(position + 1), len(entries)):
        for at, _ in confirmed_entries(file, entries, slot):
            if at > position:
                return min(at, piece.end_position)
    return piece.end_position


def _base_offset(path: str) -> int:
    base_offset = base_offset_of(path.rpartition("/")[2])
    assert base_offset is not None, "a segment's file is named by it"
    return base_offset
