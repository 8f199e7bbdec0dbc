"""Read indexes in worker threads while the log is in use, and rebuild those that are corrupt.

Index files of sealed segments are rebuilt or moved by one thread at a time.

Invariants:
1. An operation rebuilds the indexes of a segment at most once; a second corruption is raised. So is corruption in the
   active segment, which the event loop has to seal first.
2. Indexes of a segment that is being added or removed are not rebuilt.
"""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.recovery.rebuild import rebuild_indexes
from warmlog.broker.log.segments.segment_map import Segments

T = TypeVar("T")


class IndexRepair:
    """Repairs the indexes of one log's sealed segments. `segments` returns the log's current segments."""

    __slots__ = ("_segments", "moving")

    def __init__(self, segments: Callable[[], Segments]) -> None:
        self._segments = segments
        self.moving = Lock()  # held while files of sealed segments are replaced or renamed

    def run(self, work: Callable[[], T], config: LogConfig) -> T:
        """Run `work`, rebuilding corrupt indexes that it finds; return its result. Raises what `work` raises.

        `work` must fetch the segments on each call: it is repeated after a repair, and after a segment that it was
        reading has been removed.
        """
        rebuilt: set[int] = set()
        while True:
            seen = self._segments().snapshot
            try:
                return work()
            except IndexCorruptError as error:
                if self._segments().get(error.base_offset) not in seen:
                    continue  # the segment was replaced in the meantime
                if error.base_offset in rebuilt or error.base_offset == self._segments().active.base_offset:
                    raise
                rebuilt.add(error.base_offset)
                self.rebuild(error.base_offset, config)
            except FileNotFoundError:
                if self._segments().snapshot is seen:
                    raise

    def rebuild(self, base_offset: int, config: LogConfig) -> None:
        """Rebuild a sealed segment's indexes from its log, up to the first damaged batch. Raises OSError.

        Readers of the old files are not disturbed.
        """
        with self.moving:
            segment = self._segments().get(base_offset)
            if segment is not None and segment.next_base_offset is not None and not segment.extra_suffix:
                rebuild_indexes(segment, config)
