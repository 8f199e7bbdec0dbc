"""Making a log durable. Owns what a sync covers and the order of its steps; must not know who asked for it, or when.

The indexes of the active segment are left out: after a crash they are checked against the log and made anew where they
are not sound, so syncing them would only make every flush wait three times. A sealed segment's are synced with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.log.disk import Disk
from broker.log.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    """What `PartitionLog.begin_flush` wants synced: everything below `offset`.

    `sync` is for a worker; `finish_flush` then tells the log. `generation` is the log's count of truncations: what was
    cut off and written anew meanwhile is not covered.
    """

    offset: int
    appended_bytes: int
    generation: int
    sealed: Sequence[Segment]
    active: Segment
    new_directory_entries: bool
    directory: str
    disk: Disk

    def sync(self) -> None:
        """Wait for the disk. Raises OSError: then `PartitionLog.fail` must be told, and no file synced again."""
        for segment in self.sealed:
            if not segment.synced:
                segment.sync(indexes=True)
                segment.synced = True
        self.active.sync(indexes=False)
        if self.new_directory_entries:
            self.disk.sync_directory(self.directory)
