"""Read a split of a directory: pass on stored batches, and skip unwanted ones by their headers.

Invariants:
1. A batch that a handler rejects (wrong CRC, invalid records, invalid compressed data) counts as damaged, and so does
   one whose offsets contradict those of its neighbours.
2. Records outside the split's offsets are never passed on, regardless of the positions in the plan.
3. Damage is an error, or a logged warning that names file and position; never silent.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from warmlog.broker.log.io.directory_names import base_offset_of
from warmlog.inspect.errors import SegmentGoneError
from warmlog.inspect.log_file import WINDOW_BYTES, LogFile, Segment
from warmlog.inspect.lookup import may_hold, position_after_damage
from warmlog.inspect.partition import listed_segments, stored_topic_id
from warmlog.inspect.transactions import AbortedBatches
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.source.options import OnCorrupt
from warmlog.pipeline.source.order import BatchOrder, MisplacedBatchError
from warmlog.pipeline.source.planning import Piece, Split, located
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.arrow.columns import Wanted
from warmlog.protocol.records.batch import BatchHeader
from warmlog.protocol.records.record import MAX_INT64, MIN_INT64

_log = logging.getLogger(__name__)

TRIES = 5  # attempts to open a segment that was just listed

# Called with the file, the position of a batch in it, its header, and which of its records are wanted. Raises
# ProtocolError if the batch is damaged.
Handler = Callable[[LogFile, int, BatchHeader, Wanted], None]
# Called with a buffer and the position of a batch in it, whose CRC was checked.
BatchHandler = Callable[[memoryview, int, BatchHeader, Wanted], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRules:
    """Options for reading a split: timestamps (ms, bounds inclusive), and the handling of damage and loss.

    `committed_only`: for splits read from a broker; a split of a directory lists aborted transactions.
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
    """Counts of a split's read. `lost_offsets`: offsets deleted before they were read.

    `damaged_offsets`: runs of offsets (ends excluded) of damaged batches, up to the next whole one.
    """

    batches: int = 0
    bytes: int = 0
    skipped_batches: int = 0
    lost_offsets: int = 0
    damaged: list[Damage] = field(default_factory=list)
    damaged_offsets: list[tuple[int, int]] = field(default_factory=list)


class NotInDirectoryError(PipelineError):
    """The directory no longer has the records; the broker of the split may have them."""


class _Stopped(Exception):  # noqa: N818 - never leaves this module
    """A damaged batch under `onCorrupt=stop`."""


def lose(rules: ReadRules, tally: Tally, what: str, count: int) -> None:
    """Count and log lost offsets. Raises DataLossError unless the rules allow loss."""
    if rules.fail_on_data_loss:
        raise DataLossError(f"{what} (failOnDataLoss=false reads on without them)")
    tally.lost_offsets += count
    _log.warning("%s", what)


def deleted(first: int, end: int) -> str:
    """Describe offsets that were deleted."""
    return f"offsets {first} to {end - 1} were deleted before they were read"


def recreated(was: str | None, is_now: str | None) -> str:
    """Describe a topic that was recreated."""
    return f"the topic was deleted and created again (topic id {is_now}, before {was})"


def checked(handler: BatchHandler) -> Handler:
    """Return a handler that passes on complete batches with a valid CRC."""

    def handle(file: LogFile, position: int, header: BatchHeader, wanted: Wanted) -> None:
        buffer, start = file.batch(position, header)
        handler(buffer, start, header, wanted)

    return handle


