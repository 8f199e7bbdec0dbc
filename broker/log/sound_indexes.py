"""Work that reads indexes in workers, beside a log that goes on: indexes found corrupt are made anew.

Owns: who may make or move index files of sealed segments (one at a time), and what a reader does when the segments
change under it. Must not know what is looked for.

Invariants:
1. Each segment's indexes are made anew at most once in one piece of work: what is corrupt again is told. So is what is
   corrupt in the active segment, which has to be sealed first, by the loop.
2. No index is made anew of a segment that is on its way in or out.
"""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from broker.log.config import LogConfig
from broker.log.errors import IndexCorruptError
from broker.log.index_rebuild import rebuild_indexes
from broker.log.segments import Segments

T = TypeVar("T")


class SoundIndexes:
    """The indexes of one log's sealed segments, for workers. `segments` gives what the log consists of now."""

    __slots__ = ("_segments", "moving")

    def __init__(self, segments: Callable[[], Segments]) -> None:
        self._segments = segments
        self.moving = Lock()  # held while files of sealed segments are replaced or renamed

    def run(self, work: Callable[[], T], config: LogConfig) -> T:
        """Run what reads indexes and takes the segments anew each time. Raises what it raises.

        A file that is gone because its segment was removed meanwhile is no error: the work begins again.
        """
        rebuilt: set[int] = set()
        while True:
            seen = self._segments().snapshot
            try:
                return work()
            except IndexCorruptError as error:
                if self._segments().get(error.base_offset) not in seen:
                    continue  # it was of a segment that another one has taken the place of
                if error.base_offset in rebuilt or error.base_offset == self._segments().active.base_offset:
                    raise
                rebuilt.add(error.base_offset)
                self.rebuild(error.base_offset, config)
            except FileNotFoundError:
                if self._segments().snapshot is seen:
                    raise

    def rebuild(self, base_offset: int, config: LogConfig) -> None:
        """Make a sealed segment's indexes anew from its log. Raises OSError.

        Who reads the old ones meanwhile goes on. A batch that is damaged ends the new indexes there.
        """
        with self.moving:
            segment = self._segments().get(base_offset)
            if segment is not None and segment.next_base_offset is not None and not segment.extra_suffix:
                rebuild_indexes(segment, config)
