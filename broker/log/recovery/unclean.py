"""Recovery after an unclean stop: scan from the recovery point on, rebuild indexes, cut the log at the first bad byte.

The scan begins in the segment that holds the recovery point, at the last index entry below it. CRCs are verified and
both indexes are rebuilt. An index is kept up to the recovery point as long as it increases strictly and its last entry
matches the log. Segments after the first bad byte are removed. But if records below the recovery point would be
removed, nothing is changed: they were flushed, so files were damaged or lost, and may still be restored.

Source: org.apache.kafka.storage.internals.log.LogLoader.
"""

from collections.abc import Iterator
from contextlib import suppress

from warmlog.broker.log.directory.accepted_loss import how_to_accept
from warmlog.broker.log.errors import IndexCorruptError, MissingFilesError
from warmlog.broker.log.index.transaction import cut_aborted
from warmlog.broker.log.io.directory_names import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX
from warmlog.broker.log.producers.replay import NOTHING_SCANNED, Scanned
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.contiguity import Contiguity
from warmlog.broker.log.recovery.findings import Findings
from warmlog.broker.log.recovery.rebuild import Checked, Scan, check_from, cut_log, indexed_end, rewrite_indexes
from warmlog.broker.log.segments.log_scan import walk_readable
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import Tail
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.layout import BatchHeader


class UncleanRecovery:
    """Recovers the segments of one log. `segments` is kept up to date as segments are removed."""

    def __init__(
        self, context: LogContext, segments: list[Segment], contiguity: Contiguity, findings: Findings
    ) -> None:
        self._context = context
        self._disk = context.disk
        self._segments = segments
        self._contiguity = contiguity
        self._findings = findings

    def drop_uncommitted_roll(self) -> None:
        """Remove empty last segments that begin before the end of the segment before them. Raises OSError."""
        while len(self._segments) > 1 and not self._segments[-1].size:
            before, last = self._segments[-2:]
            if _end_of(before) <= last.base_offset:
                return
            self._remove(last)
            before.next_base_offset = None

    def recover(self, recovery_point: int, flushed: int) -> tuple[Segment, Scan]:
        """Scan from the recovery point to the end of the log or its first bad byte, and cut it there.

        Return the last segment that is left, and its scan. Raises OSError; MissingFilesError if the log would end
        before `flushed`, the offset up to which it was flushed, and then changes no log file.
        """
        first = max((i for i, s in enumerate(self._segments) if s.base_offset <= recovery_point), default=0)
        for segment in self._segments[first:]:
            checked = self._check(segment, recovery_point)
            scan = checked.scan
            if scan.reason is not None or segment is self._segments[-1]:
                refuse_lost_end(segment, scan.tail.next_offset, flushed, scan.reason)
                ends = (indexed_end(segment), indexed_end(self._segments[-1]))
                self._findings.known_end = max(self._findings.known_end, *ends)
            self._repair(segment, checked)
            if scan.reason is not None:
                self._truncate(segment, scan)
                break
        return segment, scan

    def start_over(self, log_start_offset: int) -> Tail:
        """Restart the log as one empty segment at a start offset past its end. Raises OSError.

        Every remaining record was already deleted, and none of the offsets in between is assigned a second time.
        Source: LogLoader.recoverLog.
        """
        findings = self._findings
        findings.truncated_at = self._segments[0].base_offset
        findings.reason = f"it ends before its start offset {log_start_offset}"
        findings.truncated_bytes += sum(segment.size for segment in self._segments)
        findings.removed += [segment.base_offset for segment in self._segments]
        findings.producers = NOTHING_SCANNED  # those segments are gone
        fresh, tail = self._context.start_over(self._segments, log_start_offset)
        self._segments[:] = [fresh]
        return tail

    def _check(self, segment: Segment, recovery_point: int) -> Checked:
        context = self._context
        checked = check_from(segment, recovery_point, lambda: context.new_tail(segment.base_offset), context.scanned)
        return checked._replace(scan=self._with_lost_end(checked.scan, segment))

    def _repair(self, segment: Segment, checked: Checked) -> None:
        scan, offsets, times, start = checked
        if segment is not self._segments[-1]:
            scan.time_entries.extend(scan.tail.last_time_entry())
        segment.close()
        cut_aborted(self._disk, segment.path(TRANSACTION_INDEX_SUFFIX), scan.tail.next_offset)
        differed, times_differed = rewrite_indexes(segment, scan, offsets, times)
        findings = self._findings
        segment.doubt_indexes()
        findings.rebuilt += [segment.base_offset] * differed
        findings.rebuilt_times += [segment.base_offset] * times_differed
        findings.scanned.append(segment.base_offset)
        findings.scanned_bytes += segment.size - scan.start
        findings.epochs += scan.epochs
        known = findings.producers
        findings.producers = Scanned(min(known.from_offset, start), [*known.trails, (segment, scan.trail)])

    def _with_lost_end(self, scan: Scan, segment: Segment) -> Scan:
        """Return the scan, with a reason to end the log there if the segment is known to have lost its end."""
        end, following = scan.tail.next_offset, segment.next_base_offset
        if scan.reason is not None or following is None or following <= end:
            return scan
        known = self._contiguity.offset()
        if known is None or following <= known:
            return scan
        return scan._replace(reason=f"it ends at offset {end}, but ended at {following} when the next segment began")

    def _truncate(self, segment: Segment, scan: Scan) -> None:
        """End the log where a scan ended: remove later segments, newest first, then cut the file."""
        findings, end = self._findings, scan.tail.next_offset
        later = [other for other in self._segments if other.base_offset > segment.base_offset]
        for other in reversed(later):
            self._remove(other)
        if later:
            self._disk.sync_directory(self._context.directory)
        findings.truncated_bytes += segment.size - scan.tail.size
        findings.truncated_at, findings.reason = end, scan.reason
        cut_log(segment, scan.tail.size)
        segment.reader.descriptor().sync()

    def _remove(self, segment: Segment) -> None:
        self._findings.truncated_bytes += segment.size
        self._findings.removed.append(segment.base_offset)
        segment.remove_files()
        self._segments.remove(segment)


def refuse_lost_end(segment: Segment, end: int, flushed: int, reason: str | None = None) -> None:
    """Raise MissingFilesError if a log whose last segment ends at `end` has lost records that were flushed."""
    if end < flushed:
        segment.close()
        why = "" if reason is None else f" ({reason})"
        raise MissingFilesError(
            f"{segment.path(LOG_SUFFIX)} was cut or damaged: the log ends at offset {end}{why}, but had flushed its"
            f" records up to {flushed - 1}: {how_to_accept(segment.directory)}"
        )


def walk_end(segment: Segment) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the sound batches from a segment's last index entry on. Raises OSError."""
    start = 0
    with suppress(IndexCorruptError, ProtocolError):
        start = segment.checked_offset_index().last().position
    yield from walk_readable(segment.reader.descriptor(), start, segment.size)
    segment.close()


def _end_of(segment: Segment) -> int:
    """Return the offset after a segment's last sound batch."""
    end = segment.base_offset
    for _, header in walk_end(segment):
        end = header.next_offset
    return end