class SplitReader:
    """Reads one split. Each step of `run` has passed one batch to the handler; `reached` is the next offset.

    `window_bytes`: bytes read at a time.
    """

    def __init__(
        self,
        split: Split,
        rules: ReadRules,
        handler: Handler,
        *,
        window_bytes: int = WINDOW_BYTES,
        tally: Tally | None = None,
    ) -> None:
        self._split = split
        self._rules = rules
        self._handler = handler
        self._window_bytes = window_bytes
        self._aborted = AbortedBatches(split.aborted)
        self._until: int | None = None  # base offset of the segment after the one that is read, if it is in the split
        self.reached = split.pieces[0].first_offset
        self._damaged_from: int | None = None  # offset at which damage began that has not ended
        self.tally = tally if tally is not None else Tally()

    def run(self) -> Iterator[None]:
        """Read to the end. Raises PipelineError, InspectError, OSError."""
        try:
            pieces = self._split.pieces
            for piece, after in zip(pieces, [*pieces[1:], None], strict=True):
                self._until = None if after is None or after.path == piece.path else _base_offset(after.path)
                yield from self._read_piece(piece, tries=TRIES)
            self._end_damage(pieces[-1].end_offset)
        except _Stopped:
            return

    def _read_piece(self, piece: Piece, *, tries: int) -> Iterator[None]:
        """Read by positions, or by offsets if the file was replaced."""
        try:
            file = LogFile(piece.path, window_bytes=min(self._window_bytes, max(piece.size, 1)))
        except FileNotFoundError:
            file = None
        if self._is_recreated(piece):  # checked after opening: the open file belongs to the old topic or is unlinked
            if file is not None:
                file.close()
            return
        if file is not None and file.identity == piece.identity:
            with file:
                yield from self._read_file(file, piece)
            return
        if file is not None:
            file.close()
        if not tries:
            raise PipelineError(f"{self._split.directory}: segments are replaced faster than they can be read")
        for other in self._relocated(piece):
            yield from self._read_piece(other, tries=tries - 1)

    def _relocated(self, piece: Piece) -> list[Piece]:
        """Locate the piece's records in the current segments."""
        segments = listed_segments(self._split.directory)
        first_kept = segments[0].base_offset if segments else piece.end_offset
        if first_kept > piece.first_offset:
            end = min(first_kept, piece.end_offset)
            self._lose(deleted(piece.first_offset, end), end - piece.first_offset)
        relocated = []
        ends = [*(segment.base_offset for segment in segments[1:]), MAX_INT64]
        for segment, end in zip(segments, ends, strict=False):
            first, last = max(piece.first_offset, segment.base_offset), min(piece.end_offset, end)
            if first < last:
                relocated.append(_still_there(segment, first, last, end))
        return relocated

    def _is_recreated(self, piece: Piece) -> bool:
        """Check whether the directory now belongs to another topic; report that as loss."""
        was = self._split.topic_id
        is_now = stored_topic_id(self._split.directory) if was is not None else None
        if is_now in {None, was}:
            return False
        self._lose(recreated(was, is_now), piece.end_offset - piece.first_offset)
        return True

    def _lose(self, what: str, count: int) -> None:
        what = f"{self._split.topic}-{self._split.partition}: {what}"
        if self._split.brokers is not None:
            raise NotInDirectoryError(what)
        lose(self._rules, self.tally, what, count)

    def _read_file(self, file: LogFile, piece: Piece) -> Iterator[None]:
        position, order = piece.position, BatchOrder(_base_offset(piece.path))
        while position < piece.end_position:
            try:
                header = file.header(position)
                after = file.header_after(position, header)
                order.check(header, self._until if after is None else after.base_offset)
                if header.base_offset >= piece.end_offset:
                    return
                passed = self._pass_on(file, position, header, piece)
            except MisplacedBatchError as error:
                self._count_damage(piece, position, error)
                position += header.size
                continue
            except ProtocolError as error:
                position = self._after_damage(file, piece, position, error)
                continue
            position += header.size
            self._end_damage(header.base_offset)
            self.reached = max(self.reached, min(header.next_offset, piece.end_offset))
            if passed:
                yield
            if header.next_offset >= piece.end_offset:
                return  # later batches were appended after planning, and may be incomplete

    def _pass_on(self, file: LogFile, position: int, header: BatchHeader, piece: Piece) -> bool:
        rules = self._rules
        if (
            header.is_control
            or header.next_offset <= piece.first_offset
            or not may_hold(header, rules.first_ms)
            or header in self._aborted
        ):
            self.tally.skipped_batches += 1
            return False
        wanted = Wanted(piece.first_offset, piece.end_offset - 1, rules.first_ms, rules.last_ms)
        self._handler(file, position, header, wanted)
        self.tally.batches += 1
        self.tally.bytes += header.size
        return True

    def _count_damage(self, piece: Piece, position: int, error: ProtocolError) -> Damage:
        """Count a damaged batch. Raises PipelineError or _Stopped, depending on the rules."""
        what = Damage(path=piece.path, position=position, reason=str(error))
        if self._rules.on_corrupt == "fail":
            raise PipelineError(f"{what} (onCorrupt=skip continues after it, onCorrupt=stop ends before it)") from error
        self.tally.damaged.append(what)
        if self._rules.on_corrupt == "stop":
            _log.warning("%s; stopped there", what)
            raise _Stopped
        if self._damaged_from is None:
            self._damaged_from = self.reached
        return what

    def _end_damage(self, offset: int) -> None:
        """Note the offsets of damaged batches before a whole one, or the end."""
        if self._damaged_from is not None and self._damaged_from < offset:
            self.tally.damaged_offsets.append((self._damaged_from, offset))
        self._damaged_from = None

    def _after_damage(self, file: LogFile, piece: Piece, position: int, error: ProtocolError) -> int:
        """Return the position after a damaged batch. Raises PipelineError or _Stopped, depending on the rules."""
        what = self._count_damage(piece, position, error)
        segment = Segment(
            path=piece.path, base_offset=_base_offset(piece.path), size=file.size, identity=piece.identity
        )
        following = position_after_damage(file, segment, position, piece.end_position)
        _log.warning("%s; continued at position %d", what, following)
        return following


def _still_there(segment: Segment, first: int, end: int, until: int) -> Piece:
    """Locate a piece of a segment; if that was removed, return a piece that fails to open and is located again."""
    try:
        return located(segment, first, end, readable_size=segment.size, until=until)
    except SegmentGoneError:
        return Piece(path=segment.path, identity=(0, 0), position=0, end_position=1, first_offset=first, end_offset=end)


def _base_offset(path: str) -> int:
    base_offset = base_offset_of(path.rpartition("/")[2])
    assert base_offset is not None, "a segment's file is named by it"
    return base_offset
