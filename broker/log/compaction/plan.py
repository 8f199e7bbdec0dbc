"""Compaction as a log sees it: what of it may be cleaned, the job for a child process, and the swap of what that made.

Owns: the way between a log's segments and the facts that `compaction` works on. Must not know processes, or which log's
turn it is. Steps are for the loop but for those marked "for a worker"; one run over a log at a time, and nothing else
that removes segments of it meanwhile.
"""

from collections.abc import Callable, Sequence

from broker.log.compaction.cleanable import Cleanable, find_cleanable
from broker.log.compaction.run import CleanedGroup, CleanerLimits, CompactionJob, SourceSegment
from broker.log.config import LogConfig
from broker.log.errors import LogError
from broker.log.log_view import LogView
from broker.log.producers.state import ProducerState
from broker.log.producers.table import CapturedProducers
from broker.log.recovery.index_repair import IndexRepair
from broker.log.recovery.swap import Swap
from broker.log.segment import Segment


class SegmentsChangedError(LogError):
    """The segments that were cleaned are not the log's any more."""


class Cleaning:
    """One log's face to compaction; `view` gives the log as it is now."""

    __slots__ = ("_indexes", "_view")

    def __init__(self, view: Callable[[], LogView], indexes: IndexRepair) -> None:
        self._view = view
        self._indexes = indexes

    def find(self, checkpoint: int | None) -> Cleanable:
        """What may be cleaned now; `checkpoint`: up to where it was. For a worker.

        Raises IndexCorruptError, ProtocolError, OSError.
        """
        return self._indexes.run(lambda: self._find(checkpoint), self._view().place.config)

    def _find(self, checkpoint: int | None) -> Cleanable:
        view = self._view()
        config, now_ms = view.place.config, view.place.clock()
        return find_cleanable(view.segments.snapshot, config, view.bounds, checkpoint=checkpoint, now_ms=now_ms)

    def job(self, cleanable: Cleanable, producers: CapturedProducers, limits: CleanerLimits) -> CompactionJob:
        """Return what a child process is to do; the last batches of these producers stay. For a worker.

        Gaps may come where it works. Raises IndexCorruptError, OSError.
        """
        self._view().contiguity.exclude(cleanable.first_uncleanable_offset)
        return self._indexes.run(lambda: self._job(cleanable, list(producers), limits), self._view().place.config)

    def _job(self, cleanable: Cleanable, producers: Sequence[ProducerState], limits: CleanerLimits) -> CompactionJob:
        view = self._view()
        end = cleanable.first_uncleanable_offset
        segments = [
            segment
            for segment in view.segments.snapshot
            if segment.next_base_offset is not None and segment.next_base_offset <= end
        ]
        config: LogConfig = view.place.config
        with_data = [state.batches[-1].last_offset for state in producers if state.batches]
        return CompactionJob(
            directory=view.place.directory,
            segments=tuple(_source(segment) for segment in segments),
            later_bases=tuple(segment.base_offset for segment in view.segments.snapshot[len(segments) :]),
            first_dirty_offset=cleanable.first_dirty_offset,
            end_offset=end,
            now_ms=view.place.clock(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            last_offsets=tuple(with_data),
            marker_epochs={state.producer_id: state.epoch for state in producers if not state.batches},
            limits=limits,
        )

    # -- the swap ------------------------------------------------------------------------------------------------------

    def plan_swap(self, group: CleanedGroup) -> Swap:
        """The swap for a group that was cleaned. Raises SegmentsChangedError."""
        view = self._view()
        old = [view.segments.get(base) for base in group.sources]
        whole = [segment for segment in old if segment is not None and segment.next_base_offset is not None]
        if len(whole) != len(group.sources):
            raise SegmentsChangedError(f"segments {group.sources} were cleaned, which are not all there any more")
        new = view.place.segment(group.base_offset, group.size, whole[-1].end_of_offsets)
        return Swap(disk=view.place.disk, new=new, old=whole)

    def prepare_swap(self, swap: Swap) -> None:
        """Rename the new files so that a start would take them. For a worker. Raises OSError."""
        with self._indexes.moving:
            swap.prepare()

    def commit_swap(self, swap: Swap) -> None:
        """Read the new segment from now on."""
        swap.commit(self._view().segments)

    def finish_swap(self, swap: Swap) -> list[str]:
        """Rename the old files, and give the new ones their own names; gives what is to be unlinked. For a worker.

        Raises OSError: then the log goes on as it is, but must not be cleaned again before it is opened anew.
        """
        with self._indexes.moving:
            return swap.finish()

    def end_swap(self, swap: Swap) -> None:
        """Use the new segment's own names."""
        swap.end(self._view().segments)


def _source(segment: Segment) -> SourceSegment:
    return SourceSegment(
        base_offset=segment.base_offset,
        next_base_offset=segment.end_of_offsets,
        size=segment.size,
        index_bytes=segment.offset_index.file_size(),
        time_index_bytes=segment.time_index.file_size(),
    )
